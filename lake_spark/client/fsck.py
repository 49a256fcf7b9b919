"""fsck: the index against the objects. Every entry has its body, and every object its entry."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from lake_spark.client.bulk import BulkReader
from lake_spark.client.orphans import Segments, orphans
from lake_spark.client.problems import Abort, DropSnapshot, Fence, Forget, Problem
from lake_spark.client.segments import segment_reader
from lake_spark.client.session import Session
from lake_spark.errors import CorruptObject, LakeError, MergeError, ObjectMissing
from lake_spark.index.inspect import open_writes
from lake_spark.index.members import parse_entry, parse_snapshot
from lake_spark.index.repair import Log, logs_of, remove_snapshot, transaction_states
from lake_spark.model import Delta, Run, Snapshot
from lake_spark.names import SHARDS, delta_key, file_key, segment_key, snapshot_key

T = TypeVar("T")

DAY = 24 * 3600.0
# Catalogs that are looked at together, and bytes of bodies in memory, about.
_CATALOGS = 512
_BUDGET = 16 << 20


@dataclass(slots=True)
class Figures:
    """What was looked at: kept up to date while a check runs."""

    catalogs: int = 0
    deltas: int = 0
    runs: int = 0
    snapshots: int = 0
    files: int = 0
    objects: int = 0
    bytes: int = 0
    open_writes: int = 0
    transactions_in_flight: int = 0
    # Invisible, and vacuum's to remove.
    transactions_aborted: int = 0
    runs_aborted: int = 0


@dataclass(frozen=True, slots=True)
class Fsck:
    """A check of a whole lake, in memory bounded by a shard's names and the lake's segments.

    `deep` loads every body and merges every document. Objects younger than `min_age` seconds are nobody's orphans:
    their writers may still be at work.
    """

    session: Session
    deep: bool = False
    min_age: float = DAY
    figures: Figures = field(default_factory=Figures)

    def problems(self, advance: Callable[[int], None] = lambda _: None) -> Iterator[Problem]:
        """Every problem, as it is found; `advance` hears of catalogs."""
        # Never below what a writer may take.
        age = max(self.min_age, 2 * self.session.options.pending_timeout)
        # Before the logs: what is published behind our back belongs to a transaction that is live now.
        segments = Segments.stored(self.session, age)
        yield from self._transactions()
        for shard in SHARDS:
            yield from self._open_writes(shard)
            names = iter(sorted(self.session.index.catalogs("", [shard])))
            while some := list(islice(names, _CATALOGS)):
                yield from self._catalogs(some, segments)
                advance(len(some))
        yield from segments.orphans()
        yield from orphans(self.session, age, self.figures)

    def _transactions(self) -> Iterator[Problem]:
        index = self.session.index
        inflight = sorted(index.inflight())
        self.figures.transactions_in_flight = len(inflight)
        self.figures.transactions_aborted = len(index.aborted())
        for txn, state in transaction_states(index, inflight).items():
            # One that was decided since it was listed is nobody's problem.
            if state is None or state.expired:
                yield Problem(
                    "transaction.expired",
                    "warning",
                    f"transaction {txn}",
                    "its writer is gone: its lease ran out while it was being published",
                    "give it up (--repair): nothing of it becomes visible, and readers no longer wait for it",
                    Abort(txn),
                )

    def _open_writes(self, shard: str) -> Iterator[Problem]:
        [found] = open_writes(self.session.index, [shard])
        for write in found:
            self.figures.open_writes += write.txn is None
            expired = write.age is None or write.age >= self.session.options.pending_timeout
            if write.catalog is not None and expired:
                yield Problem(
                    "write.expired",
                    "warning",
                    f"catalog {write.catalog!r} at {write.ts_seq}",
                    "a write was opened and never finished: its writer is gone, or was taken for gone",
                    "fence it (--repair): it can never appear then, and nobody waits for it",
                    Fence(write.catalog, write.ts_seq),
                )

    def _catalogs(self, names: Sequence[str], segments: Segments) -> Iterator[Problem]:
        session = self.session
        logs = [_parsed(log) for log in logs_of(session.index, names)]
        # After the logs: a run that was seen in one may have been published since these were asked for before.
        aborted, inflight = session.index.aborted(), session.index.inflight()
        for log in logs:
            segments.used(entry.segment for entry in (*log.entries, *log.snapshots) if not isinstance(entry, Delta))
            self.figures.runs_aborted += sum(isinstance(e, Run) and e.txn in aborted for e in log.entries)
            log.hide(aborted | inflight)
            self._count(log)
        broken = self._broken(logs)
        reported = set()
        for log in logs:
            for problem in self._log_problems(log, broken):
                reported.add(log.catalog)
                yield problem
        if self.deep:
            yield from self._documents([log.catalog for log in logs if log.catalog not in reported])
        yield from self._files(names)

    def _count(self, log: _Parsed) -> None:
        figures = self.figures
        figures.catalogs += bool(log.entries or log.snapshots)
        figures.runs += sum(isinstance(entry, Run) for entry in log.entries)
        figures.deltas += sum(entry.count for entry in log.entries)
        figures.snapshots += len(log.snapshots)

    def _broken(self, logs: Sequence[_Parsed]) -> dict[tuple[str, Entry], LakeError]:
        """The entries whose bodies are missing or damaged, each with the reason; asked again before it is said."""
        wanted: list[tuple[str, Entry]] = [(log.catalog, e) for log in logs for e in (*log.entries, *log.snapshots)]
        objects = [(catalog, e) for catalog, e in wanted if not (isinstance(e, Run) or _in_segment(e))]
        found: dict[tuple[str, Entry], LakeError | None] = dict(
            zip(objects, self.session.each(self._object, objects), strict=True)
        )
        in_segments: dict[str, list[tuple[str, Entry]]] = {}
        for catalog, entry in wanted:
            if isinstance(entry, Run) or _in_segment(entry):
                in_segments.setdefault(str(entry.segment), []).append((catalog, entry))
        for name, entries in in_segments.items():
            found.update(self._segment(name, entries))
        broken = {place: error for place, error in found.items() if error is not None}
        # History may have been cleared since the logs were read: what is no longer named is not missed.
        again = {log.catalog: _parsed(log) for log in logs_of(self.session.index, sorted({name for name, _ in broken}))}
        return {
            (name, entry): error
            for (name, entry), error in broken.items()
            if entry in again[name].entries or entry in again[name].snapshots
        }

    def _object(self, wanted: tuple[str, Entry]) -> LakeError | None:
        catalog, entry = wanted
        key = _key(catalog, entry)
        try:
            if self.deep:
                # Past the caches: it is the stored bytes that are checked.
                self.session.codec.decode(key, self.session.storage.get(key))
            elif not self.session.storage.exists(key):
                raise ObjectMissing(f"object {key} is not stored")
        except (CorruptObject, ObjectMissing) as error:
            return error
        return None

    def _segment(self, name: str, entries: Sequence[tuple[str, Entry]]) -> dict[tuple[str, Entry], LakeError | None]:
        """Whether the segment has these rows, and whether they are of these catalogs."""
        spans = [(entry.row, entry.count if isinstance(entry, Run) else 1, catalog) for catalog, entry in entries]
        if self._reads(name, sorted(spans)) is None:
            return dict.fromkeys(entries)
        return {place: self._reads(name, [span]) for place, span in zip(entries, spans, strict=True)}

    def _reads(self, name: str, spans: Sequence[tuple[int, int, str]]) -> LakeError | None:
        try:
            for _ in segment_reader(self.session, name).parts(spans):
                pass
        except (CorruptObject, ObjectMissing) as error:
            return error
        return None

    def _log_problems(self, log: _Parsed, broken: dict[tuple[str, Entry], LakeError]) -> Iterator[Problem]:
        catalog = log.catalog
        for member in log.unreadable:
            yield Problem(
                "index.member",
                "error",
                f"catalog {catalog!r}",
                member,
                "another tool wrote it, or Redis is damaged: restore Redis from a backup, or remove it by hand",
            )
        if log.empty:
            yield Problem(
                "catalog.empty",
                "warning",
                f"catalog {catalog!r}",
                "its name is in the registry, and it has no log",
                "take the name out (--repair)",
                Forget(catalog),
            )
        sound = [each for each in log.snapshots if (catalog, each) not in broken]
        for entry in log.entries:
            if error := broken.get((catalog, entry)):
                yield _lost_entry(catalog, entry, error, sound)
        for snapshot in log.snapshots:
            if error := broken.get((catalog, snapshot)):
                below = (entry for entry in log.entries if entry.last <= snapshot.stop)
                whole = not any((catalog, entry) in broken for entry in below)
                yield self._lost_snapshot(catalog, snapshot, error, whole)

    def _lost_snapshot(self, catalog: str, snapshot: Snapshot, error: LakeError, whole: bool) -> Problem:
        place = f"catalog {catalog!r}, snapshot {snapshot.start} ~ {snapshot.stop}, object {_key(catalog, snapshot)}"
        state = "missing" if isinstance(error, ObjectMissing) else "damaged"
        if whole and remove_snapshot(self.session.index, catalog, snapshot, ask=True) == "removed":
            return Problem(
                f"snapshot.{state}",
                "warning",
                place,
                str(error),
                "take it out (--repair): the document is merged from the deltas behind it, which are all there",
                DropSnapshot(catalog, snapshot),
            )
        return Problem(
            "snapshot.lost",
            "error",
            place,
            str(error),
            "the deltas behind it were cleared or are lost too, so nothing can rebuild it: restore the object from a "
            "backup of the storage, or write the document anew (lake put)",
        )

    def _documents(self, names: Sequence[str]) -> Iterator[Problem]:
        """Documents that do not merge although their bodies are there."""
        listings = (each for each in self.session.index.listings(names) if each.exists and not each.error)
        for merged in BulkReader(self.session, _BUDGET).documents(listings):
            if merged.error:
                hint = (
                    "take the delta out (lake rm-delta)" if isinstance(merged.error, MergeError) else "see the reason"
                )
                catalog = merged.listing.catalog
                yield Problem("document.unreadable", "error", f"catalog {catalog!r}", str(merged.error), hint)

    def _files(self, names: Sequence[str]) -> Iterator[Problem]:
        index = self.session.index
        found = index.fields([index.keys.files(name) for name in names])
        files = [(name, path) for name, paths in zip(names, found, strict=True) for path in paths]
        self.figures.files += len(files)
        there = self.session.each(lambda file: self.session.storage.exists(file_key(*file)), files)
        for (catalog, path), exists in zip(files, there, strict=True):
            if not exists:
                yield Problem(
                    "file.missing",
                    "error",
                    f"catalog {catalog!r}, file {path}",
                    f"object {file_key(catalog, path)} is not stored",
                    "write the file again, or restore the object from a backup of the storage",
                )


Entry = Delta | Run | Snapshot


@dataclass(slots=True)
class _Parsed:
    """A log as values; members that cannot be read are kept as their errors."""

    catalog: str
    empty: bool
    entries: list[Delta | Run] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def hide(self, txns: set[str]) -> None:
        """Leave out the runs of these transactions: nobody sees them."""
        self.entries = [entry for entry in self.entries if not (isinstance(entry, Run) and entry.txn in txns)]


def _parsed(log: Log) -> _Parsed:
    found = _Parsed(log.catalog, log.empty)
    for member in log.members:
        if not member.startswith(b"pending|"):
            _add(found.entries, parse_entry, member, found.unreadable)
    for member in log.snapshots:
        _add(found.snapshots, parse_snapshot, member, found.unreadable)
    return found


def _add(found: list[T], parse: Callable[[bytes], T], member: bytes, unreadable: list[str]) -> None:
    try:
        found.append(parse(member))
    except CorruptObject as error:
        unreadable.append(str(error))


def _in_segment(entry: Entry) -> bool:
    return isinstance(entry, Snapshot) and bool(entry.segment)


def _key(catalog: str, entry: Entry) -> str:
    if isinstance(entry, Run):
        return segment_key(entry.segment)
    if isinstance(entry, Snapshot):
        return segment_key(entry.segment) if entry.segment else snapshot_key(catalog, entry)
    return delta_key(catalog, entry.ts_seq, entry.known_type)


def _lost_entry(catalog: str, entry: Delta | Run, error: LakeError, sound: Iterable[Snapshot]) -> Problem:
    """The problem of a delta, or a run of them, whose body is missing or damaged."""
    state = "missing" if isinstance(error, ObjectMissing) else "damaged"
    kind, first = "run" if isinstance(entry, Run) else "delta", entry.first
    span = str(first) if first == entry.last else f"{first} to {entry.last}"
    merged = [snapshot.stop for snapshot in sound if snapshot.stop >= entry.last]
    name = shlex.quote(catalog)
    if merged:
        action = (
            f"the document is whole: the snapshot at {min(merged)} has the change. Versions between cannot be read: "
            f"restore the object from a backup of the storage, or forget them (lake clear {name})"
        )
    else:
        action = (
            "restore the object from a backup of the storage; or, if the change can be done without, take it out: "
            f"lake rm-delta {name} {first}"
        )
    place = f"catalog {catalog!r} at {span}, object {_key(catalog, entry)}"
    return Problem(f"{kind}.{state}", "error", place, str(error), action)
