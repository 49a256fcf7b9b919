"""The index of one lake: each method is one script, or one round trip of many."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lake_spark.errors import (
    DeltaNotFound,
    FencedError,
    IndexFailure,
    InvalidInput,
    OutcomeUnknown,
    PendingError,
)
from lake_spark.index import scripts
from lake_spark.index.connection import Argument, Call, Connection
from lake_spark.index.members import parse_entry, parse_snapshot, snapshot_member
from lake_spark.index.views import listing_of
from lake_spark.model import MAX_SEQ, ZERO, Delta, Listing, MergeType, Run, Snapshot, TsSeq
from lake_spark.names import SHARDS, Keys, b64, shard_of

LIST_BATCH = 256
# Shards that are scanned in one round trip, and names of each, about.
SCAN_SHARDS, SCAN_PAGE = 32, 500
Fields = Mapping[str, bytes | None]


@dataclass(frozen=True, slots=True)
class OpenWrite:
    """A write between pre-commit and commit."""

    catalog: str
    merge_type: MergeType
    path: str
    ts_seq: TsSeq
    token: str

    @property
    def arguments(self) -> list[Argument]:
        return [self.token, str(int(self.merge_type)), self.path, str(self.ts_seq), b64(self.catalog)]


@dataclass(frozen=True, slots=True)
class SnapshotClaim:
    """A snapshot to register, with the digest of the log that it merged."""

    catalog: str
    snapshot: Snapshot
    digest: str


@dataclass(frozen=True, slots=True)
class ShardMark:
    """A shard's last sequence, and the first that is still open (`0_0` if none), its writer's token and its age.

    `inflight` counts the transactions that were being published at that instant, in any shard.
    """

    last: TsSeq
    opened: TsSeq
    token: str
    inflight: int
    age: float = 0.0

    @property
    def mark(self) -> TsSeq:
        """Everything in the shard at or below this is decided for good."""
        if self.opened == ZERO:
            return self.last
        seconds, seq = self.opened
        return TsSeq(seconds, seq - 1) if seq > 1 else TsSeq(seconds - 1, MAX_SEQ)


@dataclass(frozen=True, slots=True)
class Index:
    """Order, visibility and meta of a lake's catalogs, in Redis."""

    connection: Connection
    keys: Keys
    pending_timeout: float = 120.0

    @property
    def _timeout(self) -> str:
        return str(round(self.pending_timeout * 1e6))

    # A single write

    def precommit(self, catalog: str, merge_type: MergeType, path: str) -> OpenWrite:
        """Open a write: its TsSeq is above everything in the catalog."""
        keys, shard = self.keys, shard_of(catalog)
        token = f"w|{secrets.token_hex(8)}|{merge_type:d}|{path}|{b64(catalog)}"
        ts_seq = self.connection.run(
            scripts.PRECOMMIT,
            [
                *(keys.delta(catalog), keys.snap(catalog), keys.seq(shard)),
                *(keys.pending(shard), keys.opened(shard), keys.catalogs(shard)),
            ],
            [token, str(int(merge_type)), path],
        )
        return OpenWrite(catalog, merge_type, path, TsSeq.parse(ts_seq.decode()), token)

    def commit(self, write: OpenWrite, meta: Fields) -> None:
        """Make the write visible, or raise FencedError (it is not in) or OutcomeUnknown."""
        keys, shard = self.keys, shard_of(write.catalog)
        named = f"write {write.ts_seq} to catalog {write.catalog!r}"
        try:
            reply = self.connection.run(
                scripts.COMMIT,
                [
                    *(keys.delta(write.catalog), keys.pending(shard), keys.opened(shard)),
                    *(keys.fenced(shard), keys.catalogs(shard), keys.meta(write.catalog)),
                ],
                [*write.arguments, write.catalog, *_flat(meta)],
            )
        except IndexFailure as error:
            if not error.may_have_run:
                raise
            raise OutcomeUnknown(
                f"{named} may or may not be committed ({error}); read the catalog before you write again"
            ) from None
        if reply == b"fenced":
            raise FencedError(f"{named} took longer than {self.pending_timeout:g} s and was fenced; it is not in")
        if reply != b"committed":
            raise OutcomeUnknown(
                f"Redis knows nothing of {named}: its history was cleared since, or Redis lost its memory of it; "
                "read the catalog before you write again"
            )

    def rollback(self, write: OpenWrite, *, orphan: bool) -> None:
        """Take an open write back; `orphan` says that an object may have been stored for it."""
        keys, shard = self.keys, shard_of(write.catalog)
        self.connection.run(
            scripts.ROLLBACK,
            [keys.delta(write.catalog), keys.pending(shard), keys.opened(shard), keys.fenced(shard)],
            [*write.arguments, str(int(orphan))],
        )

    # Reading

    def listing(self, catalog: str, *, strict_pending: bool = False, as_of: TsSeq | None = None) -> Listing:
        """One atomic view of a catalog; what stands in its way is in the listing, not raised."""
        keys, arguments = self._list_call(shard_of(catalog), [catalog], as_of)
        [reply] = self.connection.run(scripts.LIST, keys, arguments)
        return listing_of(catalog, reply, strict_pending=strict_pending, as_of=as_of)

    def listings(
        self,
        catalogs: Iterable[str],
        *,
        strict_pending: bool = False,
        cuts: Mapping[str, TsSeq] | None = None,
        whole_log: bool = False,
    ) -> Iterator[Listing]:
        """A view of each catalog (each atomic by itself), shard by shard, in one round trip.

        With `cuts` each is as of its shard's cut. With `whole_log` the entries are all that the log still has, not
        only those after the snapshot.
        """
        as_of = (cuts or {}).get
        by_shard: dict[str, list[str]] = {}
        for catalog in catalogs:
            by_shard.setdefault(shard_of(catalog), []).append(catalog)
        batches = [
            (shard, names[start : start + LIST_BATCH])
            for shard, names in by_shard.items()
            for start in range(0, len(names), LIST_BATCH)
        ]
        calls: list[Call] = [self._list_call(shard, names, as_of(shard), whole_log) for shard, names in batches]
        for (shard, names), replies in zip(batches, self.connection.run_many(scripts.LIST, calls), strict=True):
            for catalog, reply in zip(names, replies, strict=True):
                yield listing_of(catalog, reply, strict_pending=strict_pending, as_of=as_of(shard))

    def _list_call(self, shard: str, catalogs: Sequence[str], as_of: TsSeq | None, whole_log: bool = False) -> Call:
        keys = self.keys
        logs = keys.logs(catalogs)
        if whole_log:
            # Where no snapshot is known, the view begins at the beginning.
            logs[1::2] = [keys.nothing] * len(catalogs)
        return (
            [
                *(keys.pending(shard), keys.opened(shard), keys.fenced(shard), keys.floor(shard)),
                *(keys.inflight, keys.aborted, keys.seq(shard), *logs),
            ],
            [self._timeout, as_of.score if as_of else "+inf"],
        )

    def catalogs(self, prefix: str = "", shards: Sequence[str] = SHARDS) -> Iterator[str]:
        """Names in the registry, shard by shard. One with nothing visible in its log does not exist."""
        for start in range(0, len(shards), SCAN_SHARDS):
            cursors = dict.fromkeys(shards[start : start + SCAN_SHARDS], 0)
            # A scan may give a name twice while its set changes.
            seen: set[bytes] = set()
            while cursors:
                pages = self.connection.call(partial(self._scan, cursors, _literal(prefix) + "*"))
                for shard, (cursor, page) in zip(list(cursors), pages, strict=True):
                    if cursor:
                        cursors[shard] = cursor
                    else:
                        del cursors[shard]
                    for name, _ in page:
                        if name not in seen:
                            seen.add(name)
                            yield name.decode()

    def _scan(self, cursors: Mapping[str, int], pattern: str) -> list[Any]:
        with self.connection.client.pipeline(transaction=False) as pipeline:
            for shard, cursor in cursors.items():
                pipeline.zscan(self.keys.catalogs(shard), cursor, match=pattern, count=SCAN_PAGE)
            return pipeline.execute()

    def inflight(self) -> set[str]:
        """The transactions that are being published."""
        return self._transactions(self.keys.inflight)

    def aborted(self) -> set[str]:
        """The transactions that were given up, and whose runs may still be in the logs."""
        return self._transactions(self.keys.aborted)

    def _transactions(self, key: str) -> set[str]:
        found: Any = self.connection.call(lambda: self.connection.client.smembers(key))
        return {txn.decode() for txn in found}

    # Snapshots and history

    def snapshot(self, claims: Sequence[SnapshotClaim]) -> list[str]:
        """Register snapshots that are exactly what the log says; the reply for each is in `lua/snapshot.lua`."""
        keys = self.keys
        by_shard: dict[str, list[int]] = {}
        for at, claim in enumerate(claims):
            by_shard.setdefault(shard_of(claim.catalog), []).append(at)
        calls: list[Call] = []
        for shard, places in by_shard.items():
            script_keys = [
                *(keys.pending(shard), keys.opened(shard), keys.fenced(shard), keys.inflight, keys.aborted),
            ]
            arguments: list[Argument] = [self._timeout]
            for claim in (claims[at] for at in places):
                script_keys += [keys.delta(claim.catalog), keys.snap(claim.catalog)]
                start, stop = str(claim.snapshot.start), str(claim.snapshot.stop)
                arguments += [b64(claim.catalog), start, stop, claim.digest, snapshot_member(claim.snapshot)]
            calls.append((script_keys, arguments))
        replies = [""] * len(claims)
        for places, reply in zip(by_shard.values(), self.connection.run_many(scripts.SNAPSHOT, calls), strict=True):
            for at, word in zip(places, reply, strict=True):
                replies[at] = word.decode()
        return replies

    def history(self, catalog: str) -> tuple[list[Snapshot], list[bytes]]:
        """Every snapshot, oldest first, and every member of the log, pendings included."""
        keys = self.keys

        def ask() -> tuple[list[bytes], list[bytes]]:
            with self.connection.client.pipeline() as pipeline:
                pipeline.zrange(keys.snap(catalog), 0, -1)
                pipeline.zrange(keys.delta(catalog), 0, -1)
                snapshots, members = pipeline.execute()
                return snapshots, members

        snapshots, members = self.connection.call(ask)
        return [parse_snapshot(member) for member in snapshots], members

    def clear(self, catalog: str, stop: TsSeq) -> list[bytes] | None:
        """Forget history up to the snapshot with that stop; the fenced pendings, or None without that snapshot."""
        keys, shard = self.keys, shard_of(catalog)
        state, *fenced = self.connection.run(
            scripts.CLEAR,
            [
                *(keys.delta(catalog), keys.snap(catalog), keys.floor(shard)),
                *(keys.pending(shard), keys.opened(shard), keys.fenced(shard)),
            ],
            [self._timeout, b64(catalog), str(stop)],
        )
        return fenced if state == b"cleared" else None

    def remove_delta(self, catalog: str, ts_seq: TsSeq) -> Delta | Run | None:
        """Take a delta out of the log; the member that held it (None when a repeat finds it gone)."""
        keys, shard = self.keys, shard_of(catalog)
        state, *member = self.connection.run(
            scripts.REMOVE_DELTA,
            [keys.delta(catalog), keys.snap(catalog), keys.fenced(shard), keys.inflight],
            [b64(catalog), str(ts_seq)],
        )
        named = f"delta {ts_seq} of catalog {catalog!r}"
        if state == b"merged":
            raise merged_already(named)
        if state == b"open":
            raise PendingError(f"{named} belongs to a transaction that is not decided yet")
        if state == b"missing":
            raise DeltaNotFound(f"there is no {named}")
        return parse_entry(member[0]) if member[0] else None

    # Meta, files, samples

    def merge_meta(self, meta: Mapping[str, Fields]) -> None:
        """Set and remove fields of the meta of several catalogs, in one round trip."""
        self._merge_fields([(catalog, self.keys.meta(catalog), fields) for catalog, fields in meta.items()])

    def add_file(self, catalog: str, path: str, meta: bytes) -> None:
        """Note a file of the catalog and its meta."""
        self._merge_fields([(catalog, self.keys.files(catalog), {path: meta})])

    def _merge_fields(self, changes: Sequence[tuple[str, str, Fields]]) -> None:
        calls: list[Call] = [
            ([key, self.keys.once(shard_of(catalog), secrets.token_hex(8))], _flat(fields))
            for catalog, key, fields in changes
            if fields
        ]
        self.connection.run_many(scripts.META, calls)

    def fields(self, keys: Sequence[str]) -> list[dict[str, bytes]]:
        """The hashes under these keys, in one round trip."""

        def ask() -> list[dict[bytes, bytes]]:
            with self.connection.client.pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.hgetall(key)
                return pipeline.execute()

        return [{name.decode(): value for name, value in each.items()} for each in self.connection.call(ask)]

    def last_sample(self, catalog: str, indicator: str) -> float:
        score = self.connection.call(lambda: self.connection.client.zscore(self.keys.sample(catalog), indicator))
        return float(score or 0.0)

    def sample(self, catalog: str, indicator: str, at: TsSeq) -> float:
        """Note a sample; it never moves back."""
        return float(self.connection.run(scripts.SAMPLE, [self.keys.sample(catalog)], [indicator, at.score]))

    def high_water_mark(self, shard: str) -> ShardMark:
        """How far a shard is decided for good. Abandoned writes on the way are fenced."""
        return self.high_water_marks([shard])[0]

    def high_water_marks(self, shards: Sequence[str]) -> list[ShardMark]:
        """How far each shard is decided for good: all of them at one instant."""
        keys = self.keys
        calls: list[Call] = [
            (
                [
                    *(keys.seq(shard), keys.pending(shard), keys.opened(shard), keys.fenced(shard)),
                    *(keys.inflight, keys.catalogs(shard)),
                ],
                [self._timeout, f"{keys.prefix}:delta:"],
            )
            for shard in shards
        ]
        replies = self.connection.run_many(scripts.HIGH_WATER_MARK, calls, atomic=True)
        return [
            ShardMark(_ts_seq(last), _ts_seq(opened), token.decode(), inflight, max(age, 0) / 1e6)
            for last, opened, token, inflight, age in replies
        ]

    def registry_sizes(self, shards: Sequence[str]) -> list[int]:
        """How many names each shard's registry has, in one round trip."""

        def ask() -> list[int]:
            with self.connection.client.pipeline(transaction=False) as pipeline:
                for shard in shards:
                    pipeline.zcard(self.keys.catalogs(shard))
                return pipeline.execute()

        return self.connection.call(ask)


def merged_already(named: str) -> InvalidInput:
    """Why a delta cannot be taken out of the log any more."""
    return InvalidInput(f"{named} is part of a snapshot already: write the change that undoes it")


def _ts_seq(text: bytes) -> TsSeq:
    return TsSeq.parse(text.decode()) if text else ZERO


def _flat(fields: Fields) -> list[Argument]:
    return [part for name, value in fields.items() for part in (name, b"" if value is None else value)]


def _literal(prefix: str) -> str:
    return "".join("\\" + each if each in "*?[]^\\" else each for each in prefix)
