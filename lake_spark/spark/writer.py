"""The writer: what Spark asks of a write, handed on to writing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from lake_spark.client.writing import check_change, check_merge_type
from lake_spark.errors import ConfigError, InvalidInput
from lake_spark.index import TransactionIndex
from lake_spark.model import MergeType, TsSeq
from lake_spark.options import BatchOptions
from lake_spark.spark.bad_rows import bad_rows_file
from lake_spark.spark.bodies import RowBodies
from lake_spark.spark.metrics import Figures, metered, total
from lake_spark.spark.rows import COLUMNS, sort_keys
from lake_spark.spark.session import make_lake, session_of
from lake_spark.spark.writing import StagedTask, WriteTask, commit_job


def writer_of(options: BatchOptions, schema: StructType, *, overwrite: bool) -> LakeWriter:
    """The writer of these rows, or an error that says what they lack: no task runs then."""
    _check_columns(options, schema)
    merge_type = check_merge_type(options.merge_type)
    if options.catalog_column:
        _check_whole_rows(options, schema, merge_type)
    elif options.null_fields:
        raise ConfigError("nullFields goes with catalogColumn: bodies that are JSON say themselves what is null")
    if bool(options.txn_app_id) != (options.txn_version >= 0):
        raise ConfigError("txnAppId and txnVersion go together")
    if options.atomicity == "task" and options.txn_app_id:
        raise ConfigError("txnAppId makes a job apply once as a whole, and with atomicity=task there is no whole")
    if options.layout == "objects" and options.atomicity != "task":
        raise ConfigError(
            "layout=objects commits every row by itself: say so with atomicity=task, or leave layout=segments"
        )
    expects = bool(options.expected_version) or "expected_version" in schema.names
    if expects and (options.layout == "objects" or options.atomicity == "task"):
        raise ConfigError("expectedVersion is checked when a job commits: it needs atomicity=job and layout=segments")
    if options.expected_version:
        TsSeq.parse(options.expected_version)
    # The constants, with a body that every merge type takes.
    check_change(options.max_body_bytes, options.catalog or "-", b"[]", options.path or "/", options.merge_type)
    return LakeWriter(options, schema, overwrite)


def _check_columns(options: BatchOptions, schema: StructType) -> None:
    sorting = sort_keys(options.order_by)
    for name in sorting:
        if name not in schema.names:
            raise InvalidInput(
                f"orderBy names a column {name!r} that is not there; there are {', '.join(schema.names)}"
            )
    if options.catalog_column:
        return
    unknown = [name for name in schema.names if name not in COLUMNS and name not in sorting]
    if unknown:
        raise InvalidInput(
            f"column {unknown[0]!r} is none of {', '.join(COLUMNS)}: rename it, pack it into the body with to_json, or "
            'write whole rows with option("catalogColumn", name)'
        )
    if "body" not in schema.names:
        raise InvalidInput(
            "the rows have no column body: the JSON of the change; ordinary tables are written with catalogColumn"
        )
    if "catalog" not in schema.names and not options.catalog:
        raise InvalidInput('the rows have no column catalog: add one, or set option("catalog", name)')


def _check_whole_rows(options: BatchOptions, schema: StructType, merge_type: MergeType) -> None:
    if merge_type is MergeType.RFC6902:
        raise ConfigError(
            "catalogColumn makes an object of every row, and a JSON patch is a list: use another mergeType"
        )
    if merge_type is MergeType.RFC7396 and options.null_fields == "keep":
        raise ConfigError("nullFields=keep: a merge patch cannot set a field to null; use omit or delete")
    if merge_type is MergeType.REPLACE and options.null_fields == "delete":
        raise ConfigError("nullFields=delete: a Replace deletes nothing that is named; use omit or keep")
    RowBodies(schema, options.catalog_column, omit_nulls=False)


@dataclass
class LakeMessage(WriterCommitMessage):
    """What a task staged, and what it took."""

    staged: StagedTask
    figures: Figures


class LakeWriter(DataSourceArrowWriter):
    """One transaction: all rows of the job become visible at once, or none."""

    def __init__(self, options: BatchOptions, schema: StructType, overwrite: bool) -> None:
        self._options = options
        self._schema = schema
        self._overwrite = overwrite
        # Not a monotonic clock: the commit runs in another process.
        self._began = time.time()
        version = options.txn_version if options.txn_app_id else None
        make_lake(options)
        index = session_of(options).index
        self._txn = TransactionIndex.begin(index, options.lease, options.txn_app_id, version)

    def write(  # type: ignore[override] # as DataSourceArrowWriter itself does
        self, iterator: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        context = TaskContext.get()
        # Unique to the attempt, so that a retried or speculative one stages segments of its own.
        attempt, partition = (context.taskAttemptId(), context.partitionId()) if context else (0, 0)
        options, txn = self._options, self._txn
        with metered(options, "write", txn.txn) as meter, contextlib.ExitStack() as stack:
            keep = None
            if options.bad_records != "fail":
                keep = stack.enter_context(bad_rows_file(options.bad_records, txn.txn, partition))
            session = session_of(options)
            task = WriteTask(session, txn, options, self._schema, self._overwrite, partition, attempt, keep)
            staged = task.run(iterator)
            meter.add(catalogs=staged.catalogs, deltas=staged.rows, rows=staged.rows)
        return LakeMessage(staged, meter.figures)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        found = [message for message in messages if isinstance(message, LakeMessage)]
        with metered(self._options, "write", self._txn.txn) as meter:
            meter.add(**total(message.figures for message in found), seconds=time.time() - self._began)
            if self._options.atomicity == "task":
                return
            commit_job(
                session_of(self._options),
                self._txn,
                [message.staged for message in found],
                overwrite=self._overwrite,
                expects=bool(self._options.expected_version) or "expected_version" in self._schema.names,
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        with metered(self._options, "write", self._txn.txn, outcome="aborted"):
            self._txn.abort()
