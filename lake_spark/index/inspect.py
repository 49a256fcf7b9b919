"""What the index holds beyond the logs, read in bulk: registries by change, snapshots, open writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from redis.client import Pipeline

from lake_spark.errors import CorruptObject, IndexDenied
from lake_spark.index.index import Index
from lake_spark.index.members import parse_entry, parse_snapshot
from lake_spark.model import Delta, MergeType, Run, Snapshot, TsSeq
from lake_spark.names import check_field_path, unb64

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class OpenMember:
    """An open write of a shard; or a block of a transaction that is being published (`txn`), of many catalogs.

    `opened` is the Redis time of its pre-commit in microseconds, `age` is in seconds.
    """

    ts_seq: TsSeq
    opened: int | None = None
    age: float | None = None
    catalog: str | None = None
    merge_type: MergeType | None = None
    path: str | None = None
    txn: str | None = None


@dataclass(frozen=True, slots=True)
class WholeLog:
    """All that the index has of a catalog at one instant, also what stands behind an open write.

    `opened` are open writes, and runs of transactions that are being published; runs of aborted ones are left out.
    """

    snapshots: tuple[Snapshot, ...]
    entries: tuple[Delta | Run, ...]
    opened: tuple[Delta | Run, ...]


def whole_log(index: Index, catalog: str) -> WholeLog:
    """Everything that the index has of one catalog, oldest first."""
    keys = index.keys

    def ask() -> list[Any]:
        with index.connection.client.pipeline(transaction=True) as pipeline:
            pipeline.zrange(keys.snap(catalog), 0, -1)
            pipeline.zrange(keys.delta(catalog), 0, -1)
            pipeline.smembers(keys.inflight)
            pipeline.smembers(keys.aborted)
            return pipeline.execute()

    snapshots, members, inflight, aborted = index.connection.call(ask)
    entries: list[Delta | Run] = []
    opened: list[Delta | Run] = []
    for member in members:
        entry = parse_entry(member.removeprefix(b"pending|"))
        txn = entry.txn.encode() if isinstance(entry, Run) else b""
        if txn not in aborted:
            (opened if member.startswith(b"pending|") or txn in inflight else entries).append(entry)
    return WholeLog(tuple(parse_snapshot(member) for member in snapshots), tuple(entries), tuple(opened))


def memory_used(index: Index) -> int | None:
    """Bytes of memory that Redis uses, for everything in it; None where it does not say."""
    client = index.connection.client
    try:
        found: Any = index.connection.call(lambda: client.info("memory"))
    except IndexDenied:
        return None
    used: int | None = found.get("used_memory")
    return used


def changed_counts(index: Index, shards: Sequence[str], since: TsSeq) -> list[int]:
    """How many names of each shard's registry were committed to after `since`, in one round trip."""
    return for_each(index, shards, lambda p, shard: p.zcount(index.keys.catalogs(shard), f"({since.score}", "+inf"))


def changed_since(index: Index, shard: str, since: TsSeq) -> Iterator[str]:
    """Names of a shard's registry that were committed to after `since`: what it costs grows with their number."""
    seen: set[bytes] = set()
    lower, skip = f"({since.score}", 0
    while True:
        # By score and not by place: a name that is committed to meanwhile moves to the end, and is met there.
        page = _page(index, shard, lower, skip)
        for name, _ in page:
            if name not in seen:
                seen.add(name)
                yield name.decode()
        if len(page) < _PAGE:
            return
        last = page[-1][1]
        ties = sum(score == last for _, score in page)
        skip = skip + ties if lower == repr(last) else ties
        lower = repr(last)


def _page(index: Index, shard: str, lower: str, skip: int) -> list[tuple[bytes, float]]:
    key, client = index.keys.catalogs(shard), index.connection.client
    found: Any = index.connection.call(
        lambda: client.zrangebyscore(key, lower, "+inf", start=skip, num=_PAGE, withscores=True)
    )
    return [(name, float(score)) for name, score in found]


def snapshots_of(index: Index, catalogs: Sequence[str], until: TsSeq) -> list[list[Snapshot]]:
    """Every snapshot of each catalog that stops at or below `until`, oldest first, in one round trip."""
    found = for_each(index, catalogs, lambda p, name: p.zrangebyscore(index.keys.snap(name), "-inf", until.score))
    return [[parse_snapshot(member) for member in members] for members in found]


def oldest_snapshots(index: Index, catalogs: Sequence[str]) -> list[Snapshot | None]:
    """The oldest snapshot of each catalog: where the history of one that was cleared begins."""
    found = for_each(index, catalogs, lambda p, name: p.zrange(index.keys.snap(name), 0, 0))
    return [parse_snapshot(members[0]) if members else None for members in found]


def snapshot_counts(index: Index, catalogs: Sequence[str], until: TsSeq) -> list[int]:
    """How many snapshots each catalog has at or below `until`, in one round trip."""
    return for_each(index, catalogs, lambda p, name: p.zcount(index.keys.snap(name), "-inf", until.score))


def open_writes(index: Index, shards: Sequence[str]) -> list[list[OpenMember]]:
    """The open writes of each shard, in order. Nothing is fenced: an abandoned one shows by its age."""
    keys = index.keys

    def ask() -> Any:
        # One step, so that no write is without its age.
        with index.connection.client.pipeline(transaction=True) as pipeline:
            for shard in shards:
                pipeline.zrange(keys.pending(shard), 0, -1, withscores=True)
                pipeline.hgetall(keys.opened(shard))
            pipeline.smembers(keys.inflight)
            pipeline.time()
            return pipeline.execute()

    *replies, inflight, (seconds, micros) = index.connection.call(ask)
    now = seconds * 1_000_000 + micros
    found: list[list[OpenMember]] = []
    for members, opened in zip(replies[::2], replies[1::2], strict=True):
        each = (_open_member(token.decode(), score, opened.get(token), now) for token, score in members)
        # Blocks of decided transactions stay until somebody asks for the high-water mark.
        found.append([member for member in each if member.txn is None or member.txn.encode() in inflight])
    return found


def _open_member(token: str, score: float, opened: bytes | None, now: int) -> OpenMember:
    try:
        ts_seq = TsSeq.parse(float(score))
        at = None if opened is None else int(opened)
        age = None if at is None else max(0, now - at) / 1e6
        kind, owner, *rest = token.split("|")
        if kind == "txn":
            return OpenMember(ts_seq, at, age, txn=owner)
        merge_type, path, name = rest
        return OpenMember(ts_seq, at, age, unb64(name), MergeType(int(merge_type)), check_field_path(path))
    except ValueError as error:
        raise CorruptObject(f"the index has an open write that cannot be read: {token!r} ({error})") from None


def for_each(index: Index, items: Sequence[str], ask: Callable[[Pipeline, str], object]) -> list[Any]:
    """What Redis answers to the commands for each of these, in one round trip."""

    def once() -> list[Any]:
        with index.connection.client.pipeline(transaction=False) as pipeline:
            for item in items:
                ask(pipeline, item)
            return pipeline.execute()

    return index.connection.call(once) if items else []
