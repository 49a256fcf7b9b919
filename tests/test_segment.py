"""Segments: what is written comes back, with few gets, and nothing else ever does."""

from __future__ import annotations

import inspect
import io
import pickle
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake_spark.errors import CorruptObject, InvalidInput, ObjectMissing, StorageUnavailable
from lake_spark.names import shard_of
from lake_spark.segment import Segment, SegmentReader, SegmentRow, Span, write_segment
from lake_spark.segment import reader as reader_module

NAME = "abcdefghijkl.3.7"
KEY = "_segments/abcd/abcdefghijkl.3.7.parquet"


class Store:
    """One object behind ranged gets, which it counts."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.gets: list[int] = []

    def __call__(self, start: int, length: int | None) -> bytes:
        part = self.data[start:] if length is None else self.data[start : start + length]
        self.gets.append(len(part))
        return part


def columns(count: int, catalogs: int = 10, size: int = 80, seed: int = 1) -> dict[str, list[Any]]:
    rng = random.Random(seed)
    return {
        "catalog": [f"user/{rng.randrange(catalogs)}" for _ in range(count)],
        "merge_type": [rng.randint(1, 3) for _ in range(count)],
        "path": [rng.choice(["/", "/a", "/a/b"]) for _ in range(count)],
        "body": [b'{"n":%d,"pad":"%s"}' % (n, rng.randbytes(size // 2 - 8).hex().encode()) for n in range(count)],
        "meta": [rng.choice([None, b"{}", b'{"by":"me"}']) for _ in range(count)],
    }


def by_catalog(given: dict[str, list[Any]]) -> dict[str, list[SegmentRow]]:
    """What a reader should find: each catalog's rows in the order in which they were given."""
    found: dict[str, list[SegmentRow]] = {}
    for catalog, *row in zip(*given.values(), strict=True):
        found.setdefault(catalog, []).append(SegmentRow(*row))
    return found


def read_all(reader: SegmentReader, segment: Segment) -> dict[str, list[SegmentRow]]:
    spans = list(segment.spans())
    rows = reader.read_many([(span.row, span.count, span.catalog) for span in spans])
    return {span.catalog: found for span, found in zip(spans, rows, strict=True)}


def test_rows_come_back_in_their_order_under_the_spans_of_the_index() -> None:
    given = columns(500)
    segment = write_segment(NAME, given, group_rows=64)
    reader = SegmentReader(Store(segment.data), NAME)
    assert read_all(reader, segment) == by_catalog(given)
    assert (reader.rows, reader.kind) == (500, "deltas")
    for span in segment.spans():
        assert reader.read(span.row, span.count, span.catalog) == by_catalog(given)[span.catalog]


def test_index_is_sorted_by_shard_and_catalog_and_covers_every_row() -> None:
    given = columns(2000, catalogs=300)
    segment = write_segment(NAME, given)
    spans = list(segment.spans())
    assert [(s.shard, s.catalog) for s in spans] == sorted((shard_of(c), c) for c in set(given["catalog"]))
    row = 0
    for span in spans:
        assert isinstance(span, Span)
        assert (span.row, span.count) == (row, given["catalog"].count(span.catalog))
        row += span.count
    assert row == segment.rows == 2000
    stored = pq.read_table(io.BytesIO(segment.data))["catalog"].to_pylist()
    assert stored == [span.catalog for span in spans for _ in range(span.count)]


def test_a_segment_is_an_ordinary_parquet_file_with_readable_bodies() -> None:
    given = columns(300)
    segment = write_segment(NAME, given, group_rows=100)
    table = pq.read_table(io.BytesIO(segment.data), page_checksum_verification=True)
    assert {field.name: str(field.type) for field in table.schema} == {
        "catalog": "string",
        "merge_type": "int8",
        "path": "string",
        "body": "string",
        "meta": "string",
    }
    assert sorted(table["body"].to_pylist()) == sorted(body.decode() for body in given["body"])
    metadata = pq.read_metadata(io.BytesIO(segment.data))
    assert metadata.metadata[b"lake.kind"] == b"deltas"
    assert metadata.metadata[b"lake.segment"] == NAME.encode()
    assert metadata.metadata[b"lake.version"] == b"1"
    column = metadata.row_group(0).column(0)
    assert column.compression == "ZSTD"
    assert column.has_column_index
    assert column.has_offset_index
    found = pq.read_table(io.BytesIO(segment.data), filters=[("catalog", "==", "user/3")])
    assert found.num_rows == given["catalog"].count("user/3")


