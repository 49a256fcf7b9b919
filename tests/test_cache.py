"""Caches: what they keep, what they forget, and that none of it can fail a read."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from servers import LOOPBACK, RedisServer, TcpProxy

from lake_spark.cache import CacheStats, LoadingCache, MemoryCache, RedisCache, SingleFlight
from lake_spark.errors import ConfigError

# Python 3.12 and later warn of forks beside threads; that they work here is what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def in_fork(check: Callable[[], bool]) -> bool:
    """What `check` says in a forked child; False when it fails or hangs."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if check() else 1
        finally:
            os._exit(code)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


# Memory


def test_least_recently_used_entries_leave_first_when_bytes_run_out() -> None:
    cache: MemoryCache[bytes] = MemoryCache(30, 60)
    for key in "abc":
        cache.put(key, b"x" * 10)
    assert cache.get("a") == b"x" * 10
    cache.put("d", b"y" * 15)
    assert [cache.get(key) is not None for key in "abcd"] == [True, False, False, True]
    assert cache.stats().bytes == 25
    assert cache.stats().evictions == 2


def test_entry_larger_than_the_cache_is_not_kept_and_pushes_nothing_out() -> None:
    cache: MemoryCache[bytes] = MemoryCache(10, 60)
    cache.put("small", b"x" * 10)
    cache.put("large", b"x" * 11)
    assert cache.get("large") is None
    assert cache.get("small") is not None
    cache.put("small", b"x" * 11)
    assert cache.get("small") is None, "the value that was replaced must not come back"
    assert cache.stats().bytes == 0


def test_replacing_a_value_counts_its_bytes_once() -> None:
    cache: MemoryCache[bytes] = MemoryCache(100, 60)
    cache.put("a", b"x" * 60)
    cache.put("a", b"y" * 50)
    assert cache.get("a") == b"y" * 50
    assert cache.stats() == CacheStats(hits=1, entries=1, bytes=50)


def test_sliding_time_to_live_is_renewed_by_a_hit_and_not_by_a_peek() -> None:
    cache: MemoryCache[bytes] = MemoryCache(100, 0.4, sliding=True)
    cache.put("used", b"1")
    cache.put("seen", b"2")
    for _ in range(4):
        time.sleep(0.15)
        assert cache.get("used") == b"1"
        cache.peek("seen")
    assert cache.peek("seen") is None


def test_fixed_time_to_live_ends_whatever_is_read() -> None:
    cache: MemoryCache[bytes] = MemoryCache(100, 0.3, sliding=False)
    cache.put("a", b"1")
    deadline = time.monotonic() + 5
    while cache.get("a") is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert cache.stats().entries == 0
    assert cache.stats().bytes == 0


def test_expired_entries_make_room_without_counting_as_evictions() -> None:
    cache: MemoryCache[bytes] = MemoryCache(100, 0.05)
    cache.put("a", b"x" * 90)
    time.sleep(0.06)
    cache.put("b", b"x" * 10)
    assert cache.stats() == CacheStats(entries=1, bytes=10)


def test_value_without_a_length_in_bytes_needs_its_size() -> None:
    cache: MemoryCache[object] = MemoryCache(100, 60)
    with pytest.raises(TypeError, match="size of a tuple"):
        cache.put("a", (1, 2))
    cache.put("a", (1, 2), size=16)
    assert cache.get("a") == (1, 2)
    assert cache.stats().bytes == 16


def test_statistics_count_lookups_and_clear_empties() -> None:
    cache: MemoryCache[bytes] = MemoryCache(100, 60)
    assert cache.stats().hit_ratio == 0.0
    cache.put("a", b"12")
    for key in ("a", "a", "a", "b"):
        cache.get(key)
    assert cache.stats() == CacheStats(hits=3, misses=1, entries=1, bytes=2)
    assert cache.stats().hit_ratio == 0.75
    cache.clear()
    assert cache.get("a") is None
    assert (cache.stats().entries, cache.stats().bytes) == (0, 0)


def test_many_threads_never_lose_count_of_the_bytes() -> None:
    cache: MemoryCache[bytes] = MemoryCache(500, 60)

    def work(seed: int) -> None:
        for step in range(500):
            key = (seed * 7 + step * 13) % 40
            cache.get(key)
            cache.put(key, b"x" * (key + 1))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    stats = cache.stats()
    held = [value for key in range(40) if (value := cache.peek(key)) is not None]
    assert (stats.entries, stats.bytes) == (len(held), sum(map(len, held)))
    assert stats.bytes <= 500
    assert stats.hits + stats.misses == 4000


@pytest.mark.parametrize(("max_bytes", "ttl"), [(-1, 60), (10, 0), (10, -1)])
def test_impossible_limits_are_refused(max_bytes: int, ttl: float) -> None:
    with pytest.raises(ConfigError):
        MemoryCache(max_bytes, ttl)


