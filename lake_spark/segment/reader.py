"""Reads rows of a segment with few ranged gets, and never returns a row that was not written."""

from __future__ import annotations

import io
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, islice
from typing import Any, NamedTuple, NoReturn, get_args

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from lake_spark.errors import CorruptObject
from lake_spark.names import segment_key
from lake_spark.segment import format as f

# fetch(start, length): the object's bytes from `start`; a negative start counts from its end, and
# no length means up to the end. An object shorter than a suffix is returned whole.
Fetch = Callable[[int, int | None], bytes]

# A footer of a hundred row groups, or the whole of a small segment.
TAIL_BYTES = 64 << 10
# One get takes several row groups up to this size, and the bytes between them up to that one.
FETCH_BYTES = 8 << 20
GAP_BYTES = 256 << 10
_MAX_FOOTER = 256 << 20


class SegmentRow(NamedTuple):
    """A delta (or a snapshot, as a Replace of the root) as it is in a segment."""

    merge_type: int
    path: str
    body: bytes
    meta: bytes | None


@dataclass(frozen=True, slots=True)
class SegmentMetadata:
    """A segment's verified footer. Worth keeping between readers of one segment; pickles.

    `starts` has the first row of each row group, and the number of rows as its last element; `sizes` the bytes
    that each takes in memory.
    """

    kind: str
    sealed: bool
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    ranges: tuple[f.ByteRange, ...]
    file: pq.FileMetaData
    file_size: int

    @property
    def rows(self) -> int:
        return self.starts[-1]

    @property
    def nbytes(self) -> int:
        """About how many bytes it takes in memory."""
        return 4 * int(self.file.serialized_size) + 200 * len(self.ranges)


