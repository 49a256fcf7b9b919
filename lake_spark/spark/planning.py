"""The plan of a read: which catalogs, up to where, in which partitions. Runs on the driver, without Spark."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import groupby
from operator import itemgetter

from lake_spark.client import cut as cuts_of
from lake_spark.client.lake import version_at
from lake_spark.errors import ConfigError, InvalidInput
from lake_spark.index import Index
from lake_spark.index.inspect import changed_counts, changed_since
from lake_spark.model import ZERO, TsSeq
from lake_spark.names import SHARDS, check_catalog, shard_of
from lake_spark.options import BatchOptions

# Views of what is there when a task looks: neither open writes are in their way, nor is there a past to read.
PRESENT_VIEWS = ("pending", "files")

_GLOB = re.compile(r"[*?\[]")
_SHARDS = re.compile(r"([0-9a-f]{2})(?:-([0-9a-f]{2}))?", re.ASCII)
# Names that a task may hold to save round trips.
_SCANNED_TOGETHER = 100_000


@dataclass(frozen=True, slots=True)
class Selection:
    """The catalogs that a read is about: those named (None: all), of these shards, that match and have changed."""

    catalogs: tuple[str, ...] | None = None
    pattern: str = ""
    starts: str = ""
    shards: tuple[str, ...] = SHARDS
    since: TsSeq | None = None

    @classmethod
    def of(cls, options: BatchOptions) -> Selection:
        """What the options select; every restriction narrows what the others leave."""
        names = [name.strip() for name in options.catalogs.split(",") if name.strip()]
        if options.catalogs and not names:
            raise ConfigError(f"option catalogs names no catalog: {options.catalogs!r}")
        pattern = options.path if _GLOB.search(options.path) else ""
        names += [options.path] if options.path and not pattern else []
        return cls(
            tuple(dict.fromkeys(check_catalog(name) for name in names)) or None,
            pattern,
            _prefix(options.catalog_prefix),
            _shards(options.shards),
            _version("updatedSince", options.updated_since),
        )

    @property
    def prefix(self) -> str | None:
        """What every matching name begins with; None when nothing can match."""
        found = _GLOB.search(self.pattern)
        literal = self.pattern[: found.start()] if found else self.pattern
        shorter, longer = sorted((literal, self.starts), key=len)
        return longer if longer.startswith(shorter) else None

    def matches(self, catalog: str) -> bool:
        """Whether a catalog has a name that was asked for; whether it has changed is not asked here."""
        return catalog.startswith(self.starts) and (not self.pattern or fnmatchcase(catalog, self.pattern))


def _prefix(text: str) -> str:
    return check_catalog(text) if text else ""


def _shards(text: str) -> tuple[str, ...]:
    """Shards such as `00,1f,a0-af`."""
    found: set[str] = set()
    for part in text.split(",") if text else ():
        match = _SHARDS.fullmatch(part.strip().lower())
        first, last = (match[1], match[2] or match[1]) if match else ("01", "00")
        if first > last:
            raise ConfigError(
                f"option shards has {part.strip()!r}: a shard is two hex digits, 00 to ff, and a range goes upwards, "
                "such as 00,1f or 00-3f"
            )
        found.update(SHARDS[int(first, 16) : int(last, 16) + 1])
    return tuple(sorted(found)) if text else SHARDS


def _version(option: str, text: str) -> TsSeq | None:
    """The version that an option names; None where it is not given."""
    try:
        return version_at(text) if text else None
    except InvalidInput as error:
        raise ConfigError(f"option {option}: {error}") from None


def check_selection(options: BatchOptions) -> None:
    """Refuse what no plan could make sense of; asks nobody."""
    selection = Selection.of(options)
    as_of = _version("asOf", options.as_of)
    for name, given in (("asOf", as_of), ("updatedSince", selection.since)):
        if given and options.view in PRESENT_VIEWS:
            raise ConfigError(f"view {options.view} shows what is there now, without versions: leave {name} out")


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A part of a shard to read up to a cut: the catalogs named, or all that match (None).

    With `since`, only catalogs whose version at the cut is above it.
    """

    shard: str
    cut: TsSeq
    catalogs: tuple[str, ...] | None
    pattern: str = ""
    prefix: str = ""
    since: TsSeq | None = None
    part: int = 0
    parts: int = 1
    # About how many catalogs it has.
    size: int = 0

    def matches(self, catalog: str) -> bool:
        """Whether a catalog of the shard has a name that was asked for."""
        if self.catalogs is not None:
            return catalog in self.catalogs
        return catalog.startswith(self.prefix) and (not self.pattern or fnmatchcase(catalog, self.pattern))

    def takes(self, catalog: str) -> bool:
        """Whether a catalog of the shard is one of this task's."""
        return self.matches(catalog) and (self.parts == 1 or _part(catalog, self.parts) == self.part)


def names_of(index: Index, task: ShardTask) -> tuple[str, ...]:
    """The catalogs of a task, sorted: in that order the rows of a segment lie, so each row group is read once."""
    return tuple(sorted(_matching(index, task)))


