"""Faults at each step: slow puts, lost replies, killed processes, flushed scripts, damaged objects."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import redis
from servers import RedisServer, TcpProxy

from lake_spark import Lake, MergeType, TsSeq
from lake_spark.errors import (
    CorruptObject,
    FencedError,
    IndexUnavailable,
    LakeError,
    MergeError,
    OutcomeUnknown,
    StorageFailure,
)
from lake_spark.index import TransactionIndex, abort_if_expired, scripts
from lake_spark.index.repair import forget_catalog, remove_snapshot
from lake_spark.index.scripts import Script
from lake_spark.names import delta_key, segment_key, snapshot_key
from lake_spark.segment import write_segment
from lake_spark.storage import FileStorage

APPEND = MergeType.RFC6902
SCRIPTS = [value for value in vars(scripts).values() if isinstance(value, Script)]


def append(value: object) -> list[dict[str, object]]:
    """A patch that shows when it is lost, doubled or out of order."""
    return [{"op": "add", "path": "/list/-", "value": value}]


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Another process that runs this code."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


@pytest.fixture
def proxy(redis_server: RedisServer, redis_url: str) -> Iterator[TcpProxy]:
    """A proxy before a Redis that knows every script, so that calls go by digest."""
    with redis.Redis.from_url(redis_url) as client:
        for script in SCRIPTS:
            assert client.script_load(script.source) == script.sha
    with TcpProxy("127.0.0.1", redis_server.port) as found:
        yield found


@pytest.fixture
def proxied(proxy: TcpProxy, file_config: dict[str, str]) -> Iterator[Lake]:
    with Lake(f"redis://127.0.0.1:{proxy.port}", config=file_config, snapshot="never") as lake:
        lake.write("a", {"list": []})
        yield lake


OTHER_PROCESS = """
    import json, sys
    from lake_spark import Lake
    url, config = sys.argv[1], json.loads(sys.argv[2])
    with Lake(url, config=config, pending_timeout=0.3, snapshot="always") as lake:
        lake.write("a", [{"op": "add", "path": "/list/-", "value": "other"}], merge=3)
        print(lake.read_string("a"))
        lake.flush()
        lake.clear_history("a")
