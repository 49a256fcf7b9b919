"""The lake through Spark Connect: the client has no JVM, and the server finds the data source by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jobs
import pytest
import redis
from clusters import Application, ConnectServer, JobFailed, texts_below
from servers import LOOPBACK, RedisServer

import lake_spark
from lake_spark import Lake

PASSWORD = "c0nnect-w0rd-5Kd"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, spark_environment: dict[str, str]) -> Iterator[ConnectServer]:
    with ConnectServer(tmp_path_factory.mktemp("connect"), spark_environment) as found:
        yield found


@pytest.fixture(scope="module")
def client(
    server: ConnectServer, tmp_path_factory: pytest.TempPathFactory, spark_environment: dict[str, str]
) -> Iterator[Application]:
    with Application(tmp_path_factory.mktemp("client") / "app", spark_environment, server.url) as found:
        yield found


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), args=("--requirepass", PASSWORD)) as found:
        yield found


@pytest.fixture
def url(locked: RedisServer) -> str:
    found = f"redis://:{PASSWORD}@{LOOPBACK}:{locked.port}/0"
    with redis.Redis.from_url(found) as connection:
        connection.flushall()
    return found


@pytest.fixture
def lake(url: str, file_config: dict[str, str]) -> Iterator[Lake]:
    with Lake(url, snapshot="never") as found:
        found.update_config(file_config)
        yield found


def documents(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {row["catalog"]: json.loads(row["document"]) for row in rows}


def kind_of_session(spark: Any) -> str:
    return type(spark).__module__


def test_reads_and_writes(client: Application, lake: Lake, url: str) -> None:
    assert client.run(kind_of_session) == "pyspark.sql.connect.session"
    lake.write("a", {"before": True})
    rows = [
        ("a", '{"m": 1}', "/", "RFC7396"),
        ("a", '[{"op": "add", "path": "/l", "value": [2]}]', "/", "RFC6902"),
        ("b", "3", "/deep", "REPLACE"),
    ]
    client.run(jobs.write, url, rows)
    expected = {"a": {"before": True, "m": 1, "l": [2]}, "b": {"deep": 3}}
    assert documents(client.run(jobs.read, url)) == expected
    assert {name: lake.read_map(name) for name in "ab"} == expected
    client.run(jobs.write, url, [("a", '{"new": 1}', "/", "REPLACE")], "overwrite")
    assert documents(client.run(jobs.read, url, "a")) == {"a": {"new": 1}}
    assert len(client.run(jobs.read, url, view="deltas")) == 5
    assert {row["catalog"] for row in client.run(jobs.read, url, view="catalogs")} == {"a", "b"}


def registered(spark: Any, url: str) -> list[str]:
    lake_spark.register(spark)
    return [row.catalog for row in spark.read.format("lake").option("url", url).load().collect()]


def test_a_session_may_register_the_lake_too(client: Application, lake: Lake, url: str) -> None:
    lake.write("a", {"n": 1})
    assert client.run(registered, url) == ["a"]


def test_a_bad_row_is_named_and_nothing_is_in(client: Application, lake: Lake, url: str) -> None:
    with pytest.raises(JobFailed, match="the bad one") as caught:
        client.run(jobs.write, url, [("a", "{}", "/", "REPLACE"), ("the bad one", "{", "/", "REPLACE")])
    assert "InvalidBody" in str(caught.value)
    assert list(lake.catalogs()) == []
    with pytest.raises(JobFailed, match="dokuments"):
        client.run(jobs.read, url, view="dokuments")


def explained(spark: Any, url: str) -> str:
    frame = spark.read.format("lake").option("url", url).load()
    frame.collect()
    return f"{frame._explain_string(extended=True)} {frame!r}"


def test_the_password_is_not_told(client: Application, server: ConnectServer, lake: Lake, url: str) -> None:
    lake.write("a", {"n": 1})
    assert "lake" in client.run(explained, url)
    assert PASSWORD not in client.run(explained, url)
    for folder in (server.folder, client.folder):
        assert [path for path, text in texts_below(folder) if PASSWORD in text] == []


def around_a_write(spark: Any, url: str, keeps_plans: bool, **options: Any) -> tuple[int, int]:
    """The rows of one DataFrame before and after a write."""
    spark.conf.set("spark.connect.session.planCache.enabled", str(keeps_plans).lower())
    frame = spark.read.format("lake").option("url", url).options(view="deltas", **options).load()
    before = frame.count()
    with Lake(url) as lake:
        lake.write("a", {"n": 2})
    return before, frame.count()


def test_a_data_frame_stays_at_its_cut_while_the_server_keeps_its_plan(
    client: Application, lake: Lake, url: str
) -> None:
    version = lake.write("a", {"n": 1})
    assert client.run(around_a_write, url, True) == (1, 1)
    # A plan that is not kept is made again for each action, at a cut of its own; a version holds always.
    assert client.run(around_a_write, url, False) == (2, 3)
    assert client.run(around_a_write, url, False, asOf=str(version)) == (1, 1)
