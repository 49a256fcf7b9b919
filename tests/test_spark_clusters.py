"""Sparks whose tasks run in processes of their own: what they write together is what they read together."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jobs
import pytest
import redis
from clusters import Application, JobFailed, StandaloneCluster, executors_of, texts_below
from servers import LOOPBACK, RedisServer, S3Server
from soak import Oracle, change

from lake_spark import Lake, MergeType, TsSeq

PASSWORD = "cluster-w0rd-7Jx"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), args=("--requirepass", PASSWORD)) as server:
        yield server


@pytest.fixture
def url(locked: RedisServer) -> str:
    found = f"redis://:{PASSWORD}@{LOOPBACK}:{locked.port}/0"
    with redis.Redis.from_url(found) as client:
        client.flushall()
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the Sparks of this module keep what they have to say."""
    return tmp_path_factory.mktemp("clusters")


@pytest.fixture(scope="module")
def local_cluster(place: Path, spark_environment: dict[str, str]) -> Iterator[Application]:
    """Two executors with one core each, in processes of their own."""
    settings = {"spark_task_maxFailures": 2}
    with Application(place / "local", spark_environment, "local-cluster[2,1,1024]", **settings) as application:
        yield application


@pytest.fixture
def lake(url: str, file_config: dict[str, str]) -> Iterator[Lake]:
    with Lake(url, snapshot="never") as found:
        found.update_config(file_config)
        yield found


def by_catalog(rows: list[dict[str, Any]]) -> dict[str, Any]:
    assert [row["error"] for row in rows] == [None] * len(rows)
    assert len({row["catalog"] for row in rows}) == len(rows), "a catalog is one row"
    return {row["catalog"]: json.loads(row["document"]) for row in rows}


def test_separate_processes_write_and_read_the_plain_fold(
    local_cluster: Application, url: str, config: dict[str, str]
) -> None:
    with Lake(url, snapshot="never") as lake:
        lake.update_config(config)
        random_ = random.Random(7)
        names = [f"{random_.choice(['user-', 'Mixed Case ', 'ü/'])}{n}" for n in range(40)]
        oracles = {name: Oracle() for name in names}
        logs: dict[str, list[tuple[str, str, str]]] = {name: [] for name in names}
        for mode, count in (("append", 1500), ("overwrite", 300), ("append", 300)):
            rows = []
            written = set()
            for number in range(count):
                name = random_.choice(names[:30] if mode == "append" else names[20:])
                body, path, merge, effect = change(random_)
                if mode == "overwrite" and name not in written:
                    oracles[name].log.clear()
                    if (path, merge) != ("/", MergeType.REPLACE):
                        logs[name].append(("{}", "/", "REPLACE"))
                written.add(name)
                oracles[name].log.append((TsSeq(1, number + 1), effect))
                logs[name].append((json.dumps(body), path, merge.name))
                rows.append((name, *logs[name][-1]))
            assert {row[3] for row in rows} == {"REPLACE", "RFC7396", "RFC6902"}
            local_cluster.run(jobs.write, url, rows, mode, segmentRows=100)
        assert len(executors_of(local_cluster.processes())) == 2

        expected = {name: oracle.document() for name, oracle in oracles.items()}
        assert by_catalog(local_cluster.run(jobs.read, url)) == expected
        assert {name: lake.read_map(name) for name in names} == expected
        deltas = local_cluster.run(jobs.read, url, view="deltas")
        found: dict[str, list[tuple[str, str, str]]] = {name: [] for name in names}
        for row in sorted(deltas, key=lambda row: TsSeq.parse(row["ts_seq"])):
            found[row["catalog"]].append((row["body"], row["path"], row["merge_type"]))
        assert found == logs
        catalogs = local_cluster.run(jobs.read, url, view="catalogs")
        assert {row["catalog"]: row["version"] for row in catalogs} == {
            name: str(lake.list(name).version) for name in names
        }