class SegmentReader:
    """Reads a segment through `fetch(start, length)`; a negative start is a suffix of the object.

    `unseal(place, body)` decrypts what the writer's `seal` encrypted. `metadata`, from an earlier reader of the
    same segment, saves the get of the footer. What is damaged, cut short, another segment or not one at all
    raises CorruptObject; what `fetch` raises passes through.
    """

    def __init__(
        self,
        fetch: Fetch,
        name: str,
        *,
        unseal: f.Seal | None = None,
        metadata: SegmentMetadata | None = None,
    ) -> None:
        self.name = name
        self._fetch = fetch
        self._unseal = unseal
        self._tail = b""
        self._tail_at = 0
        if metadata is not None:
            self.__dict__["metadata"] = metadata

    @cached_property
    def metadata(self) -> SegmentMetadata:
        """The verified footer: one get, unless it is very long."""
        tail = self._suffix(b"", f.PARQUET_END + f.CHECK.size)
        if tail[-4:] != f.PARQUET_MAGIC:
            self._corrupt("it does not end like a Parquet file")
        length = int.from_bytes(tail[-8:-4], "little") + f.PARQUET_END
        tail = self._suffix(tail, length + f.CHECK.size)
        crc, offset, count, magic = f.CHECK.unpack_from(tail, len(tail) - length - f.CHECK.size)
        if magic != f.CHECK_MAGIC:
            self._corrupt("it has no checksums where a segment has them")
        tail = self._suffix(tail, length + f.CHECK.size + count * f.RANGE.size)
        check_at = len(tail) - length - f.CHECK.size
        packed = tail[check_at - count * f.RANGE.size : check_at]
        if f.checksum(packed, tail[check_at + 4 :]) != crc:
            self._corrupt("the checksum of its footer does not match")
        ranges = tuple(f.ByteRange(*each) for each in f.RANGE.iter_unpack(packed))
        metadata = self._parsed(tail[-length:], ranges, offset + len(packed) + f.CHECK.size + length)
        # A suffix shorter than was asked for is the whole object.
        if len(tail) > metadata.file_size or len(tail) < min(TAIL_BYTES, metadata.file_size):
            self._corrupt("it is not as long as its footer says")
        self._tail, self._tail_at = tail, metadata.file_size - len(tail)
        return metadata

    @property
    def rows(self) -> int:
        return self.metadata.rows

    @property
    def kind(self) -> str:
        """`deltas` or `snapshots`."""
        return self.metadata.kind

    def read(self, row: int, count: int, expect: str | None = None) -> list[SegmentRow]:
        """The rows from `row` on; with `expect`, only if they all are of that catalog."""
        return next(self.read_many([(row, count, expect)]))

    def read_many(self, spans: Iterable[tuple[int, int, str | None]]) -> Iterator[list[SegmentRow]]:
        """The rows of each (row, count, expected catalog), in the order of the spans.

        Spans in ascending order read each row group once. One decoded row group at a time is in memory, and
        the bytes of at most `FETCH_BYTES` (or of one row group, if that is larger).
        """
        wanted = list(spans)
        parts = self.parts(wanted, meta=True)
        rows: Iterator[SegmentRow] = (
            row
            for part in parts
            for row in map(SegmentRow, part.merge_types, part.paths, part.bodies.to_pylist(), part.meta or ())
        )
        for _, count, _ in wanted:
            yield list(islice(rows, count))

    def parts(self, spans: Sequence[tuple[int, int, str | None]], *, meta: bool = False) -> Iterator[SegmentPart]:
        """The rows of these (row, count, expected catalog), in the order of the spans, a row group at a time."""
        visits = self._visits(spans)
        columns = [name for name in f.COLUMNS if meta or name != "meta"]
        return map(partial(self._part, spans), visits, self._groups([visit.group for visit in visits], columns))

    def groups_of(self, row: int, count: int) -> Iterator[tuple[int, int]]:
        """The row groups in which these rows lie, each with the bytes that it takes in memory."""
        starts, sizes = self.metadata.starts, self.metadata.sizes
        for group in range(bisect_right(starts, row) - 1, min(bisect_left(starts, row + count), len(sizes))):
            yield group, sizes[group]

    def _suffix(self, tail: bytes, length: int) -> bytes:
        """At least the last `length` bytes of the object, of which `tail` is known."""
        if len(tail) >= length:
            return tail
        longer = self._fetch(-max(length, TAIL_BYTES), None) if length <= _MAX_FOOTER else b""
        if len(longer) < length:
            self._corrupt("it is shorter than it says")
        return longer

    def _parsed(self, footer: bytes, ranges: tuple[f.ByteRange, ...], size: int) -> SegmentMetadata:
        try:
            file = pq.read_metadata(pa.BufferReader(footer))
            own = file.metadata or {}
            groups = [file.row_group(number) for number in range(file.num_row_groups)]
            counts, sizes = [group.num_rows for group in groups], tuple(group.total_byte_size for group in groups)
            body = file.schema.to_arrow_schema().field("body")
        except Exception as error:
            self._corrupt("its footer cannot be read", error)
        version, name, kind = (own.get(key, b"").decode() for key in (f.VERSION_KEY, f.NAME_KEY, f.KIND_KEY))
        if version != f.VERSION.decode():
            self._corrupt(f"its format version is {version!r}, this library reads {f.VERSION.decode()!r}")
        if name != self.name:
            self._corrupt(f"it was written as segment {name!r}")
        if kind not in get_args(f.Kind) or len(ranges) != len(counts):
            self._corrupt("its footer contradicts itself")
        starts = tuple(accumulate(counts, initial=0))
        return SegmentMetadata(kind, pa.types.is_binary(body.type), starts, sizes, ranges, file, size)

    def _visits(self, spans: Sequence[tuple[int, int, str | None]]) -> list[_Visit]:
        """The row groups to decode, in order, each with the pieces wanted of it."""
        starts = self.metadata.starts
        visits: list[_Visit] = []
        for number, (row, count, _) in enumerate(spans):
            if row < 0 or count < 0 or row + count > starts[-1]:
                self._corrupt(f"it has {starts[-1]} rows, and not {count} from row {row}")
            while count:
                if visits and starts[visits[-1].group] <= row < starts[visits[-1].group + 1]:
                    visit = visits[-1]
                else:
                    visit = _Visit(bisect_right(starts, row) - 1, [])
                    visits.append(visit)
                many = min(count, starts[visit.group + 1] - row)
                visit.pieces.append((number, row, many))
                row, count = row + many, count - many
        return visits

    def _part(self, spans: Sequence[tuple[int, int, str | None]], visit: _Visit, table: pa.Table) -> SegmentPart:
        first = self.metadata.starts[visit.group]
        begins = [row for _, row, _ in visit.pieces]
        ends = [row + many for _, row, many in visit.pieces]
        if begins[1:] == ends[:-1]:
            table = table.slice(begins[0] - first, ends[-1] - begins[0])
        else:
            table = pa.concat_tables(
                [table.slice(row - first, end - row) for row, end in zip(begins, ends, strict=True)]
            )
        table = table.combine_chunks()
        catalogs: list[Any] = table["catalog"].to_pylist()
        at = 0
        for number, row, many in visit.pieces:
            expect = spans[number][2]
            if expect is not None and catalogs[at : at + many].count(expect) != many:
                self._corrupt(f"rows {row} to {row + many - 1} are not all of catalog {expect!r}")
            at += many
        # Text becomes bytes for nothing, and stays undecoded.
        bodies = _one_array(table["body"]).cast(pa.binary())
        merge_types, paths = _values(table["merge_type"]), _values(table["path"])
        if self.metadata.sealed:
            rows = (row + n for _, row, many in visit.pieces for n in range(many))
            places = map(f.place_of, rows, merge_types, paths)
            bodies = pa.array(map(self._open, places, bodies.to_pylist()), pa.binary())
        meta = table["meta"].cast(pa.binary()).to_pylist() if "meta" in table.column_names else None
        pieces = [(number, many) for number, _, many in visit.pieces]
        return SegmentPart(pieces, merge_types, paths, bodies, meta)

    def _open(self, place: str, body: bytes) -> bytes:
        if self._unseal is None:
            self._corrupt("its bodies are encrypted, and this lake has no password")
        return self._unseal(place, body)

    def _groups(self, wanted: list[int], columns: list[str]) -> Iterator[pa.Table]:
        """The row groups in the order given, decoded when they are asked for."""
        ranges = self.metadata.ranges
        window = _Window(self.metadata.file_size)
        file: pq.ParquetFile | None = None
        held, held_at = self._tail, self._tail_at
        for position, group in enumerate(wanted):
            this = ranges[group]
            if not held_at <= this.offset <= this.end <= held_at + len(held):
                stop = self._fetch_until(wanted[position:])
                held, held_at = self._fetch(this.offset, stop - this.offset), this.offset
            data = held[this.offset - held_at : this.end - held_at]
            if len(data) != this.length:
                self._corrupt("it is shorter than its footer says")
            if google_crc32c.value(data) != this.crc:
                self._corrupt(f"the checksum of row group {group} does not match")
            window.hold(data, this.offset)
            try:
                if file is None:
                    # Page checksums are for other tools: these bytes have just been verified.
                    file = pq.ParquetFile(pa.PythonFile(window, "r"), metadata=self.metadata.file, pre_buffer=False)
                table = file.read_row_group(group, columns=columns, use_threads=False)
            except Exception as error:
                self._corrupt(f"row group {group} cannot be decoded", error)
            yield table

    def _fetch_until(self, groups: list[int]) -> int:
        """Where a get that begins with the first of these row groups best ends."""
        ranges = self.metadata.ranges
        first, end = ranges[groups[0]], ranges[groups[0]].end
        for group in groups[1:]:
            this = ranges[group]
            if not end <= this.offset <= end + GAP_BYTES or this.end - first.offset > FETCH_BYTES:
                break
            end = this.end
        return end

    def _corrupt(self, reason: str, cause: Exception | None = None) -> NoReturn:
        raise CorruptObject(f"object {segment_key(self.name)} is damaged or not what it should be: {reason}") from cause


