"""Members of the index's sorted sets, as values."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache

from lake_spark.errors import CorruptObject, InvalidInput
from lake_spark.model import MAX_SEQ, ZERO, Delta, MergeType, Run, Snapshot, TsSeq
from lake_spark.names import check_field_path

_SEGMENT_ROW = re.compile(r"([0-9a-z]+\.[0-9]+\.[0-9]+):([0-9]+)", re.ASCII)
_COUNT = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{16}", re.ASCII)


def parse_entry(member: bytes) -> Delta | Run:
    """A `delta|…` or `run|…` member."""
    fields = _fields(member)
    try:
        if fields[0] == "delta":
            _, merge_type, path, ts_seq = fields
            if merge_type not in ("1", "2", "3"):
                raise ValueError(f"merge type {merge_type}")
            return Delta(_written(ts_seq), MergeType(int(merge_type)), check_field_path(path))
        _, first, count, place = fields
        match = _SEGMENT_ROW.fullmatch(place)
        if fields[0] != "run" or match is None or not _COUNT.fullmatch(count):
            raise ValueError("neither a delta nor a run")
        run = Run(_written(first), int(count), match[1], int(match[2]))
        if run.last.seq > MAX_SEQ:
            raise ValueError("a run ends in the second in which it starts")
        return run
    except (ValueError, InvalidInput) as error:
        raise _corrupt(member, error) from None


def parse_pending(member: bytes) -> TsSeq:
    """The TsSeq of a `pending|…` member, or of the first delta of a run."""
    fields = _fields(member)
    try:
        if fields[0] == "run":
            return _written(fields[1])
        if fields[:2] != ["pending", "delta"] or len(fields) != 5:
            raise ValueError("not a pending")
        return _written(fields[4])
    except (ValueError, IndexError, InvalidInput) as error:
        raise _corrupt(member, error) from None


@lru_cache(4096)
def parse_snapshot(member: bytes) -> Snapshot:
    """A `snap|…` member: with a digest, with a segment's row, or with neither as in Lake V2."""
    fields = _fields(member)
    try:
        kind, start, stop, *rest = fields
        if kind != "snap" or len(rest) > 1:
            raise ValueError("not a snapshot")
        span = TsSeq.parse(start), TsSeq.parse(stop)
        if span[0] > span[1]:
            raise ValueError("it stops before it starts")
        if not rest:
            return Snapshot(*span)
        match = _SEGMENT_ROW.fullmatch(rest[0])
        if match:
            return Snapshot(*span, segment=match[1], row=int(match[2]))
        if not _DIGEST.fullmatch(rest[0]):
            raise ValueError("neither a digest nor a row of a segment")
        return Snapshot(*span, digest=rest[0])
    except (ValueError, InvalidInput) as error:
        raise _corrupt(member, error) from None


def snapshot_member(snapshot: Snapshot) -> str:
    place = f"{snapshot.segment}:{snapshot.row}" if snapshot.segment else snapshot.digest
    return f"snap|{snapshot.start}|{snapshot.stop}|{place}" if place else f"snap|{snapshot.start}|{snapshot.stop}"


def digest_of(predecessor: Snapshot | None, members: Iterable[bytes]) -> str:
    """What a snapshot of these members on that predecessor is known by: see `lua/snapshot.lua`."""
    first = snapshot_member(predecessor).encode() if predecessor else b""
    joined = b"\n".join([first, *members])
    return hashlib.sha1(joined, usedforsecurity=False).hexdigest()[:16]


def _written(text: str) -> TsSeq:
    """The TsSeq of a write: `0_0` is nobody's."""
    ts_seq = TsSeq.parse(text)
    if ts_seq == ZERO:
        raise ValueError("no write has the sequence 0_0")
    return ts_seq


def _fields(member: bytes) -> list[str]:
    return member.decode(errors="replace").split("|")


def _corrupt(member: bytes, error: Exception) -> CorruptObject:
    return CorruptObject(f"the index has a member that cannot be read: {member.decode(errors='replace')!r} ({error})")
