"""The client in its process: versions in time, threads, forks, pickles, caches, many writes at once."""

from __future__ import annotations

import datetime
import json
import multiprocessing
import pickle
import subprocess
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from servers import RedisServer, TcpProxy, free_ports, redis_executable

from lake_spark import Lake, MergeType, TsSeq
from lake_spark.errors import CatalogNotFound, HistoryGone, IndexDenied, InvalidBody, InvalidInput, OutcomeUnknown
from lake_spark.index import scripts
from lake_spark.names import shard_of
from lake_spark.storage import FileStorage, MemoryStorage

MERGE = MergeType.RFC7396


class CountingStorage(FileStorage):
    """Counts the gets that reach it."""

    gets = 0

    def get(self, key: str, *, start: int | None = None, length: int | None = None) -> bytes:
        type(self).gets += 1
        return super().get(key, start=start, length=length)


@pytest.fixture
def counted() -> type[CountingStorage]:
    CountingStorage.gets = 0
    return CountingStorage


def test_versions_in_time(lake: Lake) -> None:
    first = lake.write("a", {"n": 1})
    second = lake.write("a", {"m": 2}, merge=MERGE)
    time.sleep(1.1)
    third = lake.write("a", {"n": 3}, merge=MERGE)
    assert lake.read_map(lake.list("a", as_of=first)) == {"n": 1}
    assert lake.read_map(lake.list("a", as_of=float(first.score))) == {"n": 1}
    assert lake.read_map(lake.list("a", as_of=str(second))) == {"n": 1, "m": 2}
    moment = datetime.datetime.fromtimestamp(second.seconds, datetime.timezone.utc)
    if third.seconds > second.seconds:
        for as_of in (moment, moment.isoformat(), second.seconds, float(second.seconds)):
            assert lake.read_map(lake.list("a", as_of=as_of)) == {"n": 1, "m": 2}
    assert lake.read_map(lake.list("a", as_of=third)) == {"n": 3, "m": 2}
    assert not lake.list("a", as_of=TsSeq(first.seconds - 10, 1)).exists
    lake.clear_history("a")
    with pytest.raises(HistoryGone, match=str(third)):
        lake.read_map(lake.list("a", as_of=second))
    assert lake.read_map(lake.list("a", as_of=third)) == {"n": 3, "m": 2}


def test_a_catalog_that_is_not_there(lake: Lake) -> None:
    listing = lake.list("nobody")
    assert (listing.exists, listing.error, listing.last_updated, listing.deltas) == (False, None, 0.0, ())
    with pytest.raises(CatalogNotFound, match="nobody"):
        lake.read_bytes(listing)
    with pytest.raises(InvalidInput, match="pending"):
        lake.read_bytes("nobody", pending="perhaps")
    assert lake.clear_history("nobody").stop is None


def test_any_json_value_is_a_document(lake: Lake) -> None:
    for value in ([1, 2], "text", 5, None, True):
        lake.write("a", value)
        assert lake.read(lake.list("a"), object) == value
    with pytest.raises(InvalidInput, match="no object"):
        lake.read_map("a")
    lake.write("a", "text")
    assert lake.read_string("a") == '"text"', "only bytes are taken as JSON"


def test_write_many_keeps_the_order_within_each_catalog(lake: Lake) -> None:
    rows = [{"catalog": f"c{n % 7}", "body": {f"k{n}": n}, "merge": "rfc7396"} for n in range(700)]
    written = lake.write_many(rows)
    assert len(written) == 700
    for name in (f"c{n}" for n in range(7)):
        mine = [ts for row, ts in zip(rows, written, strict=True) if row["catalog"] == name]
        assert [d.ts_seq for d in lake.list(name).deltas] == mine
    assert list(lake.read_map("c3")) == [f"k{n}" for n in range(3, 700, 7)], "keys in the order of the writes"
    assert set(lake.catalogs()) == {f"c{n}" for n in range(7)}