class SegmentPart(NamedTuple):
    """Rows of one row group, column by column: for each of `pieces`, (number of the span, rows), its rows.

    `bodies` is a binary Arrow array.
    """

    pieces: list[tuple[int, int]]
    merge_types: list[int]
    paths: list[str]
    bodies: Any
    meta: list[bytes | None] | None


class _Visit(NamedTuple):
    """A row group to decode, and what is wanted of it: (number of the span, row, rows)."""

    group: int
    pieces: list[tuple[int, int, int]]


def _one_array(column: pa.ChunkedArray[Any]) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _values(column: pa.ChunkedArray[Any]) -> list[Any]:
    """The column as a list; nearly always it is one value throughout."""
    encoded = _one_array(column).dictionary_encode()
    if len(encoded.dictionary) == 1:
        return [encoded.dictionary[0].as_py()] * len(column)
    return column.to_pylist()


class _Window(io.RawIOBase):
    """A file of which only the bytes of one row group are there."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._data = b""
        self._offset = 0
        self._position = 0

    def hold(self, data: bytes, offset: int) -> None:
        self._data, self._offset = data, offset

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        start = self._position - self._offset
        stop = len(self._data) if size is None or size < 0 else start + size
        if not 0 <= start <= stop <= len(self._data):
            raise EOFError(f"bytes {self._position} to {self._offset + stop} are not those of the row group")
        self._position = self._offset + stop
        return self._data[start:stop]
