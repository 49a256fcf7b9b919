"""Many writes as one transaction: staged in segments, published shard by shard, visible at once."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lake_spark.client.segments import store_segment
from lake_spark.client.session import Session
from lake_spark.client.writing import Change, Fields
from lake_spark.errors import IndexFailure, OutcomeUnknown
from lake_spark.index import Block, CatalogRun, TransactionIndex
from lake_spark.merge import dumps
from lake_spark.model import MAX_SEQ, ZERO, TsSeq
from lake_spark.names import SHARDS, segment_name
from lake_spark.segment import Segment
from lake_spark.trace import span

T = TypeVar("T")

# Blocks that are published in one round trip, at the most.
_BLOCKS = 64


def write_many(session: Session, changes: Iterable[Change]) -> list[TsSeq]:
    """Write all the changes or none of them; the TsSeq of each, in their order.

    Changes of one catalog keep their order. Memory is bounded by one segment, the catalogs and the TsSeqs.
    """
    txn: TransactionIndex | None = None
    sequences: list[TsSeq] = []
    only_meta: list[tuple[int, str]] = []
    meta: dict[str, Fields] = {}
    staged: list[Block] = []
    # For each segment and each of its catalogs, the places of its rows in the input.
    places_in: dict[str, dict[str, list[int]]] = {}
    try:
        for number, chunk in enumerate(chunks(session, changes)):
            places: dict[str, list[int]] = {}
            for place, change in enumerate(chunk, len(sequences)):
                meta.setdefault(change.catalog, {}).update(change.meta)
                if change.only_meta:
                    only_meta.append((place, change.catalog))
                else:
                    places.setdefault(change.catalog, []).append(place)
            sequences += [ZERO] * len(chunk)
            if places:
                txn = txn or TransactionIndex.begin(session.index, session.options.lease)
                blocks = stage(session, txn, 0, number, chunk)
                places_in[blocks[0].segment] = places
                staged += blocks
        if txn:
            txn.intend()
            # All of them in one go: the lease is renewed by how long that takes.
            for block, firsts in publish(session, txn, staged):
                for run, first in zip(block.runs, firsts, strict=True):
                    for offset, place in enumerate(places_in[block.segment][run.catalog]):
                        sequences[place] = TsSeq(first.seconds, first.seq + offset)
            with span("Commit", txn=txn.txn):
                txn.commit()
    except OutcomeUnknown:
        raise
    except BaseException:
        if txn:
            with contextlib.suppress(IndexFailure):
                txn.abort()
        raise
    merge_meta(session, meta)
    for place, catalog in only_meta:
        sequences[place] = session.index.listing(catalog).version
    return sequences


@contextlib.contextmanager
def given_up_on_failure(txn: TransactionIndex) -> Iterator[None]:
    """Abort the transaction if the block fails, unless nobody knows whether it is committed."""
    try:
        yield
    except OutcomeUnknown:
        raise
    except BaseException:
        with contextlib.suppress(IndexFailure):
            txn.abort()
        raise


def chunks(session: Session, changes: Iterable[Change]) -> Iterator[list[Change]]:
    """The changes in lists, each enough for a segment."""
    most_rows, most_bytes = chunk_size(session)
    chunk: list[Change] = []
    size = 0
    for change in changes:
        chunk.append(change)
        size += len(change.body)
        if len(chunk) >= most_rows or size >= most_bytes:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def chunk_size(session: Session) -> tuple[int, int]:
    """Rows and bytes of bodies after which a segment is full."""
    # A run lies within one second, so a chunk has no more rows than a second has sequences.
    return min(session.options.segment_rows, MAX_SEQ), session.options.segment_bytes


def columns_of(changes: Iterable[Change]) -> pa.Table:
    """The changes as the columns of a segment, without those that have only meta."""
    rows = [change for change in changes if not change.only_meta]
    columns = {
        "catalog": pa.array([change.catalog for change in rows], pa.string()),
        "merge_type": pa.array([int(change.merge_type) for change in rows], pa.int8()),
        "path": pa.array([change.path for change in rows], pa.string()),
        "body": pa.array([change.body for change in rows], pa.binary()).cast(pa.string()),
        "meta": pa.array([meta_text(change.meta) for change in rows], pa.string()),
    }
    return pa.table(columns)


def stage(
    session: Session, txn: TransactionIndex, partition: int, number: int, changes: Iterable[Change]
) -> list[Block]:
    """Write the changes as a segment, upload it, register it with the transaction; its blocks, shard by shard."""
    rows = columns_of(changes)
    if not rows.num_rows:
        return []
    segment = stage_rows(session, txn, partition, number, rows)
    return list(blocks_of(segment.name, segment.index))


def stage_rows(session: Session, txn: TransactionIndex, partition: int, number: int, rows: pa.Table) -> Segment:
    """The same for rows that are a segment's columns already; the segment, to make blocks of."""
    name = segment_name(txn.txn, partition, number)
    with span("StageSegment", segment=name, rows=rows.num_rows) as step:
        segment = store_segment(session, name, rows)
        step.set(size=len(segment.data))
        txn.stage({name: f"{segment.rows} rows, {len(segment.data)} bytes"})
    return segment