def test_write_many_in_several_segments(redis_url: str, file_config: dict[str, str]) -> None:
    with Lake(redis_url, config=file_config, segment_rows=10, snapshot="never") as lake:
        written = lake.write_many(
            (
                f"c{n % 3}",
                [{"op": "add", "path": "/l/-", "value": n}] if n > 2 else {"l": []},
                "/",
                3 if n > 2 else 1,
                {"last": n},
            )
            for n in range(95)
        )
        assert len(list(lake._session.storage.list("_segments/"))) == 10
        assert [lake.read_map(f"c{n}") for n in range(3)] == [{"l": [*range(n + 3, 95, 3)]} for n in range(3)]
        assert [lake.meta(f"c{n}") for n in range(3)] == [{"last": 93}, {"last": 94}, {"last": 92}]
        assert len(set(zip((shard_of(f"c{n % 3}") for n in range(95)), written, strict=True))) == 95
        assert lake.write_many([]) == []
        [only_meta] = lake.write_many([("c1", [], "/", 3, {"last": None})])
        assert only_meta == lake.list("c1").version
        assert lake.meta("c1") == {}


def test_a_batch_whose_rows_end_in_an_error_leaves_nothing(lake: Lake) -> None:
    def rows() -> Iterator[tuple[str, object]]:
        yield "a", {"n": 1}
        raise RuntimeError("the source failed")

    with pytest.raises(RuntimeError):
        lake.write_many(rows())
    with pytest.raises(InvalidBody, match="row 1"):
        lake.write_many([("a", {"n": 1}), ("b", b"{")])
    assert not lake.list("a").exists
    assert list(lake.catalogs()) == []


def test_a_run_and_single_deltas_of_one_catalog_merge_in_order(lake: Lake) -> None:
    lake.write("a", {"l": []})
    lake.write_many([("a", [{"op": "add", "path": "/l/-", "value": n}], "/", 3) for n in range(5)])
    lake.write("a", [{"op": "add", "path": "/l/-", "value": 5}], merge=3)
    lake.write_many([("a", [{"op": "add", "path": "/l/-", "value": 6}], "/", 3)])
    assert lake.read_map("a") == {"l": list(range(7))}
    lake.flush()
    assert lake.list("a").snapshot is not None
    assert lake.read_map("a") == {"l": list(range(7))}


def test_snapshots_follow_the_policy(redis_url: str, file_config: dict[str, str]) -> None:
    def snapshot_after(how: str, deltas: int, catalog: str) -> bool:
        with Lake(redis_url, config=file_config, snapshot=how) as lake:
            lake.write(catalog, {"big": "x" * 10_000})
            for n in range(deltas):
                lake.write(catalog, {"n": n}, merge=MERGE)
            lake.read_bytes(catalog)
            lake.flush()
            return lake.list(catalog).snapshot is not None

    assert not snapshot_after("never", 20, "a")
    assert snapshot_after("always", 0, "b")
    assert not snapshot_after("auto", 0, "c"), "a snapshot of one delta would be that delta again"
    assert snapshot_after("auto", 15, "d")
    with Lake(redis_url, config=file_config, snapshot="never") as lake:
        lake.write("e", {"big": "x" * 10_000})
        lake.clear_history("e")
    with Lake(redis_url, config=file_config) as lake:
        for n in range(16):
            lake.write("e", {"n": n}, merge=MERGE)
            lake.read_bytes("e")
            lake.flush()
            assert len(lake.list("e").deltas) == (n + 1) % 16, "a small change of a big document waits for company"


def test_a_read_of_an_old_version_makes_no_snapshot(redis_url: str, file_config: dict[str, str]) -> None:
    with Lake(redis_url, config=file_config, snapshot="always") as lake:
        first = lake.write("a", {"n": 1})
        lake.write("a", {"n": 2})
        lake.read_bytes(lake.list("a", as_of=first))
        lake.flush()
        assert lake.list("a").snapshot is None


