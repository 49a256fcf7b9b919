"""A cache of stored objects in a Redis of its own, shared by all processes of a cluster."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry

from lake_spark.cache.stats import CacheStats
from lake_spark.errors import ConfigError

T = TypeVar("T")
_log = logging.getLogger(__name__)

TIMEOUT = 0.5
QUIET = 5.0


class _State:
    """Connections and counts, for one process: a forked child must not talk on its parent's sockets."""

    def __init__(self, client: redis.Redis) -> None:
        self.pid = os.getpid()
        self.client = client
        self.lock = threading.Lock()
        self.hits = self.misses = self.errors = 0
        self.quiet_until = 0.0
        self.has_getex = True

    def count(self, *, hits: int = 0, misses: int = 0, errors: int = 0) -> None:
        with self.lock:
            self.hits += hits
            self.misses += misses
            self.errors += errors


class RedisCache:
    """Bytes under `lake_cache:{namespace}:{key}`, each for `ttl` seconds after its last use.

    Give it objects as they are stored: what is encrypted there stays encrypted here. A cache that cannot
    be reached is never an error: lookups miss and puts do nothing. Such a failure counts in `stats().errors`,
    and for `quiet` seconds after it the cache Redis is left alone, so that a dead one costs one timeout and
    not one per read. Connects at first use, once per process, and pickles as its configuration.
    """

    def __init__(self, url: str, namespace: str, ttl: float, *, timeout: float = TIMEOUT, quiet: float = QUIET) -> None:
        if ttl < 0.001:
            raise ConfigError(f"a cache needs a ttl of at least a millisecond, not {ttl!r}")
        self._url = url if "://" in url else f"redis://{url}"
        try:
            options = parse_url(self._url)  # type: ignore[no-untyped-call]  # redis-py has no types for it
        except ValueError:
            # Not the parser's message, nor the URL: either may hold the password.
            raise ConfigError("the URL of the cache Redis is not redis://, rediss:// or unix://") from None
        self._place = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
        self.namespace = namespace
        self.ttl = ttl
        self.timeout = timeout
        self.quiet = quiet
        self._prefix = f"lake_cache:{namespace}:"
        self._px = round(ttl * 1000)
        self._own = self._new_state()

    def get(self, key: str) -> bytes | None:
        """The value, which then lives for another `ttl`."""
        value = self._try(lambda state: self._renewing_get(state, self._prefix + key))
        self._state().count(hits=value is not None, misses=value is None)
        return value

    def peek(self, key: str) -> bytes | None:
        """The value, without counting the lookup or renewing the entry."""
        return self._try(lambda state: _bytes(state.client.get(self._prefix + key)))

    def put(self, key: str, value: bytes, size: int | None = None) -> None:
        """Keep the value. `size` is there to be alike with other caches: Redis counts by itself."""
        self._try(lambda state: state.client.set(self._prefix + key, value, px=self._px))

    def clear(self) -> None:
        """Forget every entry of this namespace, for every process."""
        pattern = re.sub(r"([\\*?\[\]])", r"\\\1", self._prefix) + "*"

        def unlink(state: _State) -> None:
            batch: list[Any] = []
            for name in state.client.scan_iter(match=pattern, count=1000):
                batch.append(name)
                if len(batch) == 1000:
                    state.client.unlink(*batch)
                    batch.clear()
            if batch:
                state.client.unlink(*batch)

        self._try(unlink)

    def stats(self) -> CacheStats:
        """Counts of this process; what Redis holds for all of them is not known here."""
        state = self._state()
        with state.lock:
            return CacheStats(hits=state.hits, misses=state.misses, errors=state.errors)

    def close(self) -> None:
        """Close this process's connections; the next use opens new ones."""
        self._state().client.close()

    def _renewing_get(self, state: _State, name: str) -> bytes | None:
        if state.has_getex:
            try:
                return _bytes(state.client.getex(name, px=self._px))
            except redis.ResponseError as error:
                if not re.match("unknown command|NOPERM", str(error), re.IGNORECASE):
                    raise
                # Redis before 6.2 has no GETEX.
                state.has_getex = False
        with state.client.pipeline(transaction=False) as pipeline:
            pipeline.get(name)
            pipeline.pexpire(name, self._px)
            value, _ = pipeline.execute()
        return _bytes(value)

    def _try(self, ask: Callable[[_State], T]) -> T | None:
        """What Redis answers; None where it does not."""
        state = self._state()
        if time.monotonic() < state.quiet_until:
            return None
        try:
            return ask(state)
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            state.quiet_until = time.monotonic() + self.quiet
            self._failed(state, error, f"; left alone for {self.quiet:g} s")
        except redis.RedisError as error:
            self._failed(state, error, "")
        return None

    def _failed(self, state: _State, error: Exception, then: str) -> None:
        state.count(errors=1)
        # The kind of the error alone: its message may repeat what the server was sent.
        _log.warning("cache Redis %s failed (%s)%s", self._place, type(error).__name__, then)

    def _state(self) -> _State:
        if self._own.pid != os.getpid():
            self._own = self._new_state()
        return self._own

    def _new_state(self) -> _State:
        return _State(
            redis.Redis.from_url(
                self._url,
                protocol=2,
                decode_responses=False,
                socket_timeout=self.timeout,
                socket_connect_timeout=self.timeout,
                retry=Retry(NoBackoff(), 0),
            )
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _redis_cache, (self._url, self.namespace, self.ttl, self.timeout, self.quiet)

    def __repr__(self) -> str:
        return f"RedisCache({self._place}, namespace={self.namespace!r}, ttl={self.ttl})"


def _redis_cache(url: str, namespace: str, ttl: float, timeout: float, quiet: float) -> RedisCache:
    return RedisCache(url, namespace, ttl, timeout=timeout, quiet=quiet)


def _bytes(value: Any) -> bytes | None:
    return value if isinstance(value, bytes) else None
