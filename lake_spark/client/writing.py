"""The single write: pre-commit, put, commit; and the checks of everything that is written."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lake_spark.client.session import Session
from lake_spark.errors import (
    BodyTooLarge,
    FencedError,
    IndexFailure,
    InvalidBody,
    InvalidInput,
    ObjectExists,
    OutcomeUnknown,
)
from lake_spark.index import OpenWrite
from lake_spark.merge import check_body, dumps, encode
from lake_spark.model import MergeType, TsSeq
from lake_spark.names import check_catalog, check_field_path, delta_key
from lake_spark.trace import span

# A write that is fenced, or that finds its place taken, is made again under a new TsSeq this many times.
_ATTEMPTS = 8
MAX_META_BYTES = 1 << 20
Fields = dict[str, bytes | None]
# What a row of `write_many` holds, in this order.
FIELDS = ("catalog", "body", "path", "merge", "meta")


@dataclass(frozen=True, slots=True)
class Change:
    """A checked write: nothing about it can be refused any more."""

    catalog: str
    merge_type: MergeType
    path: str
    body: bytes
    meta: Fields

    @property
    def only_meta(self) -> bool:
        """An empty JSON patch changes nothing but the catalog's meta."""
        return not self.body


def check_change(
    max_bytes: int,
    catalog: str,
    body: object,
    path: str = "/",
    merge: MergeType | int | str = MergeType.REPLACE,
    meta: object = None,
) -> Change:
    """The write as it will be stored, or an error that names what is wrong with it."""
    check_catalog(catalog)
    check_field_path(path)
    merge_type = check_merge_type(merge)
    try:
        data = bytes(body) if isinstance(body, (bytes, bytearray, memoryview)) else encode(body)
        data = data.strip(b" \t\r\n")
        if len(data) > max_bytes:
            raise BodyTooLarge(
                f"the body for catalog {catalog!r} has {len(data)} bytes, at most {max_bytes} are accepted "
                "(max_body_bytes)"
            )
        if not data:
            raise InvalidBody("it is empty; the JSON for nothing is null")
        parsed = check_body(merge_type, data)
    except InvalidBody as error:
        raise InvalidBody(f"the body for catalog {catalog!r} at {path} is refused: {error}") from None
    if merge_type is MergeType.RFC6902 and not parsed:
        data = b""
    return Change(catalog, merge_type, path, data, check_meta(catalog, meta))


def change_of_row(max_bytes: int, row: object) -> Change:
    """A checked write from a mapping, or from a sequence of its values in the order of `FIELDS`."""
    if isinstance(row, Mapping):
        if {"catalog", "body"} <= row.keys() <= set(FIELDS):
            return check_change(max_bytes, **row)
        found = ", ".join(map(str, row))
    elif isinstance(row, Sequence) and not isinstance(row, (str, bytes)):
        if 2 <= len(row) <= len(FIELDS):
            return check_change(max_bytes, *row)
        found = f"{len(row)} values"
    else:
        raise InvalidInput(f"a row is a mapping or a sequence, not {type(row).__name__}")
    raise InvalidInput(f"a row has catalog and body, and may have path, merge and meta; not {found}")


_MERGE_TYPES = {name: kind for kind in MergeType for name in (kind.name, f"{kind:d}")}


def check_merge_type(merge: MergeType | int | str) -> MergeType:
    """A merge type by value, number or name."""
    # Not by equality: True and 1.0 equal 1, and are mistakes here.
    name = f"{merge:d}" if type(merge) in (int, MergeType) else merge.upper() if isinstance(merge, str) else ""
    if name in _MERGE_TYPES:
        return _MERGE_TYPES[name]
    known = ", ".join(f"{kind.name} ({kind:d})" for kind in MergeType)
    raise InvalidInput(f"there is no merge type {merge!r}; known are {known}")


def check_meta(catalog: str, meta: object) -> Fields:
    """A write's meta by top-level key, each value as raw JSON; None removes the key."""
    return {name: None if part is None else dumps(part) for name, part in parse_meta(catalog, meta).items()}


def parse_meta(catalog: str, meta: object) -> dict[str, Any]:
    """Meta as a JSON object; it is checked as a body is, and keeps its numbers."""
    if meta is None:
        return {}
    try:
        data = bytes(meta) if isinstance(meta, (bytes, bytearray, memoryview)) else encode(meta)
        if len(data) > MAX_META_BYTES:
            raise InvalidBody(f"it has {len(data)} bytes, and Redis keeps it: at most {MAX_META_BYTES} are accepted")
        value = check_body(MergeType.REPLACE, data)
        if not isinstance(value, dict):
            raise InvalidBody(f"it is no JSON object: {data[:100]!r}")
    except InvalidBody as error:
        raise InvalidBody(f"the meta for catalog {catalog!r} is refused: {error}") from None
    return value


def write(session: Session, change: Change) -> TsSeq:
    """Write a change and return its TsSeq; when this returns, every later read has it."""
    if change.only_meta:
        session.index.merge_meta({change.catalog: change.meta})
        return session.index.listing(change.catalog).version
    for attempt in range(_ATTEMPTS):
        with span("PreCommit") as step:
            opened = session.index.precommit(change.catalog, change.merge_type, change.path)
            step.set(tsSeq=opened.ts_seq)
        if not _put(session, opened, change.body):
            # The sequence was used before Redis lost its memory of it: later ones are free.
            time.sleep(0.01 * 2**attempt)
            continue
        try:
            with span("Commit"):
                session.index.commit(opened, change.meta)
            return opened.ts_seq
        except FencedError:
            if attempt == _ATTEMPTS - 1:
                raise
    raise OutcomeUnknown(
        f"catalog {change.catalog!r} has objects at {_ATTEMPTS} places that Redis calls free: Redis lost its memory "
        "of older writes; nothing of this write is in"
    )


def _put(session: Session, opened: OpenWrite, body: bytes) -> bool:
    """Store the body; False (and rolled back) if another body is there already."""
    key = delta_key(opened.catalog, opened.ts_seq, opened.merge_type)
    data = session.codec.encode(key, body)
    try:
        with span("StoragePut", key=key, size=len(data)):
            session.storage.put(key, data, if_absent=True)
    except ObjectExists:
        # A put whose answer was lost, and that was made again, finds itself.
        if session.storage.get(key) == data:
            return True
        session.index.rollback(opened, orphan=False)
        return False
    except BaseException:
        # Whatever happened, the body may have arrived: vacuum looks after it.
        with contextlib.suppress(IndexFailure):
            session.index.rollback(opened, orphan=True)
        raise
    return True
