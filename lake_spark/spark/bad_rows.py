"""Rows that a job refused, kept as JSON lines where somebody asked for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from lake_spark.merge import dumps
from lake_spark.spark.metrics import open_file
from lake_spark.spark.rows import BadRow

Keep = Callable[[Sequence[BadRow]], None]


@contextlib.contextmanager
def bad_rows_file(folder: str, job: str, partition: int) -> Iterator[Keep]:
    """What keeps the bad rows of a task, as they come: none are held in memory, and without any there is no file.

    The file has the same name in every attempt: a retry writes it anew.
    """
    file: pa.NativeFile | None = None

    def keep(rows: Sequence[BadRow]) -> None:
        nonlocal file
        if rows and file is None:
            file = open_file(folder, f"{job}-{partition:05d}.jsonl")
        for r in rows:
            line = {"partition": partition, "row": r.number, "catalog": r.catalog, "reason": r.reason, "body": r.body}
            assert file is not None
            file.write(dumps(line) + b"\n")

    try:
        yield keep
    finally:
        if file is not None:
            file.close()
