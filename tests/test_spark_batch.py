"""The batch source on a real Spark: what is written is what is read, whole or not at all, as of one cut."""

from __future__ import annotations

import datetime
import json
import pickle
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
from servers import LOOPBACK, RedisServer
from soak import Oracle, change

from lake_spark import Lake, MergeType, TsSeq

pytest.importorskip("pyspark", "4.0")

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.types import StructType

DOCUMENTS = "catalog string, document string, version string, updated_at timestamp, deltas bigint, error string"
DELTAS = (
    "catalog string, ts_seq string, committed_at timestamp, merge_type string, path string, body string, "
    "size bigint, source string"
)
CATALOGS = "catalog string, version string, updated_at timestamp, deltas bigint, snapshots bigint, meta string"
NAMES = ("catalog", "body", "path", "merge_type", "meta")


@pytest.fixture
def lake(redis_url: str, file_config: dict[str, str]) -> Iterator[Lake]:
    """A lake whose configuration is in Redis, where Spark finds it."""
    with Lake(redis_url, snapshot="never") as found:
        found.update_config(file_config)
        yield found


@pytest.fixture
def any_lake(redis_url: str, config: dict[str, str]) -> Iterator[Lake]:
    """The same, on each kind of storage."""
    with Lake(redis_url, snapshot="never") as found:
        found.update_config(config)
        yield found


