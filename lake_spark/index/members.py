"""Members of the index's sorted sets, as values."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from lake_spark.errors import CorruptObject, InvalidInput
from lake_spark.model import MAX_SECONDS, MAX_SEQ, ZERO, Delta, MergeType, Run, Snapshot, TsSeq
from lake_spark.names import check_field_path

_SEGMENT_ROW = r"([0-9a-z]+\.[0-9]+\.[0-9]+):([0-9]+)"
_TS_SEQ = r"([1-9][0-9]{0,10})_([1-9][0-9]{0,5})"
_RUN = re.compile(rf"run\|{_TS_SEQ}\|([1-9][0-9]{{0,5}})\|{_SEGMENT_ROW}", re.ASCII)
_DELTA = re.compile(rf"delta\|([123])\|([^|]+)\|{_TS_SEQ}", re.ASCII)
_SNAPSHOT = re.compile(
    rf"snap\|(?:0_0|{_TS_SEQ})\|(?:0_0|{_TS_SEQ})(?:\|(?:([0-9a-f]{{16}})|{_SEGMENT_ROW}))?", re.ASCII
)
_MERGE_TYPES = {str(int(kind)): kind for kind in MergeType}


def parse_entry(member: bytes) -> Delta | Run:
    """A `delta|…` or `run|…` member."""
    text = member.decode(errors="replace")
    try:
        if found := _RUN.fullmatch(text):
            seconds, seq, count, segment, row = found.groups()
            run = Run(_in_range(int(seconds), int(seq)), int(count), segment, int(row))
            if run.first.seq + run.count - 1 > MAX_SEQ:
                raise ValueError("a run ends in the second in which it starts")
            return run
        if found := _DELTA.fullmatch(text):
            kind, path, seconds, seq = found.groups()
            return Delta(_in_range(int(seconds), int(seq)), _MERGE_TYPES[kind], check_field_path(path))
        raise ValueError("neither a delta nor a run")
    except (ValueError, InvalidInput) as error:
        raise _corrupt(member, error) from None


def _in_range(seconds: int, seq: int) -> TsSeq:
    if seconds > MAX_SECONDS:
        raise ValueError(f"second {seconds} is out of range")
    return TsSeq(seconds, seq)


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


def parse_snapshot(member: bytes) -> Snapshot:
    """A `snap|…` member: with a digest, with a segment's row, or with neither as in Lake V2."""
    try:
        found = _SNAPSHOT.fullmatch(member.decode(errors="replace"))
        if found is None:
            raise ValueError("not a snapshot")
        start_seconds, start_seq, stop_seconds, stop_seq, digest, segment, row = found.groups()
        start = _in_range(int(start_seconds), int(start_seq)) if start_seconds else ZERO
        stop = _in_range(int(stop_seconds), int(stop_seq)) if stop_seconds else ZERO
        if start > stop:
            raise ValueError("it stops before it starts")
        return Snapshot(start, stop, digest or "", segment, int(row or 0))
    except ValueError as error:
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