def test_catalog_has_a_bloom_filter_where_pyarrow_writes_them() -> None:
    metadata = pq.read_metadata(io.BytesIO(write_segment(NAME, columns(300)).data))
    offset = getattr(metadata.row_group(0).column(0), "bloom_filter_offset", "unknown")
    writes = "bloom_filter_options" in inspect.signature(pq.ParquetWriter.__init__).parameters
    assert (offset not in (None, "unknown")) == writes
    assert metadata.row_group(0).column(3).bloom_filter_offset is None


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_round_trips(compression: str) -> None:
    given = columns(200)
    segment = write_segment(NAME, given, compression=compression)
    assert read_all(SegmentReader(Store(segment.data), NAME), segment) == by_catalog(given)
    codec = pq.read_metadata(io.BytesIO(segment.data)).row_group(0).column(3).compression
    assert codec == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())


def test_an_arrow_table_in_chunks_and_other_string_types_is_the_same_segment() -> None:
    given = columns(500)
    types = {"catalog": pa.large_string(), "merge_type": pa.int64(), "path": pa.string(), "body": pa.binary()}
    table = pa.table({name: pa.array(given[name], types.get(name, pa.large_binary())) for name in reversed(given)})
    chunked = pa.concat_tables([table.slice(0, 123), table.slice(123)])
    assert write_segment(NAME, chunked).data == write_segment(NAME, given).data


def test_unicode_catalogs_and_bodies_and_missing_meta() -> None:
    catalogs = ["日本語", "été", "😀/x", "a", "Z"] * 3
    bodies = [f'{{"é":"{n}😀"}}'.encode() for n in range(15)]
    rows = {"catalog": catalogs, "merge_type": [2] * 15, "path": ["/"] * 15, "body": bodies}
    segment = write_segment(NAME, rows)
    assert read_all(SegmentReader(Store(segment.data), NAME), segment) == by_catalog({**rows, "meta": [None] * 15})


def test_snapshots_need_only_catalog_and_body() -> None:
    segment = write_segment(NAME, {"catalog": ["a", "b"], "body": [b'{"a":1}', b"[]"]}, kind="snapshots")
    reader = SegmentReader(Store(segment.data), NAME)
    assert reader.kind == "snapshots"
    assert read_all(reader, segment) == {
        "a": [SegmentRow(1, "/", b'{"a":1}', None)],
        "b": [SegmentRow(1, "/", b"[]", None)],
    }


