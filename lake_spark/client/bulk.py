"""Many catalogs read together: each row group of a segment once, single objects side by side, in bounded memory."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow.compute as pc

from lake_spark import tally
from lake_spark.client import reading
from lake_spark.client.reading import Body, Document
from lake_spark.client.segments import segment_reader
from lake_spark.client.session import Session
from lake_spark.errors import (
    CatalogNotFound,
    CorruptObject,
    InvalidBody,
    LakeError,
    MergeError,
    ObjectMissing,
    StorageFailure,
)
from lake_spark.merge import Fold, loads_each
from lake_spark.model import Delta, Listing, Run, Snapshot, TsSeq
from lake_spark.segment import SegmentPart, SegmentReader

# Nobody knows the size of an object before it is loaded: so many of them fill a group.
_OBJECTS = 256


class Merged(NamedTuple):
    """A catalog's document and what it took to merge it; or no body, and why."""

    listing: Listing
    body: bytes | None
    replayed: int
    replayed_bytes: int
    error: LakeError | None = None


@dataclass(frozen=True, slots=True)
class BulkReader:
    """Reads catalogs by the hundred; bodies of about `budget` bytes are in memory at a time, or one document."""

    session: Session
    budget: int

    def documents(self, listings: Iterable[Listing]) -> Iterator[Merged]:
        """The merged document of each listing, or what kept it from being merged."""
        for group in self._groups(listings, parsed=True):
            # Parsed JSON has no cycles, and looking for them takes longer than all the merging.
            with _without_gc():
                group.load()
                found = [self._document(listing, group) for listing in group.listings]
                group.forget()
            tally.count(catalogs=len(found), deltas=sum(each.replayed for each in found if each is not None))
            yield from (each for each in found if each is not None)

    def deltas(self, listings: Iterable[Listing]) -> Iterator[tuple[Listing, Iterator[Body]]]:
        """TsSeq, type, path and body of every delta of each listing."""
        for group in self._groups(listings, parsed=False):
            group.load()
            tally.count(catalogs=len(group.listings), deltas=sum(map(_count, group.listings)))
            for listing in group.listings:
                yield listing, self._bodies(listing, group)

    def _groups(self, listings: Iterable[Listing], *, parsed: bool) -> Iterator[_Group]:
        group = _Group(self.session, self.budget // 2, parsed)
        for listing in listings:
            group.add(listing)
            if group.size >= group.budget:
                yield group
                group = _Group(self.session, self.budget // 2, parsed)
        if group.listings:
            yield group

    def _document(self, listing: Listing, group: _Group) -> Merged | None:
        try:
            try:
                document = _merged(listing, group)
            except (_NotLoaded, ObjectMissing):
                # Too big for a group, or not there: history may have been cleared since, and then another listing
                # as of the same cut does without it.
                document = reading.read(self.session, listing, "error")
            return Merged(document.listing, reading.dump(document), document.replayed, document.replayed_bytes)
        except (MergeError, CorruptObject) as error:
            return Merged(listing, None, len(listing.entries), 0, error)
        except CatalogNotFound:
            # Its last delta was removed since it was listed.
            return None

    def _bodies(self, listing: Listing, group: _Group) -> Iterator[Body]:
        for entry in listing.entries:
            try:
                if isinstance(entry, Run):
                    for place, (merge_type, path, body) in enumerate(group.rows(entry.segment, entry.row).deltas):
                        yield entry.sequence(place), merge_type, path, body
                else:
                    yield entry.ts_seq, entry.known_type, entry.known_path, group.object(listing.catalog, entry.ts_seq)
            except _NotLoaded:
                yield from reading.deltas(self.session, listing.catalog, [entry])


def _count(listing: Listing) -> int:
    return sum(entry.count for entry in listing.entries)


def _merged(listing: Listing, group: _Group) -> Document:
    """The fold of what was loaded."""
    snapshot, entries = reading.needed(listing)
    base = None
    if snapshot is not None:
        in_segment = snapshot.segment and group.rows(snapshot.segment, snapshot.row).deltas[0][2]
        base = in_segment or group.object(listing.catalog, snapshot.stop)
    fold = Fold(base)
    replayed = size = 0
    try:
        for entry in entries:
            if isinstance(entry, Run):
                rows = group.rows(entry.segment, entry.row)
                fold.apply_values(rows.deltas, rows.longest, entry.sequence)
                replayed += entry.count
                size += rows.size
            else:
                body = group.object(listing.catalog, entry.ts_seq)
                fold.apply(entry.known_type, entry.known_path, body, entry.ts_seq)
                replayed += 1
                size += len(body)
    except MergeError as error:
        raise reading.unmergeable(listing.catalog, error) from None
    return Document(listing, fold, replayed, size)


class _NotLoaded(Exception):
    """The long way has to be taken: what is wrong, if anything is, shows there."""


class _Rows(NamedTuple):
    """Rows of a segment: type, path and body of each; the bytes of all bodies, and of the longest."""

    deltas: list[tuple[int, str, Any]]
    size: int
    longest: int


class _Group:
    """Catalogs whose bodies are loaded together. `parsed`: the bodies of rows as values, not as bytes."""

    def __init__(self, session: Session, budget: int, parsed: bool) -> None:
        self.session = session
        self.budget = budget
        self.parsed = parsed
        self.listings: list[Listing] = []
        self.size = 0
        self._row_groups: set[tuple[str, int]] = set()
        self._readers: dict[str, SegmentReader] = {}
        self._spans: dict[str, list[tuple[int, int, str]]] = {}
        self._wanted: list[tuple[str, Delta | Snapshot]] = []
        self._rows: dict[tuple[str, int], _Rows] = {}
        self._objects: dict[tuple[str, TsSeq], bytes | LakeError] = {}

    def add(self, listing: Listing) -> None:
        """Take the catalog in; what it needs is loaded with the rest, unless it alone is too much."""
        self.listings.append(listing)
        snapshot, entries = reading.needed(listing) if self.parsed else (None, listing.entries)
        spans = [(entry.segment, entry.row, entry.count) for entry in entries if isinstance(entry, Run)]
        objects: list[Delta | Snapshot] = [entry for entry in entries if isinstance(entry, Delta)]
        if snapshot is not None and snapshot.segment:
            spans.append((snapshot.segment, snapshot.row, 1))
        elif snapshot is not None:
            objects.append(snapshot)
        more: dict[tuple[str, int], int] = {}
        try:
            for segment, row, count in spans:
                for number, size in self._reader(segment).groups_of(row, count):
                    if (segment, number) not in self._row_groups:
                        more[segment, number] = size
        except (CorruptObject, StorageFailure):
            return
        size = sum(more.values()) + len(objects) * self.budget // _OBJECTS
        if size > self.budget:
            return
        self.size += size
        self._row_groups.update(more)
        self._wanted += [(listing.catalog, each) for each in objects]
        for segment, row, count in spans:
            self._spans.setdefault(segment, []).append((row, count, listing.catalog))

    def load(self) -> None:
        """Load what the catalogs need. Trouble is kept for the catalogs that it concerns."""
        for (catalog, each), body in zip(self._wanted, self.session.each(self._load_object, self._wanted), strict=True):
            self._objects[catalog, each.last] = body
        for segment, spans in self._spans.items():
            # Whatever is damaged or gone is met again when the catalogs that need it are read one by one.
            with contextlib.suppress(CorruptObject, InvalidBody, StorageFailure):
                self._load_segment(segment, sorted(spans))

    def forget(self) -> None:
        """Let go of what was loaded."""
        self._rows.clear()
        self._objects.clear()

    def rows(self, segment: str, row: int) -> _Rows:
        try:
            return self._rows[segment, row]
        except KeyError:
            raise _NotLoaded from None

    def object(self, catalog: str, ts_seq: TsSeq) -> bytes:
        """The body of a delta, or of the snapshot that stops there."""
        found = self._objects.get((catalog, ts_seq))
        if found is None:
            raise _NotLoaded
        if isinstance(found, LakeError):
            raise found
        return found

    def _reader(self, segment: str) -> SegmentReader:
        reader = self._readers.get(segment)
        if reader is None:
            reader = self._readers[segment] = segment_reader(self.session, segment)
        return reader

    def _load_object(self, wanted: tuple[str, Delta | Snapshot]) -> bytes | LakeError:
        catalog, each = wanted
        try:
            if isinstance(each, Snapshot):
                return reading.load_snapshot(self.session, catalog, each)
            return reading.load_delta(self.session, catalog, each)
        except LakeError as error:
            return error

    def _load_segment(self, segment: str, spans: Sequence[tuple[int, int, str]]) -> None:
        reader = self._reader(segment)
        parsed = self.parsed and reader.kind == "deltas"
        for part in reader.parts(spans):
            for (number, _), rows in zip(part.pieces, _rows_of(part, parsed), strict=True):
                row = spans[number][0]
                known = self._rows.get((segment, row))
                self._rows[segment, row] = rows if known is None else _both(known, rows)


def _rows_of(part: SegmentPart, parsed: bool) -> Iterator[_Rows]:
    """The rows of each piece."""
    bodies: list[Any] = loads_each(part.bodies) if parsed else part.bodies.to_pylist()
    deltas = list(zip(part.merge_types, part.paths, bodies, strict=True))
    lengths: Any = pc.binary_length(part.bodies)
    longest, average = pc.max(lengths).as_py() or 0, part.bodies.nbytes / max(1, len(deltas))
    at = 0
    for _, count in part.pieces:
        yield _Rows(deltas[at : at + count], round(count * average), longest)
        at += count


def _both(first: _Rows, second: _Rows) -> _Rows:
    """A run that goes on in the next row group."""
    return _Rows(first.deltas + second.deltas, first.size + second.size, max(first.longest, second.longest))


@contextlib.contextmanager
def _without_gc() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
