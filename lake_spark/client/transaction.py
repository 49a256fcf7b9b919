"""Many writes as one transaction: staged in segments, published shard by shard, visible at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Staged:
    """A chunk that is uploaded: its blocks, and for each catalog the places of its rows in the input."""

    blocks: list[Block]
    places: dict[str, list[int]]


def write_many(session: Session, changes: Iterable[Change]) -> list[TsSeq]:
    """Write all the changes or none of them; the TsSeq of each, in their order.

    Changes of one catalog keep their order. Memory is bounded by one segment, the catalogs and the TsSeqs.
    """
    txn: TransactionIndex | None = None
    sequences: list[TsSeq] = []
    only_meta: list[tuple[int, str]] = []
    meta: dict[str, Fields] = {}
    staged: list[Staged] = []
    try:
        for number, chunk in enumerate(_chunks(changes, session.options.segment_rows, session.options.segment_bytes)):
            for place, change in enumerate(chunk, len(sequences)):
                meta.setdefault(change.catalog, {}).update(change.meta)
                if change.only_meta:
                    only_meta.append((place, change.catalog))
            rows = [(place, change) for place, change in enumerate(chunk, len(sequences)) if not change.only_meta]
            sequences += [ZERO] * len(chunk)
            if rows:
                txn = txn or TransactionIndex.begin(session.index, session.options.lease)
                staged.append(_stage(session, txn, number, rows))
        if txn:
            _publish_all(session, txn, staged, sequences)
    except OutcomeUnknown:
        raise
    except BaseException:
        if txn:
            with contextlib.suppress(IndexFailure):
                txn.abort()
        raise
    try:
        session.index.merge_meta(meta)
    except IndexFailure as error:
        raise OutcomeUnknown(
            f"all rows are in, but meta of {len(meta)} catalogs may not be ({error}); write the meta again, "
            "not the rows"
        ) from None
    for place, catalog in only_meta:
        sequences[place] = session.index.listing(catalog).version
    return sequences


def _chunks(changes: Iterable[Change], most_rows: int, most_bytes: int) -> Iterator[list[Change]]:
    chunk: list[Change] = []
    size = 0
    for change in changes:
        chunk.append(change)
        size += len(change.body)
        # A run lies within one second, so a chunk has no more rows than a second has sequences.
        if len(chunk) >= min(most_rows, MAX_SEQ) or size >= most_bytes:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _stage(session: Session, txn: TransactionIndex, number: int, rows: list[tuple[int, Change]]) -> Staged:
    """Write the rows as a segment, upload it, and register it with the transaction."""
    name = segment_name(txn.txn, 0, number)
    places: dict[str, list[int]] = {}
    for place, change in rows:
        places.setdefault(change.catalog, []).append(place)
    changes = [change for _, change in rows]
    columns: dict[str, list[Any]] = {
        "catalog": [change.catalog for change in changes],
        "merge_type": [int(change.merge_type) for change in changes],
        "path": [change.path for change in changes],
        "body": [change.body for change in changes],
        "meta": [_meta_text(change.meta) for change in changes],
    }
    seal = partial(_seal, session, segment_key(name)) if session.codec.encrypts else None
    segment = write_segment(name, columns, compression=session.options.segment_compression, seal=seal)
    with span("StageSegment", segment=name, rows=len(rows), size=len(segment.data)):
        _upload(session, segment)
        txn.stage({name: f"{segment.rows} rows, {len(segment.data)} bytes"})
    blocks = [
        Block(shard, name, [CatalogRun(each.catalog, each.row, each.count) for each in spans])
        for shard, spans in groupby(segment.spans(), key=lambda each: each.shard)
    ]
    return Staged(blocks, places)


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


def _publish_all(session: Session, txn: TransactionIndex, staged: list[Staged], sequences: list[TsSeq]) -> None:
    """Publish every block and commit; each TsSeq goes to its row's place."""
    txn.intend()
    renewed = time.monotonic()
    for part in staged:
        for start in range(0, len(part.blocks), _BLOCKS):
            if time.monotonic() - renewed > session.options.lease / 3:
                txn.intend()
                renewed = time.monotonic()
            blocks = part.blocks[start : start + _BLOCKS]
            with span("Publish", blocks=len(blocks)):
                published = txn.publish(blocks)
            for block, firsts in zip(blocks, published, strict=True):
                for run, first in zip(block.runs, firsts, strict=True):
                    for offset, place in enumerate(part.places[run.catalog]):
                        sequences[place] = TsSeq(first.seconds, first.seq + offset)
    with span("Commit", txn=txn.txn):
        txn.commit()
