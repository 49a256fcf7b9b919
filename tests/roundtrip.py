"""Deltas written by Spark in a few jobs read back as their plain fold, row by row; a seed makes the same ones again.

python tests/roundtrip.py --deltas 1000000 --catalogs 50000
python tests/roundtrip.py --seed 123 --s3
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import json_merge_patch
import jsonpatch
import pyarrow as pa
from servers import LOOPBACK, RedisServer, S3Server

from lake_spark import Lake
from lake_spark.embedded import use_java

JOBS = 4
COLUMNS = ("n", "catalog", "body", "path", "merge_type")
_NUMBERS = ("0", "-7", "1.50", "3.14159265358979323846", "123456789012345678901234567890", "9007199254740993", "0.10")
_TEXTS = ('"x"', '"ü €"', '"\\u0041\\n"', '""', '"a/b~c"')
_OTHERS = ("true", "false", "[]", "{}", "[1,[2,null]]", '{"y":{"z":1.0}}')


class Number(NamedTuple):
    """A number by its digits, so that 1.5 is not 1.50 and no digit is lost."""

    digits: str


def parse(text: str) -> Any:
    return json.loads(text, parse_int=Number, parse_float=Number)


class Row(NamedTuple):
    """A delta on its way into a DataFrame; `n` is its place in the order of all."""

    n: int
    catalog: str
    body: str
    path: str
    merge_type: str


@dataclass(slots=True)
class Oracle:
    """The documents as other people's code, and a few lines of plain Python, make them."""

    documents: dict[str, Any] = field(default_factory=dict)

    def apply(self, row: Row) -> None:
        before = self.documents.get(row.catalog, {})
        names = row.path.split("/")[1:] if row.path != "/" else []
        self.documents[row.catalog] = self._at(before, names, row)

    def _at(self, value: Any, names: list[str], row: Row) -> Any:
        if names:
            # What stands in the way of a path becomes an object.
            parent = value if isinstance(value, dict) else {}
            parent[names[0]] = self._at(parent.get(names[0], {}), names[1:], row)
            return parent
        body = parse(row.body)
        if row.merge_type == "REPLACE":
            return body
        if row.merge_type == "RFC7396":
            return json_merge_patch.merge(value, body)
        return jsonpatch.apply_patch(value, body, in_place=True)


def rows(seed: int, deltas: int, catalogs: int) -> Iterator[Row]:
    """Deltas of every merge type at several paths, in an order of catalogs that is anything but sorted."""
    random_ = random.Random(seed)
    for n in range(deltas):
        # Each catalog in turn, so that all of them are there, and the rest anywhere.
        number = n * 7919 % catalogs if n % 2 else random_.randrange(catalogs)
        yield Row(n, _catalog(number), *_change(random_))


def _catalog(number: int) -> str:
    forms = ("user-{}", "USER/{}", "Mixed {}", "ünï/{}", "{}")
    return forms[number % len(forms)].format(number)


def _change(random_: random.Random) -> tuple[str, str, str]:
    """Body, path and merge type. Whatever came before, it can be applied."""
    key, value, other = f"k{random_.randrange(6)}", _value(random_), _value(random_)
    kind = random_.randrange(20)
    if kind == 0:
        return f'{{"{key}":{value},"profile":{{"{key}":{other}}}}}', "/", "REPLACE"
    if kind < 4:
        return value, f"/{key}", "REPLACE"
    if kind < 6:
        return value, random_.choice(("/mixed", "/mixed/deep", "/mixed/deep/er")), "REPLACE"
    if kind < 9:
        return f'{{"{key}":{value},"profile":{{"{key}":{other}}}}}', "/", "RFC7396"
    if kind < 11:
        return f'{{"{key}":null,"k0":{value}}}', "/", "RFC7396"
    if kind < 13:
        return f'{{"{key}":{value},"address":{{"city":{other},"{key}":null}}}}', "/profile", "RFC7396"
    if kind < 14:
        return f'{{"{key}":{value}}}', "/mixed", "RFC7396"
    if kind < 17:
        return f'[{{"op":"add","path":"/{key}","value":{value}}}]', "/", "RFC6902"
    if kind < 19:
        operations = (
            f'{{"op":"add","path":"/list","value":[{value}]}},{{"op":"add","path":"/list/-","value":{other}}},'
            f'{{"op":"test","path":"/list/1","value":{other}}},{{"op":"copy","from":"/list/0","path":"/{key}"}},'
            f'{{"op":"replace","path":"/list/0","value":{other}}}'
        )
        return f"[{operations}]", "/profile", "RFC6902"
    return (
        (
            f'[{{"op":"add","path":"/{key}","value":{value}}},{{"op":"move","from":"/{key}","path":"/k0"}},'
            f'{{"op":"add","path":"/gone","value":{other}}},{{"op":"remove","path":"/gone"}}]'
        ),
        random_.choice(("/", "/profile")),
        "RFC6902",
    )


