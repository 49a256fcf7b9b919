"""What a call spent its time on: `with trace("Write") as t: …; print(t.dump())`.

The library marks its steps with `span(...)`. Outside a trace, and without OpenTelemetry, a span is one
shared object that does nothing. Where a program has configured an OpenTelemetry tracer provider, every
span and trace is an OpenTelemetry span too.

A trace follows the context (`contextvars`): a step that runs on a thread pool belongs to it when the
pool runs it in a copy of the caller's context. A trace inside a trace keeps its steps to itself.
Details are shown as they are given: never give a secret.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Protocol

_OTEL = "opentelemetry.trace"
_UNKNOWN = object()


@dataclass(frozen=True, slots=True)
class Span:
    """One step of a trace. Times are seconds; `duration` is None while the step runs."""

    name: str
    start: float
    duration: float | None
    details: Mapping[str, object]
    depth: int
    error: str | None = None

    def __str__(self) -> str:
        took = "running" if self.duration is None else f"{self.duration * 1e3:.2f}ms"
        shown = {**self.details, "error": self.error} if self.error else self.details
        details = ", ".join(f"{key}:{value}" for key, value in shown.items())
        return f"{self.name}: {took}" + (f" {{{details}}}" if details else "")


class ActiveSpan(Protocol):
    """What `with span(...) as s` gives."""

    def set(self, **details: object) -> None:
        """Add details that are known only now."""

    def __enter__(self) -> ActiveSpan: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class _NoSpan:
    __slots__ = ()

    def set(self, **details: object) -> None:
        pass

    def __enter__(self) -> _NoSpan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass


_NO_SPAN = _NoSpan()


class Trace:
    """The steps of a block of code, in the order in which they started; safe to share between threads."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._steps: list[_Step] = []
        self._began = 0.0
        self._ended: float | None = None
        self._outer: _Place | None = None
        self._otel: _OtelSpan | None = None

    @property
    def total(self) -> float:
        """Seconds from the start of the block to its end, or until now."""
        return (time.perf_counter() if self._ended is None else self._ended) - self._began

    @property
    def spans(self) -> tuple[Span, ...]:
        with self._lock:
            return tuple(step.value(self._began) for step in self._steps)

    def dump(self) -> str:
        """The trace as lines of text, for people."""
        total = self.total * 1e3
        lines = [f"=== Trace [{self.name}]: Total {total:.{0 if total >= 10 else 2}f}ms ==="]
        lines += [f"{'  ' * span.depth}[{number}] {span}" for number, span in enumerate(self.spans, 1)]
        return "\n".join(lines)

    def __enter__(self) -> Trace:
        tracer = _tracer()
        self._otel = _OtelSpan(tracer, self.name, {}) if tracer else None
        self._outer = _place.get()
        self._began, self._ended = time.perf_counter(), None
        _place.set((self, 0))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended = time.perf_counter()
        _place.set(self._outer)
        if self._otel:
            self._otel.end({}, kind)

    def _add(self, step: _Step) -> None:
        with self._lock:
            self._steps.append(step)


def trace(name: str) -> Trace:
    """Collect the steps of the block that follows."""
    return Trace(name)


def span(name: str, **details: object) -> ActiveSpan:
    """Mark the block that follows as a step of the trace that is active here, if one is."""
    place = _place.get()
    api = sys.modules.get(_OTEL)
    # Without a call: redis-py loads OpenTelemetry where it is installed, and few programs configure it.
    tracer = None if api is None or getattr(api, "_TRACER_PROVIDER", _UNKNOWN) is None else _tracer()
    if place is None and tracer is None:
        return _NO_SPAN
    return _Step(name, details, place, tracer)


_Place = tuple[Trace, int]
_place: ContextVar[_Place | None] = ContextVar("lake_spark_trace", default=None)


class _Step:
    __slots__ = ("_began", "_details", "_ended", "_error", "_name", "_otel", "_place", "_tracer")

    def __init__(self, name: str, details: dict[str, object], place: _Place | None, tracer: Any) -> None:
        self._name = name
        self._details = details
        self._place = place
        self._tracer = tracer
        self._otel: _OtelSpan | None = None
        self._began = 0.0
        self._ended: float | None = None
        self._error: str | None = None

    def set(self, **details: object) -> None:
        # A new dictionary: another thread may be reading the old one.
        self._details = {**self._details, **details}

    def __enter__(self) -> _Step:
        if self._tracer:
            self._otel = _OtelSpan(self._tracer, self._name, self._details)
        self._began = time.perf_counter()
        if self._place:
            owner, depth = self._place
            owner._add(self)
            _place.set((owner, depth + 1))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended = time.perf_counter()
        self._error = kind.__name__ if kind else None
        if self._place:
            # Set, not reset by token: a generator may end in another context than it began in.
            _place.set(self._place)
        if self._otel:
            self._otel.end(self._details, kind)

    def value(self, origin: float) -> Span:
        ended = self._ended
        return Span(
            self._name,
            self._began - origin,
            None if ended is None else ended - self._began,
            MappingProxyType(self._details),
            self._place[1] if self._place else 0,
            self._error,
        )


class _OtelSpan:
    __slots__ = ("_current", "_span")

    def __init__(self, tracer: Any, name: str, details: Mapping[str, object]) -> None:
        self._span = tracer.start_span(name, attributes=_attributes(details))
        # Not with its own recording of exceptions, which would send their messages and local values.
        self._current: AbstractContextManager[Any] = sys.modules[_OTEL].use_span(
            self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False
        )
        self._current.__enter__()

    def end(self, details: Mapping[str, object], kind: type[BaseException] | None) -> None:
        self._current.__exit__(None, None, None)
        self._span.set_attributes(_attributes(details))
        if kind:
            api = sys.modules[_OTEL]
            self._span.set_attribute("error.type", kind.__name__)
            self._span.set_status(api.Status(api.StatusCode.ERROR, kind.__name__))
        self._span.end()


def _attributes(details: Mapping[str, object]) -> dict[str, str | bool | int | float]:
    return {key: value if isinstance(value, str | bool | int | float) else str(value) for key, value in details.items()}


def _tracer() -> Any:
    """A tracer of the provider that the program configured; None when it has none."""
    api: Any = sys.modules.get(_OTEL)
    # The public getter takes more than a microsecond when nothing is configured, so look at what it returns
    # first. Both are missing while another thread is still importing the module.
    provider: Any = getattr(api, "_TRACER_PROVIDER", _UNKNOWN)
    if provider is _UNKNOWN and hasattr(api, "get_tracer_provider"):
        provider = api.get_tracer_provider()
    if provider is None or provider is _UNKNOWN:
        return None
    if isinstance(provider, (api.ProxyTracerProvider, api.NoOpTracerProvider)):
        return None
    return provider.get_tracer("lake_spark")
