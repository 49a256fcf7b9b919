"""The work of a write job: tasks check and stage their rows, the driver publishes and commits. Runs without Spark."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from lake_spark.client.session import Session
from lake_spark.client.transaction import (
    chunk_size,
    given_up_on_failure,
    merge_meta,
    pack_index,
    publish_all,
    stage_rows,
    unpack_index,
)
from lake_spark.client.writing import Change, Fields, check_change, write
from lake_spark.errors import ConflictError, InvalidInput
from lake_spark.index import TransactionIndex
from lake_spark.model import TsSeq
from lake_spark.options import BatchOptions
from lake_spark.spark.rows import SHOWN, BadRow, RowChecker, Rows, expect, refusal, replacing, sort_keys

log = logging.getLogger("lake_spark")

# What a task may hold to sort its rows, in segments.
_SORTED_SEGMENTS = 4


@dataclass(slots=True)
class StagedTask:
    """What a task staged: its message to the commit. A segment is its name and its packed index."""

    segments: list[tuple[str, bytes]] = field(default_factory=list)
    meta: dict[str, Fields] = field(default_factory=dict)
    rows: int = 0
    catalogs: int = 0


@dataclass(frozen=True, slots=True)
class WriteTask:
    """One attempt at writing a partition. Rows that are refused are its error, unless there is one to `keep` them."""

    session: Session
    txn: TransactionIndex
    options: BatchOptions
    schema: StructType
    overwrite: bool
    partition: int
    attempt: int
    keep: Callable[[Sequence[BadRow]], None] | None = None

    def run(self, batches: Iterable[pa.RecordBatch]) -> StagedTask:
        """Check every row and stage it in segments of this attempt; nothing is in any log yet.

        With `atomicity=task`, publish and commit them, too.
        """
        staged = StagedTask()
        rows = self._checked(batches, staged)
        if self.options.layout == "objects":
            self._write_objects(rows, staged)
            return staged
        if self.options.atomicity == "job":
            self._stage(self.txn, rows, staged)
            return staged
        # The partition is an application with one version: an attempt that comes late finds it applied.
        own = TransactionIndex.begin(
            self.session.index, self.options.lease, f"{self.txn.txn}.{self.partition}", 1, passing=True
        )
        with given_up_on_failure(own):
            self._stage(own, rows, staged)
        commit(self.session, own, [staged])
        staged.segments, staged.meta = [], {}
        return staged

    def _checked(self, batches: Iterable[pa.RecordBatch], staged: StagedTask) -> Iterator[Rows]:
        checker = RowChecker(self.schema, self.options)
        if self.options.order_by:
            batches = self._sorted(batches)
        checked: Iterator[Rows] = map(checker.check, batches)
        if self.overwrite:
            checked = replacing(checked)
        bad: list[BadRow] = []
        for rows in checked:
            if self.keep:
                self.keep(rows.bad)
            else:
                bad += rows.bad
                if len(bad) >= SHOWN:
                    break
            for catalog, meta in rows.meta:
                staged.meta.setdefault(catalog, {}).update(meta)
            yield rows
        if bad:
            raise refusal(bad, self.partition)

    def _sorted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows of the partition by the columns of `orderBy`; equal ones keep their order."""
        most = _SORTED_SEGMENTS * self.options.segment_bytes
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            held.append(batch)
            size += batch.nbytes
            if size > most:
                raise InvalidInput(
                    f"orderBy sorts in memory, and this partition has more than {most} bytes: sort with "
                    "df.sortWithinPartitions(…) instead, or use more partitions; nothing was written"
                )
        if held:
            keys: Any = list(sort_keys(self.options.order_by).items())
            yield from pa.Table.from_batches(held).sort_by(keys).to_batches(max_chunksize=held[0].num_rows or None)

    def _stage(self, txn: TransactionIndex, checked: Iterable[Rows], staged: StagedTask) -> None:
        seen: set[str] = set()
        expected: dict[str, TsSeq] = {}
        everywhere = TsSeq.parse(self.options.expected_version) if self.options.expected_version else None
        for number, rows in enumerate(_chunks(self.session, checked, expected)):
            segment = stage_rows(self.session, txn, self.attempt, number, rows)
            index = segment.index
            catalogs: list[Any] = index["catalog"].to_pylist()
            if everywhere is not None or expected:
                # Only the first run of a catalog finds it as it was.
                versions = [None if name in seen else expected.get(name, everywhere) for name in catalogs]
                texts = pa.array([None if version is None else str(version) for version in versions], pa.string())
                index = index.append_column("expected", texts)
            seen.update(catalogs)
            staged.segments.append((segment.name, pack_index(index)))
            staged.rows += rows.num_rows
        staged.catalogs = len(seen)

    def _write_objects(self, checked: Iterable[Rows], staged: StagedTask) -> None:
        """Each row as a write of its own, in the order of its catalog's rows; several catalogs at a time."""
        seen: set[str] = set()
        most = self.options.max_body_bytes
        for rows in checked:
            changes = [
                check_change(most, catalog, body.encode(), path, kind, meta.encode() if meta else None)
                for catalog, kind, path, body, meta in zip(*(c.to_pylist() for c in rows.table.columns), strict=True)
            ]
            changes.sort(key=attrgetter("catalog"))
            groups = [list(some) for _, some in groupby(changes, key=attrgetter("catalog"))]
            self.session.each(partial(_write_each, self.session), groups)
            seen.update(change.catalog for change in changes)
            staged.rows += len(changes)
        staged.catalogs = len(seen)
        merge_meta(self.session, staged.meta)
        staged.meta = {}