"""


def test_a_put_held_past_the_timeout_while_another_process_reads_snapshots_and_clears(
    redis_url: str, s3_config: dict[str, str]
) -> None:
    host, port = s3_config["Endpoint"].removeprefix("http://").split(":")
    with TcpProxy(host, int(port)) as proxy, Lake(redis_url, config=s3_config) as direct:
        slow_config = {**s3_config, "Endpoint": f"http://{proxy.host}:{proxy.port}"}
        with Lake(redis_url, config=slow_config, storage_timeout=60) as slow:
            slow.write("a", {"list": []})
            acknowledged: list[TsSeq] = []
            proxy.hold()
            writer = threading.Thread(target=lambda: acknowledged.append(slow.write("a", append("slow"), merge=APPEND)))
            writer.start()
            while not direct.list("a", strict_pending=True).has_pending:
                time.sleep(0.01)
            time.sleep(0.4)
            assert '"other"' in finish(start(OTHER_PROCESS, redis_url, _json(s3_config)))
            assert direct.read_map("a") == {"list": ["other"]}
            proxy.release()
            writer.join()
            assert direct.read_map("a") == {"list": ["other", "slow"]}, "acknowledged, and there exactly once"
            assert acknowledged == [direct.list("a").version]


def _json(value: object) -> str:
    return json.dumps(value)


def lost_reply_cases() -> dict[str, tuple[Script, Callable[[Lake], object]]]:
    """For each script, a call that ends in it."""

    def transaction(step: str) -> Callable[[Lake], object]:
        def run(lake: Lake) -> None:
            lake.write_many([("a", append("x"), "/", 3), ("b", {"n": 1})])

        def abort(lake: Lake) -> None:
            txn = TransactionIndex.begin(lake._session.index, 60.0)
            txn.intend()
            txn.abort()
            lake.write("a", append("x"), merge=APPEND)

        return abort if step == "abort" else run

    def rolled_back(lake: Lake) -> None:
        index = lake._session.index
        index.rollback(index.precommit("a", MergeType.REPLACE, "/gone"), orphan=True)
        lake.write("a", append("x"), merge=APPEND)

    def removed(lake: Lake) -> None:
        lake.remove_delta("a", lake.write("a", {}, path="/gone"))
        lake.write("a", append("x"), merge=APPEND)

    def cleared(lake: Lake) -> None:
        lake.write("a", append("x"), merge=APPEND)
        assert lake.clear_history("a").deltas == 2

    def meta(lake: Lake) -> None:
        lake.write("a", append("x"), merge=APPEND)
        lake.write("a", [], merge=APPEND, meta={"m": 1})
        assert lake.meta("a") == {"m": 1}

    def mark(lake: Lake) -> None:
        last = lake.write("a", append("x"), merge=APPEND)
        assert lake._session.index.high_water_mark("0c").mark == last

    def sample(lake: Lake) -> None:
        last = lake.write("a", append("x"), merge=APPEND)
        assert lake.motion_sample("r", "i", ["a"], None, lambda changed: None) == float(last.score)

    def forgotten(lake: Lake) -> None:
        wrote(lake)
        lake.remove_delta("gone", lake.write("gone", {}))
        forget_catalog(lake._session.index, "gone")
        assert list(lake._session.index.catalogs()) == ["a"]

    def unsnapped(lake: Lake) -> None:
        wrote(lake)
        with Lake(lake._url, config=lake._config, snapshot="always") as eager:
            eager.read_bytes("a")
            eager.flush()
        snapshot = lake.list("a").snapshot
        assert snapshot
        remove_snapshot(lake._session.index, "a", snapshot)
        assert lake.list("a").snapshot is None

    def wrote(lake: Lake) -> None:
        lake.write("a", append("x"), merge=APPEND)

    def listed(lake: Lake) -> None:
        wrote(lake)
        assert lake.list("a").exists

    return {
        "precommit": (scripts.PRECOMMIT, wrote),
        "commit": (scripts.COMMIT, wrote),
        "rollback": (scripts.ROLLBACK, rolled_back),
        "list": (scripts.LIST, listed),
        "clear": (scripts.CLEAR, cleared),
        "remove_delta": (scripts.REMOVE_DELTA, removed),
        "remove_snapshot": (scripts.REMOVE_SNAPSHOT, unsnapped),
        "forget_catalog": (scripts.FORGET_CATALOG, forgotten),
        "meta": (scripts.META, meta),
        "high_water_mark": (scripts.HIGH_WATER_MARK, mark),
        "sample": (scripts.SAMPLE, sample),
        "txn_stage": (scripts.TXN_STAGE, transaction("stage")),
        "txn_intend": (scripts.TXN_INTEND, transaction("intend")),
        "txn_publish": (scripts.TXN_PUBLISH, transaction("publish")),
        "txn_commit": (scripts.TXN_COMMIT, transaction("commit")),
        "txn_abort": (scripts.TXN_ABORT, transaction("abort")),
    }


@pytest.mark.parametrize("name", lost_reply_cases())
def test_a_lost_reply_has_the_effect_of_one_call(name: str, proxy: TcpProxy, proxied: Lake) -> None:
    script, call = lost_reply_cases()[name]
    proxy.drop_reply_to(script.sha.encode())
    call(proxied)
    assert proxy.dropped_replies == 1, "the fault was really injected"
    assert proxied.read_map("a") == {"list": ["x"]}
    assert not proxied.list("a", strict_pending=True).has_pending


def test_every_script_that_changes_something_has_a_lost_reply_test() -> None:
    assert {script.name for script in SCRIPTS} - set(lost_reply_cases()) == {"snapshot"}


def test_a_lost_reply_to_a_snapshot_costs_nothing_but_the_news(
    proxy: TcpProxy, redis_url: str, file_config: dict[str, str]
) -> None:
    with Lake(f"redis://127.0.0.1:{proxy.port}", config=file_config, snapshot="always") as lake:
        lake.write("a", {"list": []})
        proxy.drop_reply_to(scripts.SNAPSHOT.sha.encode())
        assert lake.read_map("a") == {"list": []}
        lake.flush()
        assert proxy.dropped_replies == 1
        assert lake.list("a").snapshot is not None
        lake.write("a", append(1), merge=APPEND)
        assert lake.read_map("a") == {"list": [1]}


def test_a_commit_that_is_never_answered_is_an_unknown_outcome(proxy: TcpProxy, proxied: Lake) -> None:
    proxy.drop_reply_to(scripts.COMMIT.sha.encode(), times=4)
    with pytest.raises(OutcomeUnknown, match="'a'"):
        proxied.write("a", append("x"), merge=APPEND)
    assert proxied.read_map("a") == {"list": ["x"]}, "it was in; its body was kept"


def test_a_connection_that_is_reset_is_made_again(proxy: TcpProxy, proxied: Lake) -> None:
    for n in range(5):
        proxied.write("a", append(n), merge=APPEND)
        proxy.reset_all()
    assert proxied.read_map("a") == {"list": list(range(5))}
    assert proxy.resets >= 4


def test_a_redis_that_stops_for_a_moment_delays_a_write(redis_server: RedisServer, lake: Lake) -> None:
    lake.write("a", {"list": []})
    redis_server.pause()
    timer = threading.Timer(0.5, redis_server.resume)
    timer.start()
    try:
        lake.write("a", append(1), merge=APPEND)
    finally:
        timer.join()
    assert lake.read_map("a") == {"list": [1]}


def test_a_redis_that_is_killed_and_comes_back_has_what_was_acknowledged(
    tmp_path: Path, file_config: dict[str, str]
) -> None:
    arguments = ("--appendonly", "yes", "--appendfsync", "always")
    with RedisServer(tmp_path, args=arguments) as server, Lake(server.url, config=file_config) as lake:
        lake.write("a", {"list": []})
        for n in range(20):
            lake.write("a", append(n), merge=APPEND)
        lake.write_many([("b", {"n": n}) for n in range(10)])
        server.kill()
        with pytest.raises(IndexUnavailable, match=str(server.port)):
            lake.write("a", append("lost"), merge=APPEND)
        server.restart()
        assert lake.read_map("a") == {"list": list(range(20))}
        assert lake.read_map("b") == {"n": 9}


def test_scripts_flushed_in_mid_run_are_sent_again(redis_url: str, lake: Lake) -> None:
    lake.write("a", {"list": []})
    stop = threading.Event()

    def flush() -> None:
        with redis.Redis.from_url(redis_url) as client:
            while not stop.is_set():
                client.script_flush()

    flusher = threading.Thread(target=flush)
    flusher.start()
    try:
        for n in range(50):
            lake.write("a", append(n), merge=APPEND)
            lake.write_many([(f"c{i}", {"n": n}) for i in range(20)])
    finally:
        stop.set()
        flusher.join()
    assert lake.read_map("a") == {"list": list(range(50))}
    assert all(lake.read_map(f"c{i}") == {"n": 49} for i in range(20))


def test_segments_keep_their_order_when_scripts_come_and_go(redis_url: str, file_config: dict[str, str]) -> None:
    stop = threading.Event()

    def flush() -> None:
        with redis.Redis.from_url(redis_url) as client:
            while not stop.is_set():
                # Somebody else loads it in the middle of a pipeline, whose first calls have failed by then.
                client.script_flush()
                client.script_load(scripts.TXN_PUBLISH.source)

    flusher = threading.Thread(target=flush)
    flusher.start()
    try:
        with Lake(redis_url, config=file_config, segment_rows=2, snapshot="never") as lake:
            for job in range(10):
                name = f"a{job}"
                lake.write_many([(name, {"list": []})] + [(name, append(n), "/", 3) for n in range(60)])
                assert lake.read_map(name) == {"list": list(range(60))}
    finally:
        stop.set()
        flusher.join()


KILLED_WRITER = """
    import os, signal, sys
    from lake_spark import Lake
    from lake_spark.storage import FileStorage

    class Deadly(FileStorage):
        '''Dies at its first put: before the object is there, or right after.'''
        def put(self, key, data, **how):
            if sys.argv[3] == "after":
                super().put(key, data, **how)
            os.kill(os.getpid(), signal.SIGKILL)

    lake = Lake(sys.argv[1], storage=Deadly(sys.argv[2]), name="test")
    if sys.argv[4] == "write":
        lake.write("a", [{"op": "add", "path": "/list/-", "value": "dead"}], merge=3)
    else:
        lake.write_many([("a", [{"op": "add", "path": "/list/-", "value": "dead"}], "/", 3), ("b", {})])