def test_memory_cache_pickles_as_configuration() -> None:
    cache: MemoryCache[bytes] = MemoryCache(100, 60, sliding=False)
    cache.put("a", b"content")
    data = pickle.dumps(cache)
    copy = pickle.loads(data)
    assert b"content" not in data
    assert (copy.max_bytes, copy.ttl, copy.sliding) == (100, 60, False)
    assert copy.get("a") is None


def test_memory_cache_works_in_a_child_forked_while_its_lock_is_held() -> None:
    cache: MemoryCache[bytes] = MemoryCache(100, 60)
    cache.put("a", b"1")

    def check() -> bool:
        empty = cache.get("a") is None
        cache.put("b", b"2")
        return empty and cache.get("b") == b"2"

    with cache._own.lock:
        assert in_fork(check)
    assert cache.get("a") == b"1"
    assert cache.get("b") is None


# Single flight


def test_a_hundred_threads_share_one_call() -> None:
    flight: SingleFlight[object] = SingleFlight()
    calls, barrier = [], threading.Barrier(100)

    def load() -> object:
        calls.append(1)
        time.sleep(0.2)
        return object()

    def ask(_: int) -> object:
        barrier.wait(30)
        return flight.do("k", load)

    with ThreadPoolExecutor(100) as pool:
        results = set(pool.map(ask, range(100)))
    assert len(calls) == 1
    assert len(results) == 1
    flight.do("k", load)
    assert len(calls) == 2, "only calls at the same time are shared"


def test_an_exception_reaches_everyone_who_waits_with_its_own_traceback() -> None:
    flight: SingleFlight[None] = SingleFlight()
    calls, barrier = [], threading.Barrier(20)
    depths: list[int] = []

    def fail() -> None:
        calls.append(1)
        time.sleep(0.2)
        raise LookupError("gone")

    def ask(_: int) -> Exception:
        barrier.wait(30)
        try:
            flight.do("k", fail)
        except LookupError as error:
            depths.append(len(traceback.extract_tb(error.__traceback__)))
            return error
        raise AssertionError("not raised")

    with ThreadPoolExecutor(20) as pool:
        errors = list(pool.map(ask, range(20)))
    assert len(calls) == 1
    assert {str(error) for error in errors} == {"gone"}
    assert max(depths) < 10, "the traceback grew with every thread"


def test_an_interrupt_ends_only_the_thread_it_hit() -> None:
    flight: SingleFlight[str] = SingleFlight()
    running, interrupt = threading.Event(), threading.Event()

    def interrupted() -> str:
        running.set()
        interrupt.wait(10)
        raise KeyboardInterrupt

    def first() -> str:
        with pytest.raises(KeyboardInterrupt):
            flight.do("k", interrupted)
        return "interrupted"

    with ThreadPoolExecutor(5) as pool:
        leader = pool.submit(first)
        assert running.wait(10)
        others = [pool.submit(flight.do, "k", lambda: "loaded") for _ in range(4)]
        time.sleep(0.1)
        interrupt.set()
        assert leader.result(10) == "interrupted"
        assert [other.result(10) for other in others] == ["loaded"] * 4


def test_a_call_may_ask_for_another_key_and_for_its_own() -> None:
    flight: SingleFlight[int] = SingleFlight()
    assert flight.do("a", lambda: 1 + flight.do("b", lambda: 2)) == 3
    assert flight.do("a", lambda: 1 + flight.do("a", lambda: 2)) == 3
    assert flight.do("a", lambda: flight.do("b", lambda: flight.do("a", lambda: 4))) == 4


def test_threads_that_need_each_others_keys_do_not_deadlock() -> None:
    flight: SingleFlight[str] = SingleFlight()
    keys = ("a", "b", "c")
    barrier = threading.Barrier(len(keys))

    def ask(index: int) -> str:
        def outer() -> str:
            barrier.wait(10)
            return flight.do(keys[(index + 1) % len(keys)], lambda: "inner")

        return flight.do(keys[index], outer)

    with ThreadPoolExecutor(len(keys)) as pool:
        results = [pool.submit(ask, index) for index in range(len(keys))]
        assert [result.result(20) for result in results] == ["inner"] * 3


def test_a_forked_child_does_not_wait_for_its_parents_calls() -> None:
    flight: SingleFlight[str] = SingleFlight()
    running, finish = threading.Event(), threading.Event()

    def slow() -> str:
        running.set()
        finish.wait(30)
        return "parent"

    thread = threading.Thread(target=flight.do, args=("k", slow))
    thread.start()
    assert running.wait(10)
    try:
        assert in_fork(lambda: flight.do("k", lambda: "child") == "child")
    finally:
        finish.set()
        thread.join()


