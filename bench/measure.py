"""Timing: a subject and its floors in turns, so that a slow second of the machine is one for all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds that one operation took: in the middle of all rounds, and in the best."""

    median: float
    best: float

    def __add__(self, other: Timing) -> Timing:
        return Timing(self.median + other.median, self.best + other.best)

    def __truediv__(self, count: int) -> Timing:
        return Timing(self.median / count, self.best / count)


def interleave(
    subjects: Mapping[str, Work], *, rounds: int, operations: int = 1, before: Mapping[str, Work] | None = None
) -> dict[str, Timing]:
    """Time each subject once a round, one after the other; each call does so many operations.

    `before` has what a subject needs each time and what is not its own time.
    """
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    prepare = before or {}
    for name, work in subjects.items():
        prepare.get(name, _nothing)()
        work()
    for _ in range(rounds):
        for name, work in subjects.items():
            prepare.get(name, _nothing)()
            began = time.perf_counter()
            work()
            seconds[name].append((time.perf_counter() - began) / operations)
    return {name: Timing(statistics.median(each), min(each)) for name, each in seconds.items()}


def _nothing() -> None:
    pass


def repeated(work: Work, times: int) -> Work:
    """The work, so many times: for what is too short to time alone."""

    def loop() -> None:
        for _ in range(times):
            work()

    return loop


def in_threads(work: Work, times: int, pool: ThreadPoolExecutor, threads: int) -> Work:
    """The work, so many times in each thread at once."""
    loop = repeated(work, times)

    def together() -> None:
        for done in [pool.submit(loop) for _ in range(threads)]:
            done.result()

    return together
