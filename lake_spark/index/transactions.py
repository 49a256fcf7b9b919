"""The steps of a job's transaction in the index: stage, intend, publish, commit, abort."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from lake_spark.errors import ConflictError, IndexFailure, OutcomeUnknown, TransactionAborted
from lake_spark.index import scripts
from lake_spark.index.connection import Argument, Call
from lake_spark.index.index import Index
from lake_spark.model import TsSeq
from lake_spark.names import new_txn

# How long Redis remembers a transaction after its last sign of life: vacuum tells the segments of lost attempts by it.
REMEMBERED = 7 * 24 * 3600

_pack = msgspec.msgpack.Encoder().encode


class CatalogRun(NamedTuple):
    """A catalog's rows in a segment, and the version that they expect the catalog to be at (None: any)."""

    catalog: str
    row: int
    count: int  # type: ignore[assignment]  # the field, in place of tuple's method
    expected: TsSeq | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """The part of a chunk that lies in one shard: published in one step."""

    shard: str
    segment: str
    runs: Sequence[CatalogRun]


@dataclass(frozen=True, slots=True)
class TransactionIndex:
    """One transaction, by its id. A plain value: executors and the driver each make their own.

    Staging may take long and is in nobody's way; publishing is short, and readers wait for it: each has its lease.
    """

    index: Index
    txn: str
    lease: float
    app_id: str = ""
    version: int | None = None
    passing: bool = False
    after: int | None = None
    staging_lease: float = 24 * 3600.0

    @classmethod
    def begin(
        cls,
        index: Index,
        lease: float,
        app_id: str = "",
        version: int | None = None,
        *,
        passing: bool = False,
        after: int | None = None,
    ) -> TransactionIndex:
        """A new transaction: its id is claimed, its lease runs.

        With `passing`, Redis forgets the application's version after as long as it remembers transactions. With
        `after` it commits only while the application is at exactly that version (0: it has none).

        Transactions in flight whose writer is gone are given up on the way: one that published nothing yet
        is met by no reader.
        """
        for other in index.inflight():
            abort_if_expired(index, other)
        while True:
            txn = cls(index, new_txn(), lease, app_id, version, passing, after)
            if txn._stage(owner=secrets.token_hex(8), segments={}) == "open":
                return txn

    def stage(self, segments: Mapping[str, str]) -> None:
        """Register uploaded segments (name → what it holds) and renew the lease."""
        state = self._stage(owner="", segments=segments)
        if state != "open":
            raise self._aborted(state)

    def _stage(self, *, owner: str, segments: Mapping[str, str]) -> str:
        pairs: list[Argument] = [part for pair in segments.items() for part in pair]
        arguments = [owner, _micros(self.staging_lease), REMEMBERED + round(self.staging_lease), *pairs]
        reply: bytes = self._run(scripts.TXN_STAGE, [self._key], arguments)
        return reply.decode()

    def intend(self) -> bool:
        """Decide to publish, or renew the lease while publishing; False if the application has this version already."""
        keys = self.index.keys
        reply = self._run(
            scripts.TXN_INTEND,
            [self._key, keys.inflight, keys.app(self.app_id)],
            [self.txn, _micros(self.lease), self._version],
        ).decode()
        if reply not in ("publishing", "applied"):
            raise self._aborted(reply)
        return bool(reply == "publishing")

    def publish(self, blocks: Sequence[Block]) -> list[list[TsSeq]]:
        """Add the blocks' runs to the logs, not visible yet; the first TsSeq of each catalog of each block."""
        return [[TsSeq.parse(first.decode()) for first in firsts] for firsts in self.publish_quickly(blocks)]

    def publish_quickly(self, blocks: Sequence[Block]) -> list[list[bytes]]:
        """The same, with every TsSeq as Redis gave it: of a big job nobody looks at them."""
        replies = self._run_many([self._publish_call(block) for block in blocks])
        for block, (state, *rest) in zip(blocks, replies, strict=True):
            if state == b"conflict":
                catalog, version = (part.decode() for part in rest)
                expected = next(run.expected for run in block.runs if run.catalog == catalog)
                found = "has an open write" if version == "open" else f"is at {version}"
                raise ConflictError(
                    f"catalog {catalog!r} {found}, the write expected {expected}; nothing of the write is visible"
                )
            if state != b"published":
                raise self._aborted(state.decode())
        return [reply[1:] for reply in replies]

    def _publish_call(self, block: Block) -> Call:
        keys, shard = self.index.keys, block.shard
        catalogs, rows, counts, versions = zip(*block.runs, strict=True)
        expected = ["" if version is None else str(version) for version in versions] if any(versions) else []
        script_keys = [
            *(keys.seq(shard), keys.pending(shard), keys.opened(shard), keys.catalogs(shard)),
            *(keys.inflight, keys.aborted),
            *keys.logs(catalogs),
        ]
        chunk = block.segment.partition(".")[2]
        return script_keys, [self.txn, chunk, block.segment, _pack((catalogs, rows, counts, expected))]

    def commit(self) -> bool:
        """Make all of it visible at once; False if another transaction brought this version first."""
        keys = self.index.keys
        try:
            reply = self._run(
                scripts.TXN_COMMIT,
                [self._key, keys.inflight, keys.aborted, keys.app(self.app_id)],
                [self.txn, self._version, REMEMBERED, str(int(self.passing)), _text(self.after)],
            ).decode()
        except IndexFailure as error:
            if not error.may_have_run:
                raise
            raise OutcomeUnknown(f"transaction {self.txn} may or may not be committed ({error})") from None
        if reply not in ("committed", "applied"):
            raise self._aborted(reply)
        return bool(reply == "committed")

    def abort(self) -> None:
        """Give it up: nothing of it becomes visible. Does nothing to one that is committed."""
        keys = self.index.keys
        self._run(scripts.TXN_ABORT, [self._key, keys.inflight, keys.aborted], [self.txn, "0"])

    def _run(self, script: scripts.Script, keys: Sequence[str], arguments: Sequence[Argument]) -> bytes:
        reply: bytes = self.index.connection.run(script, keys, arguments)
        return reply

    def _run_many(self, calls: Sequence[Call]) -> list[list[bytes]]:
        return self.index.connection.run_many(scripts.TXN_PUBLISH, calls)

    @property
    def _key(self) -> str:
        return self.index.keys.txn(self.txn)

    @property
    def _version(self) -> str:
        return _text(self.version)

    def _aborted(self, state: str) -> TransactionAborted:
        why = {"expired": "its lease ran out", "missing": "Redis does not know it (any more)"}.get(
            state, f"it is {state}"
        )
        return TransactionAborted(f"transaction {self.txn} cannot go on: {why}; nothing of it is visible")


def application_version(index: Index, app_id: str) -> int:
    """The last version that the application has brought; 0 if none."""
    found: Any = index.connection.call(lambda: index.connection.client.get(index.keys.app(app_id)))
    return int(found or 0)


def _text(version: int | None) -> str:
    return "" if version is None else str(version)


def _micros(seconds: float) -> str:
    return str(round(seconds * 1e6))


def abort_if_expired(index: Index, txn: str) -> float:
    """Give up a transaction in flight whose writer is gone; the seconds of lease left, 0.0 once it is decided."""
    keys = index.keys
    state, *left = index.connection.run(scripts.TXN_ABORT, [keys.txn(txn), keys.inflight, keys.aborted], [txn, "1"])
    return int(left[0]) / 1e6 if state == b"open" else 0.0
