"""The work of a write job: tasks check and stage their rows, the driver publishes and commits. Runs without Spark."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lake_spark.client.session import Session
from lake_spark.client.transaction import chunks, merge_meta, publish, stage
from lake_spark.client.writing import Change, Fields, check_change
from lake_spark.errors import ConflictError, IndexFailure, InvalidInput, OutcomeUnknown
from lake_spark.index import Block, TransactionIndex
from lake_spark.model import MergeType
from lake_spark.options import BatchOptions

log = logging.getLogger("lake_spark")

COLUMNS = ("catalog", "body", "path", "merge_type", "meta")


@dataclass(frozen=True, slots=True)
class StagedTask:
    """What a task staged: its message to the commit."""

    blocks: list[Block]
    meta: dict[str, Fields]
    rows: int


def write_task(
    session: Session,
    txn: TransactionIndex,
    attempt: int,
    batches: Iterable[pa.RecordBatch],
    options: BatchOptions,
    *,
    overwrite: bool,
) -> StagedTask:
    """Check every row and stage it in segments of this attempt; nothing is in any log yet."""
    blocks: list[Block] = []
    meta: dict[str, Fields] = {}
    rows = 0
    changes = _changes(batches, options)
    if overwrite:
        changes = _replacing(changes)
    for number, chunk in enumerate(chunks(session, changes)):
        for change in chunk:
            if change.meta:
                meta.setdefault(change.catalog, {}).update(change.meta)
        blocks += stage(session, txn, attempt, number, chunk)
        rows += len(chunk)
    return StagedTask(blocks, meta, rows)


def _changes(batches: Iterable[pa.RecordBatch], options: BatchOptions) -> Iterator[Change]:
    number = 0
    for batch in batches:
        columns = [_column(batch, name, default) for name, default in zip(COLUMNS, _defaults(options), strict=True)]
        for catalog, body, path, merge_type, meta in zip(*columns, strict=True):
            try:
                if body is None:
                    raise InvalidInput(f"catalog {catalog!r} has a row without a body: the JSON for nothing is null")
                yield check_change(options.max_body_bytes, catalog, _bytes(body), path, merge_type, _bytes(meta))
            except InvalidInput as error:
                named = "" if repr(catalog) in str(error) else f", catalog {catalog!r}"
                raise type(error)(f"row {number} of this partition{named}: {error}") from None
            number += 1


def _column(batch: pa.RecordBatch, name: str, default: object) -> Sequence[object]:
    if name not in batch.schema.names:
        return [default] * batch.num_rows
    values: list[object] = batch.column(name).to_pylist()
    return values if name in ("catalog", "body", "meta") else [default if v is None else v for v in values]


def _defaults(options: BatchOptions) -> tuple[object, ...]:
    return options.catalog, None, options.path or "/", options.merge_type, None


def _bytes(value: object) -> object:
    """JSON text as JSON, not as a string to be quoted."""
    return value.encode() if isinstance(value, str) else value


def _replacing(changes: Iterable[Change]) -> Iterator[Change]:
    """Each catalog's first change is a Replace of the whole document: what was before is gone."""
    seen: set[str] = set()
    for change in changes:
        if change.catalog not in seen:
            seen.add(change.catalog)
            if change.path != "/" or change.merge_type is not MergeType.REPLACE:
                yield Change(change.catalog, MergeType.REPLACE, "/", b"{}", {})
        yield change


def commit_job(session: Session, txn: TransactionIndex, tasks: Sequence[StagedTask], *, overwrite: bool) -> None:
    """Publish what the tasks staged and make it visible at once; only what is in their messages counts."""
    try:
        if overwrite:
            _check_partitioning(tasks)
        if not txn.intend():
            txn.abort()
            log.info("version %s of %r was applied before: nothing was written", txn.version, txn.app_id)
            return
        for _ in publish(session, txn, [block for task in tasks for block in task.blocks]):
            pass
        applied = txn.commit()
    except OutcomeUnknown:
        raise
    except BaseException:
        with contextlib.suppress(IndexFailure):
            txn.abort()
        raise
    if applied:
        log.info("transaction %s: %d rows of %d tasks are in", txn.txn, sum(task.rows for task in tasks), len(tasks))
        meta: dict[str, Fields] = {}
        for task in tasks:
            for catalog, fields in task.meta.items():
                meta.setdefault(catalog, {}).update(fields)
        merge_meta(session, meta)


def _check_partitioning(tasks: Sequence[StagedTask]) -> None:
    """Two tasks would each replace the document of the other."""
    counts = Counter(
        catalog for task in tasks for catalog in {run.catalog for block in task.blocks for run in block.runs}
    )
    split = [catalog for catalog, count in counts.most_common(3) if count > 1]
    if split:
        raise ConflictError(
            f"overwrite needs all rows of a catalog in one partition, and those of {', '.join(map(repr, split))} "
            'lie in several: use df.repartition("catalog"); nothing was written'
        )
