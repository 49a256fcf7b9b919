"""Rows that a job refused, kept as JSON lines where somebody asked for them."""

from __future__ import annotations

from collections.abc import Sequence

from lake_spark.merge import dumps
from lake_spark.spark.metrics import store
from lake_spark.spark.rows import BadRow


def save_bad_rows(folder: str, job: str, partition: int, rows: Sequence[BadRow]) -> None:
    """One file for each partition of a job, under the same name in every attempt: a retry writes it anew."""
    lines = [
        dumps({"partition": partition, "row": r.number, "catalog": r.catalog, "reason": r.reason, "body": r.body})
        for r in rows
    ]
    store(folder, f"{job}-{partition:05d}.jsonl", "".join(line.decode() + "\n" for line in lines))