def test_empty_segment_and_empty_spans() -> None:
    empty = write_segment(NAME, {name: [] for name in columns(1)})
    assert list(empty.spans()) == []
    reader = SegmentReader(Store(empty.data), NAME)
    assert (reader.rows, reader.read(0, 0)) == (0, [])
    full = SegmentReader(Store(write_segment(NAME, columns(5)).data), NAME)
    assert list(full.read_many([(0, 0, "x"), (5, 0, None)])) == [[], []]
    assert list(full.read_many([])) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"body": [b"\xff\xfe"]}, "body"),
        ({"catalog": [None]}, "catalog.*without a value"),
        ({"body": [None]}, "body.*without a value"),
        ({"merge_type": [1, 2]}, "differ in length"),
    ],
)
def test_rows_that_cannot_be_stored_are_refused(change: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        write_segment(NAME, {**columns(1), **change})


def test_deltas_without_a_path_are_refused() -> None:
    with pytest.raises(InvalidInput, match="needs the column merge_type"):
        write_segment(NAME, {"catalog": ["a"], "body": [b"{}"]})


def test_two_hundred_thousand_rows() -> None:
    given = columns(200_000, catalogs=5000, size=40)
    segment = write_segment(NAME, given)
    store = Store(segment.data)
    assert read_all(SegmentReader(store, NAME), segment) == by_catalog(given)
    assert sum(store.gets) <= len(segment.data) + reader_module.TAIL_BYTES, "each row group is fetched once"


def test_reading_one_catalog_fetches_the_footer_and_one_row_group() -> None:
    given = columns(100_000, catalogs=2000)
    segment = write_segment(NAME, given)
    store = Store(segment.data)
    span = list(segment.spans())[1000]
    reader = SegmentReader(store, NAME)
    assert reader.read(span.row, span.count, span.catalog) == by_catalog(given)[span.catalog]
    assert len(store.gets) <= 3, "footer, and one get for one or two neighbouring row groups"
    assert sum(store.gets) < len(segment.data) / 4

    store.gets.clear()
    again = SegmentReader(store, NAME, metadata=pickle.loads(pickle.dumps(reader.metadata)))
    assert again.read(span.row, span.count, span.catalog) == by_catalog(given)[span.catalog]
    assert len(store.gets) == 1, "a kept footer saves its get"
    assert again.metadata.nbytes > 0


def test_small_segment_is_read_with_one_get() -> None:
    segment = write_segment(NAME, columns(100))
    store = Store(segment.data)
    reader = SegmentReader(store, NAME)
    read_all(reader, segment)
    reader.read(0, 100)
    assert store.gets == [len(segment.data)]


def test_footer_longer_than_the_first_get_is_fetched_whole() -> None:
    given = columns(600)
    segment = write_segment(NAME, given, group_rows=2)
    store = Store(segment.data)
    assert pq.read_metadata(io.BytesIO(segment.data)).serialized_size > reader_module.TAIL_BYTES
    assert read_all(SegmentReader(store, NAME), segment) == by_catalog(given)


def test_neighbouring_row_groups_come_in_one_get_and_distant_ones_do_not() -> None:
    segment = write_segment(NAME, columns(40_000, size=200), group_rows=1000, compression="none")
    reader = SegmentReader(store := Store(segment.data), NAME)
    assert reader.rows == 40_000
    store.gets.clear()
    reader.read(2500, 3000)
    assert len(store.gets) == 1
    store.gets.clear()
    list(reader.read_many([(500, 10, None), (20_500, 10, None), (20_600, 10, None)]))
    assert len(store.gets) == 2


def test_spans_in_any_order_and_overlapping_are_answered_in_that_order() -> None:
    segment = write_segment(NAME, columns(300), group_rows=50)
    reader = SegmentReader(Store(segment.data), NAME)
    everything = reader.read(0, 300)
    rng = random.Random(7)
    spans = [(row := rng.randrange(300), rng.randrange(300 - row + 1), None) for _ in range(200)]
    assert list(reader.read_many(spans)) == [everything[row : row + count] for row, count, _ in spans]


def test_bodies_are_sealed_for_their_place_and_opened_with_it() -> None:
    def seal(place: str, body: bytes) -> bytes:
        return b"\xff%s#" % place.encode() + body[::-1]

    def unseal(place: str, body: bytes) -> bytes:
        prefix = b"\xff%s#" % place.encode()
        assert body.startswith(prefix)
        return body.removeprefix(prefix)[::-1]

    given = columns(300)
    segment = write_segment(NAME, given, seal=seal, group_rows=50)
    reader = SegmentReader(Store(segment.data), NAME, unseal=unseal)
    assert read_all(reader, segment) == by_catalog(given)
    stored = pq.read_table(io.BytesIO(segment.data))["body"]
    assert str(stored.type) == "binary"
    assert stored[7].as_py().startswith(b"\xff7#")
    assert not any(body in segment.data for body in given["body"])
    with pytest.raises(CorruptObject, match=f"{KEY}.*encrypted"):
        SegmentReader(Store(segment.data), NAME).read(0, 1)


def test_large_bodies_get_row_groups_of_their_own() -> None:
    bodies = [b'"' + b"x" * size + b'"' for size in (10, 2_000_000, 10, 600_000, 600_000, 10)]
    given = {"catalog": ["a"] * 6, "merge_type": [1] * 6, "path": ["/"] * 6, "body": bodies, "meta": [None] * 6}
    segment = write_segment(NAME, given, compression="none")
    reader = SegmentReader(Store(segment.data), NAME)
    assert reader.metadata.starts == (0, 1, 2, 4, 6)
    assert [row.body for row in reader.read(0, 6, "a")] == bodies


def test_reading_everything_holds_one_row_group_at_a_time() -> None:
    segment = write_segment(NAME, columns(40_000, catalogs=4000, size=800), compression="none")
    assert len(segment.data) > 30_000_000
    reader = SegmentReader(Store(segment.data), NAME)
    before = pa.total_allocated_bytes()
    highest = 0
    for rows in reader.read_many([(span.row, span.count, span.catalog) for span in segment.spans()]):
        assert rows
        highest = max(highest, pa.total_allocated_bytes() - before)
    assert highest < 6_000_000


# Damage


def small() -> tuple[Segment, dict[str, list[SegmentRow]]]:
    given = columns(9, catalogs=3, size=24)
    return write_segment(NAME, given, group_rows=4), by_catalog(given)


def damaged_reads(data: bytes, segment: Segment) -> Iterator[Any]:
    """What both ways of reading everything make of the data: the rows, or the error."""
    for read in (
        lambda: read_all(SegmentReader(Store(data), NAME), segment),
        lambda: SegmentReader(Store(data), NAME).read(0, segment.rows),
    ):
        try:
            yield read()
        except CorruptObject as error:
            yield error


def test_no_flipped_bit_is_ever_read_as_data() -> None:
    segment, expected = small()
    whole = SegmentReader(Store(segment.data), NAME).read(0, segment.rows)
    data = bytearray(segment.data)
    tried = refused = 0
    for position in range(len(data)):
        # A sample of two or three bits of every byte: all eight take half a minute.
        for bit in {position % 8, (position + 3) % 8, (position * 5 + 1) % 8}:
            tried += 1
            data[position] ^= 1 << bit
            for found in damaged_reads(bytes(data), segment):
                if isinstance(found, CorruptObject):
                    assert KEY in str(found)
                    refused += 1
                else:
                    assert found in (expected, whole), f"bit {bit} of byte {position}"
            data[position] ^= 1 << bit
    # What is left are the first magic, the page index and the bloom filter, which are not read here.
    assert refused > 2 * tried * 0.6


def test_no_cut_or_grown_object_is_ever_read_as_data() -> None:
    segment, _ = small()
    for length in range(len(segment.data)):
        for damaged in (segment.data[:length], segment.data[length + 1 :]):
            for found in damaged_reads(damaged, segment):
                assert isinstance(found, CorruptObject)
    for found in damaged_reads(segment.data + b"\0", segment):
        assert isinstance(found, CorruptObject)


def test_an_object_cut_behind_a_kept_footer_is_an_error() -> None:
    segment = write_segment(NAME, columns(5000))
    metadata = SegmentReader(Store(segment.data), NAME).metadata
    reader = SegmentReader(Store(segment.data[:1000]), NAME, metadata=metadata)
    with pytest.raises(CorruptObject, match=f"{KEY}.*shorter"):
        reader.read(0, 5000)


def test_random_noise_and_foreign_files_are_errors_that_name_the_object() -> None:
    rng = random.Random(3)
    foreign = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1, 2]}), foreign)
    noise = [b"", b"PAR1", b"{}" * 10, rng.randbytes(5000), foreign.getvalue().to_pybytes()]
    noise += [rng.randbytes(rng.randrange(200)) + b"PAR1" for _ in range(200)]
    for data in noise:
        with pytest.raises(CorruptObject, match=KEY):
            SegmentReader(Store(data), NAME).read(0, 1)


