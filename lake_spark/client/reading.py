"""The read: list, load, merge, and save a snapshot for those who come after."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from lake_spark.client.session import Session
from lake_spark.errors import CatalogNotFound, CorruptObject, LakeError, MergeError, ObjectExists, ObjectMissing
from lake_spark.index import SnapshotClaim, abort_if_expired, digest_of
from lake_spark.merge import Fold
from lake_spark.model import ZERO, Delta, Listing, Run, Snapshot, TsSeq
from lake_spark.names import delta_key, segment_key, snapshot_key
from lake_spark.segment import SegmentReader, SegmentRow
from lake_spark.trace import span

log = logging.getLogger("lake_spark")

# Single bodies that are loaded together, and rows of a run: memory is bounded by these many.
_WINDOW = 256
_ROWS = 4096
_AUTO_DELTAS = 16
_RELISTINGS = 5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5


@dataclass(frozen=True, slots=True)
class Document:
    """A merged document, and what it took to merge it."""

    listing: Listing
    fold: Fold
    replayed: int
    replayed_bytes: int


def list_catalog(
    session: Session, catalog: str, *, strict_pending: bool = False, as_of: TsSeq | None = None
) -> Listing:
    """A view of the catalog's log. A transaction in its way whose writer is gone is given up first."""
    with span("List", catalog=catalog) as step:
        listing = session.index.listing(catalog, strict_pending=strict_pending, as_of=as_of)
        abandoned = [abort_if_expired(session.index, txn) == 0.0 for txn in {p.txn for p in listing.pendings if p.txn}]
        if any(abandoned):
            listing = session.index.listing(catalog, strict_pending=strict_pending, as_of=as_of)
        step.set(version=listing.version, entries=len(listing.entries))
    return listing


def settled(session: Session, listing: Listing, pending: str) -> Listing:
    """The listing if it can be read, after waiting for open writes where that was asked for."""
    if pending == "prefix" and listing.has_pending:
        return listing
    if pending == "wait" and listing.has_pending:
        deadline = time.monotonic() + session.options.pending_wait
        pause = _FIRST_PAUSE
        while listing.has_pending and time.monotonic() < deadline:
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(2 * pause, _LONGEST_PAUSE)
            listing = _again(session, listing)
    if listing.error:
        raise listing.error
    return listing


def _again(session: Session, listing: Listing) -> Listing:
    return list_catalog(session, listing.catalog, strict_pending=listing.strict_pending, as_of=listing.as_of)


def read(session: Session, listing: Listing, pending: str) -> Document:
    """The merged document of a listing."""
    listing = settled(session, listing, pending)
    for _ in range(_RELISTINGS):
        if not listing.exists:
            raise CatalogNotFound(f"there is no catalog {listing.catalog!r}")
        try:
            document = merge(session, listing)
        except ObjectMissing as error:
            # History may have been cleared since the listing: then a newer one does without this object.
            missing, before = error, listing
            listing = settled(session, _again(session, listing), pending)
            if listing == before:
                break
        else:
            return document
    raise CorruptObject(f"catalog {listing.catalog!r} cannot be read, the index names what is not stored: {missing}")


def merge(session: Session, listing: Listing, rows: Rows | None = None) -> Document:
    """The fold of the listing's snapshot and entries, from the last Replace of the whole document on.

    `rows` are those of runs that were read before, together with the runs of other catalogs.
    """
    entries = listing.entries
    start = next((n for n in range(len(entries) - 1, -1, -1) if _replaces(entries[n])), None)
    base = None
    if start is None and listing.snapshot:
        with span("LoadSnapshot", stop=listing.snapshot.stop):
            base = load_snapshot(session, listing.catalog, listing.snapshot)
    fold = Fold(base)
    replayed = replayed_bytes = 0
    try:
        with span("LoadDeltas") as step:
            for ts_seq, merge_type, path, body in deltas(session, listing.catalog, entries[start or 0 :], rows):
                fold.apply(merge_type, path, body, ts_seq)
                replayed += 1
                replayed_bytes += len(body)
            step.set(deltas=replayed, bytes=replayed_bytes)
    except MergeError as error:
        raise _unmergeable(listing.catalog, error) from None
    return Document(listing, fold, replayed, replayed_bytes)


def dump(document: Document) -> bytes:
    """The document as JSON."""
    try:
        with span("Merge"):
            return document.fold.dump()
    except MergeError as error:
        raise _unmergeable(document.listing.catalog, error) from None


def _unmergeable(catalog: str, error: MergeError) -> MergeError:
    return MergeError(f"catalog {catalog!r} cannot be merged at {error}; remove_delta takes a delta out of the log")


def _replaces(entry: Delta | Run) -> bool:
    return isinstance(entry, Delta) and entry.is_root_replace


_Body = tuple[TsSeq, int, str, bytes]
Rows = Mapping[Run, Sequence[SegmentRow]]


