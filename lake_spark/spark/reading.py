"""The work of a read task: list, load and merge catalogs in bulk, and yield Arrow batches. Runs without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from lake_spark.client.bulk import BulkReader
from lake_spark.client.packing import SnapshotPacker
from lake_spark.client.session import Session
from lake_spark.model import ZERO, Listing, MergeType, TsSeq
from lake_spark.spark.planning import ShardTask, names_of_all

# Catalogs that are listed together, and rows of an Arrow batch.
_CATALOGS = 1024
_ROWS = 8192

_TIME = pa.timestamp("us", tz="UTC")


def _view(*, optional: Sequence[str] = (), **columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=name in optional) for name, kind in columns.items()])


VIEWS: Mapping[str, pa.Schema] = {
    "documents": _view(
        catalog=pa.string(),
        document=pa.string(),
        version=pa.string(),
        updated_at=_TIME,
        deltas=pa.int64(),
        error=pa.string(),
        optional=("document", "error"),
    ),
    "deltas": _view(
        catalog=pa.string(),
        ts_seq=pa.string(),
        committed_at=_TIME,
        merge_type=pa.string(),
        path=pa.string(),
        body=pa.string(),
        size=pa.int64(),
        source=pa.string(),
    ),
}

# Where in a row the long value is.
_BULK = {view: VIEWS[view].get_field_index(name) for view, name in (("documents", "document"), ("deltas", "body"))}

_Row = tuple[Any, ...]


def read_tasks(
    session: Session, view: str, tasks: Sequence[ShardTask], batch_bytes: int, *, snapshots: bool = True
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, in batches of about so many bytes.

    With `snapshots` those of documents are saved that want one, once their rows are out.
    """
    packer = SnapshotPacker(session, batch_bytes)
    reader = BulkReader(session, batch_bytes)
    listings = _listings(session, tasks, whole_log=view == "deltas")
    found = _deltas(reader, listings)
    if view == "documents":
        found = _documents(reader, listings, packer if snapshots else None)
    rows: list[_Row] = []
    size = 0
    for row in found:
        rows.append(row)
        # The document, or the body; what else is in a row is short.
        size += 256 + len(row[_BULK[view]] or b"")
        if size >= batch_bytes or len(rows) >= _ROWS:
            yield _batch(view, rows)
            rows, size = [], 0
            if packer.full:
                packer.save()
    if rows:
        yield _batch(view, rows)
    packer.save()


def _batch(view: str, rows: list[_Row]) -> pa.RecordBatch:
    schema = VIEWS[view]
    columns = [
        pa.array(values, field.type) if not pa.types.is_string(field.type) else _text(values)
        for field, values in zip(schema, zip(*rows, strict=True), strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _text(values: Sequence[str | bytes | None]) -> Any:
    """Bodies stay bytes until here: they are UTF-8 already."""
    if any(isinstance(value, bytes) for value in values):
        return pa.array([v.encode() if isinstance(v, str) else v for v in values], pa.binary()).cast(pa.string())
    return pa.array(values, pa.string())


def _listings(session: Session, tasks: Sequence[ShardTask], *, whole_log: bool) -> Iterator[Listing]:
    """The catalogs of the partition as of their cuts, shard after shard, name after name.

    A segment's rows are sorted in that order, so that each row group is read once.
    """
    cuts = {task.shard: task.cut for task in tasks}
    since = (tasks[0].since if tasks else None) or ZERO
    names = names_of_all(session.index, tasks)
    while part := list(islice(names, _CATALOGS)):
        for listing in session.index.listings(part, cuts=cuts, whole_log=whole_log):
            if listing.error:
                raise listing.error
            if listing.exists and listing.version > since:
                yield listing


def _documents(reader: BulkReader, listings: Iterator[Listing], packer: SnapshotPacker | None) -> Iterator[_Row]:
    for merged in reader.documents(listings):
        listing, body, replayed, _, error = merged
        if packer:
            packer.add(merged)
        version = listing.version
        yield listing.catalog, body, str(version), _micros(version), replayed, str(error) if error else None


def _deltas(reader: BulkReader, listings: Iterator[Listing]) -> Iterator[_Row]:
    for listing, bodies in reader.deltas(listings):
        sources = (delta.segment or "object" for delta in listing.deltas)
        for (ts_seq, merge_type, path, body), source in zip(bodies, sources, strict=True):
            kind = MergeType(merge_type).name
            yield listing.catalog, str(ts_seq), _micros(ts_seq), kind, path, body, len(body), source


def _micros(ts_seq: TsSeq) -> int:
    return ts_seq.seconds * 1_000_000
