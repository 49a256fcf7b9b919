"""What the operations of a lake share: index, storage, codec, caches and workers of one process."""

from __future__ import annotations

import copy
import os
import threading
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cached_property
from typing import Any, TypeVar

from lake_spark.cache import CacheStats, LoadingCache, MemoryCache, RedisCache
from lake_spark.client.settings import Config, storage_of
from lake_spark.index import Connection, Index, read_setting
from lake_spark.names import Keys
from lake_spark.options import Options
from lake_spark.segment import SegmentMetadata
from lake_spark.storage import Codec, MemoryStorage, Storage

T = TypeVar("T")
R = TypeVar("R")

# Reads go on when snapshots cannot keep up; the next read of the same catalog makes its own.
_MOST_BACKGROUND_TASKS = 64

# A segment never changes: its footer is parsed once.
_FOOTER_BYTES, _FOOTER_SECONDS = 32 << 20, 600.0

_memory: dict[tuple[int, str], MemoryStorage] = {}


def read_config(connection: Connection) -> Config | None:
    """The configuration in Redis, if there is one."""
    text = read_setting(connection)
    return None if text is None else Config.parse(text)


class Session:
    """One lake in one process, resolved: where its index and its bodies are."""

    def __init__(
        self, connection: Connection, options: Options, config: Config | None, storage: Storage | None
    ) -> None:
        self.options = options
        # What the caller passed is the caller's to close.
        self._owned = storage is None
        if storage is None:
            if config is None:
                config = read_config(connection)
            configured = config and config.get("Storage", "memory") != "memory"
            storage = storage_of(config, options) if config and configured else _shared_memory(connection, config)
        config = config or Config({})
        self.storage = storage
        kind = getattr(storage, "kind", "custom")
        name = str(config.get("Name") or options.name or "lake")
        if isinstance(storage, MemoryStorage):
            # Nobody else has these bodies, so nobody else may have their index.
            name = f"{name}-{storage.name}"
        self.index = Index(connection, Keys(f"{kind}:{name}"), options.pending_timeout)
        self.codec = Codec(options.compression, config.get("AESPwd"), name)
        namespace = self.index.keys.prefix
        snapshots: Any = (
            RedisCache(options.snapshot_cache_url, namespace, options.snapshot_cache_ttl)
            if options.snapshot_cache_url
            else MemoryCache[bytes](options.snapshot_cache_bytes, options.snapshot_cache_ttl)
        )
        # Snapshots as they are stored: a shared cache must not hold the plain text of an encrypted lake.
        self.snapshots: LoadingCache[bytes] = LoadingCache(snapshots)
        self.deltas: LoadingCache[bytes] = LoadingCache(
            MemoryCache(options.delta_cache_bytes, options.delta_cache_ttl, sliding=False)
        )
        self.footers: MemoryCache[SegmentMetadata] = MemoryCache(_FOOTER_BYTES, _FOOTER_SECONDS)
        self._tasks: set[Future[None]] = set()
        self._lock = threading.Lock()

    def with_index(self, index: Index) -> Session:
        """The same lake with another index: bodies go to the same storage, and the caches and workers are shared."""
        other = copy.copy(self)
        other.index = index
        return other

    @cached_property
    def _loaders(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.options.load_workers, "lake-load")

    @cached_property
    def _background(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(2, "lake-snapshot")

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """The work done for every item, several at a time; the results in order."""
        todo = list(items)
        if len(todo) < 2:
            return [work(item) for item in todo]
        return list(self._loaders.map(work, todo))

    def later(self, work: Callable[[], None]) -> None:
        """Do this off the caller's path; not at all while too much of it is waiting."""
        with self._lock:
            if len(self._tasks) >= _MOST_BACKGROUND_TASKS:
                return
            task = self._background.submit(work)
            self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cache_stats(self) -> dict[str, CacheStats]:
        return {"snapshots": self.snapshots.stats(), "deltas": self.deltas.stats()}

    def flush(self) -> None:
        """Wait for what is being done in the background."""
        with self._lock:
            tasks = set(self._tasks)
        wait(tasks)

    def close(self) -> None:
        self.flush()
        for pool in ("_loaders", "_background"):
            executor = self.__dict__.pop(pool, None)
            if executor is not None:
                executor.shutdown()
        for part in (self.snapshots.cache, self.storage if self._owned else None):
            close = getattr(part, "close", None)
            if close is not None:
                close()


def _shared_memory(connection: Connection, config: Config | None) -> MemoryStorage:
    """This process's memory storage for that index; a warning if nobody asked for it."""
    key = (os.getpid(), connection.url)
    if key not in _memory and not config:
        warnings.warn(
            f"Redis at {connection.place} has no lake.setting: bodies are kept in the memory of this process and are "
            'gone when it ends. Configure the lake once, e.g. lake.update_config({"Name": "my-lake", '
            '"Storage": "file", "BasePath": "/data/lake"}), or pass config= or storage=.',
            UserWarning,
            stacklevel=2,
        )
    return _memory.setdefault(key, MemoryStorage())