class Job:
    """Reads and writes of one lake by one Spark."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self.spark = spark
        self.url = url

    def read(self, *names: str, **options: Any) -> DataFrame:
        return self.spark.read.format("lake").option("url", self.url).options(**options).load(*names)

    def rows(self, *names: str, **options: Any) -> list[Row]:
        return sorted(self.read(*names, **options).collect(), key=lambda row: (row[0], row[1] or ""))

    def documents(self, *names: str, **options: Any) -> dict[str, Any]:
        found = self.rows(*names, **options)
        assert [row.error for row in found] == [None] * len(found)
        assert len({row.catalog for row in found}) == len(found), "a catalog is one row"
        return {row.catalog: json.loads(row.document) for row in found}

    def frame(self, rows: Sequence[Sequence[Any]], *names: str) -> DataFrame:
        """Rows in the order given, over two partitions."""
        names = names or NAMES[: len(rows[0])]
        columns = zip(*rows, strict=True)
        return self.spark.createDataFrame(pa.table(dict(zip(names, map(pa.array, columns), strict=True))))

    def save(self, frame: DataFrame, mode: str = "append", **options: Any) -> None:
        frame.write.format("lake").option("url", self.url).options(**options).mode(mode).save()

    def write(self, rows: Sequence[Sequence[Any]], mode: str = "append", **options: Any) -> None:
        """Write the rows in their order."""
        self.save(self.frame(rows).coalesce(1), mode, **options)

    def fails(self, action: Callable[[], object], *reasons: str) -> str:
        """The message of the error that the action ends in, which gives all these reasons."""
        with pytest.raises(PySparkException) as caught:
            action()
        message = str(caught.value)
        for reason in reasons:
            assert reason in message, message
        return message

    def fails_in_planning(self, action: Callable[[], object], *reasons: str) -> str:
        """The same, before a single task ran."""
        group = uuid.uuid4().hex
        context = self.spark.sparkContext
        context.setJobGroup(group, "must not start")
        try:
            return self.fails(action, *reasons)
        finally:
            assert list(context.statusTracker().getJobIdsForGroup(group)) == [], "it was known before any task ran"
            context.setJobGroup("", "")


@pytest.fixture
def job(spark: SparkSession, redis_url: str) -> Job:
    return Job(spark, redis_url)


def moment(ts_seq: TsSeq | str) -> datetime.datetime:
    """When that was, as Spark hands it over: local and without a zone."""
    return datetime.datetime.fromtimestamp(TsSeq.parse(ts_seq).seconds)


# Round trips


@pytest.mark.parametrize(("storage", "deltas", "catalogs"), [("file_config", 20_000, 1_000), ("s3_config", 2_000, 100)])
def test_a_round_trip_is_the_plain_fold(
    request: pytest.FixtureRequest, redis_url: str, job: Job, storage: str, deltas: int, catalogs: int
) -> None:
    with Lake(redis_url) as lake:
        lake.update_config(request.getfixturevalue(storage))
    random_ = random.Random(deltas)
    names = [f"{random_.choice(['user-', 'Mixed Case ', 'ü/'])}{n}" for n in range(catalogs)]
    oracles = {name: Oracle() for name in names}
    rows = []
    for number in range(deltas):
        name = random_.choice(names)
        body, path, merge, effect = change(random_)
        oracles[name].log.append((TsSeq(1, number + 1), effect))
        rows.append((name, json.dumps(body), path, merge.name, number))
    assert {row[3] for row in rows} == {"REPLACE", "RFC7396", "RFC6902"}
    frame = job.frame(rows, "catalog", "body", "path", "merge_type", "n")
    job.save(frame.repartition(4, "catalog").sortWithinPartitions("n").drop("n"))

    written = {name: oracle for name, oracle in oracles.items() if oracle.log}
    found = job.documents()
    assert found.keys() == written.keys()
    for name, oracle in written.items():
        assert found[name] == oracle.document(), name
    # The log is what was written, in its order; and the client reads what Spark wrote.
    log: dict[str, list[tuple[str, str, str]]] = {name: [] for name in written}
    for name, text, path, kind, _ in rows:
        log[name].append((text, path, kind))
    read = job.read(view="deltas").collect()
    assert len(read) == deltas
    stored: dict[str, list[tuple[str, str, str]]] = {name: [] for name in written}
    for row in sorted(read, key=lambda row: TsSeq.parse(row.ts_seq)):
        stored[row.catalog].append((row.body, row.path, row.merge_type))
    assert stored == log
    with Lake(redis_url) as lake:
        for name in random_.sample(sorted(written), 20):
            assert lake.read_map(name) == written[name].document()


def test_spark_and_the_client_read_what_the_other_wrote(any_lake: Lake, job: Job) -> None:
    first = any_lake.write("both", {"n": 1})
    job.write([("both", '{"m": 2}', "/", "RFC7396"), ("both", '"x"', "/deep/er", "REPLACE")])
    any_lake.write("both", [{"op": "add", "path": "/l", "value": [3]}], merge=MergeType.RFC6902)
    expected = {"n": 1, "m": 2, "deep": {"er": "x"}, "l": [3]}
    assert any_lake.read_map("both") == expected
    [row] = job.rows("both")
    assert json.loads(row.document) == expected
    listing = any_lake.list("both")
    assert listing.version > first
    assert (row.version, row.updated_at, row.deltas) == (str(listing.version), moment(listing.version), 4)


def test_numbers_and_the_order_of_keys_survive(lake: Lake, job: Job) -> None:
    body = '{"z":123456789012345678901234567890,"a":1.10,"m":[1e400,-0.0],"ü":"\\ud83d\\ude00"}'
    job.write([("numbers", body)])
    job.save(job.frame([("binary", body.encode())]))
    for row in job.rows():
        assert row.document.startswith('{"z":123456789012345678901234567890,"a":1.10,"m":[1e400,-0.0],"'), row
        assert json.loads(row.document)["ü"] == "😀"
        assert row.document == lake.read_string(row.catalog)


def test_rows_keep_their_order_within_a_partition(lake: Lake, job: Job) -> None:
    rows = [(f"c{n % 3}", f'[{{"op": "add", "path": "/l/-", "value": {n}}}]', "RFC6902") for n in range(3, 600)]
    for n in range(3):
        lake.write(f"c{n}", {"l": [n]})
    frame = job.frame(rows, "catalog", "body", "merge_type").coalesce(1)
    job.save(frame, segmentRows=50)
    assert len(list(lake._session.storage.list("_segments/"))) == 12, "an order that holds across segments too"
    assert job.documents() == {f"c{n}": {"l": [*range(n, 600, 3)]} for n in range(3)}


def test_columns_and_constants(lake: Lake, job: Job) -> None:
    lake.write("a", {"kept": True})
    merge_types = [("a", '{"m": 1}', "2"), ("a", '{"n": 1}', "rfc7396"), ("a", '[{"op":"remove","path":"/m"}]', "3")]
    job.save(job.frame(merge_types, "catalog", "body", "merge_type").coalesce(1))
    assert job.documents() == {"a": {"kept": True, "n": 1}}
    job.save(job.frame([("a", '{"o": 1}', 2)], "catalog", "body", "merge_type"))
    job.save(job.frame([('{"p": 1}',)], "body"), catalog="a", path="/in/side", mergeType="RFC7396")
    assert job.documents() == {"a": {"kept": True, "n": 1, "o": 1, "in": {"side": {"p": 1}}}}
    # A column says more than a constant, where it says something; but a row without a catalog is a mistake.
    rows = [("b", "1", "/x"), ("a", "2", None)]
    job.save(job.frame(rows, "catalog", "body", "path").coalesce(1), catalog="c", path="/y")
    assert job.documents("b") == {"b": {"x": 1}}
    assert job.documents("a")["a"]["y"] == 2
    rows = [("b", "1"), (None, "2")]
    job.fails(lambda: job.write(rows, catalog="c"), "InvalidCatalog", "row 1")


def test_meta_is_merged(lake: Lake, job: Job) -> None:
    lake.write("a", {}, meta={"owner": "x", "old": 1})
    job.write([("a", "{}", "/", "RFC7396", '{"old": null, "n": 1.50}'), ("a", "{}", "/", "RFC7396", None)])
    assert lake.meta("a") == {"owner": "x", "n": 1.5}


def test_appending_twice_adds_twice_and_nothing_adds_nothing(lake: Lake, job: Job) -> None:
    for _ in range(2):
        job.write([("a", '{"n": 1}', "/", "RFC7396")])
    assert job.read("a", view="deltas").count() == 2
    version = lake.list("a").version
    for mode in ("append", "overwrite"):
        job.save(job.frame([("a", "{}")]).where("false"), mode)
    assert lake.list("a").version == version
    assert job.documents() == {"a": {"n": 1}}


# Views and selections


def test_the_views_of_a_lake(lake: Lake, job: Job) -> None:
    single = lake.write("a", {"n": "ü"}, path="/p")
    job.write([("a", '{"n":1}', "/", "RFC7396"), ("a", '[{"op":"add","path":"/m","value":2}]', "/", "RFC6902")])
    lake.write("b", [1])
    for view, schema in (("documents", DOCUMENTS), ("deltas", DELTAS), ("catalogs", CATALOGS)):
        columns = [(f.name, f.dataType.simpleString()) for f in job.read(view=view).schema.fields]
        assert ", ".join(f"{name} {kind}" for name, kind in columns) == schema

    listing = lake.list("a")
    first, second, third = sorted(job.rows("a", view="deltas"), key=lambda row: TsSeq.parse(row.ts_seq))
    assert [TsSeq.parse(row.ts_seq) for row in (first, second, third)] == [d.ts_seq for d in listing.deltas]
    assert (first.ts_seq, first.merge_type, first.path, first.body) == (str(single), "REPLACE", "/p", '{"n":"ü"}')
    assert (first.size, first.source, first.committed_at) == (10, "object", moment(single))
    assert (second.merge_type, second.path, second.body, second.size) == ("RFC7396", "/", '{"n":1}', 7)
    assert (third.merge_type, third.path) == ("RFC6902", "/")
    assert second.source == third.source == listing.deltas[-1].segment

    found = job.rows(view="catalogs")
    assert [row.catalog for row in found] == ["a", "b"]
    for row in found:
        version = lake.list(row.catalog).version
        assert (row.version, row.updated_at) == (str(version), moment(version))
    assert job.read().count() == 2
    assert [row.n for row in job.read("a").selectExpr("get_json_object(document, '$.n') AS n").collect()] == ["1"]


def test_a_snapshot_is_read_instead_of_what_it_merged(lake: Lake, redis_url: str, job: Job) -> None:
    for n in range(5):
        lake.write("a", {f"k{n}": n}, merge=MergeType.RFC7396)
    with Lake(redis_url, snapshot="always") as other:
        other.read_map("a")
        other.flush()
    lake.write("a", {"last": True}, merge=MergeType.RFC7396)
    [row] = job.rows("a")
    assert (json.loads(row.document), row.deltas) == ({**{f"k{n}": n for n in range(5)}, "last": True}, 1)
    assert job.read("a", view="deltas").count() == 6, "the log is all there"


def test_selections(lake: Lake, job: Job) -> None:
    names = ["user-1", "user-2", "user-10", "users", "User-3", "a,b", "x*y", "über-1"]
    lake.write_many([(name, {"is": name}) for name in names])

    def found(*load: str, **options: str) -> list[str]:
        documents = job.documents(*load, **options)
        assert all(document == {"is": name} for name, document in documents.items())
        return sorted(documents)

    assert found() == sorted(names)
    assert found("users") == ["users"]
    assert found("user-*") == ["user-1", "user-10", "user-2"]
    assert found("user-?") == ["user-1", "user-2"]
    assert found("user-[13]*") == ["user-1", "user-10"]
    assert found("*-1") == ["user-1", "über-1"]
    assert found("a,b") == ["a,b"], "one name is one name"
    assert found(catalogs="users, user-2,nobody") == ["user-2", "users"]
    assert found("nobody") == []
    assert found("nobody*") == []
    assert [row.catalog for row in job.rows("user-*", view="catalogs")] == ["user-1", "user-10", "user-2"]
    assert {row.catalog for row in job.rows(catalogs="users", view="deltas")} == {"users"}


def test_an_empty_lake_has_no_rows(lake: Lake, job: Job) -> None:
    for view in ("documents", "deltas", "catalogs"):
        assert job.rows(view=view) == []


def test_number_of_partitions(lake: Lake, job: Job) -> None:
    lake.write_many([(f"c{n}", {"n": n}) for n in range(200)])
    expected = {f"c{n}": {"n": n} for n in range(200)}
    for number in (1, 3, 8):
        frame = job.read(numPartitions=number)
        sizes = [row["count"] for row in frame.groupBy(spark_partition_id()).count().collect()]
        assert len(sizes) == number
        assert max(sizes) <= 2 * 200 / number
        assert {row.catalog: json.loads(row.document) for row in frame.collect()} == expected


# Cuts


def test_a_data_frame_stays_at_the_cut_of_its_plan(lake: Lake, job: Job) -> None:
    lake.write("a", {"n": 1})
    lake.write("b", {"n": 1})
    for view in ("documents", "deltas", "catalogs"):
        frame = job.read(view=view)
        before = sorted(frame.collect())
        lake.write("a", {"n": 2})
        job.write([("b", '{"n": 2}'), ("new", "{}")])
        assert sorted(frame.collect()) == before
        assert frame.count() == len(before)
        assert sorted(frame.where("catalog = 'a'").collect()) == [row for row in before if row.catalog == "a"]
        assert sorted(job.read(view=view).collect()) != before


def test_actions_agree_while_another_process_writes(lake: Lake, redis_url: str, job: Job) -> None:
    lake.write_many([(f"c{n}", {"n": 0}) for n in range(20)])
    script = (
        "import itertools, sys; from lake_spark import Lake\n"
        f"lake = Lake({redis_url!r}, snapshot='never'); print('up', flush=True)\n"
        "for n in itertools.count(1): lake.write_many([(f'c{c}', {'n': n}) for c in range(20)])\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout
            writer.stdout.readline()
            time.sleep(0.2)
            # Not `deltas`: how many were replayed is another number once a snapshot is there.
            frame = job.read().drop("deltas")
            first, second = sorted(frame.collect()), sorted(frame.collect())
            time.sleep(0.2)
            later = job.documents()
            assert writer.poll() is None
        finally:
            writer.kill()
    assert first == second
    assert len(first) == 20
    # Every batch is a transaction: no cut lies within one, however many shards it spans.
    assert len({json.loads(row.document)["n"] for row in first}) == 1
    assert len({document["n"] for document in later.values()}) == 1
    assert later["c0"]["n"] > json.loads(first[0].document)["n"]


def test_filters_of_one_data_frame_do_not_mix(lake: Lake, job: Job) -> None:
    lake.write_many([(name, {"is": name}) for name in "abc"])
    frame = job.read()
    both = frame.where("catalog = 'a'").union(frame.where("catalog = 'b'"))
    assert sorted((row.catalog, row.document) for row in both.collect()) == [
        ("a", '{"is":"a"}'),
        ("b", '{"is":"b"}'),
    ]
    left, right = frame.alias("l"), frame.where("catalog <> 'c'").alias("r")
    assert left.join(right, "catalog").count() == 2


def test_versions_in_time(lake: Lake, job: Job) -> None:
    first = lake.write("a", {"n": 1})
    job.write([("a", '{"m": 2}', "/", "RFC7396")])
    second = lake.list("a").version
    time.sleep(1.1 - time.time() % 1)
    third = lake.write("a", {"n": 3}, merge=MergeType.RFC7396)
    lake.write("b", {"late": True})
    assert third.seconds > second.seconds
    assert job.documents() == {"a": {"n": 3, "m": 2}, "b": {"late": True}}
    assert job.documents(asOf=str(first)) == {"a": {"n": 1}}
    assert job.documents(asOf=str(second)) == {"a": {"n": 1, "m": 2}}
    utc = datetime.datetime.fromtimestamp(second.seconds, datetime.timezone.utc)
    for as_of in (utc.isoformat(), utc.isoformat().replace("+00:00", "Z"), utc.isoformat(" ")):
        [row] = job.rows(asOf=as_of)
        assert (json.loads(row.document), row.version) == ({"n": 1, "m": 2}, str(second)), as_of
    assert [row.catalog for row in job.rows(view="catalogs", asOf=str(second))] == ["a"]
    assert job.read(view="deltas", asOf=str(second)).count() == 2
    assert job.rows(asOf="2001-01-01T00:00:00Z") == []
    job.fails_in_planning(lambda: job.rows(asOf="yesterday"), "yesterday")


def test_history_that_is_gone_is_said(lake: Lake, job: Job) -> None:
    first = lake.write("a", {"n": 1})
    lake.write("a", {"n": 2})
    lake.clear_history("a")
    assert job.documents() == {"a": {"n": 2}}
    job.fails(lambda: job.rows(asOf=str(first)), "HistoryGone", "'a'")


# Open writes


def test_open_writes_are_waited_for(lake: Lake, job: Job) -> None:
    lake.write("a", {"n": 1})
    index = lake._session.index
    opened = index.precommit("a", MergeType.RFC7396, "/")
    lake.write("a", {"m": 2}, merge=MergeType.RFC7396)
    assert job.documents(pending="prefix") == {"a": {"n": 1}}
    job.fails_in_planning(lambda: job.rows(pending="error"), "'a'", "PendingError")
    began = time.monotonic()
    job.fails_in_planning(lambda: job.rows(pendingWait="0.5"), "'a'", "pendingWait")
    assert time.monotonic() - began >= 0.5

    closer = threading.Timer(1.0, index.rollback, [opened], {"orphan": False})
    closer.start()
    assert job.documents() == {"a": {"n": 1, "m": 2}}
    closer.join()


def test_a_catalog_that_cannot_be_merged_says_why_and_stops_no_other(lake: Lake, job: Job) -> None:
    lake.write_many([(f"c{n}", {"n": n}) for n in range(10)])
    bad = lake.write("c4", [{"op": "remove", "path": "/missing"}], merge=MergeType.RFC6902)
    found = {row.catalog: row for row in job.rows()}
    assert len(found) == 10
    row = found.pop("c4")
    assert (row.document, row.version) == (None, str(bad))
    assert str(bad) in row.error
    assert "missing" in row.error
    assert {name: json.loads(row.document) for name, row in found.items()} == {
        f"c{n}": {"n": n} for n in range(10) if n != 4
    }
    assert all(row.error is None for row in found.values())
    lake.remove_delta("c4", bad)
    assert job.documents("c4") == {"c4": {"n": 4}}


# Overwriting


def test_overwrite_replaces_the_catalogs_it_names(lake: Lake, job: Job) -> None:
    lake.write_many([(name, {"old": name}, "/", 1, {"meta": 1}) for name in "abcd"])
    before = {name: lake.list(name).version for name in "abcd"}
    rows = [
        ("a", '{"new": 1}', "/", "REPLACE"),
        ("a", '{"more": 2}', "/", "RFC7396"),
        ("b", '{"x": null, "y": 1}', "/", "RFC7396"),
        ("c", "3", "/only/this", "REPLACE"),
        ("e", '{"e": 1}', "/", "REPLACE"),
    ]
    job.save(job.frame(rows).repartition("catalog"), "overwrite")
    assert job.documents() == {
        "a": {"new": 1, "more": 2},
        "b": {"y": 1},
        "c": {"only": {"this": 3}},
        "d": {"old": "d"},
        "e": {"e": 1},
    }
    assert lake.list("d").version == before["d"]
    assert lake.meta("a") == {"meta": 1}
    for name in "abce":
        since = [
            row
            for row in sorted(job.rows(name, view="deltas"), key=lambda row: TsSeq.parse(row.ts_seq))
            if name == "e" or TsSeq.parse(row.ts_seq) > before[name]
        ]
        assert (since[0].merge_type, since[0].path) == ("REPLACE", "/")
    assert job.documents("a", asOf=str(before["a"])) == {"a": {"old": "a"}}, "the log keeps what was"


def test_overwrite_of_a_catalog_in_several_partitions_is_refused(lake: Lake, job: Job) -> None:
    lake.write("a", {"old": 1})
    frame = job.frame([("a", f'{{"n": {n}}}') for n in range(10)])
    message = job.fails(lambda: job.save(frame.repartition(2), "overwrite"), 'repartition("catalog")')
    assert "'a'" in message
    assert job.documents() == {"a": {"old": 1}}
    job.save(frame.repartition(2), "append")
    job.save(frame.repartition(4, "catalog").sortWithinPartitions("body"), "overwrite")
    assert job.documents() == {"a": {"n": 9}}


# All or nothing


def state(url: str) -> dict[bytes, object]:
    """Everything in Redis that could make something visible, now or later."""
    with redis.Redis.from_url(url) as client:
        found: dict[bytes, object] = {}
        for key in client.scan_iter("*", count=1000):
            if b":txn:" in key:
                found[key] = client.hget(key, "state")
            elif key.endswith(b":inflight") or b":pending:" in key or b":delta:" in key:
                found[key] = client.type(key)
        return found


@pytest.mark.parametrize(
    ("body", "merge_type", "reason"),
    [
        ('{"n": ', "REPLACE", "JSON"),
        ('{"n": NaN}', "REPLACE", "JSON"),
        ('{"op": "add"}', "RFC6902", "patch"),
        ("{}", "RFC1234", "RFC1234"),
        (None, "REPLACE", "body"),
    ],
)
def test_a_bad_row_fails_the_job_and_leaves_nothing(
    lake: Lake, job: Job, redis_url: str, body: str | None, merge_type: str, reason: str
) -> None:
    rows = [(f"c{n}", '{"n": 1}', "REPLACE") for n in range(100)]
    rows[87] = ("the bad one", body, merge_type)  # type: ignore[assignment]
    frame = job.frame(rows, "catalog", "body", "merge_type").repartition(4)
    job.fails(lambda: job.save(frame, segmentRows=5), "the bad one", reason)
    assert list(lake.catalogs()) == []
    assert job.rows() == []
    assert {*state(redis_url).values()} <= {b"aborted"}, "nothing that waits, either"


def test_a_task_that_fails_leaves_nothing(lake: Lake, job: Job, redis_url: str) -> None:
    lake.write("kept", {"n": 1})
    numbers = job.spark.range(0, 100, numPartitions=4)
    frame = numbers.selectExpr(
        "concat('c', id) AS catalog", "if(id = 99, raise_error('the lights went out'), '{}') AS body"
    )
    job.fails(lambda: job.save(frame), "the lights went out")
    assert job.documents() == {"kept": {"n": 1}}
    assert {*state(redis_url).values()} <= {b"aborted", b"zset"}
    job.save(numbers.selectExpr("concat('c', id) AS catalog", "'{}' AS body"))
    assert job.read(view="catalogs").count() == 101


def test_a_rerun_of_a_version_changes_nothing(lake: Lake, job: Job) -> None:
    def run(version: int, app: str = "nightly") -> int:
        rows = [("a", f'[{{"op": "add", "path": "/l/-", "value": {version}}}]', "/", "RFC6902")]
        job.write(rows, txnAppId=app, txnVersion=version)
        return job.read("a", view="deltas").count()

    lake.write("a", {"l": []})
    assert run(1) == 2
    assert run(1) == 2
    assert run(2) == 3
    assert run(1) == 3, "an older version was applied too"
    assert run(1, "another") == 4
    assert job.documents() == {"a": {"l": [1, 2, 1]}}
    job.fails_in_planning(lambda: job.write([("a", "{}")], txnAppId="nightly"), "txnVersion")
    job.fails_in_planning(lambda: job.write([("a", "{}")], txnVersion=3), "txnAppId")


# Bad input


def test_what_is_wrong_is_said_before_a_task_runs(lake: Lake, job: Job) -> None:
    spark, rows = job.spark, job.frame([("a", "{}")])
    fails = job.fails_in_planning
    fails(lambda: spark.read.format("lake").load("a").collect(), "url", "LAKE_URL")
    fails(lambda: rows.write.format("lake").mode("append").save(), "url", "LAKE_URL")
    fails(lambda: job.rows(view="dokuments"), "view", "documents, deltas, snapshots", "dokuments")
    fails(lambda: job.rows(pending="perhaps"), "pending", "perhaps")
    fails(lambda: job.rows(numPartitions="many"), "num", "many")
    fails(lambda: job.save(rows.drop("catalog")), "catalog")
    fails(lambda: job.save(rows.drop("body")), "body")
    fails(lambda: job.save(rows.withColumnRenamed("body", "json")), "json", "body")
    fails(lambda: job.save(rows, "ignore"), "gnore")
    fails(lambda: job.save(rows, "errorifexists"), "ppend")
    fails(lambda: job.save(rows, mergeType="RFC1234"), "RFC1234")
    fails(lambda: job.save(rows, path="no/slash"), "no/slash")
    fails(lambda: job.save(rows.drop("catalog"), catalog="x" * 300), "256")
    fails(lambda: job.read("a\x07").collect(), "control")
    assert list(lake.catalogs()) == []


def test_memory_cannot_be_shared(redis_url: str, job: Job) -> None:
    # Without a configuration, and with one that says so.
    for _ in range(2):
        job.fails_in_planning(lambda: job.rows(), "memory", "update_config")
        job.fails_in_planning(lambda: job.write([("a", "{}")]), "memory", "update_config")
        with Lake(redis_url) as lake:
            lake.update_config({"Storage": "memory"})


def test_a_redis_that_refuses_or_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis", args=("--requirepass", "right-4kQ")) as server:
        right = f"redis://:right-4kQ@{LOOPBACK}:{server.port}/0"
        with Lake(right) as lake:
            lake.update_config({"Name": "test", "Storage": "file", "BasePath": str(tmp_path / "lake")})
            lake.write("a", {"n": 1})
        frame = Job(spark, right).read("a")
        assert [row.document for row in frame.collect()] == ['{"n":1}']
        # The plan is what the Spark UI and the event log show.
        assert "right-4kQ" not in frame._jdf.queryExecution().toString()
        wrong = Job(spark, f"redis://:wrong-7pZ@{LOOPBACK}:{server.port}/0")
        for action in (lambda: wrong.rows(), lambda: wrong.write([("a", "{}")])):
            message = wrong.fails_in_planning(action, "IndexDenied", str(server.port))
            assert "wrong-7pZ" not in message
    gone = Job(spark, f"redis://{LOOPBACK}:{server.port}/0")
    gone.fails_in_planning(
        lambda: gone.rows(redisRetries=0, redisConnectTimeout=1), "IndexUnavailable", str(server.port)
    )


# Processes


def test_a_configuration_that_changes_reaches_warm_workers(lake: Lake, job: Job, tmp_path: Path) -> None:
    job.write([("a", '{"in": "first"}')])
    assert job.documents() == {"a": {"in": "first"}}
    second = tmp_path / "second"
    lake.update_config({"Name": "second", "BasePath": str(second)})
    assert job.rows() == []
    job.write([("a", '{"in": "second"}')])
    assert job.documents() == {"a": {"in": "second"}} == {"a": lake.read_map("a")}
    assert any(second.rglob("*.parquet"))


def test_a_session_that_nobody_registered_finds_the_lake(lake: Lake, redis_url: str, spark: SparkSession) -> None:
    lake.write("a", {"n": 1})
    assert Job(spark.newSession(), redis_url).documents() == {"a": {"n": 1}}


def test_the_package_that_spark_looks_for_loads_nothing_of_the_lake() -> None:
    script = "import sys, pyspark_lake as p; print(p.DefaultSource.name(), [m for m in sys.modules if 'lake_s' in m])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "lake []\n"


def test_the_url_may_come_from_the_environment(lake: Lake, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark_lake import DefaultSource

    lake.write("a", {"n": 1})
    monkeypatch.setenv("LAKE_URL", redis_url)
    source = DefaultSource({})
    reader = source.reader(source.schema())
    [[batch]] = [[*reader.read(partition)] for partition in reader.partitions()]
    assert batch.to_pydict()["document"] == ['{"n":1}']


def shipped(value: Any) -> Any:
    """The value as it arrives in another process; by plain pickle too, so nothing hangs on this one's code."""
    kind = type(value)
    assert kind.__module__.startswith(("lake_spark.", "pyspark_lake")), f"{kind} must be importable where the tasks run"
    pickle.loads(pickle.dumps(value))
    return cloudpickle.loads(cloudpickle.dumps(value))


