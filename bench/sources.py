"""Data sources for question 7: one that does nothing, and the lake with a stopwatch in its hand.

In a module of their own, for Spark's Python workers import it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import cProfile
import functools
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from lake_spark.index import Connection
from lake_spark.spark import LakeDataSource
from lake_spark.storage import FileStorage, S3Storage


class Noop(DataSource):
    """Rows from nowhere, into nowhere: what is left is Spark's own Arrow transport."""

    @classmethod
    def name(cls) -> str:
        return "bench-noop"

    def schema(self) -> str:
        return self.options["columns"]

    def reader(self, schema: Any) -> DataSourceReader:
        return _NoopReader(self.options["sample"], int(self.options["rows"]), int(self.options["partitions"]))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return _NoopWriter()


@functools.cache
def _sample(path: str) -> pa.RecordBatch:
    """A batch of rows such as the subject's, read once by each worker."""
    return pq.read_table(path).combine_chunks().to_batches()[0]


class _NoopReader(DataSourceReader):
    def __init__(self, sample: str, rows: int, partitions: int) -> None:
        self._sample, self._rows, self._count = sample, rows, partitions

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._rows // self._count) for _ in range(self._count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch, left = _sample(self._sample), partition.value
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


class _NoopWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class Timed(DataSource):
    """The lake, with the seconds of every task, plan and commit as JSON under the option `seconds`.

    With the option `profile`, cProfile's figures are there too.
    """

    @classmethod
    def name(cls) -> str:
        return "bench-lake"

    def schema(self) -> Any:
        return self._lake.schema()

    def reader(self, schema: Any) -> DataSourceReader:
        return _TimedReader(self._lake.reader(schema), self._notes)

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return _TimedWriter(self._lake.writer(schema, overwrite), self._notes)

    @property
    def _lake(self) -> LakeDataSource:
        return LakeDataSource({key: value for key, value in self.options.items() if key not in ("seconds", "profile")})

    @property
    def _notes(self) -> _Notes:
        return _Notes(self.options["seconds"], "profile" in self.options)


class _Notes:
    """Where the seconds go."""

    def __init__(self, folder: str, profile: bool) -> None:
        self._folder, self._profile = folder, profile

    @contextlib.contextmanager
    def of(self, kind: str) -> Iterator[Counter[str]]:
        """The seconds of the block that follows, by what they were spent on."""
        place = Path(self._folder) / f"{kind}-{uuid.uuid4().hex}"
        profile = cProfile.Profile()
        began = time.perf_counter()
        with _stopwatch() as seconds:
            if self._profile:
                profile.enable()
            yield seconds
            if self._profile:
                profile.disable()
                profile.dump_stats(place.with_suffix(".prof"))
        seconds["total"] = time.perf_counter() - began
        place.with_suffix(".json").write_text(json.dumps({"kind": kind, **seconds}))


class _TimedReader(DataSourceReader):
    def __init__(self, reader: DataSourceReader, notes: _Notes) -> None:
        self._reader, self._notes = reader, notes

    def partitions(self) -> Any:
        with self._notes.of("plan"):
            return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with self._notes.of("read") as seconds:
            for batch in self._reader.read(partition):
                began = time.perf_counter()
                yield batch
                seconds["transport"] += time.perf_counter() - began


class _TimedWriter(DataSourceArrowWriter):
    def __init__(self, writer: Any, notes: _Notes) -> None:
        self._writer, self._notes = writer, notes

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with self._notes.of("write") as seconds:
            message: WriterCommitMessage = self._writer.write(_timed_iterator(iterator, seconds))
        return message

    def commit(self, messages: Any) -> None:
        with self._notes.of("commit"):
            self._writer.commit(messages)

    def abort(self, messages: Any) -> None:
        self._writer.abort(messages)


def _timed_iterator(batches: Iterator[pa.RecordBatch], seconds: Counter[str]) -> Iterator[pa.RecordBatch]:
    while True:
        began = time.perf_counter()
        batch = next(batches, None)
        seconds["transport"] += time.perf_counter() - began
        if batch is None:
            return
        yield batch


_PLACES: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
    ("redis", Connection, ("call",)),
    ("parquet", pq.ParquetWriter, ("__init__", "write_table", "write_batch", "write", "close")),
    ("parquet", pq.ParquetFile, ("__init__", "read", "read_row_group", "read_row_groups")),
    ("parquet", pq, ("read_metadata", "read_table", "write_table")),
    ("storage", FileStorage, ("put", "get")),
    ("storage", S3Storage, ("put", "get")),
    ("waits", concurrent.futures.Future, ("result",)),
)


@contextlib.contextmanager
def _stopwatch() -> Iterator[Counter[str]]:
    """Counts the seconds that this thread spends in Redis, in Parquet, in storage and waiting for other threads."""
    seconds: Counter[str] = Counter()
    thread, inside = threading.get_ident(), False

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            # What one of them does by another counts once, for the outer one.
            if inside or threading.get_ident() != thread:
                return work(*args, **kwargs)
            inside, began = True, time.perf_counter()
            try:
                return work(*args, **kwargs)
            finally:
                seconds[name] += time.perf_counter() - began
                inside = False

        return wrapper

    with contextlib.ExitStack() as stack:
        for name, owner, methods in _PLACES:
            for method in methods:
                original = getattr(owner, method)
                setattr(owner, method, timed(name, original))
                stack.callback(setattr, owner, method, original)
        yield seconds