# Loading


def test_a_hundred_readers_load_once_and_later_ones_hit() -> None:
    cache: LoadingCache[bytes] = LoadingCache(MemoryCache(1000, 60))
    calls, barrier = [], threading.Barrier(100)

    def fetch() -> bytes:
        calls.append(1)
        time.sleep(0.05)
        return b"document"

    def ask(_: int) -> bytes:
        barrier.wait(30)
        return cache.load("k", fetch)

    with ThreadPoolExecutor(100) as pool:
        assert set(pool.map(ask, range(100))) == {b"document"}
    assert cache.load("k", fetch) == b"document"
    assert len(calls) == 1
    assert cache.stats().hits >= 1
    assert cache.stats().hits + cache.stats().misses == 101
    cache.clear()
    cache.load("k", fetch)
    assert len(calls) == 2


def test_a_failed_load_is_not_kept() -> None:
    cache: LoadingCache[bytes] = LoadingCache(MemoryCache(1000, 60))

    def fail() -> bytes:
        raise LookupError("gone")

    with pytest.raises(LookupError):
        cache.load("k", fail)
    assert cache.load("k", lambda: b"there") == b"there"


def test_loading_cache_takes_the_size_of_a_value_and_pickles_empty() -> None:
    cache: LoadingCache[tuple[int, ...]] = LoadingCache(MemoryCache(1000, 60))
    cache.load("k", lambda: (1, 2, 3), size=lambda value: 8 * len(value))
    assert cache.stats().bytes == 24
    copy = pickle.loads(pickle.dumps(cache))
    assert copy.stats() == CacheStats()
    assert copy.load("k", lambda: (4,), size=len) == (4,)


# Redis


@pytest.fixture
def cache(redis_url: str) -> Iterator[RedisCache]:
    cache = RedisCache(redis_url, "lake", 60)
    yield cache
    cache.close()


def test_redis_cache_keeps_bytes_as_they_are_under_its_namespace(cache: RedisCache, redis_url: str) -> None:
    value = bytes(range(256))
    assert cache.get("9bc6/(users/snap/x") is None
    cache.put("9bc6/(users/snap/x", value)
    assert cache.get("9bc6/(users/snap/x") == value
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys() == [b"lake_cache:lake:9bc6/(users/snap/x"]
    assert cache.stats() == CacheStats(hits=1, misses=1)
    other = RedisCache(redis_url, "other", 60)
    assert other.get("9bc6/(users/snap/x") is None
    other.close()


def test_redis_cache_renews_the_time_to_live_on_a_hit_and_not_on_a_peek(cache: RedisCache, redis_url: str) -> None:
    cache.put("k", b"1")
    with redis.Redis.from_url(redis_url) as client:
        assert 59_000 < int(client.pttl("lake_cache:lake:k")) <= 60_000
        client.pexpire("lake_cache:lake:k", 5000)
        assert cache.peek("k") == b"1"
        assert int(client.pttl("lake_cache:lake:k")) <= 5000
        assert cache.get("k") == b"1"
        assert int(client.pttl("lake_cache:lake:k")) > 59_000
    assert cache.stats().hits == 1


def test_redis_cache_forgets_after_its_time_to_live(redis_url: str) -> None:
    cache = RedisCache(redis_url, "lake", 0.05)
    cache.put("k", b"1")
    time.sleep(0.1)
    assert cache.get("k") is None
    cache.close()


def test_redis_cache_does_without_getex(tmp_path: Path) -> None:
    with RedisServer(tmp_path, args=("--rename-command", "GETEX", "")) as server:
        cache = RedisCache(server.url, "lake", 60)
        cache.put("k", b"1")
        with redis.Redis.from_url(server.url) as client:
            client.pexpire("lake_cache:lake:k", 5000)
            assert cache.get("k") == b"1"
            assert int(client.pttl("lake_cache:lake:k")) > 59_000
        assert cache.get("other") is None
        assert cache.stats() == CacheStats(hits=1, misses=1)
        cache.close()


def test_clear_forgets_one_namespace_and_no_other(redis_url: str) -> None:
    odd, like = RedisCache(redis_url, "la*e", 60), RedisCache(redis_url, "lake", 60)
    for number in range(2500):
        odd.put(str(number), b"1")
    like.put("k", b"2")
    odd.clear()
    assert odd.get("0") is None
    assert odd.get("2499") is None
    assert like.get("k") == b"2"
    assert odd.stats().errors == 0
    odd.close()
    like.close()


