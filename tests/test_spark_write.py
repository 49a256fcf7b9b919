"""Writing with Spark: bodies of every type, whole rows, order, expectations, bad rows, and what is atomic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", "4.0")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from lake_spark import Lake
from lake_spark.client.writing import check_change
from lake_spark.errors import InvalidInput
from lake_spark.index import TransactionIndex
from lake_spark.options import BatchOptions
from lake_spark.spark.rows import RowChecker
from lake_spark.spark.writing import WriteTask

SCHEMA = StructType([StructField("catalog", StringType()), StructField("body", StringType())])


@pytest.fixture
def lake(redis_url: str, file_config: dict[str, str]) -> Iterator[Lake]:
    with Lake(redis_url, snapshot="never") as found:
        found.update_config(file_config)
        yield found


def save(frame: DataFrame, lake: Lake, mode: str = "append", **options: Any) -> None:
    frame.write.format("lake").option("url", lake._url).options(**options).mode(mode).save()


def refused(frame: DataFrame, lake: Lake, *reasons: str, **options: Any) -> None:
    with pytest.raises(PySparkException) as caught:
        save(frame, lake, **options)
    for reason in reasons:
        assert reason in str(caught.value)


def test_bodies_may_be_structs_maps_arrays_variants_and_binary(spark: SparkSession, lake: Lake) -> None:
    columns = {
        "struct": "named_struct('n', 1, 'd', cast('1.50' as decimal(9,2)), "
        "'t', timestamp'2024-01-02 03:04:05', 'x', null)",
        "map": "map('a', array(1, null), 'b', array())",
        "array": "array(named_struct('k', 'v'))",
        "variant": 'parse_json(\'{"deep": [1, {"two": 2.5}]}\')',
        "binary": "cast('{\"b\":  1}' as binary)",
    }
    for name, body in columns.items():
        save(spark.sql(f"select '{name}' as catalog, {body} as body"), lake)
    assert lake.read_string("struct") == '{"n":1,"d":1.50,"t":"2024-01-02T03:04:05Z","x":null}'
    assert lake.read_string("map") == '{"a":[1,null],"b":[]}'
    assert lake.read_string("array") == '[{"k":"v"}]'
    assert lake.read_map("variant") == {"deep": [1, {"two": 2.5}]}
    assert lake.read_map("binary") == {"b": 1}
    refused(spark.sql("select 'nan' as catalog, named_struct('x', double('NaN')) as body"), lake, "nan", "row 0")
    assert not lake.list("nan").exists


def test_whole_rows_are_bodies(spark: SparkSession, lake: Lake) -> None:
    users = spark.sql("select 7 as id, 'eu' as region, 'Ann' as name, cast(null as int) as age")
    save(users, lake, catalogColumn="user-{region}-{id}")
    assert lake.read_string("user-eu-7") == '{"name":"Ann","age":null}'
    save(users, lake, catalogColumn="name", mergeType="rfc7396")
    assert lake.read_string("Ann") == '{"id":7,"region":"eu"}'
    lake.write("7", {"age": 30, "name": "Bob"})
    save(users, lake, catalogColumn="id", mergeType="rfc7396", nullFields="delete")
    assert lake.read_map("7") == {"name": "Ann", "region": "eu"}
    refused(users, lake, "'nobody'", "id, region, name, age", catalogColumn="user-{nobody}")
    refused(users, lake, "merge patch cannot set", catalogColumn="id", mergeType="rfc7396", nullFields="keep")
    refused(users, lake, "JSON patch is a list", catalogColumn="id", mergeType="rfc6902")
    refused(users, lake, "catalogColumn")


def test_rows_are_sorted_within_the_task(spark: SparkSession, lake: Lake) -> None:
    rows = spark.createDataFrame(
        [("a", json.dumps({"n": n}), n) for n in (3, 1, 2)], "catalog string, body string, at int"
    ).coalesce(1)
    save(rows, lake, orderBy="at", mergeType="rfc7396")
    assert lake.read_map("a") == {"n": 3}
    save(rows, lake, orderBy="-at", mergeType="rfc7396")
    assert lake.read_map("a") == {"n": 1}
    refused(rows, lake, "'at' is none of")
    refused(rows, lake, "'when'", orderBy="when")
    refused(rows, lake, "sortWithinPartitions", orderBy="at", segmentBytes="1")


def test_a_catalog_that_is_not_as_expected_is_a_conflict_and_nothing_is_written(
    spark: SparkSession, lake: Lake
) -> None:
    at = lake.write("a", {"n": 1})
    rows = spark.createDataFrame(
        [("a", '{"n":2}', str(at)), ("b", '{"n":2}', "0_0")], "catalog string, body string, expected_version string"
    )
    save(rows.coalesce(1), lake)
    assert lake.read_map("a") == lake.read_map("b") == {"n": 2}
    refused(rows.coalesce(1), lake, "expected", str(at))
    assert len(lake.list("a").deltas) == 2
    assert len(lake.list("b").deltas) == 1
    refused(rows.select("catalog", "body").coalesce(1), lake, "expected", expectedVersion="0_0")
    twice = spark.createDataFrame([("c", "1"), ("c", "2")], "catalog string, body string")
    refused(twice.repartitionByRange(2, "body"), lake, 'repartition("catalog")', expectedVersion="0_0")
    save(twice.coalesce(1), lake, expectedVersion="0_0", segmentRows="1")
    assert lake.read_string("c") in ("1", "2")


def test_bad_rows_are_named_or_kept_aside(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    bodies = [(f"c{n}", '{"n":1}' if n % 2 else "{oops") for n in range(40)]
    rows = spark.createDataFrame(bodies, "catalog string, body string").coalesce(1)
    refused(rows, lake, "row 0 of partition 0", "'c0'", "row 18", "(and 10 more)")
    assert list(lake.catalogs()) == []
    save(rows, lake, badRecords=str(tmp_path / "bad"))
    assert sorted(lake.catalogs()) == sorted(name for name, body in bodies if body != "{oops")
    [file] = (tmp_path / "bad").iterdir()
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["row"], row["catalog"], row["body"]) for row in kept] == [
        (n, name, body) for n, (name, body) in enumerate(bodies) if body == "{oops"
    ]
    assert all("not JSON" in row["reason"] for row in kept)


def test_tasks_by_themselves_commit_what_they_have(spark: SparkSession, lake: Lake) -> None:
    rows = spark.createDataFrame([("good", "1"), ("bad", "{oops")], "catalog string, body string").repartition(
        2, "catalog"
    )
    refused(rows, lake, "not JSON", atomicity="task")
    save(rows.where("catalog = 'good'"), lake, atomicity="task")
    assert lake.read_string("good") == "1"
    refused(rows, lake, "no whole", atomicity="task", txnAppId="app", txnVersion="1")


def test_a_task_that_is_run_again_after_its_commit_applies_nothing(lake: Lake) -> None:
    session = lake._session
    options = BatchOptions(atomicity="task", merge_type="RFC6902")
    job = TransactionIndex.begin(session.index, 60.0)
    lake.write("a", {"list": []})
    batch = pa.record_batch({"catalog": ["a"], "body": ['[{"op":"add","path":"/list/-","value":1}]']})
    for attempt in (11, 12):
        WriteTask(session, job, options, SCHEMA, False, 0, attempt).run([batch])
    assert lake.read_map("a") == {"list": [1]}
    WriteTask(session, job, options, SCHEMA, False, 1, 13).run([batch])
    assert lake.read_map("a") == {"list": [1, 1]}, "another partition is another matter"


def test_rows_as_objects_are_in_their_order(spark: SparkSession, lake: Lake, file_config: dict[str, str]) -> None:
    rows = spark.createDataFrame(
        [("a", f'[{{"op":"add","path":"/list/-","value":{n}}}]') for n in range(30)], "catalog string, body string"
    ).coalesce(1)
    lake.write("a", {"list": []})
    save(rows, lake, layout="objects", atomicity="task", mergeType="rfc6902")
    assert lake.read_map("a") == {"list": list(range(30))}
    assert not (Path(file_config["BasePath"]) / "_segments").exists()
    refused(rows, lake, "atomicity=task", layout="objects")


NASTY = [
    *("", " ", "{", "nul", "NaN", "[1,]", '{"a":1}x', "1 2", '"\\ud800"', '"\x01"', "01", "-", "[" * 600 + "]" * 600),
    *("-0", "1e400", "12345678901234567890123", ' {"a": 1}\n', '{"a":1,"a":2}', '"\\u00e9"', "[]", "null", "[1\n,2]"),
]


@pytest.mark.parametrize("kind", ["REPLACE", "RFC7396", "RFC6902"])
def test_rows_checked_together_are_refused_as_rows_checked_one_by_one(kind: str) -> None:
    for body in NASTY:
        for bodies in ([body], ["{}" if kind != "RFC6902" else "[]", body], [body, "[1", ",2]", "3 4"]):
            for type_, arrow in ((StringType(), pa.string()), (BinaryType(), pa.binary())):
                schema = StructType([StructField("catalog", StringType()), StructField("body", type_)])
                values = [text.encode() for text in bodies] if pa.types.is_binary(arrow) else bodies
                batch = pa.record_batch([["c"] * len(values), pa.array(values, arrow)], names=["catalog", "body"])
                rows = RowChecker(schema, BatchOptions(merge_type=kind)).check(batch)
                expected = []
                bad = []
                for place, text in enumerate(bodies):
                    try:
                        expected.append(check_change(64 << 20, "c", text.encode(), "/", kind))
                    except InvalidInput:
                        bad.append(place)
                assert [row.number for row in rows.bad] == bad
                assert rows.table["body"].to_pylist() == [c.body.decode() for c in expected if not c.only_meta]
