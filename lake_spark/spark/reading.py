"""The work of a read task: list, load and merge catalogs in bulk, and yield Arrow batches. Runs without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import pyarrow as pa

from lake_spark.client import reading
from lake_spark.client.session import Session
from lake_spark.errors import CatalogNotFound, CorruptObject, MergeError, ObjectMissing
from lake_spark.model import Listing, MergeType, Run, TsSeq
from lake_spark.segment import SegmentRow
from lake_spark.spark.planning import ShardTask

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
    "catalogs": _view(catalog=pa.string(), version=pa.string(), updated_at=_TIME),
}

_Row = tuple[Any, ...]
_Runs = Mapping[Run, Sequence[SegmentRow]]


def read_tasks(session: Session, view: str, tasks: Sequence[ShardTask], batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, in batches of about so many bytes."""
    rows: list[_Row] = []
    size = 0
    for task in tasks:
        for row in _rows(session, view, task):
            rows.append(row)
            size += 64 + sum(len(value) for value in row if isinstance(value, (str, bytes)))
            if size >= batch_bytes or len(rows) >= _ROWS:
                yield _batch(view, rows)
                rows, size = [], 0
    if rows:
        yield _batch(view, rows)


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


def _rows(session: Session, view: str, task: ShardTask) -> Iterator[_Row]:
    names = task.catalogs
    if names is None:
        found = session.index.catalogs(task.prefix, [task.shard])
        # A segment's rows are sorted by catalog: in that order each row group is read once.
        names = tuple(sorted(name for name in found if not task.pattern or fnmatchcase(name, task.pattern)))
    rows_of = _VIEWS[view]
    for start in range(0, len(names), _CATALOGS):
        part = names[start : start + _CATALOGS]
        listings = list(session.index.listings(part, as_of=task.cut, whole_log=view == "deltas"))
        for listing in listings:
            if listing.error:
                raise listing.error
        yield from rows_of(session, [listing for listing in listings if listing.exists])


def _documents(session: Session, listings: Sequence[Listing]) -> Iterator[_Row]:
    runs = _prefetched(session, listings)
    for listing in listings:
        version = listing.version
        body: bytes | None = None
        replayed, error = len(listing.entries), None
        try:
            document = _document(session, listing, runs)
            body, replayed = reading.dump(document), document.replayed
        except (MergeError, CorruptObject) as failure:
            error = str(failure)
        except CatalogNotFound:
            continue
        yield listing.catalog, body, str(version), _micros(version), replayed, error


def _document(session: Session, listing: Listing, runs: _Runs) -> reading.Document:
    try:
        return reading.merge(session, listing, runs)
    except ObjectMissing:
        # History may have been cleared since: then another listing as of the same cut does without it.
        return reading.read(session, listing, "error")


def _prefetched(session: Session, listings: Sequence[Listing]) -> _Runs:
    try:
        return reading.rows_of(session, listings)
    except (CorruptObject, ObjectMissing):
        # One catalog's trouble: it is found again, by name, when that catalog is merged.
        return {}


def _deltas(session: Session, listings: Sequence[Listing]) -> Iterator[_Row]:
    runs = _prefetched(session, listings)
    for listing in listings:
        sources = (delta.segment or "object" for delta in listing.deltas)
        bodies = reading.deltas(session, listing.catalog, listing.entries, runs)
        for (ts_seq, merge_type, path, body), source in zip(bodies, sources, strict=True):
            kind = MergeType(merge_type).name
            yield listing.catalog, str(ts_seq), _micros(ts_seq), kind, path, body, len(body), source


def _catalogs(session: Session, listings: Sequence[Listing]) -> Iterator[_Row]:
    for listing in listings:
        yield listing.catalog, str(listing.version), _micros(listing.version)


def _micros(ts_seq: TsSeq) -> int:
    return ts_seq.seconds * 1_000_000


_VIEWS: Mapping[str, Callable[[Session, Sequence[Listing]], Iterator[_Row]]] = {
    "documents": _documents,
    "deltas": _deltas,
    "catalogs": _catalogs,
}