def test_a_hundred_readers_load_once(redis_url: str, tmp_path: Path, counted: type[CountingStorage]) -> None:
    with Lake(redis_url, storage=counted(tmp_path), name="t", snapshot="never") as lake:
        for n in range(5):
            lake.write("a", {f"k{n}": n}, merge=MERGE)
    with Lake(redis_url, storage=counted(tmp_path), name="t", snapshot="never") as lake:
        counted.gets = 0
        barrier = threading.Barrier(100)

        def read(_: int) -> dict[str, Any]:
            barrier.wait()
            return lake.read_map("a")

        with ThreadPoolExecutor(100) as pool:
            assert list(pool.map(read, range(100))) == [{f"k{n}": n for n in range(5)}] * 100
        assert counted.gets == 5
        stats = lake.cache_stats()["deltas"]
        assert (stats.hits + stats.misses, stats.entries) == (500, 5)


def test_reads_share_no_memory(lake: Lake) -> None:
    lake.write("a", {"l": [1]})
    lake.read_map("a")["l"].append(2)
    assert lake.read_map("a") == {"l": [1]}


def test_threads_write_to_one_catalog(lake: Lake) -> None:
    lake.write("a", {"l": []})

    def write(thread: int) -> None:
        for n in range(25):
            lake.write("a", [{"op": "add", "path": "/l/-", "value": [thread, n]}], merge=3)
            if n % 5 == 0:
                found = lake.read_map("a", pending="prefix")["l"]
                assert len({tuple(pair) for pair in found}) == len(found)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    found = lake.read_map("a")["l"]
    assert sorted(found) == [[thread, n] for thread in range(8) for n in range(25)]
    assert all([n for t, n in found if t == thread] == list(range(25)) for thread in range(8))


def test_a_forked_child_goes_on_with_its_own_connections(redis_url: str, config: dict[str, Any]) -> None:
    with Lake(redis_url, config=config, snapshot="always") as lake:
        lake.write("a", {"l": []})
        lake.read_map("a")
        context = multiprocessing.get_context("fork")
        queue: Any = context.SimpleQueue()

        def child(name: int) -> None:
            for n in range(5):
                lake.write("a", [{"op": "add", "path": "/l/-", "value": [name, n]}], merge=3)
            lake.flush()
            mine = [pair for pair in lake.read_map("a", pending="wait")["l"] if pair[0] == name]
            queue.put(mine == [[name, n] for n in range(5)])

        with warnings.catch_warnings():
            # Newer Pythons warn that a fork with threads may hang: that it does not is what this tests.
            warnings.simplefilter("ignore", DeprecationWarning)
            children = [context.Process(target=child, args=(name,)) for name in range(2)]
            for process in children:
                process.start()
        for n in range(5):
            lake.write("a", [{"op": "add", "path": "/l/-", "value": [9, n]}], merge=3)
        for process in children:
            process.join(60)
            assert process.exitcode == 0
        assert queue.get()
        assert queue.get()
        queue.close()
        assert len(lake.read_map("a")["l"]) == 15


def test_a_pickled_lake_is_the_same_lake(lake: Lake) -> None:
    lake.write("a", {"n": 1})
    copy: Lake = pickle.loads(pickle.dumps(lake))
    assert copy.read_map("a") == {"n": 1}
    copy.close()


def test_a_closed_lake_opens_again(lake: Lake) -> None:
    lake.write("a", {"n": 1})
    lake.close()
    lake.close()
    assert lake.read_map("a") == {"n": 1}


def test_catalogs_with_nothing_visible_do_not_exist(lake: Lake) -> None:
    for n in range(30):
        lake.write(f"user-{n}", {"n": n})
    only = lake.write("user-x", {"n": 1})
    lake.remove_delta("user-x", only)
    lake._session.index.precommit("user-open", MergeType.REPLACE, "/")
    lake.write("other", 1)
    assert sorted(lake.catalogs("user-")) == sorted(f"user-{n}" for n in range(30))
    assert len(list(lake.catalogs())) == 31