def deltas(session: Session, catalog: str, entries: Sequence[Delta | Run], rows: Rows | None = None) -> Iterator[_Body]:
    """Type, path and body of every delta, in order, a window of them in memory."""
    rest = iter(entries)
    while window := list(islice(rest, _WINDOW)):
        singles = iter(session.each(partial(_load, session, catalog), [e for e in window if isinstance(e, Delta)]))
        for entry in window:
            if isinstance(entry, Run):
                yield from _rows(session, catalog, entry, rows or {})
            else:
                yield next(singles)


def _load(session: Session, catalog: str, delta: Delta) -> _Body:
    assert delta.merge_type is not None
    assert delta.path is not None
    key = delta_key(catalog, delta.ts_seq, delta.merge_type)
    body = session.deltas.load(key, lambda: session.codec.decode(key, session.storage.get(key)))
    return delta.ts_seq, delta.merge_type, delta.path, body


def _rows(session: Session, catalog: str, run: Run, known: Rows) -> Iterator[_Body]:
    seconds, seq = run.first
    parts: Iterable[Sequence[SegmentRow]] = (known[run],) if run in known else _parts(session, catalog, run)
    for part in parts:
        for row in part:
            yield TsSeq(seconds, seq), row.merge_type, row.path, row.body
            seq += 1


def _parts(session: Session, catalog: str, run: Run) -> Iterator[Sequence[SegmentRow]]:
    spans = [(run.row + at, min(_ROWS, run.count - at), catalog) for at in range(0, run.count, _ROWS)]
    return segment_reader(session, run.segment).read_many(spans)


def rows_of(session: Session, listings: Iterable[Listing]) -> dict[Run, Sequence[SegmentRow]]:
    """The rows of every run of these listings, with each row group of each segment read once."""
    wanted: dict[str, list[tuple[Run, str]]] = {}
    for listing in listings:
        for entry in listing.entries:
            if isinstance(entry, Run):
                wanted.setdefault(entry.segment, []).append((entry, listing.catalog))
    found: dict[Run, Sequence[SegmentRow]] = {}
    for segment, runs in wanted.items():
        runs.sort(key=lambda each: each[0].row)
        spans = [(run.row, run.count, catalog) for run, catalog in runs]
        for (run, _), rows in zip(runs, segment_reader(session, segment).read_many(spans), strict=True):
            found[run] = rows
    return found


def segment_reader(session: Session, name: str) -> SegmentReader:
    """A reader of one segment; what it fetches stays in the delta cache."""
    key = segment_key(name)

    def fetch(start: int, length: int | None) -> bytes:
        return session.deltas.load(
            f"{key}@{start}+{length}", lambda: session.storage.get(key, start=start, length=length)
        )

    def unseal(row: int, body: bytes) -> bytes:
        return session.codec.decode(f"{key}#{row}", body)

    return SegmentReader(fetch, name, unseal=unseal if session.codec.encrypts else None)


def load_snapshot(session: Session, catalog: str, snapshot: Snapshot) -> bytes:
    """The document at a snapshot's stop."""
    if snapshot.segment:
        return segment_reader(session, snapshot.segment).read(snapshot.row, 1, catalog)[0].body
    key = snapshot_key(catalog, snapshot)
    return session.codec.decode(key, session.snapshots.load(key, lambda: session.storage.get(key)))


def wants_snapshot(session: Session, document: Document, size: int) -> bool:
    """Whether the next reader would thank us for a snapshot."""
    if session.options.snapshot == "never" or not document.listing.entries or document.listing.as_of:
        return False
    if session.options.snapshot == "always":
        return True
    # A snapshot of a document that is one delta would be that delta again.
    lone = document.replayed == 1 and document.listing.snapshot is None
    return document.replayed >= _AUTO_DELTAS or (document.replayed_bytes > size / 4 and not lone)


def save_snapshot(session: Session, listing: Listing, body: bytes) -> str:
    """Store and register a snapshot of what was read; `lua/snapshot.lua` says what the reply means."""
    before = listing.snapshot
    digest = digest_of(before, listing.members)
    snapshot = Snapshot(before.stop if before else ZERO, listing.version, digest)
    key = snapshot_key(listing.catalog, snapshot)
    data = session.codec.encode(key, body)
    # Another reader of the same log may be faster: the digest says that it is the same document.
    with contextlib.suppress(ObjectExists):
        session.storage.put(key, data, if_absent=True)
    reply = session.index.snapshot([SnapshotClaim(listing.catalog, snapshot, digest)])[0]
    if reply in ("added", "known"):
        session.snapshots.cache.put(key, data)
    elif reply in ("stale", "changed"):
        # The log only moves on: nobody can ever register this one.
        session.storage.delete(key)
    return reply


def save_snapshot_later(session: Session, document: Document, body: bytes) -> None:
    """Save a snapshot off the read's path, if one is wanted; that it fails is nobody's trouble but the log's."""

    def work() -> None:
        try:
            reply = save_snapshot(session, document.listing, body)
            log.debug("snapshot of %r at %s: %s", document.listing.catalog, document.listing.version, reply)
        except LakeError as error:
            log.warning("a snapshot of %r was not saved: %s", document.listing.catalog, error)

    if wants_snapshot(session, document, len(body)):
        session.later(work)
