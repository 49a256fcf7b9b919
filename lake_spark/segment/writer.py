"""Writes a segment: many deltas or snapshots in one Parquet object, sorted by shard and catalog."""

from __future__ import annotations

import inspect
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lake_spark.errors import InvalidInput
from lake_spark.names import shard_of
from lake_spark.segment import format as f

# A reader fetches whole row groups: small ones serve one catalog, large ones serve everything.
GROUP_ROWS = 4096
GROUP_BYTES = 1 << 20
MAX_BYTES = (1 << 31) - 1

_HAS_BLOOM_FILTER = "bloom_filter_options" in inspect.signature(pq.ParquetWriter.__init__).parameters


class Span(NamedTuple):
    """Where a catalog's rows are in a segment."""

    catalog: str
    shard: str
    row: int
    count: int  # type: ignore[assignment]  # the field, in place of tuple's method


@dataclass(frozen=True, slots=True)
class Segment:
    """A written segment. `index` has a row per catalog, in order: catalog, shard, row, count."""

    name: str
    data: bytes
    rows: int
    index: pa.Table

    def spans(self) -> Iterator[Span]:
        """The index as values, in the order of the rows: shard by shard, catalog by catalog."""
        return map(Span._make, zip(*(column.to_pylist() for column in self.index.columns), strict=True))


def write_segment(
    name: str,
    rows: pa.Table | Mapping[str, Sequence[Any]],
    *,
    kind: f.Kind = "deltas",
    compression: str = "zstd",
    seal: f.Seal | None = None,
    group_rows: int = GROUP_ROWS,
    group_bytes: int = GROUP_BYTES,
) -> Segment:
    """A segment of these rows, ready to be stored under `names.segment_key(name)`.

    `rows` has the columns catalog, merge_type, path, body (UTF-8) and meta. `meta` may be missing; snapshots
    need only catalog and body. The rows of one catalog keep their order. `seal(place, body)` encrypts a body
    for its place in the finished segment. Compression: none, gzip, snappy, lz4 or zstd.
    """
    table, index = _sorted(_table(rows, kind))
    if seal is not None:
        bodies: list[Any] = table["body"].cast(pa.binary()).to_pylist()
        kinds: list[Any] = table["merge_type"].to_pylist()
        paths: list[Any] = table["path"].to_pylist()
        sealed = pa.array(map(seal, map(f.place_of, count(), kinds, paths), bodies), pa.binary())
        table = table.set_column(3, f.schema(sealed=True).field("body"), sealed)
    metadata = {f.VERSION_KEY: f.VERSION, f.NAME_KEY: name.encode(), f.KIND_KEY: kind.encode()}
    table = table.replace_schema_metadata(metadata)
    parquet = _parquet(table, compression, index.num_rows, seal is not None, group_rows, group_bytes)
    return Segment(name, _checked(parquet), table.num_rows, index)


def _table(rows: pa.Table | Mapping[str, Sequence[Any]], kind: f.Kind) -> pa.Table:
    """The rows as a table of one chunk with a segment's columns."""
    given = {name: rows[name] for name in (rows.column_names if isinstance(rows, pa.Table) else rows)}
    count = len(given["catalog"])
    absent: dict[str, Any] = {"meta": None, **({"merge_type": 1, "path": "/"} if kind == "snapshots" else {})}
    columns = []
    for field in f.schema(sealed=False):
        if field.name in given:
            column = _column(given[field.name], field)
        elif field.name in absent:
            column = pa.repeat(pa.scalar(absent[field.name], field.type), count)
        else:
            raise InvalidInput(f"a segment of {kind} needs the column {field.name}")
        if column.null_count and not field.nullable:
            raise InvalidInput(f"the column {field.name} of a segment has a row without a value")
        columns.append(column)
    if len({len(column) for column in columns}) > 1:
        raise InvalidInput("the columns of a segment differ in length")
    if sum(column.nbytes for column in columns) > MAX_BYTES:
        raise InvalidInput("a segment holds at most 2 GiB")
    return pa.Table.from_arrays(columns, schema=f.schema(sealed=False))


