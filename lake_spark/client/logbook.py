"""A catalog's log, told line by line: deltas, snapshots and open writes, with what each of them weighs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from lake_spark.client.reading import deltas, load_snapshot
from lake_spark.client.session import Session
from lake_spark.errors import CatalogNotFound, CorruptObject, DeltaNotFound, StorageFailure
from lake_spark.index.index import merged_already
from lake_spark.index.inspect import open_writes, whole_log
from lake_spark.model import Delta, MergeType, Run, Snapshot, TsSeq
from lake_spark.names import shard_of


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log. `kind` is `delta`, `snapshot` (at its stop) or `pending`.

    `size` is that of the plain body; `problem` says why it is not known. `source` is `object`, or the segment and row.
    """

    ts_seq: TsSeq
    kind: str
    source: str
    merge_type: MergeType | None = None
    path: str | None = None
    size: int | None = None
    start: TsSeq | None = None
    txn: str | None = None
    age: float | None = None
    problem: str | None = None


def log_lines(session: Session, catalog: str, limit: int) -> tuple[list[LogLine], int]:
    """The newest `limit` deltas (0: all) with the snapshots and open writes among them, and how many are left out."""
    log = whole_log(session.index, catalog)
    if not (log.snapshots or log.entries or log.opened):
        raise CatalogNotFound(f"there is no catalog {catalog!r}")
    shown, left = _newest(log.entries, limit)
    oldest = shown[0].first if left else None
    snapshots = [snapshot for snapshot in log.snapshots if oldest is None or snapshot.stop >= oldest]
    lines = [line for part in session.each(partial(_deltas, session, catalog), shown) for line in part]
    lines += session.each(partial(_snapshot, session, catalog), snapshots)
    lines += _opened(session, catalog, log.opened)
    # A snapshot stands behind the delta at which it stops.
    return sorted(lines, key=lambda line: (line.ts_seq, line.kind == "snapshot")), left


def find_delta(session: Session, catalog: str, ts_seq: TsSeq) -> tuple[LogLine, bytes | None]:
    """One delta that can be taken out of the log, and its body; None where that cannot be read."""
    log = whole_log(session.index, catalog)
    named = f"delta {ts_seq} of catalog {catalog!r}"
    if log.snapshots and log.snapshots[-1].stop >= ts_seq:
        raise merged_already(named)
    for entry in log.entries:
        if entry.first <= ts_seq <= entry.last:
            one = entry if isinstance(entry, Delta) else _part(entry, ts_seq.seq - entry.first.seq, 1)
            [found] = _loaded(session, catalog, one)
            return found
    raise DeltaNotFound(f"there is no {named}")


def _part(run: Run, skip: int, count: int) -> Run:
    return dataclasses.replace(run, first=run.sequence(skip), count=count, row=run.row + skip)


def _newest(entries: Sequence[Delta | Run], limit: int) -> tuple[list[Delta | Run], int]:
    """The entries of the newest `limit` deltas, and how many deltas are older."""
    total = sum(entry.count for entry in entries)
    skip = left = max(0, total - limit) if limit else 0
    shown: list[Delta | Run] = []
    for entry in entries:
        if skip < entry.count:
            shown.append(_part(entry, skip, entry.count - skip) if isinstance(entry, Run) else entry)
        skip = max(0, skip - entry.count)
    return shown, left


def _deltas(session: Session, catalog: str, entry: Delta | Run) -> list[LogLine]:
    return [line for line, _ in _loaded(session, catalog, entry)]


def _loaded(session: Session, catalog: str, entry: Delta | Run) -> Iterator[tuple[LogLine, bytes | None]]:
    """Each delta of an entry, with its body. What cannot be loaded is told too: a log is read to find it."""
    known = iter(entry) if isinstance(entry, Run) else iter((entry,))
    try:
        for ts_seq, merge_type, path, body in deltas(session, catalog, [entry]):
            source = _source(next(known))
            yield LogLine(ts_seq, "delta", source, MergeType(merge_type), path, len(body)), body
    except (StorageFailure, CorruptObject) as error:
        for delta in known:
            yield (
                LogLine(delta.ts_seq, "delta", _source(delta), delta.merge_type, delta.path, problem=str(error)),
                None,
            )


def _source(entry: Delta | Run | Snapshot) -> str:
    return f"{entry.segment}:{entry.row}" if entry.segment else "object"


def _snapshot(session: Session, catalog: str, snapshot: Snapshot) -> LogLine:
    line = LogLine(snapshot.stop, "snapshot", _source(snapshot), start=snapshot.start)
    try:
        return dataclasses.replace(line, size=len(load_snapshot(session, catalog, snapshot)))
    except (StorageFailure, CorruptObject) as error:
        return dataclasses.replace(line, problem=str(error))


def _opened(session: Session, catalog: str, entries: Sequence[Delta | Run]) -> Iterator[LogLine]:
    if not entries:
        return
    [members] = open_writes(session.index, [shard_of(catalog)])
    ages = {member.ts_seq: member.age for member in members if member.catalog == catalog}
    blocks = {member.txn: member.age for member in members if member.txn}
    for entry in entries:
        if isinstance(entry, Run):
            for delta in entry:
                yield LogLine(delta.ts_seq, "pending", _source(delta), txn=entry.txn, age=blocks.get(entry.txn))
        else:
            age = ages.get(entry.ts_seq)
            yield LogLine(entry.ts_seq, "pending", "object", entry.merge_type, entry.path, age=age)