def _value(random_: random.Random) -> str:
    kind = random_.randrange(4)
    if kind == 0:
        return str(random_.randrange(10**6))
    return random_.choice((_NUMBERS, _TEXTS, _OTHERS)[kind - 1])


def round_trip(spark: Any, url: str, seed: int, deltas: int, catalogs: int) -> None:
    """Write the deltas in a few jobs, read them between jobs and at the end, and compare each document."""
    oracle = Oracle()
    source = rows(seed, deltas, catalogs)
    written = 0
    for job in range(JOBS):
        part = []
        for row in source:
            part.append(row)
            oracle.apply(row)
            if len(part) == -(-deltas // JOBS):
                break
        written += len(part)
        _save(spark, url, part)
        # The middle one leaves snapshots, so that later reads begin at them.
        if job in (1, JOBS - 1):
            compare(oracle, documents(spark, url, snapshot="always" if job == 1 else "never"), seed)
    with Lake(url) as lake:
        assert all(lake.list(name).snapshot for name in list(oracle.documents)[:10]), "the last read began at snapshots"
    read = spark.read.format("lake").options(url=url, view="deltas", snapshot="never").load()
    assert read.count() == written == deltas, f"seed {seed}: every delta is there once"


def _save(spark: Any, url: str, part: list[Row]) -> None:
    columns = dict(zip(COLUMNS, map(pa.array, zip(*part, strict=True)), strict=True))
    # A catalog's rows have to be together and in order: those of a partition are written as they come.
    frame = spark.createDataFrame(pa.table(columns)).repartition(4, "catalog").sortWithinPartitions("n").drop("n")
    frame.write.format("lake").options(url=url, fsync="never").mode("append").save()


def documents(spark: Any, url: str, **options: str) -> dict[str, str]:
    """The documents as text, as Spark hands them over."""
    table = spark.read.format("lake").options(url=url, **options).load().toArrow()
    errors = [error for error in table["error"].to_pylist() if error]
    assert not errors, errors[:3]
    found = dict(zip(table["catalog"].to_pylist(), table["document"].to_pylist(), strict=True))
    assert len(found) == table.num_rows, "a catalog is one row"
    return found


def compare(oracle: Oracle, found: dict[str, str], seed: int) -> None:
    assert found.keys() == oracle.documents.keys(), f"seed {seed}: {len(found)} of {len(oracle.documents)} catalogs"
    for catalog, text in found.items():
        wanted = oracle.documents[catalog]
        assert parse(text) == wanted, f"seed {seed}, catalog {catalog!r}: {text} is not {wanted}"


@contextlib.contextmanager
def running_spark(folder: Path) -> Iterator[Any]:
    """A Spark of two cores that keeps to this machine and finds the lake by itself."""
    use_java()
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    os.environ["SPARK_LOCAL_DIRS"] = str(folder / "spark")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", LOOPBACK)
        .config("spark.driver.bindAddress", LOOPBACK)
        .config("spark.driver.memory", "2g")
        .config("spark.driver.maxResultSize", "0")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="What Spark wrote reads back as its plain fold.")
    parser.add_argument("--deltas", type=int, default=1_000_000)
    parser.add_argument("--catalogs", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--s3", action="store_true", help="bodies on S3 (a SeaweedFS of its own), not in files")
    given = parser.parse_args()
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trip-", ignore_cleanup_errors=True)))
        server = stack.enter_context(RedisServer(folder / "redis"))
        config = {"Name": "roundtrip", "Storage": "file", "BasePath": str(folder / "lake")}
        if given.s3:
            store = stack.enter_context(S3Server(folder / "s3"))
            keys = {"AccessKey": store.access_key, "SecretKey": store.secret_key}
            config |= {"Storage": "s3", "Bucket": store.create_bucket("roundtrip"), "Endpoint": store.endpoint, **keys}
        with Lake(server.url) as lake:
            lake.update_config(config)
        spark = stack.enter_context(running_spark(folder))
        round_trip(spark, server.url, given.seed, given.deltas, given.catalogs)
    print(
        f"{given.deltas:,} deltas of {given.catalogs:,} catalogs in {JOBS} jobs, seed {given.seed}: every document is "
        f"the plain fold; {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