def _column(values: Any, field: pa.Field[Any]) -> pa.Array[Any]:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    elif not isinstance(values, pa.Array):
        # Bytes first: the cast below then finds what is not UTF-8.
        text = pa.types.is_string(field.type) and field.name in ("body", "meta")
        values = pa.array(values, pa.binary() if text else field.type)
    try:
        column: pa.Array[Any] = values.cast(field.type)
    except pa.ArrowInvalid as error:
        raise InvalidInput(f"the column {field.name} of a segment cannot be stored as {field.type}: {error}") from None
    return column


def _sorted(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows by shard and catalog, and the index over them."""
    encoded: Any = table["catalog"].combine_chunks().dictionary_encode()
    catalogs = encoded.dictionary
    # Once per catalog, not once per row: a hash costs more than all else that is done for a row.
    shards = pa.array([shard_of(catalog) for catalog in catalogs.to_pylist()], pa.string())
    by_name = pa.table({"shard": shards, "catalog": catalogs})
    order = pc.sort_indices(by_name, sort_keys=[("shard", "ascending"), ("catalog", "ascending")])
    # The inverse of a permutation is the order that sorts it.
    ranks = pc.sort_indices(order).take(encoded.indices)
    # Stable, so a catalog's rows keep their order.
    rows = pc.sort_indices(ranks)
    sorted_ranks = ranks.take(rows)
    runs: Any = pc.run_end_encode(sorted_ranks, run_end_type=pa.int64())  # type: ignore[attr-defined]  # not in the stubs
    ends = runs.run_ends
    starts = pa.concat_arrays([pa.array([0], pa.int64()), ends])[: len(ends)]
    index = pa.table(
        {
            "catalog": catalogs.take(order),
            "shard": shards.take(order),
            "row": starts,
            "count": pc.subtract(ends, starts),
        }
    )
    return table.take(rows), index


def _parquet(
    table: pa.Table, compression: str, catalogs: int, sealed: bool, group_rows: int, group_bytes: int
) -> pa.Buffer:
    options: dict[str, Any] = {}
    if _HAS_BLOOM_FILTER and catalogs:
        options["bloom_filter_options"] = {"catalog": {"ndv": min(catalogs, group_rows), "fpp": 0.05}}
    # Sealed bodies do not get smaller.
    codecs: dict[str, Any] = {name: "none" if sealed and name == "body" else compression for name in f.COLUMNS}
    # pyarrow's stubs do not know that it may be a list.
    dictionary: Any = ["path"]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression=codecs,
        use_dictionary=dictionary,
        # No least and greatest body: it would repeat bodies in the footer, and nobody looks for them.
        write_statistics=["catalog", "merge_type", "path"],
        write_page_index=True,
        write_page_checksum=True,
        **options,
    ) as writer:
        for start, stop in _groups(table, group_rows, group_bytes):
            writer.write_table(table.slice(start, stop - start), row_group_size=stop - start)
    return sink.getvalue()


def _groups(table: pa.Table, group_rows: int, group_bytes: int) -> Iterator[tuple[int, int]]:
    """The rows of each row group: as many as have room, and always one."""
    body = table["body"].combine_chunks()
    buffer = body.buffers()[1]
    if not len(body) or buffer is None:
        return
    ends = memoryview(buffer).cast("i")[body.offset : body.offset + len(body) + 1]
    start = 0
    while start < len(body):
        most = min(start + group_rows, len(body))
        stop = max(bisect_right(ends, ends[start] + group_bytes, start, most + 1) - 1, start + 1)
        yield start, stop
        start = stop


def _checked(parquet: pa.Buffer) -> bytes:
    """The file with its checksums."""
    metadata = pq.read_metadata(pa.BufferReader(parquet))
    ranges = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = [group.column(column) for column in range(group.num_columns)]
        starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
        offset = min(starts)
        end = max(start + chunk.total_compressed_size for start, chunk in zip(starts, chunks, strict=True))
        crc = google_crc32c.value(parquet.slice(offset, end - offset))
        ranges.append(f.ByteRange(offset, end - offset, crc))
    footer_at = parquet.size - f.PARQUET_END - metadata.serialized_size
    footer = parquet.slice(footer_at).to_pybytes()
    return b"".join((memoryview(parquet)[:footer_at], f.pack_check(ranges, footer_at, footer), footer))
