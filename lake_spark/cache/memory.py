"""A cache in this process: least recently used first out, a limit in bytes, a time to live."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

from lake_spark.cache.stats import CacheStats
from lake_spark.errors import ConfigError

V = TypeVar("V")


class _State(Generic[V]):
    """The content, for one process: a fork may have copied a lock that nobody will release."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.entries: OrderedDict[Hashable, tuple[V, int, float]] = OrderedDict()
        self.bytes = self.hits = self.misses = self.evictions = 0

    def drop(self, key: Hashable) -> None:
        entry = self.entries.pop(key, None)
        if entry is not None:
            self.bytes -= entry[1]


class MemoryCache(Generic[V]):
    """Values that nobody changes, up to `max_bytes`, each for `ttl` seconds.

    With `sliding`, a hit starts an entry's time anew. A value larger than the whole cache is not kept. The
    cache pickles as its configuration, and a forked process starts with an empty one. Safe to share
    between threads.
    """

    def __init__(self, max_bytes: int, ttl: float, *, sliding: bool = True) -> None:
        if max_bytes < 0 or ttl <= 0:
            raise ConfigError(f"a cache needs max_bytes >= 0 and ttl > 0, not {max_bytes!r} and {ttl!r}")
        self.max_bytes = max_bytes
        self.ttl = ttl
        self.sliding = sliding
        self._own: _State[V] = _State()

    def get(self, key: Hashable) -> V | None:
        state = self._state()
        with state.lock:
            entry = self._live(state, key)
            if entry is None:
                state.misses += 1
                return None
            state.hits += 1
            value, size, _ = entry
            if self.sliding:
                state.entries[key] = (value, size, time.monotonic() + self.ttl)
            state.entries.move_to_end(key)
            return value

    def peek(self, key: Hashable) -> V | None:
        """The value, without counting the lookup or renewing the entry."""
        state = self._state()
        with state.lock:
            entry = self._live(state, key)
            return None if entry is None else entry[0]

    def put(self, key: Hashable, value: V, size: int | None = None) -> None:
        """Keep the value; `size` in bytes may be left out where the value is bytes."""
        if size is None:
            if not isinstance(value, bytes):
                raise TypeError(f"the size of a {type(value).__name__} must be given")
            size = len(value)
        state = self._state()
        with state.lock:
            state.drop(key)
            if size > self.max_bytes:
                return
            now = time.monotonic()
            state.entries[key] = (value, size, now + self.ttl)
            state.bytes += size
            while state.entries:
                oldest, (_, _, expires) = next(iter(state.entries.items()))
                if expires > now:
                    if state.bytes <= self.max_bytes:
                        break
                    state.evictions += 1
                state.drop(oldest)

    def clear(self) -> None:
        state = self._state()
        with state.lock:
            state.entries.clear()
            state.bytes = 0

    def stats(self) -> CacheStats:
        state = self._state()
        with state.lock:
            return CacheStats(
                hits=state.hits,
                misses=state.misses,
                evictions=state.evictions,
                entries=len(state.entries),
                bytes=state.bytes,
            )

    def _state(self) -> _State[V]:
        if self._own.pid != os.getpid():
            self._own = _State()
        return self._own

    def _live(self, state: _State[V], key: Hashable) -> tuple[V, int, float] | None:
        entry = state.entries.get(key)
        if entry is not None and entry[2] <= time.monotonic():
            state.drop(key)
            return None
        return entry

    def __reduce__(self) -> tuple[Any, ...]:
        return _memory_cache, (self.max_bytes, self.ttl, self.sliding)

    def __repr__(self) -> str:
        return f"MemoryCache(max_bytes={self.max_bytes}, ttl={self.ttl}, sliding={self.sliding})"


def _memory_cache(max_bytes: int, ttl: float, sliding: bool) -> MemoryCache[Any]:
    return MemoryCache(max_bytes, ttl, sliding=sliding)