def names_of_all(index: Index, tasks: Iterable[ShardTask]) -> Iterator[str]:
    """The catalogs of several tasks, task after task; small shards are scanned together."""
    for together, some in groupby(_bunches(tasks), key=itemgetter(0)):
        bunch = [task for _, task in some]
        if len(bunch) == 1 or together < 0:
            yield from (name for task in bunch for name in names_of(index, task))
            continue
        names: dict[str, list[str]] = {task.shard: [] for task in bunch}
        for name in index.catalogs(bunch[0].prefix, list(names)):
            names[shard_of(name)].append(name)
        for task in bunch:
            yield from sorted(filter(task.takes, names[task.shard]))


def _bunches(tasks: Iterable[ShardTask]) -> Iterator[tuple[int, ShardTask]]:
    """Each task with the number of its bunch; those that are not scanned have a negative one."""
    number = size = 0
    for task in tasks:
        size += task.size
        if size > _SCANNED_TOGETHER:
            number, size = number + 1, task.size
        yield (number if task.catalogs is None and task.since is None else -1), task


def first_names_of(index: Index, task: ShardTask) -> Iterator[str]:
    """The catalogs of a task as they are found: whoever needs but a few does not wait for all."""
    return iter(_matching(index, task))


def _matching(index: Index, task: ShardTask) -> Iterable[str]:
    if task.catalogs is not None:
        return task.catalogs
    found: Iterable[str]
    if task.since is not None:
        # Those that changed since the cut are among them, whatever they were at the cut: their version will tell.
        found = changed_since(index, task.shard, task.since)
    else:
        found = index.catalogs(task.prefix, [task.shard])
    return filter(task.takes, found)


def _part(catalog: str, parts: int) -> int:
    """The part of its shard that a catalog is in: the same in every process and at any time."""
    digest = hashlib.md5(catalog.encode(), usedforsecurity=False).digest()
    # The first byte is the shard.
    return int.from_bytes(digest[1:5], "big") * parts >> 32


def plan(index: Index, options: BatchOptions) -> list[list[ShardTask]]:
    """The partitions of a read: every task, retried or not, sees the lake as of the same cut.

    The driver only asks how many names a shard has; who they are is the tasks' to find out.
    """
    check_selection(options)
    selection = Selection.of(options)
    prefix = selection.prefix
    if prefix is None:
        return []
    by_shard: dict[str, list[str]] | None = None
    shards: Sequence[str] = selection.shards
    if selection.catalogs is not None:
        by_shard = {}
        for catalog in filter(selection.matches, selection.catalogs):
            by_shard.setdefault(shard_of(catalog), []).append(catalog)
        shards = [shard for shard in shards if shard in by_shard]
    if not shards:
        return []
    present = options.view in PRESENT_VIEWS
    cuts = [ZERO] * len(shards) if present else take_cut(index, shards, options)
    tasks = []
    for shard, cut, size in zip(shards, cuts, _sizes(index, options, selection, shards, by_shard), strict=True):
        if size and (present or cut > ZERO):
            names = None if by_shard is None else tuple(sorted(by_shard[shard]))
            task = ShardTask(shard, cut, names, selection.pattern, prefix, selection.since)
            tasks.append((size, task))
    return _balanced(tasks, options.num_partitions or 2 * (os.cpu_count() or 1), split=options.view != "pending")


def _sizes(
    index: Index,
    options: BatchOptions,
    selection: Selection,
    shards: Sequence[str],
    by_shard: dict[str, list[str]] | None,
) -> list[int]:
    """How many catalogs of each shard a read may meet, at most."""
    if options.view == "pending":
        # The names in a shard say nothing about what is open in it.
        return [1] * len(shards)
    if by_shard is not None:
        return [len(by_shard[shard]) for shard in shards]
    if selection.since is not None:
        return changed_counts(index, shards, selection.since)
    return index.registry_sizes(shards)


def _balanced(tasks: Sequence[tuple[int, ShardTask]], partitions: int, *, split: bool) -> list[list[ShardTask]]:
    """The shards in their order, cut into partitions of about the same size; one over its share is split.

    In that order the rows of a segment lie: neighbours in one partition share row groups, which are read once.
    """
    total = sum(size for size, _ in tasks)
    share = math.ceil(total / partitions)
    pieces = [piece for size, task in tasks for piece in (_pieces(size, task, share) if split else [(size, task)])]
    parts: list[list[ShardTask]] = [[] for _ in range(min(partitions, len(pieces)))]
    done, total = 0, sum(size for size, _ in pieces)
    for size, task in pieces:
        # A piece belongs where its middle lies.
        parts[(2 * done + size) * len(parts) // (2 * total)].append(task)
        done += size
    return [part for part in parts if part]


def _pieces(size: int, task: ShardTask, share: int) -> Iterator[tuple[int, ShardTask]]:
    count = math.ceil(size / share)
    if task.catalogs is None:
        for part in range(count):
            yield math.ceil(size / count), replace(task, part=part, parts=count, size=size)
        return
    step = math.ceil(size / count)
    for start in range(0, size, step):
        names = task.catalogs[start : start + step]
        yield len(names), replace(task, catalogs=names)


def take_cut(index: Index, shards: Sequence[str], options: BatchOptions) -> list[TsSeq]:
    """How far each shard is read, by the options of a job."""
    return cuts_of.take_cut(index, shards, options.pending, options.pending_wait, _version("asOf", options.as_of))
