"""Spark on an embedded lake: `option("url", "file:DIR")`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_embedded import servers, stop

from lake_spark import Lake
from lake_spark.embedded.supervisor import MACHINE
from lake_spark.errors import ConfigError
from lake_spark.spark.session import make_lake, options_of, session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    found = tmp_path / "a lake"
    yield found
    stop(found)


def test_a_job_writes_and_reads_a_folder_that_python_shares(spark: SparkSession, folder: Path) -> None:
    rows = spark.range(200).selectExpr("concat('user-', id) AS catalog", "concat('{\"n\":', id, '}') AS body")
    rows.repartition(4).write.format("lake").mode("append").option("url", f"file:{folder}").save()
    with Lake(f"file:{folder}") as lake:
        assert lake.read_map("user-7") == {"n": 7}
        lake.write("user-7", {"city": "Oslo"}, merge="rfc7396")
        found = spark.read.format("lake").option("url", f"file:{folder}?pending=wait").load()
        documents = {row.catalog: json.loads(row.document) for row in found.collect()}
    assert documents == {**{f"user-{n}": {"n": n} for n in range(200)}, "user-7": {"n": 7, "city": "Oslo"}}
    assert len(servers(folder)) == 1


def test_a_read_of_a_folder_without_a_lake_is_an_error_and_makes_none(spark: SparkSession, folder: Path) -> None:
    with pytest.raises(Exception, match=r"there is no lake in .* on this machine"):
        spark.read.format("lake").option("url", f"file:{folder}").load().count()
    assert not folder.exists()


def test_a_job_on_a_lake_that_another_machine_has_open_is_refused(spark: SparkSession, folder: Path) -> None:
    with Lake(f"file:{folder}") as lake:
        lake.write("a", {"x": 1})
    stop(folder)
    # As a folder that two machines share looks from the other one.
    (folder / "lake-index" / MACHINE).write_text(json.dumps({"name": "elsewhere", "id": "1", "boot": "2"}))
    with pytest.raises(Exception, match="is open on the machine elsewhere"):
        spark.read.format("lake").option("url", f"file:{folder}").load().collect()


def test_a_task_makes_no_lake_where_the_driver_has_made_none(folder: Path) -> None:
    """What an executor on another machine does, in a process that stands for it."""
    options = options_of({"url": f"file:{folder}"})
    with pytest.raises(ConfigError, match=r"there is no lake in .* on this machine"):
        session_of(options)
    assert not folder.exists()
    make_lake(options)
    assert session_of(options).index.keys.prefix == "file:lake"
