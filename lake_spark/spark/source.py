"""The data source: options in, rows out. What is done with them is in planning, reading and writing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lake_spark.client import Config, Lake
from lake_spark.client.session import Session
from lake_spark.client.writing import check_change
from lake_spark.errors import ConfigError, InvalidInput
from lake_spark.index import TransactionIndex
from lake_spark.options import BatchOptions
from lake_spark.spark.planning import ShardTask, plan
from lake_spark.spark.reading import VIEWS, read_tasks
from lake_spark.spark.writing import COLUMNS, StagedTask, commit_job, write_task

_sessions: dict[tuple[object, ...], tuple[Config, Session]] = {}


def session_of(options: BatchOptions) -> Session:
    """This process's session for these options: Python workers keep it from task to task.

    The lake's configuration is looked up each time: a worker outlives jobs, and nobody would find what it wrote to
    the storage of an older configuration.
    """
    config = Lake(options.url, **options.lake).get_config()
    if config.get("Storage", "memory") == "memory":
        raise ConfigError(
            "this lake keeps its bodies in memory, which the processes of a Spark job cannot share: configure storage "
            'once, e.g. Lake(url).update_config({"Name": "my-lake", "Storage": "file", "BasePath": "/data/lake"})'
        )
    key = (options.url, *options.lake.values())
    known = _sessions.get(key)
    if known is None or known[0] != config:
        known = _sessions[key] = (config, Lake(options.url, config=config, **options.lake)._session)
    return known[1]


def _options(given: Mapping[str, str]) -> BatchOptions:
    options = BatchOptions.of(given)
    if not options.url:
        raise ConfigError('no lake was named: set option("url", "redis://host:6379") or the environment\'s LAKE_URL')
    return options


class LakeDataSource(DataSource):
    """`format("lake")`: documents, deltas or catalogs of a lake as rows, and rows as changes of a lake."""

    @classmethod
    def name(cls) -> str:
        return "lake"

    def schema(self) -> StructType:
        return from_arrow_schema(VIEWS[_options(self.options).view])

    def reader(self, schema: StructType) -> LakeReader:
        options = _options(self.options)
        if schema.names != VIEWS[options.view].names:
            raise ConfigError(
                f"view {options.view} has the columns {', '.join(VIEWS[options.view].names)}: "
                "leave .schema(…) out and parse the document with from_json"
            )
        return LakeReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> LakeWriter:
        options = _options(self.options)
        unknown = [name for name in schema.names if name not in COLUMNS]
        if unknown:
            raise InvalidInput(
                f"column {unknown[0]!r} is none of {', '.join(COLUMNS)}: rename it, or pack it into the body "
                "with to_json"
            )
        if "body" not in schema.names:
            raise InvalidInput("the rows have no column body: the JSON of the change")
        if "catalog" not in schema.names and not options.catalog:
            raise InvalidInput('the rows have no column catalog: add one, or set option("catalog", name)')
        if bool(options.txn_app_id) != (options.txn_version >= 0):
            raise ConfigError("txnAppId and txnVersion go together")
        # The constants, with a body that every merge type takes.
        check_change(options.max_body_bytes, options.catalog or "-", b"[]", options.path or "/", options.merge_type)
        return LakeWriter(options, overwrite)


class LakePartition(InputPartition):
    """The shards that one task reads."""

    def __init__(self, tasks: list[ShardTask]) -> None:
        super().__init__(tasks)
        self.tasks = tasks


class LakeReader(DataSourceReader):
    """Plans once per DataFrame: all of its actions see the lake as it was then."""

    def __init__(self, options: BatchOptions) -> None:
        self._options = options

    def partitions(self) -> list[LakePartition]:
        tasks = plan(session_of(self._options).index, self._options)
        return [LakePartition(part) for part in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LakePartition)
        options = self._options
        return read_tasks(session_of(options), options.view, partition.tasks, options.batch_bytes)


@dataclass
class LakeMessage(WriterCommitMessage):
    """What a task staged."""

    staged: StagedTask


class LakeWriter(DataSourceArrowWriter):
    """One transaction: all rows of the job become visible at once, or none."""

    def __init__(self, options: BatchOptions, overwrite: bool) -> None:
        self._options = options
        self._overwrite = overwrite
        version = options.txn_version if options.txn_app_id else None
        index = session_of(options).index
        self._txn = TransactionIndex.begin(index, options.lease, options.txn_app_id, version)

    def write(  # type: ignore[override] # as DataSourceArrowWriter itself does
        self, iterator: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        context = TaskContext.get()
        # Unique to the attempt, so that a retried or speculative one stages segments of its own.
        attempt = context.taskAttemptId() if context else 0
        staged = write_task(
            session_of(self._options), self._txn, attempt, iterator, self._options, overwrite=self._overwrite
        )
        return LakeMessage(staged)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = [message.staged for message in messages if isinstance(message, LakeMessage)]
        commit_job(session_of(self._options), self._txn, staged, overwrite=self._overwrite)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._txn.abort()