"""


@pytest.mark.parametrize("call", ["write", "write_many"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_writer_killed_around_its_put_leaves_nothing_visible(
    call: str, moment: str, redis_url: str, file_config: dict[str, str]
) -> None:
    with Lake(redis_url, config=file_config, pending_timeout=0.3, snapshot="always") as lake:
        lake.write("a", {"list": []})
        process = start(KILLED_WRITER, redis_url, file_config["BasePath"], moment, call)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        with Lake(redis_url, config=file_config) as patient:
            assert patient.list("a", strict_pending=True).has_pending == (call == "write")
        time.sleep(0.3)
        lake.write("a", append("alive"), merge=APPEND)
        assert lake.read_map("a") == {"list": ["alive"]}
        assert not lake.list("b").exists
        lake.clear_history("a")
        assert lake.read_map("a") == {"list": ["alive"]}
        assert not lake.list("a", strict_pending=True).has_pending


DYING_AT_A_SCRIPT = """
    import sys
    from lake_spark import Lake
    lake = Lake(sys.argv[1], config={"Name": "test", "Storage": "file", "BasePath": sys.argv[2]}, lease=0.5)
    if sys.argv[3] == "write":
        lake.write("a", [{"op": "add", "path": "/list/-", "value": "dead"}], merge=3)
    else:
        lake.write_many([("a", [{"op": "add", "path": "/list/-", "value": "dead"}], "/", 3), ("b", {"dead": 1})])
