"""Traces: what they show, on which threads, and what they cost when nobody looks."""

from __future__ import annotations

import contextlib
import contextvars
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from lake_spark import trace as trace_module
from lake_spark.trace import span, trace


def test_dump_numbers_the_steps_in_order_of_start_with_time_and_details() -> None:
    with trace("Write") as t:
        with span("Init"):
            pass
        with span("PreCommit") as s:
            s.set(tsSeq="1700000000_1")
        with span("StoragePut", key="a/b", size=5):
            with span("Retry"):
                pass
        with span("Commit"):
            pass

    masked = re.sub(r"\d+(\.\d\d)?ms", "_", t.dump())
    assert masked.splitlines() == [
        "=== Trace [Write]: Total _ ===",
        "[1] Init: _",
        "[2] PreCommit: _ {tsSeq:1700000000_1}",
        "[3] StoragePut: _ {key:a/b, size:5}",
        "  [4] Retry: _",
        "[5] Commit: _",
    ]


def test_total_of_a_long_trace_is_in_whole_milliseconds() -> None:
    with trace("Read") as t:
        time.sleep(0.012)
    assert re.fullmatch(r"=== Trace \[Read\]: Total \d\d+ms ===", t.dump())


def test_spans_are_values_with_times_that_add_up() -> None:
    with trace("Read") as t:
        with span("List", catalog="users") as outer:
            time.sleep(0.005)
            with span("Get"):
                time.sleep(0.005)
            outer.set(deltas=3)
            running = t.spans[0]
    listed, got = t.spans
    assert running.duration is None
    assert "List: running" in str(running)
    assert (listed.name, listed.depth, dict(listed.details)) == ("List", 0, {"catalog": "users", "deltas": 3})
    assert (got.name, got.depth, dict(got.details)) == ("Get", 1, {})
    assert listed.duration is not None
    assert got.duration is not None
    assert 0.005 <= got.duration < listed.duration <= t.total
    assert listed.start < got.start
    with pytest.raises(FrozenInstanceError):
        listed.name = "Other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        listed.details["catalog"] = "other"  # type: ignore[index]


def test_failed_span_shows_the_type_of_the_error_and_lets_it_pass() -> None:
    with pytest.raises(LookupError, match="gone"), trace("Read") as t:
        with span("Get", key="k"):
            raise LookupError("gone")
    assert t.spans[0].error == "LookupError"
    assert t.dump().endswith("{key:k, error:LookupError}")
    assert "gone" not in t.dump()


def test_span_outside_a_trace_is_one_object_that_does_nothing() -> None:
    first, second = span("A", key=1), span("B")
    assert first is second
    with first as s:
        s.set(size=5)


def test_steps_after_the_trace_and_of_an_inner_trace_are_not_its_own() -> None:
    with trace("Outer") as outer:
        with span("Before"), trace("Inner") as inner, span("Inside"):
            pass
        with span("After"):
            pass
    with span("Late"):
        pass
    assert [s.name for s in outer.spans] == ["Before", "After"]
    assert [(s.name, s.depth) for s in inner.spans] == [("Inside", 0)]


def test_pool_threads_in_a_copied_context_add_to_the_trace() -> None:
    barrier = threading.Barrier(8)

    def fetch(number: int) -> None:
        barrier.wait(10)
        for _ in range(200):
            with span("Get", number=number), span("Decode"):
                pass

    with trace("Read") as t, span("Fetch"), ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(contextvars.copy_context().run, fetch, n) for n in range(8)]
        for future in futures:
            future.result()
        pool.submit(lambda: span("Elsewhere").__enter__()).result()

    depths = {(s.name, s.depth) for s in t.spans}
    assert depths == {("Fetch", 0), ("Get", 1), ("Decode", 2)}
    assert len(t.spans) == 1 + 8 * 200 * 2
    assert all(s.duration is not None for s in t.spans)


def test_generator_closed_in_another_context_does_not_fail() -> None:
    def rows():  # type: ignore[no-untyped-def]
        with span("Rows"):
            yield 1
            yield 2

    with trace("Read") as t:
        generator = rows()
        contextvars.copy_context().run(next, generator)
        generator.close()
    assert t.spans[0].error == "GeneratorExit"


def test_unwatched_span_costs_little_more_than_an_empty_block() -> None:
    empty = contextlib.nullcontext()

    def nothing(name: str, **details: object) -> contextlib.nullcontext[None]:
        return empty

    def cost(mark: Callable[..., Any]) -> float:
        began = time.perf_counter()
        for _ in range(10_000):
            with mark("Get", size=1):
                pass
        return time.perf_counter() - began

    # Side by side and the best of many, so that a busy machine slows both. OpenTelemetry's own getter
    # alone would cost more than this allows.
    pairs = [(cost(span), cost(nothing)) for _ in range(30)]
    assert min(pair[0] for pair in pairs) < 4 * min(pair[1] for pair in pairs)


# The module by itself: redis-py, which the package loads, imports OpenTelemetry where it is installed.
ALONE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("alone", sys.argv[1])
alone = sys.modules["alone"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(alone)
with alone.trace("T") as t, alone.span("S"):
    pass
assert len(t.spans) == 1
loaded = {name.split(".")[0] for name in sys.modules}
assert not loaded & {"opentelemetry", "lake_spark"}, loaded & {"opentelemetry", "lake_spark"}
"""

MISSING = """
import sys
sys.modules["opentelemetry"] = None
from lake_spark.trace import span, trace
assert span("A") is span("B")
with trace("T") as t, span("S"):
    pass
assert len(t.spans) == 1
"""


def run(code: str, *arguments: str) -> None:
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_tracing_imports_neither_opentelemetry_nor_the_lake() -> None:
    run(ALONE, trace_module.__file__)


def test_tracing_works_where_opentelemetry_is_not_installed() -> None:
    run(MISSING)


# A process of its own: a tracer provider can be set only once, and would stay for the other tests.
OPENTELEMETRY = """
from opentelemetry import trace as api
from lake_spark.trace import span, trace

assert span("A") is span("B"), "imported, not configured"
api.set_tracer_provider(api.NoOpTracerProvider())
assert span("A") is span("B"), "configured to do nothing"

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
api._TRACER_PROVIDER = provider

with span("Alone", size=5) as s:
    s.set(key=("a", 1), found=True)
(alone,) = exporter.get_finished_spans()
assert alone.name == "Alone" and alone.parent is None
assert dict(alone.attributes) == {"size": 5, "key": "('a', 1)", "found": True}
assert alone.status.status_code is api.StatusCode.UNSET

exporter.clear()
try:
    with api.get_tracer("app").start_as_current_span("App"):
        with trace("Write") as t:
            with span("Put"):
                with span("Connect"):
                    raise OSError("host and port")
except OSError:
    pass
connect, put, write, app = exporter.get_finished_spans()
assert [s.name for s in (connect, put, write, app)] == ["Connect", "Put", "Write", "App"]
assert connect.parent.span_id == put.context.span_id
assert put.parent.span_id == write.context.span_id
assert write.parent.span_id == app.context.span_id
assert connect.status.status_code is api.StatusCode.ERROR
assert connect.attributes["error.type"] == "OSError"
assert not connect.events, "a message may say more than a trace should"
assert [s.name for s in t.spans] == ["Put", "Connect"]
assert api.get_current_span() is api.INVALID_SPAN
"""


def test_spans_become_opentelemetry_spans_where_a_provider_is_configured() -> None:
    run(OPENTELEMETRY)
