"""`lake fsck`: what is wrong between index and objects is found, named, and put right; no document changes by it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from commands import run_lake

from lake_spark import Lake, MergeType
from lake_spark.client.fsck import Fsck
from lake_spark.client.problems import DropSnapshot, Forget, Problem, repair
from lake_spark.client.reading import list_catalog, save_snapshot
from lake_spark.client.transaction import publish, stage
from lake_spark.client.writing import check_change
from lake_spark.errors import LakeError
from lake_spark.index import TransactionIndex
from lake_spark.index.repair import forget_catalog, logs_of, remove_snapshot
from lake_spark.model import Delta, Run, Snapshot, TsSeq
from lake_spark.model import MergeType as Kind
from lake_spark.names import (
    decode_name,
    delta_key,
    encode_name,
    file_key,
    parse_object_key,
    segment_key,
    segment_name,
    shard_of,
    snapshot_key,
)

# Two of these are the least age of an orphan, so that a test need not wait for a day.
TIMEOUT = 0.05


@pytest.fixture
def lake(redis_url: str, config: dict[str, str]) -> Iterator[Lake]:
    with Lake(redis_url, config=config, pending_timeout=TIMEOUT, snapshot="never") as found:
        yield found


def problems(lake: Lake, *, deep: bool = False) -> list[Problem]:
    # Stores tell time to the second.
    time.sleep(1.2)
    # A process of its own has no caches.
    with Lake(lake._url, config=lake.get_config(), pending_timeout=TIMEOUT) as fresh:
        return list(Fsck(fresh._session, deep, 0.0).problems())


def put_right(lake: Lake, found: list[Problem], *, remove_unknown: bool = False) -> list[str]:
    """Repair what can be; the kinds of those that were."""
    steps = [(problem.kind, problem.repaired_by(remove_unknown=remove_unknown)) for problem in found]
    return [kind for kind, step in steps if step and repair(lake._session, step)]


def kinds(found: list[Problem]) -> list[str]:
    return sorted(problem.kind for problem in found)


def state(lake: Lake) -> dict[str, Any]:
    """Every document, and every version of it."""
    found: dict[str, Any] = {}
    with Lake(lake._url, config=lake.get_config(), snapshot="never") as fresh:
        for name in fresh.catalogs():
            [listing] = fresh._session.index.listings([name], whole_log=True)
            for version in [entry.last for entry in listing.entries] or [fresh.list(name).version]:
                try:
                    found[f"{name}@{version}"] = fresh.read_bytes(fresh.list(name, as_of=version))
                except LakeError as error:
                    found[f"{name}@{version}"] = type(error).__name__
            try:
                found[name] = fresh.read_bytes(name)
            except LakeError as error:
                found[name] = type(error).__name__
    return found


def fill(lake: Lake) -> None:
    lake.write("users", {"a": 1})
    lake.write("users", {"b": 2}, merge=MergeType.RFC7396)
    lake.write_many([(f"job-{n}", {"n": n}) for n in range(20)])
    lake.write("Ü/files", [1])
    lake.write_file("users", "/doc/a.txt", b"text")
    snapshot(lake, "users")
    lake.write("users", {"c": 3}, merge=MergeType.RFC7396)


def snapshot(lake: Lake, catalog: str) -> Snapshot:
    listing = list_catalog(lake._session, catalog)
    assert save_snapshot(lake._session, listing, lake.read_bytes(catalog)) == "added"
    found = lake.list(catalog).snapshot
    assert found is not None
    return found


def first_of(lake: Lake, catalog: str) -> Delta:
    entry = lake._session.index.history(catalog)[1][0].decode().split("|")
    return Delta(TsSeq.parse(entry[3]), Kind(int(entry[1])), entry[2])


def test_a_sound_lake_has_no_problems(lake: Lake) -> None:
    fill(lake)
    # An open write and a job in flight are nobody's problem.
    live = lake._session.index.precommit("users", Kind.REPLACE, "/")
    with Lake(lake._url, config=lake.get_config()) as patient:
        check = Fsck(patient._session, True, 0.0)
        assert list(check.problems()) == []
        figures = check.figures
    assert (figures.catalogs, figures.deltas, figures.runs, figures.snapshots) == (22, 24, 20, 1)
    assert (figures.files, figures.open_writes) == (1, 1)
    assert figures.objects == 4 + 1 + 1 + 1
    lake._session.index.rollback(live, orphan=False)


def test_a_body_that_is_missing_is_named_with_what_can_be_done(lake: Lake) -> None:
    session = lake._session
    lost = lake.write("a b", {"x": 1})
    lake.write("a b", {"y": 2}, merge=MergeType.RFC7396)
    key = delta_key("a b", lost, Kind.REPLACE)
    session.storage.delete(key)
    [found] = problems(lake)
    assert (found.kind, found.level, found.repair) == ("delta.missing", "error", None)
    assert f"catalog 'a b' at {lost}, object {key}" in found.place
    assert f"lake rm-delta 'a b' {lost}" in found.action
    before = state(lake)
    assert put_right(lake, [found], remove_unknown=True) == []
    assert state(lake) == before


def test_a_body_that_a_snapshot_has_merged_is_not_needed_for_the_document(lake: Lake) -> None:
    lost = lake.write("users", {"x": 1})
    lake.write("users", {"y": 2}, merge=MergeType.RFC7396)
    taken = snapshot(lake, "users")
    lake._session.storage.delete(delta_key("users", lost, Kind.REPLACE))
    [found] = problems(lake)
    assert found.kind == "delta.missing"
    assert f"the document is whole: the snapshot at {taken.stop}" in found.action
    assert "lake clear users" in found.action


def test_damage_is_found_by_a_deep_check(lake: Lake) -> None:
    session = lake._session
    ts_seq = lake.write("users", {"x": 1})
    key = delta_key("users", ts_seq, Kind.REPLACE)
    session.storage.put(key, session.storage.get(key).replace(b"1", b"2"))
    lake.write("odd", [{"op": "remove", "path": "/nothing"}], merge=MergeType.RFC6902)
    assert problems(lake) == []
    damaged, unmerged = sorted(problems(lake, deep=True), key=lambda problem: problem.kind)
    assert damaged.kind == "delta.damaged"
    assert key in damaged.place
    assert unmerged.kind == "document.unreadable"
    assert "catalog 'odd'" in unmerged.place
    assert "rm-delta" in unmerged.action


def test_a_segment_that_is_missing_or_has_other_rows(lake: Lake) -> None:
    lake.write_many([(f"job-{n}", {"n": n}) for n in range(3)])
    [run] = lake.list("job-1").entries
    assert isinstance(run, Run)
    storage, key = lake._session.storage, segment_key(run.segment)
    data = storage.get(key)
    with redis.Redis.from_url(str(lake._url)) as client:
        log = lake._session.index.keys.delta("job-1")
        client.delete(log)
        elsewhere = f"run|{run.first}|1|{run.segment}:{(run.row + 1) % 3}"
        client.zadd(log, {elsewhere: run.last.score})
    [found] = problems(lake)
    assert found.kind == "run.damaged"
    assert "are not all of catalog 'job-1'" in found.found
    storage.delete(key)
    assert kinds(problems(lake)) == ["run.missing"] * 3
    storage.put(key, data[:-10])
    assert kinds(problems(lake)) == ["run.damaged"] * 3


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_snapshot_that_cannot_be_read_is_taken_out_and_rebuilt(lake: Lake, damage: str) -> None:
    fill(lake)
    lake.write("users", {"d": 4}, merge=MergeType.RFC7396)
    expected = state(lake)
    bad = lake.list("users").snapshot
    assert bad is not None
    key = snapshot_key("users", bad)
    if damage == "missing":
        lake._session.storage.delete(key)
    else:
        lake._session.storage.put(key, lake._session.storage.get(key).replace(b'"a"', b'"z"'))
    assert state(lake)["users"] == "CorruptObject"
    [found] = problems(lake, deep=True)
    assert (found.kind, found.level) == (f"snapshot.{damage}", "warning")
    assert found.repair == DropSnapshot("users", bad)
    assert put_right(lake, [found]) == [f"snapshot.{damage}"]
    assert state(lake) == expected
    assert problems(lake, deep=True) == []
    # The next reader makes it again.
    with Lake(lake._url, config=lake.get_config(), snapshot="always") as reader:
        reader.read_bytes("users")
        reader.flush()
    assert problems(lake, deep=True) == []
    assert state(lake) == expected


def test_a_snapshot_whose_deltas_were_cleared_is_lost_and_left_alone(lake: Lake) -> None:
    lake.write("users", {"a": 1})
    lake.clear_history("users")
    lake.write("users", {"b": 2}, merge=MergeType.RFC7396)
    base = lake.list("users").snapshot
    assert base is not None
    lake._session.storage.delete(snapshot_key("users", base))
    [found] = problems(lake)
    assert (found.kind, found.level, found.repair) == ("snapshot.lost", "error", None)
    assert "backup" in found.action
    assert remove_snapshot(lake._session.index, "users", base) == "needed"
    assert lake.list("users").snapshot == base


def test_a_later_snapshot_of_a_cleared_history_can_go(lake: Lake) -> None:
    lake.write("users", {"a": 1})
    lake.clear_history("users")
    lake.write("users", {"b": 2}, merge=MergeType.RFC7396)
    later = snapshot(lake, "users")
    lake.write("users", {"c": 3}, merge=MergeType.RFC7396)
    expected = state(lake)
    lake._session.storage.delete(snapshot_key("users", later))
    [found] = problems(lake)
    assert put_right(lake, [found]) == ["snapshot.missing"]
    assert state(lake) == expected


def test_a_snapshot_is_kept_when_the_deltas_behind_it_are_broken_too(lake: Lake) -> None:
    """As with a wrong password, or a storage that is another one: taking entries out would help nobody."""
    fill(lake)
    for key in list(lake._session.storage.list("")):
        lake._session.storage.delete(key)
    found = problems(lake)
    assert "snapshot.lost" in kinds(found)
    assert put_right(lake, found, remove_unknown=True) == []


def test_clearing_in_between_keeps_a_snapshot_that_is_needed_by_then(lake: Lake) -> None:
    lake.write("users", {"a": 1})
    taken = snapshot(lake, "users")
    key = snapshot_key("users", taken)
    body = lake._session.storage.get(key)
    lake._session.storage.delete(key)
    [found] = problems(lake)
    assert found.repair == DropSnapshot("users", taken)
    lake._session.storage.put(key, body)
    lake.clear_history("users")
    # The object goes before the entry is looked at: what was unreadable then is unreadable now.
    assert remove_snapshot(lake._session.index, "users", taken) == "needed"
    assert lake.read_bytes("users") == b'{"a":1}'


def test_a_write_that_was_never_finished_is_fenced(lake: Lake) -> None:
    lake.write("users", {"a": 1})
    opened = lake._session.index.precommit("users", Kind.REPLACE, "/")
    [found] = problems(lake)
    assert found.kind == "write.expired"
    assert f"catalog 'users' at {opened.ts_seq}" in found.place
    assert put_right(lake, [found]) == ["write.expired"]
    assert problems(lake) == []
    assert lake.read_bytes("users") == b'{"a":1}'


def test_a_transaction_whose_writer_is_gone_is_given_up(lake: Lake) -> None:
    session = lake._session
    lake.write("a", {"v": 1})
    txn = TransactionIndex.begin(session.index, 0.5)
    blocks = stage(session, txn, 0, 0, [check_change(1 << 20, name, {"v": 2}) for name in ("a", "b")])
    txn.intend()
    list(publish(session, txn, blocks))
    [found] = problems(lake)
    assert (found.kind, found.place) == ("transaction.expired", f"transaction {txn.txn}")
    assert put_right(lake, [found]) == ["transaction.expired"]
    check = Fsck(session, True, 0.0)
    assert list(check.problems()) == [], "its segment is still named by runs that nobody sees: vacuum's work"
    assert (check.figures.transactions_aborted, check.figures.runs_aborted) == (1, 2)
    assert lake.read_bytes("a") == b'{"v":1}'


def test_a_name_without_a_log_is_taken_out_unless_somebody_writes_to_it(lake: Lake) -> None:
    session = lake._session
    ts_seq = lake.write("gone", {"a": 1})
    lake.remove_delta("gone", ts_seq)
    [found] = problems(lake)
    assert found.repair == Forget("gone")
    opened = session.index.precommit("gone", Kind.REPLACE, "/")
    assert not forget_catalog(session.index, "gone")
    session.index.rollback(opened, orphan=False)
    assert put_right(lake, [found]) == ["catalog.empty"]
    assert problems(lake) == []
    with redis.Redis.from_url(str(lake._url)) as client:
        # Were its name all that the shard knew: no sequence is given twice.
        client.zadd(session.index.keys.catalogs(shard_of("gone")), {"gone": "4000000000.000007"})
        assert forget_catalog(session.index, "gone")
    assert lake.write("gone", 1) == TsSeq(4000000000, 8)


def test_orphans_that_the_index_explains_are_deleted_and_no_others(lake: Lake) -> None:
    fill(lake)
    session, storage = lake._session, lake._session.storage
    # A write that was fenced after its body had arrived.
    opened = session.index.precommit("users", Kind.REPLACE, "/")
    fenced = delta_key("users", opened.ts_seq, Kind.REPLACE)
    storage.put(fenced, session.codec.encode(fenced, b"1"))
    session.index.rollback(opened, orphan=True)
    # A history that was cleared by somebody who was killed before the objects were gone.
    old = first_of(lake, "Ü/files")
    cleared = delta_key("Ü/files", old.ts_seq, Kind.REPLACE)
    body = storage.get(cleared)
    lake.clear_history("Ü/files")
    storage.put(cleared, body)
    # A segment of an attempt that did not count.
    txn = TransactionIndex.begin(session.index, 60)
    stage(session, txn, 0, 0, [check_change(1 << 20, "users", 1)])
    txn.abort()
    lost = segment_key(segment_name(txn.txn, 0, 0))
    # A snapshot that came too late, and a probe.
    stale = snapshot_key("users", Snapshot(first_of(lake, "users").ts_seq, lake.list("users").version, "0" * 16))
    storage.put(stale, b"{}")
    storage.put("_doctor/0123", b"probe")
    # What nobody can explain: it may be all that is left of a write.
    unknown = delta_key("forgotten", TsSeq(1700000000, 1), Kind.REPLACE)
    storage.put(unknown, session.codec.encode(unknown, b'{"precious":1}'))
    strange = segment_key("0123456789ab.0.0")
    storage.put(strange, b"PAR1")
    file = file_key("users", "/Lost/File")
    storage.put(file, b"x")
    # And one that is none of ours.
    storage.put("notes/readme.txt", b"x")
    expected = state(lake)
    found = problems(lake)
    assert {problem.place for problem in found if problem.kind == "object.orphan"} == {
        f"object {key}" for key in (fenced, cleared, stale, "_doctor/0123")
    }
    assert [problem.place for problem in found if problem.kind == "segment.orphan"] == [f"object {lost}"]
    assert {problem.place for problem in found if problem.kind.endswith("unknown")} == {
        f"object {key}" for key in (unknown, strange, file)
    }
    assert len(found) == 8
    assert sorted(put_right(lake, found)) == ["object.orphan"] * 4 + ["segment.orphan"]
    left = problems(lake)
    assert kinds(left) == ["object.unknown", "object.unknown", "segment.unknown"]
    assert all("look at it" in problem.action for problem in left)
    assert len(put_right(lake, left, remove_unknown=True)) == 3
    assert problems(lake, deep=True) == []
    assert storage.exists("notes/readme.txt")
    assert state(lake) == expected


def test_what_somebody_works_on_is_no_orphan(lake: Lake) -> None:
    session, storage = lake._session, lake._session.storage
    lake.write("users", 1)
    version = lake.list("users").version
    with Lake(lake._url, config=lake.get_config()) as patient:
        opened = patient._session.index.precommit("users", Kind.REPLACE, "/")
        body = delta_key("users", opened.ts_seq, Kind.REPLACE)
        storage.put(body, session.codec.encode(body, b"2"))
        txn = TransactionIndex.begin(session.index, 60)
        stage(session, txn, 0, 0, [check_change(1 << 20, "users", 1)])
        # A snapshot between its put and its registration.
        storage.put(snapshot_key("users", Snapshot(TsSeq(0, 0), version, "0" * 16)), b"1")
        time.sleep(1.2)
        assert list(Fsck(patient._session, False, 0.0).problems()) == []
        patient._session.index.commit(opened, {})
    assert lake.read_bytes("users") == b"2"
    # And whatever is young.
    unknown = delta_key("forgotten", TsSeq(1700000000, 1), Kind.REPLACE)
    storage.put(unknown, b"1")
    assert list(Fsck(session, False, 3600).problems()) == []


def test_a_lost_file_and_a_lost_name(lake: Lake) -> None:
    fill(lake)
    lake._session.storage.delete(file_key("users", "/doc/a.txt"))
    with redis.Redis.from_url(str(lake._url)) as client:
        client.zrem(lake._session.index.keys.catalogs(shard_of("Ü/files")), "Ü/files")
        client.zadd(lake._session.index.keys.delta("job-1"), {"what|is|this": 1})
    found = {problem.kind: problem for problem in problems(lake)}
    assert sorted(found) == ["catalog.unlisted", "file.missing", "index.member"]
    assert "/doc/a.txt" in found["file.missing"].place
    assert "Ü/files" in found["catalog.unlisted"].place
    assert "what|is|this" in found["index.member"].found
    lake.write("Ü/files", {}, merge=MergeType.RFC7396)
    assert logs_of(lake._session.index, ["Ü/files"])[0].registered


def test_a_lake_that_is_used_meanwhile_has_no_problems(lake: Lake) -> None:
    fill(lake)
    done = threading.Event()
    errors: list[BaseException] = []

    def use(work: Callable[[Lake, int], object]) -> None:
        with Lake(lake._url, config=lake.get_config(), snapshot="always") as own:
            for n in range(10_000):
                if done.is_set():
                    return
                try:
                    work(own, n)
                except BaseException as error:
                    errors.append(error)
                    return

    works: list[Callable[[Lake, int], object]] = [
        lambda own, n: own.write("users", {f"k{n % 7}": n}, merge=MergeType.RFC7396),
        lambda own, n: own.write_many([(f"job-{k}", {"n": n}) for k in range(5)]),
        lambda own, n: own.read_bytes("users", pending="wait"),
        lambda own, n: own.clear_history("users") if n % 5 == 0 else time.sleep(0.01),
    ]
    threads = [threading.Thread(target=use, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        with Lake(lake._url, config=lake.get_config()) as fresh:
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                found = list(Fsck(fresh._session, False, 3600).problems())
                assert found == []
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert errors == []


def test_object_keys_are_read_back() -> None:
    for catalog in ("users", "USERS", "Users", "a/b/files", "x/delta", "ü", "a//b", "c/files/(a", "n/snap/x"):
        assert decode_name(encode_name(catalog)) == catalog
        for key, kind in (
            (delta_key(catalog, TsSeq(17, 1), Kind.REPLACE), "delta"),
            (snapshot_key(catalog, Snapshot(TsSeq(0, 0), TsSeq(1, 2), "0" * 16)), "snap"),
            (file_key(catalog, "/a/delta/1_1_1.json"), "files"),
            (file_key(catalog, "/A/files/B"), "files"),
            (file_key(catalog, "/aB"), "files"),
        ):
            found = parse_object_key(key)
            assert found is not None
            assert (found.catalog, found.kind) == (catalog, kind)
    for key in ("_segments/abcd/abcd.0.0.parquet", "x", "9bc6/(userz/delta/1_1_1.json", "9bc6/!/delta/1.json"):
        assert parse_object_key(key) is None


def test_logs_in_bulk(lake: Lake) -> None:
    lake.write("users", 1)
    found, nothing = logs_of(lake._session.index, ["users", "nobody"])
    assert (len(found.members), found.registered, found.empty) == (1, True, False)
    assert (nothing.members, nothing.registered, nothing.empty, nothing.floor) == ((), False, True, None)


def test_the_command_shows_its_plan_and_repairs_with_yes(redis_url: str, file_config: dict[str, str]) -> None:
    url = f"{redis_url}?pending_timeout={TIMEOUT}"
    with Lake(url) as lake:
        lake.update_config(file_config)
        lake.write("users", {"a": 1})
        assert run_lake(url, "fsck").returncode == 0
        opened = lake._session.index.precommit("users", Kind.REPLACE, "/")
        done = run_lake(url, "fsck")
        assert done.returncode == 5
        assert f"write.expired        catalog 'users' at {opened.ts_seq}" in done.stdout
        done = run_lake(url, "fsck", "--repair")
        assert done.returncode == 4
        assert "fence 1 writes that expired" in done.stdout
        assert "add --yes" in done.stderr
        lines = [json.loads(line) for line in run_lake(url, "fsck", "--repair", "--yes", "--json").stdout.splitlines()]
        assert lines[0]["problem"]["kind"] == "write.expired"
        assert lines[0]["problem"]["repaired"] is True
        assert (lines[-1]["left"], lines[-1]["repaired"], lines[-1]["figures"]["catalogs"]) == (0, 1, 1)
        assert run_lake(url, "fsck", "--deep").returncode == 0
