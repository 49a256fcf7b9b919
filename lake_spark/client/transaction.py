"""Many writes as one transaction: staged in segments, published shard by shard, visible at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from lake_spark.client.session import Session
from lake_spark.client.writing import Change, Fields
from lake_spark.errors import IndexFailure, ObjectExists, OutcomeUnknown
from lake_spark.index import Block, CatalogRun, TransactionIndex
from lake_spark.merge import dumps
from lake_spark.model import MAX_SEQ, ZERO, TsSeq
from lake_spark.names import segment_key, segment_name
from lake_spark.segment import Segment, write_segment
from lake_spark.trace import span

# Blocks that are published in one round trip.
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


def chunks(session: Session, changes: Iterable[Change]) -> Iterator[list[Change]]:
    """The changes in lists, each enough for a segment."""
    # A run lies within one second, so a chunk has no more rows than a second has sequences.
    most_rows, most_bytes = min(session.options.segment_rows, MAX_SEQ), session.options.segment_bytes
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


def stage(
    session: Session, txn: TransactionIndex, partition: int, number: int, changes: Iterable[Change]
) -> list[Block]:
    """Write the changes as a segment, upload it, register it with the transaction; its blocks, shard by shard."""
    name = segment_name(txn.txn, partition, number)
    rows = [change for change in changes if not change.only_meta]
    if not rows:
        return []
    columns: dict[str, list[Any]] = {
        "catalog": [change.catalog for change in rows],
        "merge_type": [int(change.merge_type) for change in rows],
        "path": [change.path for change in rows],
        "body": [change.body for change in rows],
        "meta": [_meta_text(change.meta) for change in rows],
    }
    seal = partial(_seal, session, segment_key(name)) if session.codec.encrypts else None
    segment = write_segment(name, columns, compression=session.options.segment_compression, seal=seal)
    with span("StageSegment", segment=name, rows=len(rows), size=len(segment.data)):
        _upload(session, segment)
        txn.stage({name: f"{segment.rows} rows, {len(segment.data)} bytes"})
    return [
        Block(shard, name, [CatalogRun(each.catalog, each.row, each.count) for each in spans])
        for shard, spans in groupby(segment.spans(), key=lambda each: each.shard)
    ]


def publish(session: Session, txn: TransactionIndex, blocks: Sequence[Block]) -> Iterator[tuple[Block, list[TsSeq]]]:
    """Publish the blocks of a transaction that is intended; each with the first TsSeq of each of its catalogs."""
    renewed = time.monotonic()
    for start in range(0, len(blocks), _BLOCKS):
        if time.monotonic() - renewed > session.options.lease / 3:
            txn.intend()
            renewed = time.monotonic()
        part = blocks[start : start + _BLOCKS]
        with span("Publish", blocks=len(part)):
            published = txn.publish(part)
        yield from zip(part, published, strict=True)


def merge_meta(session: Session, meta: Mapping[str, Fields]) -> None:
    """Merge the meta of a transaction that is committed."""
    try:
        session.index.merge_meta(meta)
    except IndexFailure as error:
        raise OutcomeUnknown(
            f"all rows are in, but meta of {len(meta)} catalogs may not be ({error}); write the meta again, "
            "not the rows"
        ) from None


def _seal(session: Session, key: str, row: int, body: bytes) -> bytes:
    return session.codec.encode(f"{key}#{row}", body)


def _meta_text(meta: Fields) -> str | None:
    if not meta:
        return None
    parts = (dumps(name) + b":" + (value or b"null") for name, value in meta.items())
    return (b"{" + b",".join(parts) + b"}").decode()


def _upload(session: Session, segment: Segment) -> None:
    key = segment_key(segment.name)
    try:
        session.storage.put(key, segment.data, if_absent=True)
    except ObjectExists:
        # The name is this transaction's: only a put that was made again finds its own bytes.
        if session.storage.get(key) != segment.data:
            raise