def test_a_root_replace_hides_what_cannot_be_read_before_it(redis_url: str) -> None:
    storage = MemoryStorage()
    with Lake(redis_url, storage=storage) as lake:
        lake.write("a", {"n": 1})
        lake.write("a", [{"op": "remove", "path": "/nothing"}], merge=3)
        lake.write("a", {"n": 2})
        assert lake.read_map("a") == {"n": 2}


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_reads_what_any_other_wrote(
    compression: str, redis_url: str, file_config: dict[str, str]
) -> None:
    with Lake(redis_url, config=file_config, compression=compression, segment_compression=compression) as lake:
        lake.write("a", {"text": "x" * 1000})
        lake.write_many([("a", {"more": "y" * 1000}, "/", 2)])
        lake.write_file("a", "/f", b"z" * 1000)
    with Lake(redis_url, config=file_config) as plain:
        assert plain.read_map("a") == {"text": "x" * 1000, "more": "y" * 1000}
        assert plain.read_file("a", "/f") == b"z" * 1000


def test_plain_bodies_are_json_for_any_tool(redis_url: str, lake: Lake) -> None:
    ts_seq = lake.write("users", {"name": "Alice"})
    [path] = Path(lake.get_config()["BasePath"]).rglob(f"{ts_seq}_1.json")
    assert json.loads(path.read_bytes()) == {"name": "Alice"}
    assert path.parts[-4:-1] == ("9bc6", "(users", "delta")


def test_options_in_the_url(redis_url: str, file_config: dict[str, str]) -> None:
    with pytest.warns(UserWarning, match="pendingTimeoutt.*pending_timeout"):
        lake = Lake(
            f"{redis_url}?pending=prefix&pendingTimeoutt=3&client_name=me", config=file_config, snapshot="never"
        )
    with lake:
        first = lake.write("a", {"n": 1})
        lake._session.index.precommit("a", MergeType.REPLACE, "/open")
        lake.write("a", {"n": 2})
        assert lake.read_map("a") == {"n": 1}
        assert lake.list("a").version == first
        assert lake._session.index.connection.client.client_getname() in ("me", b"me")


def test_a_commit_whose_reply_was_lost_and_whose_repeat_is_refused_is_unknown(
    redis_server: RedisServer, redis_url: str, file_config: dict[str, str]
) -> None:
    with redis.Redis.from_url(redis_url) as client, TcpProxy("127.0.0.1", redis_server.port) as proxy:
        client.script_load(scripts.COMMIT.source)
        with Lake(f"redis://127.0.0.1:{proxy.port}", config=file_config) as lake:

            def lock_out(request: bytes) -> bool:
                if scripts.COMMIT.sha.encode() not in request:
                    return False
                client.config_set("requirepass", "from now on")
                return True

            proxy.drop_reply_to(lock_out)
            try:
                with pytest.raises(OutcomeUnknown):
                    lake.write("a", {"n": 1})
                with pytest.raises(IndexDenied):
                    lake.write("a", {"n": 2})
            finally:
                client.config_set("requirepass", "")
            assert lake.read_map("a") == {"n": 1}


def test_a_lake_behind_sentinels(redis_server: RedisServer, redis_url: str, tmp_path: Path) -> None:
    ports = free_ports(2)
    sentinels = []
    for port in ports:
        folder = tmp_path / str(port)
        folder.mkdir()
        conf = folder / "sentinel.conf"
        conf.write_text(f"port {port}\nbind 127.0.0.1\nsentinel monitor lake 127.0.0.1 {redis_server.port} 1\n")
        with (folder / "log").open("wb") as log:
            command = [redis_executable(), str(conf), "--sentinel"]
            sentinels.append(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log))
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    config = {"Storage": "file", "Name": "test", "BasePath": str(tmp_path / "lake")}
    try:
        with Lake(f"redis+sentinel://{hosts}/lake/0", config=config) as lake, Lake(redis_url, config=config) as direct:
            lake.write("a", {"n": 1})
            assert direct.read_map("a") == {"n": 1}
            sentinels[0].kill()
            sentinels[0].wait()
            lake.close()
            assert lake.read_map("a") == {"n": 1}, "the other sentinel knows too"
    finally:
        for sentinel in sentinels:
            sentinel.kill()
            sentinel.wait()


def test_meta_that_redis_should_not_keep_is_refused(lake: Lake) -> None:
    with pytest.raises(InvalidBody, match="1048576"):
        lake.write("a", {"n": 1}, meta={"big": "x" * (1 << 20)})
    assert not lake.list("a").exists
