"""The lake's values: time sequences, merge types, deltas, runs, pendings, snapshots, listings. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import NamedTuple

from lake_spark.errors import InvalidTsSeq, LakeError

MAX_SECONDS = 32_503_680_000
MAX_SEQ = 999_999
# Past this second a double no longer tells two neighbouring sequences apart.
_EXACT_FLOAT_SECONDS = 2**33

_TS_SEQ = re.compile(r"([1-9][0-9]{0,10})_([1-9][0-9]{0,5})", re.ASCII)
_DECIMAL = re.compile(r"([1-9][0-9]{0,10})\.([0-9]{6})", re.ASCII)


class TsSeq(NamedTuple):
    """A place in a shard's log: the second, and the sequence within it. Compares as integers."""

    seconds: int
    seq: int

    @classmethod
    def parse(cls, value: TsSeq | str | float) -> TsSeq:
        """Read `1700000000_1`, `1700000000.000001` or that number as a float.

        `0_0` is accepted: it is the start of a first snapshot.
        """
        if isinstance(value, TsSeq):
            return value
        if isinstance(value, float):
            return cls._of_float(value)
        if value == "0_0":
            return ZERO
        match = _TS_SEQ.fullmatch(value) or _DECIMAL.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise InvalidTsSeq(f"not a TsSeq: {value!r} (expected seconds_seq, such as 1700000000_1)")
        return cls._checked(int(match[1]), int(match[2]), value)

    @classmethod
    def _of_float(cls, value: float) -> TsSeq:
        if not 0 < value < _EXACT_FLOAT_SECONDS:
            raise InvalidTsSeq(f"a float cannot hold the TsSeq {value!r}: pass it as text, such as 1700000000_1")
        seconds, seq = divmod(round(value * 1e6), 1_000_000)
        return cls._checked(seconds, seq, value)

    @classmethod
    def _checked(cls, seconds: int, seq: int, given: object) -> TsSeq:
        if seq < 1 or not 1 <= seconds <= MAX_SECONDS:
            raise InvalidTsSeq(f"TsSeq out of range: {given!r} (seconds 1 to {MAX_SECONDS}, sequence 1 to {MAX_SEQ})")
        return cls(seconds, seq)

    @classmethod
    def end_of(cls, moment: datetime | float) -> TsSeq:
        """The last place of the second in which `moment` lies (a naive datetime is local time)."""
        seconds = int(moment.timestamp() if isinstance(moment, datetime) else moment)
        return cls._checked(seconds, MAX_SEQ, moment)

    @property
    def score(self) -> str:
        """The score in a sorted set, as decimal text with six places."""
        return f"{self.seconds}.{self.seq:06d}"

    def __str__(self) -> str:
        return f"{self.seconds}_{self.seq}"


ZERO = TsSeq(0, 0)


class MergeType(IntEnum):
    """How a delta's body changes the value at its path."""

    REPLACE = 1
    RFC7396 = 2
    RFC6902 = 3


@dataclass(frozen=True, slots=True)
class Delta:
    """One change of a document. In a segment, type and path are known once the row is read."""

    ts_seq: TsSeq
    merge_type: MergeType | None
    path: str | None
    segment: str | None = None
    row: int = 0

    @property
    def first(self) -> TsSeq:
        return self.ts_seq

    @property
    def last(self) -> TsSeq:
        return self.ts_seq

    @property
    def count(self) -> int:
        """How many deltas it is, as for a run."""
        return 1

    @property
    def known_type(self) -> MergeType:
        """The merge type of a delta that is an object."""
        assert self.merge_type is not None, "a delta of a segment has its type there"
        return self.merge_type

    @property
    def known_path(self) -> str:
        """The path of a delta that is an object."""
        assert self.path is not None, "a delta of a segment has its path there"
        return self.path

    @property
    def is_root_replace(self) -> bool:
        """Whether nothing before this delta matters."""
        return self.merge_type is MergeType.REPLACE and self.path == "/"


@dataclass(frozen=True, slots=True)
class Run:
    """A catalog's deltas of one chunk: consecutive rows of a segment, consecutive sequences of a second."""

    first: TsSeq
    count: int
    segment: str
    row: int

    @property
    def last(self) -> TsSeq:
        return TsSeq(self.first.seconds, self.first.seq + self.count - 1)

    @property
    def txn(self) -> str:
        """The transaction that wrote it: a segment is named `{txn}.{partition}.{chunk}`."""
        return self.segment.partition(".")[0]

    def sequence(self, place: int) -> TsSeq:
        """The TsSeq of the n-th of its deltas, from 0."""
        return TsSeq(self.first.seconds, self.first.seq + place)

    def __iter__(self) -> Iterator[Delta]:
        for place in range(self.count):
            yield Delta(self.sequence(place), None, None, self.segment, self.row + place)


@dataclass(frozen=True, slots=True)
class Pending:
    """A write that is not committed, or a run whose transaction is in flight (`txn`)."""

    ts_seq: TsSeq
    age: float
    txn: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The document merged up to `stop`; an object of its own, or a row of a segment."""

    start: TsSeq
    stop: TsSeq
    digest: str = ""
    segment: str | None = None
    row: int = 0

    @property
    def last(self) -> TsSeq:
        return self.stop


@dataclass(frozen=True, slots=True)
class Listing:
    """One atomic view of a catalog's log: the latest snapshot and what follows it.

    `entries` stop before the first open write (`pendings`), so they are a closed prefix of the log.
    `has_pending` and `error` say that something stands behind an open write; nothing raises here.
    """

    catalog: str
    snapshot: Snapshot | None = None
    entries: tuple[Delta | Run, ...] = ()
    pendings: tuple[Pending, ...] = ()
    error: LakeError | None = None
    as_of: TsSeq | None = None
    strict_pending: bool = False
    members: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def has_pending(self) -> bool:
        """Whether an open write stands in the way of this view."""
        return bool(self.pendings)

    @property
    def exists(self) -> bool:
        return self.snapshot is not None or bool(self.entries)

    @property
    def version(self) -> TsSeq:
        """The TsSeq of the newest change in this view; `0_0` when there is none."""
        if self.entries:
            return self.entries[-1].last
        return self.snapshot.stop if self.snapshot else ZERO

    @property
    def last_updated(self) -> float:
        """The version as a timestamp; 0.0 when there is none."""
        return float(self.version.score)

    @property
    def deltas(self) -> tuple[Delta, ...]:
        """The deltas after the snapshot, one by one."""
        return tuple(d for e in self.entries for d in (e if isinstance(e, Run) else (e,)))

    def dump(self) -> str:
        """The view as lines of text, for people."""
        state = "as of " + str(self.as_of) if self.as_of else "latest"
        lines = [f"{self.catalog} ({state}): version {self.version}"]
        if self.snapshot:
            lines.append(f"  snapshot {self.snapshot.start} ~ {self.snapshot.stop}")
        for delta in self.deltas:
            kind = delta.merge_type.name if delta.merge_type else f"row {delta.row} of {delta.segment}"
            lines.append(f"  delta {delta.ts_seq} {kind} {delta.path or ''}".rstrip())
        for pending in self.pendings:
            owner = f" of transaction {pending.txn}" if pending.txn else ""
            lines.append(f"  pending {pending.ts_seq}{owner}, open for {pending.age:.1f} s")
        if self.error:
            lines.append(f"  error: {self.error}")
        return "\n".join(lines)
