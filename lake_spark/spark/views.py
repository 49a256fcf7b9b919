"""The views of a lake: their columns, and the rows of those that need no bulk merging. Runs without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lake_spark.client import reading as single
from lake_spark.client.bulk import BulkReader
from lake_spark.client.retained import retained
from lake_spark.client.session import Session
from lake_spark.errors import CorruptObject, MergeError, ObjectMissing
from lake_spark.index.inspect import open_writes, snapshot_counts, snapshots_of
from lake_spark.merge import Fold, dumps
from lake_spark.model import ZERO, Listing, MergeType, Snapshot, TsSeq
from lake_spark.names import segment_key, snapshot_key
from lake_spark.spark import reading
from lake_spark.spark.planning import ShardTask, names_of

# Catalogs that are asked about together, and rows of an Arrow batch.
_CATALOGS = 1024
_ROWS = 8192
_RELISTINGS = 5

_TIME = pa.timestamp("us", tz="UTC")
_TEXT = pa.string()


def _view(*, optional: Sequence[str] = (), **columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=name in optional) for name, kind in columns.items()])


VIEWS: Mapping[str, pa.Schema] = {
    "documents": reading.VIEWS["documents"],
    "deltas": reading.VIEWS["deltas"],
    # `deltas` are those since the latest snapshot; meta is what it is when the task looks.
    "catalogs": _view(
        catalog=_TEXT,
        version=_TEXT,
        updated_at=_TIME,
        deltas=pa.int64(),
        snapshots=pa.int64(),
        meta=_TEXT,
    ),
    "snapshots": _view(
        catalog=_TEXT,
        start=_TEXT,
        stop=_TEXT,
        stopped_at=_TIME,
        digest=_TEXT,
        source=_TEXT,
        row=pa.int64(),
        key=_TEXT,
        optional=("digest", "row"),
    ),
    # A transaction that is being published has one row for each block of a shard, and no catalog.
    "pending": _view(
        catalog=_TEXT,
        ts_seq=_TEXT,
        opened_at=_TIME,
        age=pa.float64(),
        merge_type=_TEXT,
        path=_TEXT,
        txn=_TEXT,
        optional=("catalog", "opened_at", "age", "merge_type", "path", "txn"),
    ),
    "files": _view(catalog=_TEXT, path=_TEXT, meta=_TEXT),
    # Every version that the log still tells: of a history that was cleared the first is a snapshot.
    "history": _view(
        catalog=_TEXT,
        version=_TEXT,
        committed_at=_TIME,
        kind=_TEXT,
        merge_type=_TEXT,
        path=_TEXT,
        document=_TEXT,
        error=_TEXT,
        optional=("merge_type", "path", "document", "error"),
    ),
}

# What a listing knows without a body.
_LISTED = {
    "documents": frozenset({"catalog", "version", "updated_at"}),
    "deltas": frozenset({"catalog", "ts_seq", "committed_at", "source"}),
}

_Row = tuple[Any, ...]
_Rows = Callable[[Session, Sequence[ShardTask], Sequence[str], int], Iterator[_Row]]


def view_batches(
    session: Session,
    view: str,
    columns: Sequence[str],
    tasks: Sequence[ShardTask],
    batch_bytes: int,
    *,
    snapshots: bool = True,
) -> Iterator[pa.RecordBatch]:
    """These columns of the view's rows of a partition, in batches of about so many bytes.

    With `snapshots`, those of documents are saved that want one.
    """
    if view in _LISTED and _LISTED[view].issuperset(columns):
        yield from _batches(view, columns, _LISTED_ROWS[view](session, tasks, columns, batch_bytes), batch_bytes)
    elif view in _ROWS_OF:
        yield from _batches(view, columns, _ROWS_OF[view](session, tasks, columns, batch_bytes), batch_bytes)
    else:
        # Of a catalog that has changed since, all deltas are read, and those shown that are the change.
        since = tasks[0].since if tasks and view == "deltas" else None
        for batch in reading.read_tasks(session, view, tasks, batch_bytes, snapshots=snapshots):
            kept = _changed(batch, since) if since else batch
            if kept.num_rows:
                yield kept.select(list(columns))


def _changed(batch: pa.RecordBatch, since: TsSeq) -> pa.RecordBatch:
    versions: Sequence[Any] = batch.column("ts_seq").to_pylist()
    return batch.filter(pa.array([TsSeq.parse(version) > since for version in versions], pa.bool_()))


def _batches(view: str, columns: Sequence[str], rows: Iterable[_Row], batch_bytes: int) -> Iterator[pa.RecordBatch]:
    part: list[_Row] = []
    size = 0
    for row in rows:
        part.append(row)
        size += 64 + sum(len(value) for value in row if isinstance(value, (str, bytes)))
        if size >= batch_bytes or len(part) >= _ROWS:
            yield _batch(view, columns, part)
            part, size = [], 0
    if part:
        yield _batch(view, columns, part)


def _batch(view: str, columns: Sequence[str], rows: list[_Row]) -> pa.RecordBatch:
    schema = VIEWS[view]
    places = [schema.get_field_index(name) for name in columns]
    arrays = [pa.array([row[place] for row in rows], schema.field(place).type) for place in places]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([schema.field(place) for place in places]))


def _named(
    session: Session, tasks: Iterable[ShardTask], size: int = _CATALOGS
) -> Iterator[tuple[ShardTask, list[str]]]:
    """The catalogs of these tasks, some at a time."""
    for task in tasks:
        names = names_of(session.index, task)
        for start in range(0, len(names), size):
            yield task, list(names[start : start + size])


def _listings(session: Session, task: ShardTask, names: Sequence[str], *, whole_log: bool = False) -> list[Listing]:
    found = list(session.index.listings(names, cuts={task.shard: task.cut}, whole_log=whole_log))
    for listing in found:
        if listing.error:
            raise listing.error
    return found


def _existing(session: Session, task: ShardTask, names: Sequence[str], *, whole_log: bool = False) -> list[Listing]:
    """Those of the catalogs that exist at the cut, and have changed if that was asked for."""
    since = task.since or ZERO
    found = _listings(session, task, names, whole_log=whole_log)
    return [listing for listing in found if listing.exists and listing.version > since]


# Rows that come from the index alone


def _documents_listed(session: Session, tasks: Sequence[ShardTask], *_: object) -> Iterator[_Row]:
    for task, names in _named(session, tasks):
        for listing in _existing(session, task, names):
            yield listing.catalog, None, str(listing.version), _micros(listing.version)


def _deltas_listed(session: Session, tasks: Sequence[ShardTask], *_: object) -> Iterator[_Row]:
    for task, names in _named(session, tasks):
        for listing in _existing(session, task, names, whole_log=True):
            for delta in listing.deltas:
                if task.since is None or delta.ts_seq > task.since:
                    source = delta.segment or "object"
                    yield listing.catalog, str(delta.ts_seq), _micros(delta.ts_seq), *(None,) * 4, source


def _catalogs(session: Session, tasks: Sequence[ShardTask], columns: Sequence[str], _: int) -> Iterator[_Row]:
    index = session.index
    for task, names in _named(session, tasks):
        listings = _existing(session, task, names)
        found = [listing.catalog for listing in listings]
        counts: Sequence[int] = [0] * len(found)
        meta: Sequence[Mapping[str, bytes]] = [{}] * len(found)
        if "snapshots" in columns:
            counts = snapshot_counts(index, found, task.cut)
        if "meta" in columns and found:
            meta = index.fields([index.keys.meta(name) for name in found])
        for listing, count, fields in zip(listings, counts, meta, strict=True):
            version, replayed = listing.version, sum(entry.count for entry in listing.entries)
            yield listing.catalog, str(version), _micros(version), replayed, count, _object(fields)


def _object(fields: Mapping[str, bytes]) -> str:
    """The values are JSON already, and stay as they were written."""
    return "{" + ",".join(f"{dumps(name).decode()}:{text.decode()}" for name, text in sorted(fields.items())) + "}"


def _snapshots(session: Session, tasks: Sequence[ShardTask], *_: object) -> Iterator[_Row]:
    for task, names in _named(session, tasks):
        since = task.since or ZERO
        for catalog, snapshots in zip(names, snapshots_of(session.index, names, task.cut), strict=True):
            for snapshot in snapshots:
                if snapshot.stop > since:
                    segment, digest = snapshot.segment, snapshot.digest or None
                    source, row = (segment, snapshot.row) if segment else ("object", None)
                    key = segment_key(segment) if segment else snapshot_key(catalog, snapshot)
                    start, stop = snapshot.start, snapshot.stop
                    yield catalog, str(start), str(stop), _micros(stop), digest, source, row, key


def _pending(session: Session, tasks: Sequence[ShardTask], *_: object) -> Iterator[_Row]:
    found = open_writes(session.index, [task.shard for task in tasks])
    for task, members in zip(tasks, found, strict=True):
        for member in members:
            # A transaction's block may concern any catalog of its shard.
            if member.catalog is None or task.matches(member.catalog):
                kind = member.merge_type.name if member.merge_type else None
                yield member.catalog, str(member.ts_seq), member.opened, member.age, kind, member.path, member.txn


def _files(session: Session, tasks: Sequence[ShardTask], *_: object) -> Iterator[_Row]:
    index = session.index
    for _task, names in _named(session, tasks):
        for catalog, files in zip(names, index.fields([index.keys.files(name) for name in names]), strict=True):
            for path, meta in sorted(files.items()):
                yield catalog, path, meta.decode()


# History


def _history(session: Session, tasks: Sequence[ShardTask], _: Sequence[str], batch_bytes: int) -> Iterator[_Row]:
    reader = BulkReader(session, batch_bytes)
    for task, names in _named(session, tasks):
        bases = retained(session, names, {task.shard: task.cut})
        for listing, bodies in reader.deltas([listing for listing, _ in bases.values()]):
            base = bases[listing.catalog][1]
            yield from _versions(session, task, listing, base, bodies)


def _versions(
    session: Session, task: ShardTask, listing: Listing, base: Snapshot | None, bodies: Iterator[single.Body]
) -> Iterator[_Row]:
    """A row for each version, from the oldest on: what was cleared meanwhile is not asked for twice."""
    catalog, told = listing.catalog, task.since or ZERO
    for _ in range(_RELISTINGS):
        try:
            for version, *row in _folded(session, catalog, base, bodies):
                if version > told:
                    yield catalog, str(version), _micros(version), *row
                    told = version
            return
        except ObjectMissing as error:
            missing, before = error, (listing.entries, base)
            [(listing, base)] = retained(session, [catalog], {task.shard: task.cut}).values()
            if (listing.entries, base) == before:
                break
            bodies = single.deltas(session, catalog, listing.entries)
        except CorruptObject as error:
            yield catalog, str(listing.version), _micros(listing.version), "delta", None, None, None, str(error)
            return
    reason = f"catalog {catalog!r} cannot be read, the index names what is not stored: {missing}"
    yield catalog, str(listing.version), _micros(listing.version), "delta", None, None, None, reason


def _folded(session: Session, catalog: str, base: Snapshot | None, bodies: Iterable[single.Body]) -> Iterator[_Row]:
    """Version, kind, merge type, path, document and error: each delta on top of all before it."""
    fold = Fold()
    if base:
        body = single.load_snapshot(session, catalog, base)
        fold = Fold(body)
        yield base.stop, "snapshot", None, None, body, None
    for ts_seq, merge_type, path, body in bodies:
        document = reason = None
        try:
            fold.apply(merge_type, path, body, ts_seq)
            document = fold.dump()
        except MergeError as error:
            # Until the next Replace of the whole document, there is none.
            reason = str(single.unmergeable(catalog, error))
        yield ts_seq, "delta", MergeType(merge_type).name, path, document, reason


def _micros(ts_seq: TsSeq) -> int:
    return ts_seq.seconds * 1_000_000


_LISTED_ROWS: Mapping[str, _Rows] = {"documents": _documents_listed, "deltas": _deltas_listed}
_ROWS_OF: Mapping[str, _Rows] = {
    "catalogs": _catalogs,
    "snapshots": _snapshots,
    "pending": _pending,
    "files": _files,
    "history": _history,
}