def test_another_segment_in_its_place_is_an_error() -> None:
    other = write_segment("abcdefghijkl.3.8", columns(5))
    with pytest.raises(CorruptObject, match=f"{KEY}.*abcdefghijkl.3.8"):
        SegmentReader(Store(other.data), NAME).read(0, 1)


def test_rows_of_another_catalog_are_an_error() -> None:
    segment = write_segment(NAME, columns(100))
    first, second, *_ = segment.spans()
    reader = SegmentReader(Store(segment.data), NAME)
    for row, count, catalog in [
        (second.row, second.count, first.catalog),
        (first.row, first.count + 1, first.catalog),
        (first.row, 1, "nobody"),
    ]:
        with pytest.raises(CorruptObject, match=f"{KEY}.*not all of catalog"):
            reader.read(row, count, catalog)


@pytest.mark.parametrize(("row", "count"), [(-1, 1), (0, 101), (100, 1), (5, -1), (1 << 40, 1)])
def test_rows_out_of_range_are_an_error(row: int, count: int) -> None:
    reader = SegmentReader(Store(write_segment(NAME, columns(100)).data), NAME)
    with pytest.raises(CorruptObject, match=f"{KEY}.*100 rows"):
        reader.read(row, count)


@pytest.mark.parametrize("error", [ObjectMissing("gone"), StorageUnavailable("no answer")])
def test_what_the_store_raises_passes_through(error: Exception) -> None:
    segment = write_segment(NAME, columns(5000))
    metadata = SegmentReader(Store(segment.data), NAME).metadata

    def fail(start: int, length: int | None) -> bytes:
        raise error

    for reader in (SegmentReader(fail, NAME), SegmentReader(fail, NAME, metadata=metadata)):
        with pytest.raises(type(error)) as raised:
            reader.read(0, 1)
        assert raised.value is error