def blocks_of(name: str, index: pa.Table) -> Iterator[Block]:
    """The blocks of a segment, from its index; the versions that its catalogs must be at are the column `expected`."""
    catalogs, rows, counts = (index[column].to_pylist() for column in ("catalog", "row", "count"))
    expected: list[TsSeq | None] = [None] * len(catalogs)
    if "expected" in index.column_names:
        expected = [None if text is None else TsSeq.parse(text) for text in index["expected"].to_pylist()]
    runs = list(map(CatalogRun._make, zip(catalogs, rows, counts, expected, strict=True)))
    start = 0
    shards: list[Any] = index["shard"].to_pylist()
    for shard, size in Counter(shards).items():
        yield Block(shard, name, runs[start : start + size])
        start += size


def publish(session: Session, txn: TransactionIndex, blocks: Sequence[Block]) -> Iterator[tuple[Block, list[TsSeq]]]:
    """Publish the blocks of a transaction that is intended; each with the first TsSeq of each of its catalogs."""
    for part, published in _publish(session, txn, blocks, txn.publish):
        yield from zip(part, published, strict=True)


def publish_all(session: Session, txn: TransactionIndex, indexes: Sequence[tuple[str, bytes]]) -> None:
    """Publish staged segments, given by name and packed index, whose TsSeqs nobody asks for.

    Two halves of the shards at a time, so that Redis works on one while the calls of the other are made. Within a
    shard the segments keep their order, and so do the rows of a catalog.
    """

    def publish_half(lower: bool) -> None:
        blocks = (
            block for name, packed in indexes for block in blocks_of(name, _half(unpack_index(packed), lower=lower))
        )
        for _ in _publish(session, txn, blocks, txn.publish_quickly):
            pass

    session.each(publish_half, (True, False))


def _half(index: pa.Table, *, lower: bool) -> pa.Table:
    below = pc.less(index["shard"], pa.scalar(SHARDS[len(SHARDS) // 2]))
    return index.filter(below if lower else pc.invert(below))


def _publish(
    session: Session, txn: TransactionIndex, blocks: Iterable[Block], publish_part: Callable[[Sequence[Block]], list[T]]
) -> Iterator[tuple[Sequence[Block], list[T]]]:
    renewed = time.monotonic()
    for part in _rounds(blocks):
        if time.monotonic() - renewed > session.options.lease / 3:
            txn.intend()
            renewed = time.monotonic()
        with span("Publish", blocks=len(part)):
            published = publish_part(part)
        yield part, published


def _rounds(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    """The blocks in lists, each for one round trip, with one block of a shard at the most.

    Calls of one round trip may take effect in another order: where a script is missing, some fail and are made again.
    """
    part: dict[str, Block] = {}
    for block in blocks:
        if len(part) >= _BLOCKS or block.shard in part:
            yield list(part.values())
            part = {}
        part[block.shard] = block
    if part:
        yield list(part.values())


def pack_index(index: pa.Table) -> bytes:
    """A segment's index as bytes: what a task tells the driver of it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, index.schema) as writer:
        writer.write_table(index)
    return sink.getvalue().to_pybytes()


def unpack_index(packed: bytes) -> pa.Table:
    return pa.ipc.open_stream(packed).read_all()


def merge_meta(session: Session, meta: Mapping[str, Fields]) -> None:
    """Merge the meta of a transaction that is committed."""
    try:
        session.index.merge_meta(meta)
    except IndexFailure as error:
        raise OutcomeUnknown(
            f"all rows are in, but meta of {len(meta)} catalogs may not be ({error}); write the meta again, "
            "not the rows"
        ) from None


def meta_text(meta: Fields) -> str | None:
    """Checked meta as one JSON object, as a segment keeps it."""
    if not meta:
        return None
    parts = (dumps(name) + b":" + (value or b"null") for name, value in meta.items())
    return (b"{" + b",".join(parts) + b"}").decode()
