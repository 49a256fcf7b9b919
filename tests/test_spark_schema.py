"""Documents as columns: by a schema, by a sample and as VARIANT, beside what Spark's own functions make of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from test_spark_batch import Job

from lake_spark import Lake
from lake_spark.names import shard_of

pytest.importorskip("pyspark", "4.0")

from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import col, from_json, parse_json, schema_of_variant, to_json


@pytest.fixture
def lake(redis_url: str, file_config: dict[str, str]) -> Iterator[Lake]:
    with Lake(redis_url, snapshot="never") as found:
        found.update_config(file_config)
        yield found


@pytest.fixture
def job(spark: SparkSession, redis_url: str) -> Job:
    return Job(spark, redis_url)


def read(job: Job, schema: str, **options: Any) -> list[Row]:
    frame = job.spark.read.format("lake").schema(schema).options(url=job.url, **options).load()
    return sorted(frame.collect(), key=lambda row: row.catalog)


VALUES = [
    "null", "true", "false", "0", "-1", "127", "128", "-32769", "2147483648", "9223372036854775807", "1.5", "-0.25",
    "1e3", "12345678901234567890.5", '""', '"text"', '"1"', '"1.5"', '"2024-02-29"', '"2024-02-29T12:34:56.789Z"',
    '"2024-02-29 12:34:56+02:00"', '"2024-02-30"', '"NaN"', '"aGVsbG8="', "[]", "[1,2]", '["a",null]', "{}", '{"x":1}',
    '{"x":"a","y":{"z":[1,null]}}', '{"y":{"z":[]}}',
]  # fmt: skip
TYPES = [
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(10,2)", "decimal(38,18)", "string",
    "date", "timestamp", "timestamp_ntz", "binary", "array<int>", "array<string>", "map<string,int>",
    "map<string,string>", "struct<x:int>", "struct<x:string,y:struct<z:array<int>>>",
]  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
def test_values_fit_their_columns_as_from_json_takes_them(lake: Lake, job: Job, kind: str) -> None:
    lake.write_many([(f"{n:03}", f'{{"other":1,"v":{value}}}'.encode()) for n, value in enumerate(VALUES)])
    found = read(job, f"catalog string, v {kind}, _corrupt_record string")
    documents = job.read(columns="catalog,document")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt_record"}
    parsed = from_json(col("document"), f"v {kind}, _corrupt_record string", options)
    theirs = documents.select("catalog", parsed.alias("it")).select("catalog", "it.*").orderBy("catalog").collect()
    assert len(found) == len(theirs) == len(VALUES)
    others = {}
    for value, ours, spark in zip(VALUES, found, theirs, strict=True):
        if ours._corrupt_record is not None:
            assert ours.v is None
            assert f"v is {value}" in ours._corrupt_record or "v." in ours._corrupt_record
        if repr(ours.v) != repr(spark.v):
            others[value] = spark.v
    assert set(others) == OTHERS.get(kind, set()), others


# Where Spark changes a value to make it fit, it is a misfit here, and a misfit is no part of a value; as text a number
# keeps its digits.
OTHERS = {
    "tinyint": {"128"},
    "string": {"1e3", "12345678901234567890.5"},
    "date": {'"1"'},
    "timestamp": {"9223372036854775807"},
    "struct<x:int>": {'{"x":"a","y":{"z":[1,null]}}'},
}


def test_a_schema_names_fields_and_columns_of_the_view(lake: Lake, job: Job) -> None:
    version = lake.write("a", {"name": "Ann", "address": {"city": "Oslo", "zip": 1}, "version": "mine"})
    lake.write("b", {"name": None})
    rows = read(job, "name string, address struct<city:string>, catalog string, version string, deltas bigint")
    assert rows[0] == ("Ann", Row(city="Oslo"), "a", str(version), 1)
    assert rows[1][:3] == (None, None, "b")


def test_numbers_keep_their_digits_as_text_and_as_decimals(lake: Lake, job: Job) -> None:
    lake.write("a", b'{"d":1.10,"n":123456789012345678901234567890,"deep":{"d":-0.0,"e":1E+2}}')
    [row] = read(job, "catalog string, d string, n decimal(38,0), deep string")
    assert (row.d, str(row.n), row.deep) == ("1.10", "123456789012345678901234567890", '{"d":-0.0,"e":1E+2}')


MIXED = {"a": {"n": 1}, "b": {"n": "one"}, "c": {"n": None}, "e": {}}


@pytest.fixture
def mixed(lake: Lake) -> Lake:
    lake.write_many(list(MIXED.items()))
    lake.write("d", [1])
    lake.write("f", [{"op": "remove", "path": "/nothing"}], merge="rfc6902")
    return lake


def test_permissive_has_nulls_and_the_reason(mixed: Lake, job: Job) -> None:
    rows = {
        row.catalog: row for row in read(job, "catalog string, n int, wrong string", columnNameOfCorruptRecord="wrong")
    }
    assert {name: row.n for name, row in rows.items()} == {
        "a": 1,
        "b": None,
        "c": None,
        "d": None,
        "e": None,
        "f": None,
    }
    assert [name for name, row in rows.items() if row.wrong is None] == ["a", "c", "e"]
    assert rows["b"].wrong == 'n is "one", which is no INT'
    assert "no object but [1]" in rows["d"].wrong
    assert "'f'" in rows["f"].wrong
    # Without such a column they are nulls alone.
    assert [row.n for row in read(job, "catalog string, n int")] == [1, None, None, None, None, None]


def test_malformed_documents_are_dropped_or_fail(mixed: Lake, job: Job) -> None:
    assert [row.catalog for row in read(job, "catalog string, n int", mode="DROPMALFORMED")] == ["a", "c", "e"]
    job.fails(lambda: read(job, "catalog string, n int", mode="FAILFAST"), "does not fit the schema", "PERMISSIVE")
    assert [row.n for row in read(job, "catalog string, n int", mode="FAILFAST", catalogs="a,c,e")] == [1, None, None]


@pytest.mark.parametrize(
    ("schema", "options", "reason"),
    [
        ("catalog string, n interval day", {}, "nothing in JSON"),
        ("catalog string, n int NOT NULL", {}, "cannot be NOT NULL"),
        ("catalog int", {}, "column catalog of view documents is string"),
        ("catalog string, m map<int,string>", {}, "keys of JSON are strings"),
        ("catalog string, name string", {"view": "deltas"}, "view deltas has no column name"),
        ("catalog string, _corrupt_record int", {}, "it is a STRING"),
        ("catalog string, n int", {"mode": "STRICT"}, "PERMISSIVE, DROPMALFORMED, FAILFAST"),
    ],
)
def test_a_schema_that_no_document_has_is_refused_before_a_task_runs(
    lake: Lake, job: Job, schema: str, options: dict[str, str], reason: str
) -> None:
    lake.write("a", {"n": 1})
    job.fails_in_planning(lambda: read(job, schema, **options), reason)


def test_a_sample_gives_columns_and_types(lake: Lake, job: Job) -> None:
    lake.write_many(
        [
            ("a", b'{"i":1,"d":1.5,"big":123456789012345678901,"t":"x","l":[1,2.5],"o":{"x":1},"m":1,"none":null}'),
            ("b", b'{"i":2,"d":2,"big":1,"l":[],"o":{"y":true},"m":"text","catalog":"mine"}'),
        ]
    )
    frame = job.read(inferSchema="true")
    assert frame.schema.simpleString() == (
        "struct<catalog:string,big:decimal(38,0),d:double,i:bigint,l:array<double>,m:string,none:string,"
        "o:struct<x:bigint,y:boolean>,t:string>"
    )
    rows = {row.catalog: row.asDict(recursive=True) for row in frame.collect()}
    assert rows["a"]["l"] == [1.0, 2.5]
    assert (rows["a"]["m"], rows["b"]["m"]) == ("1", "text")
    assert rows["b"]["o"] == {"x": None, "y": True}


def test_a_sample_is_no_larger_than_asked_for(lake: Lake, job: Job) -> None:
    lake.write_many([(f"c{n}", {f"k{n}": n}) for n in range(50)])
    assert len(job.read(inferSchema="true", sampleSize=5).columns) == 1 + 5
    assert len(job.read(inferSchema="true").columns) == 1 + 50


def test_a_sample_with_a_document_that_is_no_object_has_a_column_for_why(mixed: Lake, job: Job) -> None:
    rows = {row.catalog: row for row in job.read(inferSchema="true").collect()}
    assert "no object" in rows["d"]._corrupt_record
    # 1 here and "one" there is a string.
    assert rows["a"].n == "1"


def test_a_lake_without_documents_has_no_schema(lake: Lake, job: Job) -> None:
    job.fails_in_planning(lambda: job.read(inferSchema="true"), "found no document", ".schema(")


DOCUMENTS = [
    "null", "true", "[]", "{}", '"text"', "0", "-129", "40000", "3000000000", "9223372036854775808", "1.50", "-0.001",
    "1e10", "123456789.123456789", '"' + "x" * 100 + '"', '{"b":1,"a":[1,"two",{"c":null}],"ü":"€","a/b":{}}',
    json.dumps({f"key{n}": n for n in range(300)}, separators=(",", ":")),
    json.dumps([list(range(300)), "y" * 70_000], separators=(",", ":")),
    '{"\\ud83d\\ude00":1,"\\uffff":2,"a":3}',
]  # fmt: skip


def test_documents_as_variant_are_what_parse_json_makes_of_them(lake: Lake, job: Job) -> None:
    lake.write_many([(f"{n:03}", document.encode()) for n, document in enumerate(DOCUMENTS)])
    ours = job.read(documentType="variant").select("catalog", "document", "error")
    assert ours.schema["document"].dataType.typeName() == "variant"
    theirs = job.read().select("catalog", parse_json(col("document")).alias("theirs"))
    rows = ours.join(theirs, "catalog").select(
        "catalog",
        "error",
        to_json("document").alias("ours"),
        to_json("theirs").alias("theirs"),
        schema_of_variant("document").alias("our_schema"),
        schema_of_variant("theirs").alias("their_schema"),
    )
    found = sorted(rows.collect())
    assert len(found) == len(DOCUMENTS)
    for document, row in zip(DOCUMENTS, found, strict=True):
        assert row.error is None
        assert row.ours == row.theirs, document
        assert row.our_schema == row.their_schema, document


def test_fields_of_a_variant_can_be_looked_up(lake: Lake, job: Job) -> None:
    lake.write("a", {f"key{n}": {"n": n, "ü": [n]} for n in range(100)})
    for frame in (job.read(documentType="variant"), job.read(documentType="variant", view="history")):
        [row] = frame.selectExpr(
            "variant_get(document, '$.key42.n', 'int') n", "variant_get(document, '$.key99[\"ü\"][0]', 'int') u"
        ).collect()
        assert row == (42, 99)


def test_a_variant_can_be_a_column_of_a_schema(lake: Lake, job: Job) -> None:
    lake.write("a", {"o": {"n": [1, None]}})
    [row] = read(job, "catalog string, o variant")
    assert row.o.toPython() == {"n": [1, None]}


def test_what_a_variant_cannot_hold_is_null_and_says_why(lake: Lake, job: Job) -> None:
    lake.write("a", b"1" + b"0" * 60)
    lake.write("b", {"fine": 1})
    rows = job.rows(documentType="variant")
    assert (rows[0].document, rows[1].error) == (None, None)
    assert "read it as a string" in rows[0].error


# Reading less


def test_restrictions_narrow_each_other(lake: Lake, job: Job) -> None:
    names = [f"{kind}-{n}" for kind in ("user", "order") for n in range(40)]
    lake.write_many([(name, {"n": 1}) for name in names])
    lower = {name for name in names if shard_of(name) < "80"}
    assert set(job.documents(catalogPrefix="user-")) == {name for name in names if name.startswith("user-")}
    assert set(job.documents(shards="00-7f")) == lower
    assert set(job.documents(shards="00-7f", catalogPrefix="order-")) == {n for n in lower if n.startswith("order-")}
    assert set(job.documents("user-1*", catalogPrefix="order-")) == set()
    assert set(job.documents("*-7", catalogPrefix="order-")) == {"order-7"}
    assert set(job.documents(catalogs="user-1,order-1", catalogPrefix="user-")) == {"user-1"}
    for options, reason in (
        ({"shards": "0g"}, "shards"),
        ({"shards": "7f-00"}, "shards"),
        ({"catalogs": ","}, "no catalog"),
    ):
        job.fails_in_planning(lambda options=options: job.read(**options), reason)


def test_only_what_changed_since_is_read(lake: Lake, job: Job) -> None:
    lake.write_many([(f"c{n}", {"n": n}) for n in range(30)])
    since = max(lake.list(f"c{n}").version for n in range(30))
    first = lake.write("c7", {"m": 1}, merge="rfc7396")
    lake.write("c9", {"m": 2}, merge="rfc7396")
    assert job.documents(updatedSince=f"{since.seconds + 100}_1") == {}
    # Sequences of other shards may be the same second's, so only what is above counts.
    changed = {name for name in (f"c{n}" for n in range(30)) if lake.list(name).version > since}
    assert changed >= {"c7"}
    assert set(job.documents(updatedSince=str(since))) == changed
    assert [row.body for row in job.rows("c7", view="deltas", updatedSince=str(since))] == ['{"m":1}']
    assert job.documents("c7", updatedSince=str(first)) == {}
    job.fails_in_planning(lambda: job.read(updatedSince="yesterday"), "updatedSince", "yesterday")


def test_a_shard_with_more_than_its_share_is_split(lake: Lake, job: Job) -> None:
    names = [name for n in range(20_000) if shard_of(name := f"c{n}") == "2a"]
    lake.write_many([(name, {"n": 1}) for name in names])
    frame = job.read(shards="2a", numPartitions=4)
    assert frame.rdd.getNumPartitions() == 4
    sizes = [len(part) for part in frame.select("catalog").rdd.glom().collect()]
    assert sum(sizes) == len(names) > 40
    assert min(sizes) > 0
    assert {row.catalog for row in frame.collect()} == set(names)
