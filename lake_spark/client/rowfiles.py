"""Files of rows: JSON lines (compressed or not) and Parquet, written and read in bounded memory."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from lake_spark.errors import ConfigError, InvalidInput
from lake_spark.merge import dumps

FORMATS = ("ndjson", "parquet")
# Columns that hold JSON: in a line they are values, in Parquet text.
JSON_COLUMNS = ("document", "body", "meta")

_LINES = (".ndjson", ".jsonl")
Compression = Literal["gzip", "zstd"]
_COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}
# Bytes of rows that are held before they are written as a row group, or read together; and rows, at most.
_BATCH_BYTES = 16 << 20
_BATCH_ROWS = 8192

Value = str | bytes | None


@dataclass(frozen=True, slots=True)
class RowFile:
    """Where rows are, and how they are written there."""

    path: Path
    format: str
    compression: Compression | None = None

    @classmethod
    def of(cls, path: str | os.PathLike[str], format: str = "") -> RowFile:
        """The file by its name (`.ndjson` or `.jsonl`, also with `.gz` or `.zst`, or `.parquet`), or as it is told."""
        found = Path(path)
        suffixes = [suffix.lower() for suffix in found.suffixes]
        compression = _COMPRESSIONS.get(suffixes[-1]) if suffixes else None
        kind = suffixes[-2 if compression else -1 :][0] if len(suffixes) > bool(compression) else ""
        guessed = "parquet" if kind == ".parquet" else "ndjson" if kind in _LINES else ""
        if format and format not in FORMATS:
            raise ConfigError(f"a format is one of {', '.join(FORMATS)}; not {format!r}")
        chosen = format or guessed
        if not chosen:
            raise ConfigError(
                f"the name {found.name!r} does not tell a format: end it with .ndjson, .jsonl, .ndjson.gz, .ndjson.zst "
                "or .parquet, or name the format"
            )
        if chosen == "parquet" and compression:
            raise ConfigError(f"Parquet is compressed inside: name it {found.with_suffix('').name}, not {found.name}")
        return cls(found, chosen, compression)

    @contextlib.contextmanager
    def written(self, columns: Sequence[str]) -> Iterator[RowWriter]:
        """A writer of rows with these columns; the file appears under its name once it is whole."""
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.tmp")
        try:
            with open(temporary, "xb") as file:
                with self._writer(file, columns) as writer:
                    yield writer
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()

    @contextlib.contextmanager
    def _writer(self, file: Any, columns: Sequence[str]) -> Iterator[RowWriter]:
        if self.format == "parquet":
            schema = pa.schema([pa.field(name, pa.string()) for name in columns])
            with pq.ParquetWriter(file, schema, compression="zstd") as parquet:
                writer = _ParquetRows(parquet, schema)
                yield writer
                writer.flush()
        elif self.compression:
            # Closing the stream would close the file, which is forced to disk after this.
            kept: Any = _KeptOpen(file)
            with pa.CompressedOutputStream(kept, self.compression) as packed:
                yield _Lines(packed, columns)
        else:
            yield _Lines(file, columns)

    def rows(self, longest: int, after: int = 0) -> Iterator[RawRow]:
        """The rows behind number `after` (lines count from 1, and so do rows of Parquet), not checked yet.

        A line of more than `longest` bytes is one with a reason for which it is refused.
        """
        try:
            yield from (self._records(after) if self.format == "parquet" else self._lines(longest, after))
        except (pa.ArrowException, EOFError) as error:
            raise InvalidInput(f"{self.path} cannot be read as {self.format}: {_first_line(error)}") from None
        except OSError as error:
            if error.errno is not None:
                raise
            raise InvalidInput(f"{self.path} is damaged or incomplete: {_first_line(error)}") from None

    def _lines(self, longest: int, after: int) -> Iterator[RawRow]:
        with contextlib.ExitStack() as held:
            file: Any = held.enter_context(open(self.path, "rb", buffering=1 << 20))
            if self.compression:
                packed: Any = held.enter_context(pa.CompressedInputStream(file, self.compression))
                file = io.BufferedReader(packed, 1 << 20)
            number = 0
            while line := file.readline(longest + 1):
                number += 1
                too_long = len(line) > longest and not line.endswith(b"\n")
                if too_long:
                    _skip_line(file)
                if number > after and (text := line.strip()):
                    reason = f"it has more than {longest} bytes" if too_long else ""
                    yield RawRow(number, text, reason=reason)

    def _records(self, after: int) -> Iterator[RawRow]:
        with pq.ParquetFile(self.path) as file:
            groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
            # Rows of about so many bytes together, by the longest row groups.
            average = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
            number = 0
            for batch in file.iter_batches(max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, average)))):
                skipped = min(max(0, after - number), batch.num_rows)
                number += skipped
                for record in batch.slice(skipped).to_pylist():
                    number += 1
                    yield RawRow(number, record=record)


class RawRow(NamedTuple):
    """A row as it is in a file: a line of JSON, or a record of Parquet; `reason` says why it can be neither."""

    number: int
    line: bytes = b""
    record: Mapping[str, Any] | None = None
    reason: str = ""

    @property
    def text(self) -> bytes:
        """The row as a line of JSON."""
        return self.line if self.record is None else dumps({name: _shown(v) for name, v in self.record.items()})


class RowWriter(Protocol):
    """Writes rows: the values of the columns, in their order."""

    def add(self, row: Sequence[Value]) -> None:
        """Write one more row."""


class _Lines:
    def __init__(self, file: Any, columns: Sequence[str]) -> None:
        self._file = file
        self._names = [(dumps(name) + b":", name in JSON_COLUMNS) for name in columns]

    def add(self, row: Sequence[Value]) -> None:
        parts = []
        for (name, json), value in zip(self._names, row, strict=True):
            if value is None:
                continue
            text = _bytes(value) if json else dumps(value)
            # A line feed in JSON is white space: within a string it would be written \n.
            parts.append(name + text.replace(b"\n", b" ").replace(b"\r", b" "))
        self._file.write(b"{" + b",".join(parts) + b"}\n")


class _ParquetRows:
    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema) -> None:
        self._writer = writer
        self._schema = schema
        self._rows: list[Sequence[Value]] = []
        self._size = 0

    def add(self, row: Sequence[Value]) -> None:
        self._rows.append(row)
        self._size += sum(len(value) for value in row if value is not None)
        if self._size >= _BATCH_BYTES or len(self._rows) >= _BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            columns: list[Any] = [
                pa.array([None if value is None else _bytes(value) for value in values], pa.binary()).cast(pa.string())
                for values in zip(*self._rows, strict=True)
            ]
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))
            self._rows, self._size = [], 0


class _KeptOpen:
    """A file for a stream that closes what it writes to."""

    closed = False

    def __init__(self, file: Any) -> None:
        self.write, self.flush = file.write, file.flush

    def close(self) -> None:
        self.flush()


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _shown(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def _skip_line(file: Any) -> None:
    while (piece := file.readline(1 << 20)) and not piece.endswith(b"\n"):
        pass


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
