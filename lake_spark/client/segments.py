"""Segments of a lake: written and stored, opened and read, with the lake's codec and caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from lake_spark.client.session import Session
from lake_spark.errors import ObjectExists
from lake_spark.names import segment_key
from lake_spark.segment import Kind, Segment, SegmentReader, write_segment


def store_segment(
    session: Session, name: str, rows: pa.Table | Mapping[str, Sequence[Any]], *, kind: Kind = "deltas"
) -> Segment:
    """Write the rows as a segment, encrypted where the lake is, and store it."""
    key = segment_key(name)

    def seal(place: str, body: bytes) -> bytes:
        return session.codec.encode(f"{key}#{place}", body)

    segment = write_segment(
        name,
        rows,
        kind=kind,
        compression=session.options.segment_compression,
        seal=seal if session.codec.encrypts else None,
    )
    try:
        session.storage.put(key, segment.data, if_absent=True)
    except ObjectExists:
        # The name is this transaction's: only a put that was made again finds its own bytes.
        if session.storage.get(key) != segment.data:
            raise
    return segment


def segment_reader(session: Session, name: str) -> SegmentReader:
    """A reader of one segment; what it fetches stays in the delta cache."""
    key = segment_key(name)

    def fetch(start: int, length: int | None) -> bytes:
        return session.deltas.load(
            f"{key}@{start}+{length}", lambda: session.storage.get(key, start=start, length=length)
        )

    def unseal(place: str, body: bytes) -> bytes:
        return session.codec.decode(f"{key}#{place}", body)

    known = session.footers.get(name)
    reader = SegmentReader(fetch, name, unseal=unseal if session.codec.encrypts else None, metadata=known)
    if known is None:
        session.footers.put(name, reader.metadata, reader.metadata.nbytes)
    return reader
