"""The reader: what Spark asks of a read, handed on to planning, views and schema."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lake_spark.options import BatchOptions
from lake_spark.spark.metrics import metered, metered_batches, new_job
from lake_spark.spark.planning import ShardTask, check_selection, plan
from lake_spark.spark.schema import Shape, check_schema, inferred_schema, view_schema
from lake_spark.spark.session import session_of
from lake_spark.spark.views import view_batches


def read_schema(options: BatchOptions) -> StructType:
    """The columns of a read that brings no schema of its own."""
    check_selection(options)
    return inferred_schema(session_of(options), options) if options.infer_schema else view_schema(options)


def reader_of(options: BatchOptions, schema: StructType) -> LakeReader:
    """The reader of a view, or an error that says what it cannot show."""
    check_selection(options)
    check_schema(options, schema)
    return LakeReader(options, schema)


class LakePartition(InputPartition):
    """The shards that one task reads."""

    def __init__(self, tasks: list[ShardTask]) -> None:
        super().__init__(tasks)
        self.tasks = tasks


class LakeReader(DataSourceReader):
    """Plans once per DataFrame: all of its actions see the lake as it was then."""

    def __init__(self, options: BatchOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._job = new_job()

    def partitions(self) -> list[LakePartition]:
        with metered(self._options, "read", self._job):
            tasks = plan(session_of(self._options).index, self._options)
        # Without one, Spark would make up a partition of its own.
        return [LakePartition(part) for part in tasks or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LakePartition)
        return metered_batches(self._options, self._job, lambda: self._batches(partition.tasks))

    def _batches(self, tasks: list[ShardTask]) -> Iterator[pa.RecordBatch]:
        options, shape = self._options, Shape(self._options, self._schema)
        found = view_batches(
            session_of(options), options.view, shape.columns, tasks, options.batch_bytes, snapshots=not options.as_of
        )
        return shape.batches(found)