def _write_each(session: Session, changes: Iterable[Change]) -> None:
    for change in changes:
        write(session, change)


def _chunks(session: Session, checked: Iterable[Rows], expected: dict[str, TsSeq]) -> Iterator[pa.Table]:
    """The rows in tables, each enough for a segment; what is expected of their catalogs is noted on the way."""
    most_rows, most_bytes = chunk_size(session)
    held: list[pa.Table] = []
    count = size = 0
    for rows in checked:
        for catalog, version in rows.expected.items():
            expect(expected, catalog, version)
        table = rows.table
        while table.num_rows:
            part = table.slice(0, most_rows - count)
            table = table.slice(part.num_rows)
            held.append(part)
            count += part.num_rows
            size += part.nbytes
            if count >= most_rows or size >= most_bytes:
                yield pa.concat_tables(held)
                held, count, size = [], 0, 0
    if held:
        yield pa.concat_tables(held)


def commit_job(
    session: Session, txn: TransactionIndex, tasks: Sequence[StagedTask], *, overwrite: bool, expects: bool
) -> None:
    """Publish what the tasks staged and make it visible at once; only what is in their messages counts."""
    if overwrite or expects:
        with given_up_on_failure(txn):
            _check_partitioning(tasks, "overwrite" if overwrite else "expectedVersion")
    commit(session, txn, tasks)


def commit(session: Session, txn: TransactionIndex, tasks: Sequence[StagedTask]) -> None:
    """Publish and commit the segments of these tasks."""
    with given_up_on_failure(txn):
        if not txn.intend():
            txn.abort()
            log.info("version %s of %r was applied before: nothing was written", txn.version, txn.app_id)
            return
        publish_all(session, txn, [segment for task in tasks for segment in task.segments])
        applied = txn.commit()
    if applied:
        log.info("transaction %s: %d rows of %d tasks are in", txn.txn, sum(task.rows for task in tasks), len(tasks))
        meta: dict[str, Fields] = {}
        for task in tasks:
            for catalog, fields in task.meta.items():
                meta.setdefault(catalog, {}).update(fields)
        merge_meta(session, meta)


def _check_partitioning(tasks: Sequence[StagedTask], what: str) -> None:
    """Two tasks would each replace the document of the other, or find another version than expected."""
    counts: Counter[str] = Counter()
    for task in tasks:
        found: list[Any] = [name for _, packed in task.segments for name in unpack_index(packed)["catalog"].to_pylist()]
        counts.update(set(found))
    split = [catalog for catalog, count in counts.most_common(3) if count > 1]
    if split:
        raise ConflictError(
            f"{what} needs all rows of a catalog in one partition, and those of {', '.join(map(repr, split))} "
            'lie in several: use df.repartition("catalog"); nothing was written'
        )
