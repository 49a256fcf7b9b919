"""How much this process has done so far: calls to Redis, objects, bytes, waits, cache hits.

The library counts where it works, with `count(...)`; the figures of a task are the difference between two looks at
`counts()`. All threads of the process count together: a worker process of Spark runs one task at a time.
"""

from __future__ import annotations

import os
import threading

_counts: dict[str, float] = {}
_lock = threading.Lock()


def count(**amounts: float) -> None:
    """Add to the figures of these names."""
    with _lock:
        for name, amount in amounts.items():
            _counts[name] = _counts.get(name, 0) + amount


def counts() -> dict[str, float]:
    """The figures so far."""
    with _lock:
        return dict(_counts)


def _renew_lock() -> None:
    """A fork may have copied a lock that nobody will release."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def size_of(count: float) -> str:
    """A number of bytes as people read it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
