"""What a check of the index asks and changes: whole logs, the states of transactions, entries that nobody can use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lake_spark.index import scripts
from lake_spark.index.index import Index
from lake_spark.index.inspect import for_each
from lake_spark.index.members import snapshot_member
from lake_spark.model import Snapshot, TsSeq
from lake_spark.names import b64, shard_of


@dataclass(frozen=True, slots=True)
class Log:
    """Everything that the index has of one catalog's log: members as they are, and how far history was cleared."""

    catalog: str
    snapshots: tuple[bytes, ...]
    members: tuple[bytes, ...]
    floor: TsSeq | None
    registered: bool

    @property
    def empty(self) -> bool:
        return not self.snapshots and not self.members


def logs_of(index: Index, catalogs: Sequence[str]) -> list[Log]:
    """The logs of many catalogs in one round trip; each is not one atomic view."""
    keys = index.keys

    def ask(pipeline: Any, name: str) -> None:
        shard = shard_of(name)
        pipeline.zrange(keys.snap(name), 0, -1)
        pipeline.zrange(keys.delta(name), 0, -1)
        pipeline.hget(keys.floor(shard), b64(name))
        pipeline.zscore(keys.catalogs(shard), name)

    found = for_each(index, catalogs, ask)
    return [
        Log(name, tuple(snaps), tuple(members), TsSeq.parse(floor.decode()) if floor else None, score is not None)
        for name, snaps, members, floor, score in zip(
            catalogs, found[::4], found[1::4], found[2::4], found[3::4], strict=True
        )
    ]


def given_up(index: Index, shard: str) -> set[tuple[str, str]]:
    """The writes of a shard that can never be in a log (again): base64 of the catalog, and TsSeq."""
    found: Any = index.connection.call(lambda: index.connection.client.zrange(index.keys.fenced(shard), 0, -1))
    pairs = (member.decode().split("|")[-2:] for member in found)
    return {(name, ts_seq) for ts_seq, name in pairs}


@dataclass(frozen=True, slots=True)
class TransactionState:
    """What Redis knows of a transaction; `left` are the seconds of its lease."""

    state: str
    left: float

    @property
    def live(self) -> bool:
        """Whether its writer may still publish or commit."""
        return self.state in ("open", "publishing") and self.left > 0

    @property
    def expired(self) -> bool:
        """Whether nobody has decided it, and its writer is gone."""
        return self.state in ("open", "publishing") and self.left <= 0


def transaction_states(index: Index, txns: Sequence[str]) -> dict[str, TransactionState | None]:
    """The state of each transaction; None for one that Redis has forgotten, or never knew."""
    seconds, micros = index.connection.call(lambda: index.connection.client.time())
    now = seconds * 1_000_000 + micros
    found = for_each(index, txns, lambda pipeline, txn: pipeline.hmget(index.keys.txn(txn), "state", "lease"))
    return {
        txn: TransactionState(state.decode(), (int(lease or 0) - now) / 1e6) if state else None
        for txn, (state, lease) in zip(txns, found, strict=True)
    }


def remove_snapshot(index: Index, catalog: str, snapshot: Snapshot, *, ask: bool = False) -> str:
    """Take a snapshot out, or ask whether that could be done; `lua/remove_snapshot.lua` says what the reply means."""
    keys = index.keys
    reply: bytes = index.connection.run(
        scripts.REMOVE_SNAPSHOT,
        [keys.snap(catalog), keys.delta(catalog), keys.floor(shard_of(catalog))],
        [snapshot_member(snapshot), b64(catalog), str(snapshot.stop), str(int(ask))],
    )
    return reply.decode()


def forget_catalog(index: Index, catalog: str) -> bool:
    """Take a name out of the registry, if there is nothing behind it."""
    keys, shard = index.keys, shard_of(catalog)
    script_keys = [keys.catalogs(shard), keys.delta(catalog), keys.snap(catalog), keys.seq(shard)]
    return bool(index.connection.run(scripts.FORGET_CATALOG, script_keys, [catalog]))
