"""What the lake asks of an object store."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable

from lake_spark.errors import InvalidInput

MAX_KEY_BYTES = 1024


class StoredObject(NamedTuple):
    """An object as a listing shows it; `modified` is in seconds since 1970, by the clock of the store."""

    key: str
    size: int
    modified: float


@runtime_checkable
class Storage(Protocol):
    """Objects under keys: whole puts, ranged gets. Safe to share between threads."""

    @property
    def kind(self) -> str:
        """`memory`, `file`, `s3` or `oss`: the first part of the lake's Redis keys."""

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        """Store the object whole or not at all.

        With `if_absent` an object that is already there stays, and `ObjectExists` is raised. A put
        whose answer got lost may be repeated and then find itself: compare the bytes before you
        call it a conflict.
        """

    def get(self, key: str, *, start: int | None = None, length: int | None = None) -> bytes:
        """The object's bytes, or `length` of them from `start`, or `ObjectMissing`.

        Ranges behave as slices do: a negative `start` counts from the end, and what lies past the
        end is empty.
        """

    def delete(self, key: str) -> None:
        """Remove the object; one that is not there is fine."""

    def exists(self, key: str) -> bool:
        """Whether there is an object under the key."""

    def list(self, prefix: str) -> Iterator[str]:
        """The keys that start with `prefix`, in order. The prefix may end within a name."""

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """The same, with size and time of each object."""

    def close(self) -> None:
        """Let go of connections and write out what is pending; the next call opens them again."""


class ForkSafeLock:
    """A lock that a forked child finds open, whatever the threads of its parent were doing."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if self._pid != os.getpid():
            # The lock first: a second thread of the child then sees either both or the old process id.
            self._lock, self._pid = threading.Lock(), os.getpid()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def check_key(key: str) -> str:
    """The key, or an error: names joined by `/`, none of them empty, `.` or `..`."""
    parts = key.split("/")
    if "" in parts or "." in parts or ".." in parts:
        raise InvalidInput(f"not an object key: {key!r} (an empty name, . or .. between its slashes)")
    if "\\" in key or "+" in key or not key.isprintable():
        raise InvalidInput(f"not an object key: {key!r} (a backslash, a plus or a control character)")
    if len(key.encode()) > MAX_KEY_BYTES:
        raise InvalidInput(f"object key {key[:60]!r}… has over {MAX_KEY_BYTES} bytes")
    return key


def check_prefix(prefix: str) -> str:
    """The folder of the prefix: all up to its last slash."""
    folder = prefix[: prefix.rfind("/") + 1]
    if folder:
        check_key(folder[:-1])
    return folder


def check_range(length: int | None) -> None:
    if length is not None and length < 0:
        raise InvalidInput(f"a length cannot be negative: {length}")
