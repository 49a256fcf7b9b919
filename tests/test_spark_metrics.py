"""What tasks and jobs say about themselves: figures that are true, in the log and as JSON, and no secret in them."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.fs import FileSelector, FileSystem
from servers import RedisServer, S3Server, TcpProxy

from lake_spark import Lake, MergeType
from lake_spark.tally import count, counts

pytest.importorskip("pyspark", "4.0")

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lake_spark.options import BatchOptions
from lake_spark.spark.metrics import FIGURES, metered, metered_batches, report

SECRET = "sesame-4711"


@pytest.fixture
def lake(redis_url: str, file_config: dict[str, str]) -> Iterator[Lake]:
    """A lake whose configuration is in Redis, where Spark finds it."""
    with Lake(redis_url, snapshot="never") as found:
        found.update_config({**file_config, "AccessKey": SECRET, "SecretKey": SECRET})
        yield found


@pytest.fixture
def figures(tmp_path: Path) -> Path:
    return tmp_path / "figures"


def lines(folder: Path, **wanted: str) -> list[dict[str, Any]]:
    """The lines under a metricsPath that say this of themselves."""
    found = [json.loads(line) for path in folder.iterdir() for line in path.read_text().splitlines()]
    return [line for line in found if all(line[name] == value for name, value in wanted.items())]


def write(spark: SparkSession, url: str, folder: Path | str, **options: str) -> None:
    """1,000 deltas of 40 catalogs, in two tasks."""
    rows = spark.range(1000).selectExpr("concat('c', id % 40) catalog", "to_json(struct(id)) body")
    writer = rows.repartition(2, "catalog").write.format("lake").mode("append")
    writer.options(url=url, metricsPath=str(folder), **options).save()


def read(spark: SparkSession, url: str, folder: Path | str, **options: str) -> int:
    options = {"url": url, "metricsPath": str(folder), "numPartitions": "2", "snapshot": "never", **options}
    return len(spark.read.format("lake").options(**options).load().collect())


def total(found: list[dict[str, Any]], name: str) -> float:
    return sum(line[name] for line in found)


# Jobs


def test_a_write_says_what_each_task_and_the_job_did(
    spark: SparkSession, lake: Lake, redis_url: str, file_config: dict[str, str], figures: Path
) -> None:
    write(spark, redis_url, figures)
    tasks, [job] = lines(figures, kind="task", action="write"), lines(figures, kind="job", action="write")
    assert {task["partition"] for task in tasks} == {0, 1}
    assert {line["job"] for line in [*tasks, job]} == {job["job"]}
    assert {line["outcome"] for line in [*tasks, job]} == {"done"}
    assert total(tasks, "catalogs") == job["catalogs"] == 40
    assert total(tasks, "deltas") == job["deltas"] == 1000
    segments = list(Path(file_config["BasePath"]).rglob("*.parquet"))
    assert job["objects_written"] == total(tasks, "objects_written") == len(segments)
    assert job["bytes_written"] == sum(path.stat().st_size for path in segments)
    assert all(task["redis_calls"] > 0 for task in tasks)
    assert job["redis_calls"] > total(tasks, "redis_calls"), "the commit's own are among them"
    assert job["seconds"] >= max(task["seconds"] for task in tasks) > 0
    assert all(line["peak_memory"] > 1 << 20 for line in [*tasks, job])


def test_a_read_says_what_each_task_and_its_plan_did(
    spark: SparkSession, lake: Lake, redis_url: str, figures: Path
) -> None:
    write(spark, redis_url, "")
    assert read(spark, redis_url, figures) == 40
    tasks, [plan] = lines(figures, kind="task", action="read"), lines(figures, kind="job", action="read")
    assert {line["job"] for line in tasks} == {plan["job"]}
    assert plan["redis_calls"] > 0
    assert total(tasks, "rows") == total(tasks, "catalogs") == 40
    assert total(tasks, "deltas") == 1000
    assert all(task["objects_read"] > 0 and task["bytes_read"] > 0 and task["redis_calls"] > 0 for task in tasks)
    assert total(tasks, "bytes_written") == total(tasks, "retries") == 0


def test_each_job_has_lines_of_its_own(spark: SparkSession, lake: Lake, redis_url: str, figures: Path) -> None:
    for _ in range(3):
        write(spark, redis_url, figures)
    assert len({line["job"] for line in lines(figures, kind="job")}) == 3
    assert len(lines(figures, kind="task")) == 6


def test_a_failed_job_says_so_by_the_name_of_its_error(
    spark: SparkSession, lake: Lake, redis_url: str, figures: Path
) -> None:
    rows = spark.createDataFrame([("a", "{"), ("b", "{}")], "catalog string, body string").coalesce(1)
    writer = rows.write.format("lake").mode("append").options(url=redis_url, metricsPath=str(figures))
    with pytest.raises(PySparkException, match="JSON"):
        writer.save()
    assert {line["outcome"] for line in lines(figures, kind="task")} == {"InvalidBody"}
    [job] = lines(figures, kind="job")
    assert (job["outcome"], job["deltas"]) == ("aborted", 0)


@pytest.mark.parametrize("path", ["{file}/figures", f"s3://user:{SECRET}@127.0.0.1:1", "no-such-scheme://x"])
def test_a_job_does_not_fail_for_its_figures(
    spark: SparkSession, lake: Lake, redis_url: str, tmp_path: Path, path: str
) -> None:
    (tmp_path / "file").write_text("not a folder")
    place = path.format(file=tmp_path / "file")
    write(spark, redis_url, place)
    assert read(spark, redis_url, place) == 40


def test_no_secret_is_in_the_figures(spark: SparkSession, lake: Lake, redis_url: str, figures: Path) -> None:
    write(spark, redis_url + f"?client_name={SECRET}", figures)
    assert read(spark, redis_url + f"?client_name={SECRET}", figures) == 40
    files = list(figures.iterdir())
    assert len(files) >= 5
    assert not [path for path in files if SECRET in path.name or SECRET in path.read_text() or "redis://" in path.name]


# In one process


def options(folder: str = "", **more: str) -> BatchOptions:
    return BatchOptions.of({"url": f"redis://:{SECRET}@localhost", "metricsPath": folder, **more})


def test_the_log_has_one_line_for_a_block(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lake_spark"), metered(options(), "write", "job-1") as meter:
        count(redis_calls=2, bytes_written=10)
        meter.add(catalogs=3, deltas=4)
        meter.add(deltas=5)
    [line] = caplog.messages
    words = dict(word.split("=") for word in line.split()[1:])
    assert line.startswith("write kind=job job=job-1 outcome=done ")
    assert {name: words[name] for name in ("redis_calls", "bytes_written", "catalogs", "deltas")} == {
        "redis_calls": "2",
        "bytes_written": "10",
        "catalogs": "3",
        "deltas": "9",
    }
    assert set(FIGURES) < words.keys()


def test_a_read_that_nobody_wants_to_the_end_is_stopped(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2]})
    batches = metered_batches(options(str(tmp_path)), "j", lambda: iter([batch, batch]))
    next(batches)
    batches.close()
    [line] = lines(tmp_path)
    assert (line["outcome"], line["rows"]) == ("stopped", 2)


def test_what_cannot_be_written_is_a_warning_without_secrets(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    place = f"s3://user:{SECRET}@bucket/folder?endpoint_override=127.0.0.1:1&secret={SECRET}&connect_timeout=1"
    with metered(options(place.replace("s3:", "nonsense:")), "write", "job"):
        pass
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "nonsense://bucket/folder" in record.getMessage()
    assert SECRET not in caplog.text


def test_figures_go_to_a_bucket_too(s3_server: S3Server, s3_bucket: str) -> None:
    host = s3_server.endpoint.partition("://")[2]
    place = (
        f"s3://{s3_server.access_key}:{s3_server.secret_key}@{s3_bucket}/figures"
        f"?scheme=http&endpoint_override={host}&region=us-east-1"
    )
    report(options(place), "write", "job", "done", dict.fromkeys(FIGURES, 1.0))
    system, path = FileSystem.from_uri(place)
    [file] = system.get_file_info(FileSelector(path))
    assert json.loads(system.open_input_stream(file.path).read())["deltas"] == 1


def test_retries_of_calls_to_redis_are_counted(redis_server: RedisServer, redis_url: str) -> None:
    with TcpProxy("127.0.0.1", redis_server.port) as proxy:
        lake = Lake(f"redis://127.0.0.1:{proxy.port}/0")
        lake.get_config()
        before = counts()
        proxy.drop_reply_to(b"lake.setting")
        lake.get_config()
        after = counts()
    assert after["retries"] - before.get("retries", 0) == 1
    assert after["redis_calls"] - before["redis_calls"] == 2


def test_hits_and_misses_of_the_caches_are_counted(lake: Lake) -> None:
    lake.write("a", {"x": 1})
    before = counts()
    for _ in range(3):
        lake.read_map("a")
    after = counts()
    assert after["cache_misses"] - before.get("cache_misses", 0) == 1
    assert after["cache_hits"] - before.get("cache_hits", 0) == 2


def test_seconds_of_waiting_for_open_writes_are_counted(redis_url: str, file_config: dict[str, str]) -> None:
    with Lake(redis_url, config=file_config, pending="wait", pending_wait=30) as lake:
        lake.write("a", {"x": 1})
        index = lake._session.index
        opened = index.precommit("a", MergeType.REPLACE, "/")
        rollback = threading.Timer(0.3, index.rollback, [opened], {"orphan": False})
        before = counts()
        rollback.start()
        # What is behind an open write cannot be read before that is decided.
        lake.read_map(lake.list("a", strict_pending=True))
        waited = counts()["waits"] - before.get("waits", 0)
        rollback.join()
    assert 0.1 < waited < 30


def test_threads_count_together() -> None:
    before = counts().get("test", 0)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: count(test=1), range(2000)))
    assert counts()["test"] - before == 2000


def test_a_forked_process_counts_although_a_thread_of_its_parent_was_counting() -> None:
    script = """
import os
from lake_spark import tally

tally._lock.acquire()
pid = os.fork()
if not pid:
    tally.count(test=1)
    os._exit(tally.counts() != {"test": 1})
os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    # In a process of its own: this one has threads, which a fork would leave behind.
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0
