"""The protocol's promises, one interleaving each, on the index itself."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from servers import RedisServer

from lake_spark import Lake, MergeType, TsSeq
from lake_spark.errors import (
    ConflictError,
    DeltaNotFound,
    FencedError,
    HistoryGone,
    InvalidInput,
    OutcomeUnknown,
    PendingError,
    TransactionAborted,
)
from lake_spark.index import (
    Block,
    CatalogRun,
    Connection,
    Index,
    ShardMark,
    SnapshotClaim,
    TransactionIndex,
    abort_if_expired,
    digest_of,
    scripts,
)
from lake_spark.model import ZERO, Delta, Run, Snapshot
from lake_spark.names import Keys, b64, shard_of

REPLACE = MergeType.REPLACE


@pytest.fixture
def index(redis_url: str) -> Iterator[Index]:
    connection = Connection(redis_url)
    yield Index(connection, Keys("test:lake"), 120.0)
    connection.close()


def impatient(index: Index) -> Index:
    """The same index, for which every open write has been open for too long."""
    return dataclasses.replace(index, pending_timeout=1e-6)


def write(index: Index, catalog: str, path: str = "/") -> TsSeq:
    opened = index.precommit(catalog, REPLACE, path)
    index.commit(opened, {})
    return opened.ts_seq


def claim(index: Index, catalog: str) -> SnapshotClaim:
    listing = index.listing(catalog)
    digest = digest_of(listing.snapshot, listing.members)
    start = listing.snapshot.stop if listing.snapshot else ZERO
    return SnapshotClaim(catalog, Snapshot(start, listing.version, digest), digest)


def snapshot(index: Index, catalog: str) -> str:
    return index.snapshot([claim(index, catalog)])[0]


def sequences(index: Index, catalog: str) -> list[TsSeq]:
    return [delta.ts_seq for delta in index.listing(catalog).deltas]


def test_sequences_of_a_shard_grow_strictly(index: Index) -> None:
    found = [write(index, "a") for _ in range(50)]
    assert found == sorted(set(found))
    assert sequences(index, "a") == found


def test_a_full_second_goes_on_in_the_next(index: Index) -> None:
    client = index.connection.client
    second = client.time()[0] + 100
    client.set(index.keys.seq(shard_of("a")), f"{second}_999998")
    assert [write(index, "a") for _ in range(3)] == [(second, 999_999), (second + 1, 1), (second + 1, 2)]


def test_a_lost_allocator_key_repeats_nothing(index: Index) -> None:
    client = index.connection.client
    ahead = client.time()[0] + 3600
    client.set(index.keys.seq(shard_of("a")), f"{ahead}_7")
    first = write(index, "a")
    assert first == (ahead, 8)
    client.delete(index.keys.seq(shard_of("a")))
    assert write(index, "a") > first
    assert snapshot(index, "a") == "added"
    index.clear("a", index.listing("a").version)
    client.delete(index.keys.seq(shard_of("a")))
    assert write(index, "a") > (ahead, 9), "a snapshot's stop is a floor too"
    neighbour = next(name for name in map(str, range(10_000)) if shard_of(name) == shard_of("a"))
    newest = write(index, "a")
    client.delete(index.keys.seq(shard_of("a")))
    assert write(index, neighbour) > newest, "sequences grow within the shard, not only within the catalog"
    opened = index.precommit("a", REPLACE, "/")
    client.delete(index.keys.seq(shard_of("a")))
    assert write(index, neighbour) > opened.ts_seq


def test_a_clock_that_steps_back_an_hour_hides_nothing(tmp_path: Path, file_config: dict[str, str]) -> None:
    with RedisServer(tmp_path, clock=True) as server, Lake(server.url, config=file_config, snapshot="always") as lake:
        lake.write("a", {"list": []})
        lake.write("a", [{"op": "add", "path": "/list/-", "value": 1}], merge=MergeType.RFC6902)
        assert lake.read_map("a") == {"list": [1]}
        lake.flush()
        stop = lake.list("a").version
        server.set_clock(-3600)
        assert redis.Redis.from_url(server.url).time()[0] < stop.seconds - 3000
        stepped = lake.write("a", [{"op": "add", "path": "/list/-", "value": 2}], merge=MergeType.RFC6902)
        assert stepped > stop
        opened = lake._session.index.precommit("a", REPLACE, "/b")
        lake.write("a", [{"op": "add", "path": "/list/-", "value": 3}], merge=MergeType.RFC6902)
        [pending] = lake.list("a").pendings
        assert 0 <= pending.age < 60, "age is measured by Redis, from pre-commit on, not from the TsSeq"
        lake._session.index.rollback(opened, orphan=True)
        server.set_clock(3600)
        lake.write("a", [{"op": "add", "path": "/list/-", "value": 4}], merge=MergeType.RFC6902)
        assert lake.read_map("a") == {"list": [1, 2, 3, 4]}


def test_a_commit_without_its_pending_is_refused(index: Index) -> None:
    opened = index.precommit("a", REPLACE, "/")
    index.rollback(opened, orphan=True)
    with pytest.raises(FencedError):
        index.commit(opened, {})
    assert not index.listing("a").exists


def test_a_reader_that_goes_past_an_abandoned_write_fences_it(index: Index) -> None:
    slow = index.precommit("a", REPLACE, "/slow")
    later = write(index, "a", "/later")
    assert [d.ts_seq for d in impatient(index).listing("a").deltas] == [later]
    with pytest.raises(FencedError, match=str(slow.ts_seq)):
        index.commit(slow, {})
    assert sequences(index, "a") == [later]


def test_an_abandoned_write_that_nobody_went_past_may_still_commit(index: Index) -> None:
    first = write(index, "a")
    slow = index.precommit("a", REPLACE, "/slow")
    assert not impatient(index).listing("a").has_pending
    index.commit(slow, {})
    assert sequences(index, "a") == [first, slow.ts_seq]


def test_a_view_as_of_a_version_fences_every_abandoned_write_below_it(index: Index) -> None:
    first = write(index, "a")
    slow = index.precommit("a", REPLACE, "/slow")
    listing = impatient(index).listing("a", as_of=slow.ts_seq)
    assert [d.ts_seq for d in listing.deltas] == [first]
    with pytest.raises(FencedError):
        index.commit(slow, {})


def test_a_view_as_of_a_version_waits_for_open_writes_below_it(index: Index) -> None:
    write(index, "a")
    slow = index.precommit("a", REPLACE, "/slow")
    assert not index.listing("a").has_pending
    assert isinstance(index.listing("a", as_of=slow.ts_seq).error, PendingError)


def test_a_snapshot_fences_abandoned_writes_and_refuses_live_ones(index: Index) -> None:
    slow = index.precommit("a", REPLACE, "/slow")
    write(index, "a", "/later")
    seen = claim(impatient(index), "a")
    with pytest.raises(FencedError):
        index.commit(slow, {})
    live = index.precommit("a", REPLACE, "/live")
    write(index, "a", "/last")
    members = tuple(m for m in index.history("a")[1] if not m.startswith(b"pending"))
    forced = SnapshotClaim("a", Snapshot(ZERO, _last(members), "0" * 16), digest_of(None, members))
    assert index.snapshot([forced]) == ["open"]
    assert index.snapshot([seen]) == ["added"], "below the open write nothing is open"
    index.commit(live, {})


def _last(members: tuple[bytes, ...]) -> TsSeq:
    return TsSeq.parse(members[-1].decode().rpartition("|")[2])


def test_a_snapshot_of_another_log_is_refused(index: Index) -> None:
    first = write(index, "a")
    second = write(index, "a")
    wrong = claim(index, "a")
    index.remove_delta("a", first)
    assert index.snapshot([wrong]) == ["changed"]
    assert sequences(index, "a") == [second]


def test_two_snapshots_of_one_log_are_one(index: Index) -> None:
    write(index, "a")
    mine, yours = claim(index, "a"), claim(index, "a")
    assert index.snapshot([mine]) == ["added"]
    assert index.snapshot([yours]) == ["known"]
    write(index, "a")
    stale = claim(index, "a")
    assert snapshot(index, "a") == "added"
    write(index, "a")
    assert index.snapshot(
        [dataclasses.replace(stale, snapshot=dataclasses.replace(stale.snapshot, digest="0" * 16))]
    ) == ["stale"]
    snapshots, _ = index.history("a")
    assert [s.start for s in snapshots[1:]] == [s.stop for s in snapshots[:-1]]


def test_snapshots_of_many_catalogs_are_registered_at_once(index: Index) -> None:
    names = [f"c{n}" for n in range(300)]
    for name in names:
        write(index, name)
    claims = [claim(index, name) for name in names]
    assert index.snapshot(claims) == ["added"] * 300
    assert index.snapshot(claims) == ["known"] * 300


def test_clearing_keeps_what_follows_the_snapshot(index: Index) -> None:
    first = write(index, "a")
    snapshot(index, "a")
    second = write(index, "a")
    slow = index.precommit("a", REPLACE, "/slow")
    assert index.clear("a", first) == []
    assert index.clear("a", first) == [], "twice is once"
    assert index.clear("a", second) is None, "there is no snapshot with that stop"
    assert sequences(index, "a") == [second]
    assert len(impatient(index).clear("a", first) or []) == 1, "abandoned writes are cleaned up"
    with pytest.raises(FencedError):
        index.commit(slow, {})
    with pytest.raises(HistoryGone, match=str(first)):
        raise index.listing("a", as_of=TsSeq(first.seconds - 1, 1)).error or AssertionError


def test_a_repeated_commit_is_one_commit(index: Index) -> None:
    opened = index.precommit("a", REPLACE, "/")
    index.commit(opened, {"m": b"1"})
    index.merge_meta({"a": {"m": b"2"}})
    index.commit(opened, {"m": b"1"})
    assert sequences(index, "a") == [opened.ts_seq]
    assert index.fields([index.keys.meta("a")]) == [{"m": b"2"}], "the repeat does not bring old meta back"


def test_a_commit_repeated_after_its_history_was_cleared_is_unknown_not_fenced(index: Index) -> None:
    # Were it called fenced, the client would write it a second time.
    opened = index.precommit("a", REPLACE, "/")
    index.commit(opened, {})
    snapshot(index, "a")
    index.clear("a", opened.ts_seq)
    with pytest.raises(OutcomeUnknown):
        index.commit(opened, {})


def test_a_commit_repeated_after_its_delta_was_removed_stays_removed(index: Index) -> None:
    opened = index.precommit("a", REPLACE, "/")
    index.commit(opened, {})
    index.remove_delta("a", opened.ts_seq)
    index.commit(opened, {})
    assert not index.listing("a").exists


def test_a_repeated_precommit_is_one_write(index: Index) -> None:
    keys, shard = index.keys, shard_of("a")
    names = [keys.delta("a"), keys.snap("a"), keys.seq(shard), keys.pending(shard), keys.opened(shard)]
    names.append(keys.catalogs(shard))
    arguments = [f"w|nonce|1|/|{b64('a')}", "1", "/"]
    first = index.connection.run(scripts.PRECOMMIT, names, arguments)
    assert index.connection.run(scripts.PRECOMMIT, names, arguments) == first
    assert len(index.history("a")[1]) == 1


def test_a_repeated_rollback_and_meta_do_nothing(index: Index) -> None:
    opened = index.precommit("a", REPLACE, "/")
    index.rollback(opened, orphan=True)
    index.rollback(opened, orphan=True)
    assert index.history("a") == ([], [])
    key, once = index.keys.meta("a"), index.keys.once("00", "nonce")
    assert index.connection.run(scripts.META, [key, once], ["m", "1"]) == 1
    index.merge_meta({"a": {"m": b"2"}})
    assert index.connection.run(scripts.META, [key, once], ["m", "1"]) == 0
    assert index.fields([key]) == [{"m": b"2"}]


def test_samples_never_move_back(index: Index) -> None:
    assert index.sample("a", "daily", TsSeq(1_700_000_000, 5)) == 1_700_000_000.000005
    assert index.sample("a", "daily", TsSeq(1_600_000_000, 1)) == 1_700_000_000.000005
    assert index.last_sample("a", "daily") == 1_700_000_000.000005


def test_remove_delta(index: Index) -> None:
    first, second, third = (write(index, "a") for _ in range(3))
    index.remove_delta("a", second)
    index.remove_delta("a", second)
    assert sequences(index, "a") == [first, third]
    with pytest.raises(DeltaNotFound):
        index.remove_delta("a", TsSeq(first.seconds - 1, 1))
    snapshot(index, "a")
    with pytest.raises(InvalidInput, match="snapshot"):
        index.remove_delta("a", third)


def transact(index: Index, catalogs: list[tuple[str, int]], chunk: int = 0) -> TransactionIndex:
    """A transaction that is published and not yet committed."""
    txn = TransactionIndex.begin(index, 60.0)
    txn.stage({f"{txn.txn}.0.{chunk}": "rows"})
    assert txn.intend()
    txn.publish(blocks(txn, catalogs, chunk))
    return txn


def blocks(txn: TransactionIndex, catalogs: list[tuple[str, int]], chunk: int = 0) -> list[Block]:
    by_shard: dict[str, list[CatalogRun]] = {}
    for row, (name, count) in enumerate(catalogs):
        by_shard.setdefault(shard_of(name), []).append(CatalogRun(name, 100 * row, count))
    return [Block(shard, f"{txn.txn}.0.{chunk}", runs) for shard, runs in by_shard.items()]


def test_a_transaction_is_visible_everywhere_at_once_or_not_at_all(index: Index) -> None:
    names = [(f"c{n}", 3) for n in range(40)]
    txn = transact(index, names)
    assert not any(listing.exists for listing in index.listings([name for name, _ in names]))
    assert all(index.listing(name, strict_pending=True).has_pending for name, _ in names)
    assert txn.commit()
    assert txn.commit(), "twice is once"
    assert [len(listing.deltas) for listing in index.listings([name for name, _ in names])] == [3] * 40


def test_an_aborted_transaction_leaves_nothing_and_cannot_commit(index: Index) -> None:
    first = write(index, "a")
    txn = transact(index, [("a", 2), ("b", 2)])
    last = write(index, "a")
    assert index.listing("a").has_pending, "a run in flight stands in the way of what follows it"
    txn.abort()
    txn.abort()
    assert sequences(index, "a") == [first, last]
    assert not index.listing("b").exists
    with pytest.raises(TransactionAborted):
        txn.commit()
    with pytest.raises(TransactionAborted):
        txn.publish(blocks(txn, [("a", 2)], 1))
    assert snapshot(index, "a") == "added"


def test_a_transaction_whose_writer_is_gone_is_given_up_by_whoever_meets_it(index: Index) -> None:
    txn = dataclasses.replace(transact(index, [("a", 2)]), lease=0.01)
    txn.intend()
    assert abort_if_expired(index, transact(index, [("b", 1)]).txn) > 50
    time.sleep(0.02)
    assert abort_if_expired(index, txn.txn) == 0.0
    with pytest.raises(TransactionAborted):
        txn.commit()
    late = dataclasses.replace(TransactionIndex.begin(index, 60.0), staging_lease=0.01)
    late.stage({})
    time.sleep(0.02)
    with pytest.raises(TransactionAborted, match="lease"):
        late.intend()


def test_a_snapshot_never_contains_a_run_in_flight(index: Index) -> None:
    write(index, "a")
    seen = claim(index, "a")
    txn = transact(index, [("a", 2)])
    members = tuple(index.history("a")[1])
    stop = TsSeq(seen.snapshot.stop.seconds + 10_000, 1)
    forced = SnapshotClaim("a", Snapshot(ZERO, stop, "0" * 16), digest_of(None, members))
    assert index.snapshot([forced]) == ["open"]
    txn.abort()
    assert index.snapshot([forced]) == ["changed"], "it merged what was aborted"
    assert index.snapshot([seen]) == ["added"]


def test_a_block_published_twice_is_one_block(index: Index) -> None:
    txn = transact(index, [])
    parts = blocks(txn, [("a", 3), ("b", 1)])
    assert txn.publish(parts) == txn.publish(parts)
    txn.commit()
    assert [len(listing.deltas) for listing in index.listings(["a", "b"])] == [3, 1]


def test_a_run_never_crosses_a_second(index: Index) -> None:
    shard = shard_of("a")
    same = [name for name in (f"n{n}" for n in range(5000)) if shard_of(name) == shard][:2]
    ahead = index.connection.client.time()[0] + 50
    index.connection.client.set(index.keys.seq(shard), f"{ahead}_999990")
    txn = transact(index, [])
    block = Block(
        shard, f"{txn.txn}.0.0", [CatalogRun("a", 0, 5), CatalogRun(same[0], 5, 5), CatalogRun(same[1], 10, 3)]
    )
    expected = [[(ahead, 999_991), (ahead + 1, 1), (ahead + 1, 6)]]
    assert txn.publish([block]) == expected
    assert txn.publish([block]) == expected, "the repeat answers the same"
    txn.commit()
    assert write(index, "a") > (ahead + 1, 8)


def test_the_same_version_of_an_application_applies_once(index: Index) -> None:
    def job(version: int) -> TransactionIndex:
        return TransactionIndex.begin(index, 60.0, "etl", version)

    first, twin = job(1), job(1)
    assert first.intend()
    assert twin.intend(), "neither knows of the other yet"
    first.publish(blocks(first, [("a", 1)]))
    twin.publish(blocks(twin, [("a", 1)]))
    assert first.commit()
    assert not twin.commit()
    assert len(index.listing("a").deltas) == 1
    assert not job(1).intend()
    assert not job(0).intend()
    assert job(2).intend()


def test_an_expected_version_that_moved_is_a_conflict(index: Index) -> None:
    version = write(index, "a")
    txn = transact(index, [])

    def attempt(expected: TsSeq) -> None:
        txn.publish([Block(shard_of("a"), f"{txn.txn}.0.0", [CatalogRun("a", 0, 1, expected)])])

    with pytest.raises(ConflictError, match=f"'a' is at {version}.*expected 0_0"):
        attempt(ZERO)
    opened = index.precommit("a", REPLACE, "/")
    with pytest.raises(ConflictError, match="open write"):
        attempt(version)
    index.rollback(opened, orphan=True)
    attempt(version)
    txn.commit()
    assert len(index.listing("a").deltas) == 2


def test_removing_a_delta_splits_its_run(index: Index) -> None:
    txn = transact(index, [("a", 5)])
    first = index.listing("a", strict_pending=True).pendings[0].ts_seq
    middle = TsSeq(first.seconds, first.seq + 2)
    with pytest.raises(PendingError):
        index.remove_delta("a", middle)
    txn.commit()
    index.remove_delta("a", middle)
    index.remove_delta("a", middle)
    kept = index.listing("a").deltas
    assert [(d.ts_seq.seq - first.seq, d.row) for d in kept] == [(0, 0), (1, 1), (3, 3), (4, 4)]
    index.remove_delta("a", first)
    index.remove_delta("a", TsSeq(first.seconds, first.seq + 4))
    assert [d.row for d in index.listing("a").deltas] == [1, 3]


def test_a_version_within_a_run_cuts_the_run(index: Index) -> None:
    txn = transact(index, [("a", 5)])
    txn.commit()
    [run] = index.listing("a").entries
    assert isinstance(run, Run)
    part = index.listing("a", as_of=TsSeq(run.first.seconds, run.first.seq + 1))
    assert [d.row for d in part.deltas] == [0, 1]
    assert index.listing("a", as_of=TsSeq(run.first.seconds - 1, 1)).deltas == ()


def test_the_high_water_mark_stops_below_what_is_open(index: Index) -> None:
    shard = shard_of("a")
    assert index.high_water_mark(shard) == ShardMark(ZERO, ZERO, "", 0)
    first = write(index, "a")
    assert index.high_water_mark(shard).mark == first
    slow = index.precommit("a", REPLACE, "/slow")
    write(index, "a")
    found = index.high_water_mark(shard)
    assert first <= found.mark < slow.ts_seq < found.last
    assert found.token == slow.token
    assert impatient(index).high_water_mark(shard).mark == write_order(index)[-1]
    with pytest.raises(FencedError):
        index.commit(slow, {})
    txn = transact(index, [("a", 2)])
    last = write(index, "a")
    found = index.high_water_mark(shard)
    assert found.mark < index.listing("a", strict_pending=True).pendings[0].ts_seq
    assert txn.txn in found.token
    txn.commit()
    assert index.high_water_mark(shard) == ShardMark(last, ZERO, "", 0)
    assert index.connection.client.zcard(index.keys.pending(shard)) == 0


def write_order(index: Index) -> list[TsSeq]:
    return [d.ts_seq for d in index.listing("a").entries if isinstance(d, Delta)]


def test_blocks_of_decided_transactions_do_not_pile_up(index: Index) -> None:
    for _ in range(30):
        transact(index, [("a", 1)]).commit()
    assert index.connection.client.zcard(index.keys.pending(shard_of("a"))) <= 2


def test_catalogs_are_found_without_a_scan_of_all_keys(index: Index) -> None:
    names = {f"user-{n}" for n in range(50)} | {"user*", "other", "Ünï[c]"}
    for name in names:
        write(index, name)
    assert set(index.catalogs()) == names
    assert set(index.catalogs("user*")) == {"user*"}
    assert set(index.catalogs("Ünï[")) == {"Ünï[c]"}


def test_small_logs_stay_packed(index: Index) -> None:
    transact(index, [("a", 999)]).commit()
    client = index.connection.client
    assert client.object("encoding", index.keys.delta("a")) in (b"ziplist", b"listpack")