def test_everything_that_spark_ships_pickles(lake: Lake, redis_url: str) -> None:
    from pyspark_lake import DefaultSource

    lake.write("a", {"n": 1})
    assert cloudpickle.loads(cloudpickle.dumps(DefaultSource)) is DefaultSource, "by name, not by value"
    # As Spark makes it: the names of options are in lower case.
    given = CaseInsensitiveDict({"url": redis_url, "NumPartitions": "2"})
    source = shipped(DefaultSource(given))
    for overwrite in (False, True):
        schema = StructType.fromDDL("catalog string, body string")
        writer = shipped(source.writer(schema, overwrite))
        batch = pa.record_batch({"catalog": ["b", "b"], "body": ['{"m":1}', f'{{"n":{int(overwrite)}}}']})
        message = shipped(shipped(writer).write(iter([batch])))
        shipped(writer).commit([message])
        assert lake.read_map("b") == {"n": int(overwrite)}
    given_up = shipped(source.writer(schema, False))
    message = shipped(given_up.write(iter([pa.record_batch({"catalog": ["c"], "body": ["{}"]})])))
    shipped(given_up).abort([message, None])
    assert not lake.list("c").exists

    reader = shipped(source.reader(source.schema()))
    found = {}
    for partition in shipped(reader).partitions():
        for part in shipped(reader).read(shipped(partition)):
            found.update({row["catalog"]: row["document"] for row in part.to_pylist()})
    assert found == {"a": '{"n":1}', "b": '{"n":1}'}
