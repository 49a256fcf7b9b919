"""What the tests have Spark applications do: ordinary jobs, with the public API only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

ROWS = "catalog string, body string, path string, merge_type string, n bigint"


def write(spark: SparkSession, url: str, rows: Sequence[tuple[Any, ...]], mode: str = "append", **options: Any) -> None:
    """Write rows of catalog, body, path and merge type, each catalog's in the order given."""
    numbered = [(*row, number) for number, row in enumerate(rows)]
    frame = spark.createDataFrame(numbered, ROWS).repartition(4, "catalog").sortWithinPartitions("n").drop("n")
    _save(frame, url, mode, options)


def read(spark: SparkSession, url: str, *names: str, **options: Any) -> list[dict[str, Any]]:
    """The rows of a view."""
    frame = spark.read.format("lake").option("url", url).options(**options).load(*names)
    return [row.asDict(recursive=True) for row in frame.collect()]


def _save(frame: DataFrame, url: str, mode: str, options: dict[str, Any]) -> None:
    frame.write.format("lake").option("url", url).options(**options).mode(mode).save()


def write_watched(
    spark: SparkSession,
    url: str,
    folder: str,
    *,
    partitions: int = 4,
    rows: int = 100,
    slow: str = "",
    fails: str = "",
    **options: Any,
) -> None:
    """Write 4 KB rows to ten catalogs; each attempt at a task leaves a file `partition.attempt`, its process in it.

    The rows of a task are more than what Spark keeps in its buffers, so that some are staged before it ends. After all
    of its rows are out, the attempt `slow` waits until there is a file `go`, and those that begin with
    `fails` fail.
    """

    def watched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context
        name = f"{context.partitionId()}.{context.attemptNumber()}"
        yield from batches
        (Path(folder) / name).write_text(str(os.getpid()))
        while name == slow and not (Path(folder) / "go").exists():
            time.sleep(0.02)
        if fails and name.startswith(fails):
            raise RuntimeError("the lights went out")

    numbers = spark.range(0, partitions * rows, numPartitions=partitions)
    frame = numbers.selectExpr(
        "concat('c', id % 10) AS catalog",
        "concat('{\"k', id, '\": \"', repeat('x', 4096), '\"}') AS body",
    )
    frame = frame.mapInArrow(watched, "catalog string, body string")
    _save(frame, url, "append", {"mergeType": "RFC7396", "segmentRows": 10, **options})
