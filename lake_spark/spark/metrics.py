"""What tasks and jobs did: one log line for each, and the same as JSON under `metricsPath`."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow.fs import FileSystem
from pyspark import TaskContext

from lake_spark.options import BatchOptions
from lake_spark.tally import counts

log = logging.getLogger("lake_spark")

# In this order in every line. `waits` are seconds; the rest are numbers of these things.
FIGURES = (
    "catalogs",
    "deltas",
    "rows",
    "bytes_read",
    "bytes_written",
    "objects_read",
    "objects_written",
    "redis_calls",
    "retries",
    "waits",
    "cache_hits",
    "cache_misses",
    "seconds",
)

Figures = Mapping[str, float]


def new_job() -> str:
    """A name by which the lines of a job can be found."""
    return uuid.uuid4().hex[:12]


@dataclass(slots=True)
class Meter:
    """The figures of a block of code: those that the process counts by itself, and what is added here."""

    added: dict[str, float] = field(default_factory=dict)
    _before: dict[str, float] = field(default_factory=counts)
    _began: float = field(default_factory=time.perf_counter)

    def add(self, **amounts: float) -> None:
        """Add to the figures of these names."""
        for name, amount in amounts.items():
            self.added[name] = self.added.get(name, 0) + amount

    @property
    def figures(self) -> Figures:
        """All of them, as of now."""
        own = {"seconds": time.perf_counter() - self._began}
        now = counts()
        did = {name: amount - self._before.get(name, 0) for name, amount in now.items()}
        return {name: sum(part.get(name, 0) for part in (did, self.added, own)) for name in FIGURES}


@contextlib.contextmanager
def metered(options: BatchOptions, action: str, job: str, outcome: str = "done") -> Iterator[Meter]:
    """Report what the block that follows did, also when it fails: as a task's, or on the driver as the job's."""
    meter = Meter()
    try:
        yield meter
    except GeneratorExit:
        # Spark has as many rows as it wanted.
        outcome = "stopped"
        raise
    except BaseException as error:
        # Its name alone: a message may say more than everybody should read.
        outcome = type(error).__name__
        raise
    finally:
        report(options, action, job, outcome, meter.figures)


def metered_batches(
    options: BatchOptions, job: str, batches: Callable[[], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """The batches of a read task, which is reported once they are out."""
    with metered(options, "read", job) as meter:
        for batch in batches():
            meter.add(rows=batch.num_rows)
            yield batch


def total(tasks: Iterable[Figures]) -> dict[str, float]:
    """The figures of a job's tasks together, but not their seconds: they ran side by side."""
    found = list(tasks)
    return {name: sum(task[name] for task in found) for name in FIGURES if name != "seconds"}


def report(options: BatchOptions, action: str, job: str, outcome: str, figures: Figures) -> None:
    """Log a line, and add it as JSON to the folder of `metricsPath`. Never fails: it is not what the job is for."""
    context = TaskContext.get()
    line: dict[str, Any] = {
        "kind": "task" if context else "job",
        "action": action,
        "job": job,
        "outcome": outcome,
        "at": round(time.time(), 3),
        **{name: round(figures[name], 6) for name in FIGURES},
        "peak_memory": _peak_memory(),
    }
    if context:
        line |= {
            "partition": context.partitionId(),
            "attempt": context.attemptNumber(),
            "task": context.taskAttemptId(),
        }
    log.info("%s %s", action, " ".join(f"{name}={value}" for name, value in line.items() if name != "action"))
    if not options.metrics_path:
        return
    # A name of its own: attempts of one task may run at the same time.
    where = f"{line['partition']}.{line['attempt']}" if context else "job"
    name = f"{action}-{job}-{where}-{uuid.uuid4().hex[:8]}.jsonl"
    try:
        with open_file(options.metrics_path, name) as file:
            file.write(f"{json.dumps(line)}\n".encode())
    except Exception as error:
        log.warning("metrics were not written to %s: %s", _shown(options.metrics_path), type(error).__name__)


def open_file(folder: str, name: str) -> pa.NativeFile:
    """A new file in a folder: of this machine, or of whatever else Arrow knows by a URI."""
    # A path on this machine is made absolute, for only then it is a URI too.
    uri = folder if "://" in folder else os.path.abspath(folder)
    system, path = FileSystem.from_uri(uri)
    system.create_dir(path, recursive=True)
    return system.open_output_stream(f"{path}/{name}")


def _shown(folder: str) -> str:
    """The folder without what may be a secret: user, password and parameters of a URI."""
    parts = urlsplit(folder)
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}" if parts.scheme else folder


def _peak_memory() -> int:
    """The most bytes of memory that this process has ever had, 0 where the system does not say."""
    try:
        import resource
        import sys
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