"""


@pytest.mark.parametrize("script", ["precommit", "commit", "txn_stage", "txn_intend", "txn_publish", "txn_commit"])
def test_a_writer_killed_while_a_script_runs_is_in_whole_or_not_at_all(
    script: str, proxy: TcpProxy, redis_url: str, file_config: dict[str, str]
) -> None:
    [wanted] = [each for each in SCRIPTS if each.name == script]
    with Lake(redis_url, config=file_config, pending_timeout=0.3) as lake:
        lake.write("a", {"list": []})
        call = "write" if script in ("precommit", "commit") else "write_many"
        process = start(DYING_AT_A_SCRIPT, f"redis://127.0.0.1:{proxy.port}", file_config["BasePath"], call)

        def kill(request: bytes) -> bool:
            if wanted.sha.encode() in request:
                os.kill(process.pid, signal.SIGKILL)
                return True
            return False

        proxy.drop_reply_to(kill)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        time.sleep(0.6)
        lake.write("a", append("alive"), merge=APPEND)
        whole = script in ("commit", "txn_commit")
        assert lake.read_map("a", pending="wait") == {"list": ["dead", "alive"] if whole else ["alive"]}
        assert lake.list("b").exists == (script == "txn_commit")
        lake.write_many([("c", 1)])
        assert lake._session.index.inflight() == set(), "what is left of it goes with the next transaction"


ACKNOWLEDGING_WRITER = """
    import json, sys
    from lake_spark import Lake
    with Lake(sys.argv[1], config=json.loads(sys.argv[2])) as lake:
        for n in range(100000):
            lake.write("a", [{"op": "add", "path": "/list/-", "value": f"{sys.argv[3]}-{n}"}], merge=3)
            print(n, flush=True)
"""


def test_what_killed_processes_had_acknowledged_is_there_exactly_once(
    redis_url: str, file_config: dict[str, str]
) -> None:
    with Lake(redis_url, config=file_config, pending_timeout=0.5, snapshot="always") as lake:
        lake.write("a", {"list": []})
        writers = [start(ACKNOWLEDGING_WRITER, redis_url, _json(file_config), name) for name in "xyz"]
        seen: set[str] = set()
        while len(seen) < 60 or {value[0] for value in seen} < set("xyz"):
            assert all(writer.poll() is None for writer in writers)
            seen = set(lake.read_map("a", pending="prefix")["list"])
            if random.random() < 0.3:
                lake.clear_history("a")
        for writer in writers:
            writer.kill()
        acknowledged = {name: len(writer.communicate()[0].split()) for name, writer in zip("xyz", writers, strict=True)}
        time.sleep(0.6)
        lake.write("a", append("end"), merge=APPEND)
        found = lake.read_map("a")["list"]
        assert len(found) == len(set(found)), "nothing is doubled"
        for name, count in acknowledged.items():
            mine = [value for value in found if value.startswith(name)]
            assert mine == [f"{name}-{n}" for n in range(len(mine))], "in the order in which they were written"
            assert count > 0
            assert count <= len(mine) <= count + 1, "all that was acknowledged, and at most the one in flight"


SNAPSHOTTING_READER = """
    import json, sys, time
    from lake_spark import Lake
    with Lake(sys.argv[1], config=json.loads(sys.argv[2]), snapshot="always") as lake:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            found = lake.read_map("a", pending="prefix")["list"]
            assert found == list(range(len(found))), found
        lake.flush()
