"""One call where many threads ask for the same thing at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from types import TracebackType
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Call:
    """A call that runs, and what became of it. `abandoned`: it was interrupted and has no result to share."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.done = threading.Event()
        self.abandoned = False
        self.value: Any = None
        self.error: Exception | None = None
        self.traceback: TracebackType | None = None


class _State:
    """The calls that run, for one process: those of a fork's parent never end in the child."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.calls: dict[Hashable, _Call] = {}
        self.waiting: dict[int, _Call] = {}


class SingleFlight(Generic[T]):
    """Lets threads that ask for the same key at the same time share one call.

    `fn` may call `do` itself, also with the same key: where waiting would be for this very thread (directly,
    or because another thread waits for it in turn), `do` runs its own `fn` instead.
    """

    def __init__(self) -> None:
        self._own = _State()

    def do(self, key: Hashable, fn: Callable[[], T]) -> T:
        """The result of `fn`, or of the same key's call that already runs; its exception likewise.

        Only an `Exception` is shared. When a KeyboardInterrupt or SystemExit ends the call, it ends that
        thread's call alone, and one of those who waited calls its own `fn`.
        """
        while True:
            state = self._state()
            with state.lock:
                call = state.calls.get(key)
                mine = call is None
                if call is None:
                    call = state.calls[key] = _Call()
                elif not call.done.is_set() and _waits_for_me(state, call):
                    call = None
                else:
                    state.waiting[threading.get_ident()] = call
            if call is None:
                return fn()
            if mine:
                return self._run(state, key, call, fn)
            try:
                call.done.wait()
            finally:
                with state.lock:
                    state.waiting.pop(threading.get_ident(), None)
            if call.abandoned:
                continue
            if call.error is not None:
                # From where it was raised: every thread that raises it again adds to its traceback.
                raise call.error.with_traceback(call.traceback)
            value: T = call.value
            return value

    def _run(self, state: _State, key: Hashable, call: _Call, fn: Callable[[], T]) -> T:
        try:
            call.value = value = fn()
            return value
        except Exception as error:
            call.error, call.traceback = error, error.__traceback__
            raise
        except BaseException:
            call.abandoned = True
            raise
        finally:
            with state.lock:
                del state.calls[key]
            call.done.set()

    def _state(self) -> _State:
        if self._own.pid != os.getpid():
            self._own = _State()
        return self._own

    def __reduce__(self) -> tuple[Any, ...]:
        return SingleFlight, ()


def _waits_for_me(state: _State, call: _Call) -> bool:
    """Whether the call can only end after this thread goes on."""
    me = threading.get_ident()
    link: _Call | None = call
    while link is not None and not link.done.is_set():
        if link.thread == me:
            return True
        link = state.waiting.get(link.thread)
    return False
