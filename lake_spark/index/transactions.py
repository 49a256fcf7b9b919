"""The steps of a job's transaction in the index: stage, intend, publish, commit, abort."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lake_spark.errors import ConflictError, IndexFailure, OutcomeUnknown, TransactionAborted
from lake_spark.index import scripts
from lake_spark.index.connection import Argument, Call
from lake_spark.index.index import Index
from lake_spark.model import TsSeq
from lake_spark.names import new_txn

# How long Redis remembers a transaction after its last sign of life: vacuum tells the segments of lost attempts by it.
REMEMBERED = 7 * 24 * 3600


@dataclass(frozen=True, slots=True)
class CatalogRun:
    """A catalog's rows in a segment, and the version that they expect the catalog to be at (None: any)."""

    catalog: str
    row: int
    count: int
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
    staging_lease: float = 24 * 3600.0

    @classmethod
    def begin(cls, index: Index, lease: float, app_id: str = "", version: int | None = None) -> TransactionIndex:
        """A new transaction: its id is claimed, its lease runs.

        Transactions in flight whose writer is gone are given up on the way: one that published nothing yet
        is met by no reader.
        """
        for other in index.inflight():
            abort_if_expired(index, other)
        while True:
            txn = cls(index, new_txn(), lease, app_id, version)
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
        firsts = []
        for block, reply in zip(blocks, self._run_many([self._publish_call(block) for block in blocks]), strict=True):
            state, *rest = (part.decode() for part in reply)
            if state == "conflict":
                expected = next(run.expected for run in block.runs if run.catalog == rest[0])
                found = "has an open write" if rest[1] == "open" else f"is at {rest[1]}"
                raise ConflictError(
                    f"catalog {rest[0]!r} {found}, the write expected {expected}; nothing of the write is visible"
                )
            if state != "published":
                raise self._aborted(state)
            firsts.append([TsSeq.parse(text) for text in rest])
        return firsts

    def _publish_call(self, block: Block) -> Call:
        keys, shard = self.index.keys, block.shard
        chunk = block.segment.partition(".")[2]
        arguments: list[Argument] = [self.txn, chunk, block.segment]
        script_keys = [
            *(keys.seq(shard), keys.pending(shard), keys.opened(shard), keys.catalogs(shard)),
            *(keys.inflight, keys.aborted),
        ]
        for run in block.runs:
            script_keys += [keys.delta(run.catalog), keys.snap(run.catalog)]
            arguments += [run.catalog, run.row, run.count, str(run.expected) if run.expected is not None else ""]
        return script_keys, arguments

    def commit(self) -> bool:
        """Make all of it visible at once; False if another transaction brought this version first."""
        keys = self.index.keys
        try:
            reply = self._run(
                scripts.TXN_COMMIT,
                [self._key, keys.inflight, keys.aborted, keys.app(self.app_id)],
                [self.txn, self._version, REMEMBERED],
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
        return "" if self.version is None else str(self.version)

    def _aborted(self, state: str) -> TransactionAborted:
        why = {"expired": "its lease ran out", "missing": "Redis does not know it (any more)"}.get(
            state, f"it is {state}"
        )
        return TransactionAborted(f"transaction {self.txn} cannot go on: {why}; nothing of it is visible")


def _micros(seconds: float) -> str:
    return str(round(seconds * 1e6))


def abort_if_expired(index: Index, txn: str) -> float:
    """Give up a transaction in flight whose writer is gone; the seconds of lease left, 0.0 once it is decided."""
    keys = index.keys
    state, *left = index.connection.run(scripts.TXN_ABORT, [keys.txn(txn), keys.inflight, keys.aborted], [txn, "1"])
    return int(left[0]) / 1e6 if state == b"open" else 0.0
