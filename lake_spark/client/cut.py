"""A cut: how far each shard is read, so that whoever reads many catalogs sees one state of the lake."""

from __future__ import annotations

import time
from collections.abc import Sequence

from lake_spark.errors import PendingError
from lake_spark.index import Index, ShardMark, abort_if_expired
from lake_spark.model import TsSeq
from lake_spark.names import unb64
from lake_spark.tally import count

_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5


def take_cut(
    index: Index, shards: Sequence[str], pending: str, pending_wait: float, as_of: TsSeq | None = None
) -> list[TsSeq]:
    """How far each shard is read: to its end at one instant (or to `as_of`), once everything below is decided.

    At that instant no transaction is being published, so none is seen in part. Open writes below the cut are
    waited for or are an error; with `prefix` the cut ends before them.
    """
    wait = _Wait(pending_wait if pending == "wait" else 0.0)
    marks = index.high_water_marks(shards)
    while marks[0].inflight and pending != "prefix":
        wait.or_raise(
            f"{marks[0].inflight} transactions are being published: {', '.join(sorted(index.inflight())[:5])}"
        )
        for txn in index.inflight():
            abort_if_expired(index, txn)
        marks = index.high_water_marks(shards)
    cut = [min(mark.last, as_of) if as_of else mark.last for mark in marks]
    if pending == "prefix":
        return [min(mark.mark, end) for mark, end in zip(marks, cut, strict=True)]
    while behind := [mark for mark, end in zip(marks, cut, strict=True) if mark.mark < end]:
        wait.or_raise(f"open writes stand before the end of {len(behind)} shards: {_names_of(behind)}")
        marks = index.high_water_marks(shards)
    return cut


class _Wait:
    """Pauses that grow, up to a deadline."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._pause = _FIRST_PAUSE

    def or_raise(self, reason: str) -> None:
        """Pause, or say what was waited for in vain."""
        if time.monotonic() >= self._deadline:
            raise PendingError(f"{reason}; try again, raise pendingWait, or read with pending=prefix")
        time.sleep(self._pause)
        count(waits=self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)


def _names_of(marks: Sequence[ShardMark]) -> str:
    names = []
    for mark in marks[:5]:
        kind, owner, *rest = mark.token.split("|")
        single = f"catalog {unb64(rest[-1])!r} at {mark.opened}, open for {mark.age:.1f} s" if rest else ""
        names.append(f"transaction {owner} at {mark.opened}" if kind == "txn" else single)
    return ", ".join(names) + (", …" if len(marks) > 5 else "")