"""


def test_processes_that_snapshot_at_once_never_lose_a_write(redis_url: str, file_config: dict[str, str]) -> None:
    with Lake(redis_url, config=file_config, snapshot="never") as lake:
        lake.write("a", {"list": []})
        readers = [start(SNAPSHOTTING_READER, redis_url, _json(file_config)) for _ in range(2)]
        count = 0
        while any(reader.poll() is None for reader in readers):
            lake.write("a", append(count), merge=APPEND)
            count += 1
        for reader in readers:
            finish(reader)
        assert lake.read_map("a") == {"list": list(range(count))}
        snapshots, _ = lake._session.index.history("a")
        assert len(snapshots) > 3
        assert [each.start for each in snapshots[1:]] == [each.stop for each in snapshots[:-1]]


@pytest.mark.parametrize("what", ["delta", "segment", "snapshot"])
def test_a_put_whose_answer_is_lost_finds_itself(what: str, redis_url: str, s3_config: dict[str, str]) -> None:
    host, port = s3_config["Endpoint"].removeprefix("http://").split(":")
    with TcpProxy(host, int(port)) as proxy:
        config = {**s3_config, "Endpoint": f"http://{proxy.host}:{proxy.port}"}
        with Lake(redis_url, config=config, snapshot="never") as lake:
            lake.write("a", {"list": []})
            folder = {"delta": b"/delta/", "segment": b"/_segments/", "snapshot": b"/snap/"}[what]
            proxy.drop_reply_to(lambda sent: sent.startswith(b"PUT ") and folder in sent.split(b"\r\n", 1)[0])
            if what == "delta":
                lake.write("a", append("x"), merge=APPEND)
            else:
                lake.write_many([("a", append("x"), "/", 3)])
            if what == "snapshot":
                lake.clear_history("a")
            assert proxy.dropped_replies == 1
            assert lake.read_map("a") == {"list": ["x"]}
            assert not lake.list("a", strict_pending=True).has_pending


def test_a_failed_put_is_rolled_back(redis_url: str, tmp_path: Path) -> None:
    class Full(FileStorage):
        full = True

        def put(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
            if self.full:
                raise StorageFailure("no space left")
            super().put(key, data, if_absent=if_absent)

    storage = Full(tmp_path / "lake")
    with Lake(redis_url, storage=storage, name="test") as lake:
        with pytest.raises(StorageFailure):
            lake.write("a", {"list": []})
        with pytest.raises(StorageFailure):
            lake.write_many([("a", {"list": []})])
        assert not lake.list("a", strict_pending=True).has_pending
        assert not lake.list("a").exists
        storage.full = False
        lake.write("a", {"list": [1]})
        assert lake.read_map("a") == {"list": [1]}


def test_a_place_that_another_body_has_is_left_alone(redis_url: str, lake: Lake) -> None:
    first = lake.write("a", {"old": 1})
    old = delta_key("a", first, MergeType.REPLACE)
    before = lake._session.storage.get(old)
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
        client.set("file:test:seq:0c", f"{first.seconds + 1000}_1")
        taken = TsSeq(first.seconds + 1000, 2)
        lake._session.storage.put(delta_key("a", taken, MergeType.REPLACE), b"somebody else's")
    written = lake.write("a", {"new": 1})
    assert written > taken
    assert lake._session.storage.get(delta_key("a", taken, MergeType.REPLACE)) == b"somebody else's"
    assert lake._session.storage.get(old) == before
    assert lake.read_map("a") == {"new": 1}


def test_a_fenced_write_is_made_again_by_the_client(
    redis_url: str, file_config: dict[str, str], tmp_path: Path
) -> None:
    class Slow(FileStorage):
        """Lets the log move on during its first puts."""

        puts = 0
        slow = 2

        def put(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
            super().put(key, data, if_absent=if_absent)
            self.puts += 1
            if self.puts <= self.slow:
                time.sleep(0.05)
                other.write("a", append(f"other {self.puts}"), merge=APPEND)
                other.read_map("a")

    with Lake(redis_url, config=file_config, pending_timeout=0.02) as other:
        other.write("a", {"list": []})
        storage = Slow(file_config["BasePath"])
        with Lake(redis_url, storage=storage, name="test") as lake:
            lake.write("a", append("mine"), merge=APPEND)
            assert other.read_map("a") == {"list": ["other 1", "other 2", "mine"]}
            storage.slow = 99
            with pytest.raises(FencedError, match="not in"):
                lake.write("a", append("again"), merge=APPEND)
            assert "again" not in other.read_map("a")["list"], "and what says that it is not in, is not"


def _flip(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 0x10
    path.write_bytes(bytes(data))


def _truncate(path: Path, place: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * place)])


DAMAGE: dict[str, Callable[[Path, float], None]] = {"flipped": _flip, "truncated": _truncate}


@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}], ids=["plain", "zstd"])
@pytest.mark.parametrize("password", ["", "a password"], ids=["clear", "encrypted"])
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("what", ["delta", "snapshot", "segment", "file"])
def test_a_damaged_object_is_an_error_that_names_it(
    what: str, damage: str, password: str, options: dict[str, Any], redis_url: str, file_config: dict[str, str]
) -> None:
    config = {**file_config, "AESPwd": password}

    def fresh() -> Lake:
        return Lake(redis_url, config=config, snapshot="never", **options)

    with fresh() as lake:
        if what == "segment":
            lake.write_many([("a", {"n": n, "text": "x" * 50}) for n in range(3)])
            [name] = {d.segment for d in lake.list("a").deltas}
            key = segment_key(str(name))
        elif what == "file":
            lake.write_file("a", "/f.bin", b"some bytes of a file" * 10)
            [key] = [key for key in lake._session.storage.list("") if "/files/" in key]
        else:
            ts_seq = lake.write("a", {"n": 1, "text": "x" * 50})
            key = delta_key("a", ts_seq, MergeType.REPLACE)
            if what == "snapshot":
                lake.clear_history("a")
                snapshot = lake.list("a").snapshot
                assert snapshot is not None
                key = snapshot_key("a", snapshot)
    [path] = [p for p in Path(file_config["BasePath"]).rglob("*") if p.is_file() and p.name.startswith(Path(key).name)]

    def read(lake: Lake) -> bytes:
        return lake.read_file("a", "/f.bin") if what == "file" else lake.read_bytes("a")

    with fresh() as lake:
        whole = read(lake)
    refused = 0
    for place in (0.1, 0.5, 0.99):
        intact = path.read_bytes()
        DAMAGE[damage](path, place)
        with fresh() as reader:
            # Part of a segment is for other readers: indexes and filters that we do not look at.
            may_be_read = (what, damage) == ("segment", "flipped")
            try:
                assert read(reader) == whole
            except CorruptObject as error:
                refused += key in str(error)
        path.write_bytes(intact)
    assert refused == 3 or (may_be_read and refused > 0)
    with fresh() as reader:
        assert read(reader) == whole


@pytest.mark.parametrize("password", ["", "a password"], ids=["clear", "encrypted"])
def test_swapped_objects_are_an_error(password: str, redis_url: str, file_config: dict[str, str]) -> None:
    config = {**file_config, "AESPwd": password}
    with Lake(redis_url, config=config) as lake:
        first = lake.write("a", {"n": 1})
        second = lake.write("a", {"n": 2})
    places = [Path(config["BasePath"]) / delta_key("a", each, MergeType.REPLACE) for each in (first, second)]
    bodies = [place.read_bytes() for place in places]
    for place, body in zip(places, reversed(bodies), strict=True):
        place.write_bytes(body)
    with Lake(redis_url, config=config) as lake, pytest.raises(CorruptObject, match=str(second)):
        lake.read_bytes("a")


@pytest.mark.parametrize("column", ["path", "merge_type"])
def test_what_is_to_be_done_with_an_encrypted_body_cannot_be_changed(
    column: str, redis_url: str, file_config: dict[str, str]
) -> None:
    config = {**file_config, "AESPwd": "a password"}
    with Lake(redis_url, config=config) as lake:
        lake.write_many([("a", {"n": 1}, "/public"), ("a", {"m": 2}, "/secret")])
        [segment] = {delta.segment for delta in lake.list("a").deltas if delta.segment}
    place = Path(config["BasePath"]) / segment_key(segment)
    rows = pq.read_table(place).to_pydict()
    bodies = iter(rows["body"])
    # Whoever has no password can still make a file whose checksums are right.
    changed = {"path": ["/secret", "/secret"], "merge_type": [1, 2]}
    forged = {**rows, column: changed[column], "body": ["{}", "{}"]}
    place.write_bytes(write_segment(segment, forged, seal=lambda *_: next(bodies)).data)
    with Lake(redis_url, config=config) as lake, pytest.raises(CorruptObject, match=segment):
        lake.read_bytes("a")


def test_a_wrong_password_is_an_error_that_shows_neither(redis_url: str, file_config: dict[str, str]) -> None:
    with Lake(redis_url, config={**file_config, "AESPwd": "the right one"}) as lake:
        lake.write("a", {"n": 1})
    for wrong in ("the wrong one", ""):
        with Lake(redis_url, config={**file_config, "AESPwd": wrong}) as lake:
            with pytest.raises(CorruptObject) as caught:
                lake.read_bytes("a")
            assert "the right one" not in str(caught.value)
            assert "the wrong one" not in str(caught.value)
    assert b'"n"' not in b"".join(p.read_bytes() for p in Path(file_config["BasePath"]).rglob("*") if p.is_file())


def test_a_missing_object_is_corruption_once_the_index_insists(lake: Lake) -> None:
    ts_seq = lake.write("a", {"n": 1})
    key = delta_key("a", ts_seq, MergeType.REPLACE)
    lake._session.storage.delete(key)
    with pytest.raises(CorruptObject, match=key.replace("(", r"\(")):
        lake.read_bytes("a")


def test_a_reader_with_an_old_listing_reads_on_after_history_was_cleared(redis_url: str, lake: Lake) -> None:
    for n in range(3):
        lake.write("a", {f"k{n}": n}, merge=MergeType.RFC7396)
    old = lake.list("a")
    with Lake(redis_url, config=lake.get_config()) as other:
        lake.clear_history("a")
        assert other.read_map(old) == {"k0": 0, "k1": 1, "k2": 2}


def test_a_delta_that_cannot_be_applied_is_named_and_can_be_taken_out(lake: Lake) -> None:
    lake.write("a", {"list": []})
    bad = lake.write("a", [{"op": "remove", "path": "/nothing"}], merge=APPEND)
    lake.write("a", append(1), merge=APPEND)
    with pytest.raises(MergeError, match=rf"'a'.*{bad}.*remove_delta"):
        lake.read_bytes("a")
    lake.remove_delta("a", bad)
    assert lake.read_map("a") == {"list": [1]}


@pytest.mark.parametrize("text", [str(2**70), "-" + str(2**70), "0.1000000000000000055", "1E400", "1.50", "-0", "1e2"])
def test_numbers_come_out_as_they_went_in(text: str, lake: Lake) -> None:
    lake.write("a", f'{{"n":{text},"list":[{text}]}}'.encode())
    lake.write("a", f'[{{"op":"add","path":"/list/-","value":{text}}}]'.encode(), merge=APPEND)
    lake.write("a", f'{{"m":{{"n":{text}}}}}'.encode(), merge=MergeType.RFC7396)
    expected = f'{{"n":{text},"list":[{text},{text}],"m":{{"n":{text}}}}}'
    assert lake.read_string("a") == expected
    lake.clear_history("a")
    assert lake.read_string("a") == expected
    lake.write_many([("b", lake.read_map("a"))])
    assert lake.read_string("b") == expected, "through Python values too"


def test_a_store_that_disappears_is_an_error_not_an_empty_document(redis_url: str, lake: Lake) -> None:
    lake.write("a", {"n": 1})
    shutil.rmtree(lake.get_config()["BasePath"])
    with pytest.raises(LakeError):
        lake.read_bytes("a")


def test_a_long_publication_keeps_its_lease(proxy: TcpProxy, redis_url: str, file_config: dict[str, str]) -> None:
    stop = threading.Event()
    with Lake(redis_url, config=file_config) as other:

        def meet() -> None:
            while not stop.wait(0.02):
                for txn in other._session.index.inflight():
                    abort_if_expired(other._session.index, txn)

        reader = threading.Thread(target=meet)
        reader.start()
        slow = f"redis://127.0.0.1:{proxy.port}"
        try:
            with Lake(slow, config=file_config, segment_rows=1, lease=1.5, fsync="never") as lake:
                proxy.delay(0.1)
                lake.write_many([("a", {f"k{n}": n}, "/", 2) for n in range(20)])
                proxy.delay(0)
        finally:
            stop.set()
            reader.join()
        assert other.read_map("a") == {f"k{n}": n for n in range(20)}
