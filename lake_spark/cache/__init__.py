"""Caches of snapshots and deltas, and one load for many readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from lake_spark.cache.memory import MemoryCache
from lake_spark.cache.redis import RedisCache
from lake_spark.cache.single_flight import SingleFlight
from lake_spark.cache.stats import CacheStats
from lake_spark.tally import count

__all__ = ["Cache", "CacheStats", "LoadingCache", "MemoryCache", "RedisCache", "SingleFlight"]

V = TypeVar("V")


class Cache(Protocol[V]):
    """What MemoryCache and RedisCache have in common. None is a miss, so it is never a value."""

    def get(self, key: str) -> V | None: ...

    def peek(self, key: str) -> V | None: ...

    def put(self, key: str, value: V, size: int | None = None) -> None: ...

    def clear(self) -> None: ...

    def stats(self) -> CacheStats: ...


class LoadingCache(Generic[V]):
    """A cache that loads what it does not have: once, however many readers ask at the same time."""

    def __init__(self, cache: Cache[V]) -> None:
        self.cache = cache
        self._flight: SingleFlight[V] = SingleFlight()

    def load(self, key: str, fn: Callable[[], V], size: Callable[[V], int] | None = None) -> V:
        """The cached value, or what `fn` returns. `size` says how many bytes a value takes that is not bytes."""
        value = self.cache.get(key)
        if value is not None:
            count(cache_hits=1)
            return value
        count(cache_misses=1)

        def fill() -> V:
            # Another reader's load may have ended since we looked.
            found = self.cache.peek(key)
            if found is not None:
                return found
            loaded = fn()
            if loaded is not None:
                self.cache.put(key, loaded, None if size is None else size(loaded))
            return loaded

        return self._flight.do(key, fill)

    def clear(self) -> None:
        self.cache.clear()

    def stats(self) -> CacheStats:
        return self.cache.stats()

    def __reduce__(self) -> tuple[Any, ...]:
        return LoadingCache, (self.cache,)
