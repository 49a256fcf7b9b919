"""The plan of a read: which catalogs, up to where, in which partitions. Runs on the driver, without Spark."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from lake_spark.client.lake import version_at
from lake_spark.errors import PendingError
from lake_spark.index import Index, ShardMark, abort_if_expired
from lake_spark.model import ZERO, TsSeq
from lake_spark.names import SHARDS, check_catalog, shard_of, unb64
from lake_spark.options import BatchOptions

_GLOB = re.compile(r"[*?\[]")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5


@dataclass(frozen=True, slots=True)
class Selection:
    """The catalogs that a read is about: some by name, or all that match a pattern ('' for all)."""

    catalogs: tuple[str, ...] = ()
    pattern: str = ""

    @classmethod
    def of(cls, options: BatchOptions) -> Selection:
        names = [name.strip() for name in options.catalogs.split(",") if name.strip()]
        if options.path and _GLOB.search(options.path):
            return cls(pattern=options.path)
        names += [options.path] if options.path else []
        return cls(tuple(dict.fromkeys(check_catalog(name) for name in names)))

    @property
    def prefix(self) -> str:
        """What every matching name begins with."""
        found = _GLOB.search(self.pattern)
        return self.pattern[: found.start()] if found else self.pattern


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A shard to read up to a cut: the catalogs named, or all that match (None)."""

    shard: str
    cut: TsSeq
    catalogs: tuple[str, ...] | None
    pattern: str = ""
    prefix: str = ""


def plan(index: Index, options: BatchOptions) -> list[list[ShardTask]]:
    """The partitions of a read: every task, retried or not, sees the lake as of the same cut."""
    selection = Selection.of(options)
    by_shard: dict[str, list[str]] = {}
    for catalog in selection.catalogs:
        by_shard.setdefault(shard_of(catalog), []).append(catalog)
    shards = list(by_shard) or list(SHARDS)
    cuts = take_cut(index, shards, options)
    sizes = [len(names) for names in by_shard.values()] or index.registry_sizes(shards)
    tasks = [
        (size, ShardTask(shard, cut, _names(by_shard, shard), selection.pattern, selection.prefix))
        for shard, cut, size in zip(shards, cuts, sizes, strict=True)
        if size and cut > ZERO
    ]
    return _balanced(tasks, options.num_partitions or 2 * (os.cpu_count() or 1))


def _names(by_shard: dict[str, list[str]], shard: str) -> tuple[str, ...] | None:
    return tuple(sorted(by_shard[shard])) if by_shard else None


def _balanced(tasks: Sequence[tuple[int, ShardTask]], partitions: int) -> list[list[ShardTask]]:
    """The biggest shards first, each to the partition that has least."""
    loads = [0] * max(1, min(partitions, len(tasks)))
    parts: list[list[ShardTask]] = [[] for _ in loads]
    for size, task in sorted(tasks, key=lambda each: (-each[0], each[1].shard)):
        least = loads.index(min(loads))
        loads[least] += size
        parts[least].append(task)
    return parts


def take_cut(index: Index, shards: Sequence[str], options: BatchOptions) -> list[TsSeq]:
    """How far each shard is read: to its end at one instant (or to `asOf`), once everything below is decided.

    At that instant no transaction is being published, so none is seen in part. Open writes below the cut are
    waited for or are an error; with `prefix` the cut ends before them.
    """
    wait = _Wait(options.pending_wait if options.pending == "wait" else 0.0)
    marks = index.high_water_marks(shards)
    while marks[0].inflight and options.pending != "prefix":
        wait.or_raise(
            f"{marks[0].inflight} transactions are being published: {', '.join(sorted(index.inflight())[:5])}"
        )
        for txn in index.inflight():
            abort_if_expired(index, txn)
        marks = index.high_water_marks(shards)
    limit = version_at(options.as_of) if options.as_of else None
    cut = [min(mark.last, limit) if limit else mark.last for mark in marks]
    if options.pending == "prefix":
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
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)


def _names_of(marks: Sequence[ShardMark]) -> str:
    names = []
    for mark in marks[:5]:
        kind, owner, *rest = mark.token.split("|")
        what = f"transaction {owner}" if kind == "txn" else f"catalog {unb64(rest[-1])!r}"
        names.append(f"{what} at {mark.opened}")
    return ", ".join(names) + (", …" if len(marks) > 5 else "")