def test_dead_cache_redis_is_a_miss_and_fast(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer(tmp_path) as server:
        cache = RedisCache(server.url, "lake", 60, quiet=0.5)
        cache.put("k", b"1")
        assert cache.get("k") == b"1"
        server.kill()
        with caplog.at_level(logging.WARNING):
            began = time.monotonic()
            for _ in range(1000):
                assert cache.get("k") is None
                cache.put("k", b"1")
                cache.clear()
            assert time.monotonic() - began < 2
        assert cache.stats().errors <= 3
        assert cache.stats().misses == 1000
        assert "failed" in caplog.text
        server.start()
        time.sleep(0.6)
        cache.put("k", b"2")
        assert cache.get("k") == b"2", "the cache is used again once it answers"
        cache.close()


def test_frozen_cache_redis_costs_one_timeout_and_not_one_per_read(redis_server: RedisServer, redis_url: str) -> None:
    cache = RedisCache(redis_url, "lake", 60, timeout=0.2)
    cache.put("k", b"1")
    redis_server.pause()
    try:
        began = time.monotonic()
        assert [cache.get("k") for _ in range(100)] == [None] * 100
        assert time.monotonic() - began < 1
    finally:
        redis_server.resume()
    assert cache.stats().errors == 1
    cache.close()


def test_reset_connection_is_a_miss(redis_server: RedisServer, redis_url: str) -> None:
    with TcpProxy(LOOPBACK, redis_server.port) as proxy:
        cache = RedisCache(f"{LOOPBACK}:{proxy.port}", "lake", 60, quiet=0.05)
        cache.put("k", b"1")
        proxy.drop_reply_to(b"GETEX")
        assert cache.get("k") is None
        time.sleep(0.1)
        assert cache.get("k") == b"1"
        assert cache.stats() == CacheStats(hits=1, misses=1, errors=1)
        cache.close()


def test_full_cache_redis_refuses_puts_and_still_serves(tmp_path: Path) -> None:
    with RedisServer(tmp_path, args=("--maxmemory", "3mb", "--maxmemory-policy", "noeviction")) as server:
        cache = RedisCache(server.url, "lake", 60)
        cache.put("first", b"1")
        for number in range(40):
            cache.put(str(number), bytes(200_000))
        assert cache.stats().errors > 0
        assert cache.get("first") == b"1"
        cache.close()


def test_wrong_password_is_a_miss_and_shown_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer(tmp_path, args=("--requirepass", "right-one")) as server, caplog.at_level(logging.DEBUG):
        cache = RedisCache(f"redis://:hunter2-secret@{LOOPBACK}:{server.port}/0", "lake", 60)
        cache.put("k", b"1")
        assert cache.get("k") is None
        assert cache.stats().errors >= 1
        assert "hunter2" not in caplog.text
        assert "hunter2" not in repr(cache)
        assert str(server.port) in repr(cache)
        cache.close()


@pytest.mark.parametrize("url", ["http://:hunter2@host:6379", "redis://:hunter2@host:port"])
def test_bad_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError) as failure:
        RedisCache(url, "lake", 60)
    shown = "".join(traceback.format_exception(failure.value))
    assert "hunter2" not in str(failure.value)
    assert "port could not be cast" not in shown


def test_redis_cache_pickles_as_configuration(cache: RedisCache) -> None:
    cache.put("k", b"content")
    cache.get("k")
    data = pickle.dumps(cache)
    copy = pickle.loads(data)
    assert b"content" not in data
    assert copy.get("k") == b"content"
    assert copy.stats() == CacheStats(hits=1)
    assert (copy.namespace, copy.ttl, copy.timeout, copy.quiet) == (
        cache.namespace,
        cache.ttl,
        cache.timeout,
        cache.quiet,
    )
    copy.close()


def test_forked_children_and_their_parent_use_connections_of_their_own(cache: RedisCache) -> None:
    for number in range(50):
        cache.put(str(number), str(number).encode())

    def check() -> bool:
        return all(cache.get(str(n)) == str(n).encode() for n in range(50)) and cache.stats().hits == 50

    context = multiprocessing.get_context("fork")
    children = [context.Process(target=lambda: os._exit(0 if check() else 1)) for _ in range(4)]
    for child in children:
        child.start()
    for _ in range(20):
        assert cache.get("7") == b"7"
    for child in children:
        child.join(20)
    assert [child.exitcode for child in children] == [0] * 4
    with cache._own.lock:
        assert in_fork(check)


def test_a_hundred_readers_load_once_through_redis(cache: RedisCache) -> None:
    loading: LoadingCache[bytes] = LoadingCache(cache)
    calls, barrier = [], threading.Barrier(100)

    def fetch() -> bytes:
        calls.append(1)
        time.sleep(0.1)
        return b"document"

    def ask(_: int) -> bytes:
        barrier.wait(30)
        return loading.load("k", fetch)

    with ThreadPoolExecutor(100) as pool:
        assert set(pool.map(ask, range(100))) == {b"document"}
    assert len(calls) == 1
    assert loading.stats().errors == 0