def test_the_other_views_are_read_by_separate_processes(local_cluster: Application, url: str, lake: Lake) -> None:
    local_cluster.run(jobs.write, url, [(f"c{n}", f'{{"n": {n}}}', "/", "REPLACE") for n in range(20)])
    before = by_catalog(local_cluster.run(jobs.read, url, snapshot="always"))
    lake.write_file("c3", "/a.txt", b"abc")
    files = local_cluster.run(jobs.read, url, view="files")
    assert [row["catalog"] for row in files] == ["c3"]
    snapshots = local_cluster.run(jobs.read, url, view="snapshots")
    assert {row["catalog"] for row in snapshots} == before.keys()
    assert local_cluster.run(jobs.read, url, view="pending") == []
    assert {row["catalog"] for row in local_cluster.run(jobs.read, url, view="history")} == before.keys()
    assert by_catalog(local_cluster.run(jobs.read, url)) == before == {f"c{n}": {"n": n} for n in range(20)}


def test_bodies_in_memory_cannot_be_shared(local_cluster: Application, url: str) -> None:
    # Without a configuration, and with one that says so.
    for _ in range(2):
        with pytest.raises(JobFailed, match=r"memory, which the processes of a Spark job cannot share.*update_config"):
            local_cluster.run(jobs.read, url)
        with pytest.raises(JobFailed, match=r"memory, which the processes of a Spark job cannot share.*update_config"):
            local_cluster.run(jobs.write, url, [("a", "{}", "/", "REPLACE")])
        with Lake(url) as lake:
            lake.update_config({"Storage": "memory"})


def test_speculative_attempts_add_nothing_twice(
    place: Path, spark_environment: dict[str, str], url: str, lake: Lake, tmp_path: Path
) -> None:
    settings = {
        "spark_speculation": "true",
        "spark_speculation_interval": "100ms",
        "spark_speculation_multiplier": "1.1",
        "spark_speculation_quantile": "0.5",
        "spark_speculation_minTaskRuntime": "100ms",
        "spark_sql_execution_arrow_maxRecordsPerBatch": "10",
    }
    with (
        StandaloneCluster(place / "standalone", spark_environment) as cluster,
        Application(place / "speculating", spark_environment, cluster.url, **settings) as application,
    ):
        # The first attempt at the last task never ends by itself; what it could stage it has staged.
        application.run(jobs.write_watched, url, str(tmp_path), slow="3.0")
        attempts = sorted(path.name for path in tmp_path.glob("[0-9].[0-9]"))
        assert attempts == ["0.0", "1.0", "2.0", "3.0", "3.1"], "another attempt ran beside the slow one"
        deltas = application.run(jobs.read, url, view="deltas")
    assert len(deltas) == 400
    merged = {key for n in range(10) for key in lake.read_map(f"c{n}")}
    assert merged == {f"k{n}" for n in range(400)}
    stored = {key.rpartition("/")[2].removesuffix(".parquet") for key in lake._session.storage.list("_segments/")}
    assert stored > {row["source"] for row in deltas}, "the attempt that lost had staged segments too"


def test_nothing_that_spark_keeps_tells_a_secret(
    local_cluster: Application, place: Path, url: str, s3_config: dict[str, str]
) -> None:
    password = "an AES p@ssw0rd"
    with Lake(url) as lake:
        lake.update_config({**s3_config, "AESPwd": password})
        local_cluster.run(jobs.write, url, [("a", '{"n": 1}', "/", "REPLACE")], snapshotCacheUrl=url)
        assert by_catalog(local_cluster.run(jobs.read, url, snapshotCacheUrl=url)) == {"a": {"n": 1}}
        with pytest.raises(JobFailed, match="InvalidBody") as bad_body:
            local_cluster.run(jobs.write, url, [("a", "{", "/", "REPLACE")])
        lake.update_config({"SecretKey": "a wr0ng key"})
        with pytest.raises(JobFailed, match="StorageDenied") as denied:
            local_cluster.run(jobs.write, url, [("a", "{}", "/", "REPLACE")])
    secrets = (PASSWORD, password, S3Server.secret_key, "a wr0ng key")
    assert not [secret for secret in secrets for caught in (bad_body, denied) if secret in str(caught.value)]
    told = [(path.name, secret) for path, text in texts_below(place) for secret in secrets if secret in text]
    assert told == []
    kept = "".join(text for _, text in texts_below(place))
    assert "SparkListenerTaskEnd" in kept, "the events are there"
    assert "AppendData" in kept, "and the plans"
    assert "CoarseGrainedExecutorBackend" in kept, "and what executors say"
