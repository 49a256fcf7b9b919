"""Objects in a dict, for tests and for a lake that lives as long as its process."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from typing import NoReturn

from lake_spark.errors import ObjectExists, ObjectMissing, StorageFailure
from lake_spark.storage.base import ForkSafeLock, StoredObject, check_key, check_prefix, check_range


class MemoryStorage:
    """Objects of this process only. A forked child goes on with a copy of its own."""

    kind = "memory"

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._times: dict[str, float] = {}
        self._token = secrets.token_hex(6)
        self._lock = ForkSafeLock()

    @property
    def name(self) -> str:
        """A name for the lake that keeps its bodies here: nobody else's, not even a forked child's."""
        return f"{self._token}-{os.getpid()}"

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        check_key(key)
        with self._lock:
            if if_absent and key in self._objects:
                raise ObjectExists(f"object {key} already exists in memory")
            self._objects[key] = bytes(data)
            self._times[key] = time.time()

    def get(self, key: str, *, start: int | None = None, length: int | None = None) -> bytes:
        check_key(key)
        check_range(length)
        try:
            data = self._objects[key]
        except KeyError:
            raise ObjectMissing(f"no object {key} in memory") from None
        rest = data[start:]
        return bytes(rest if length is None else rest[:length])

    def delete(self, key: str) -> None:
        self._objects.pop(check_key(key), None)
        self._times.pop(key, None)

    def exists(self, key: str) -> bool:
        return check_key(key) in self._objects

    def list(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        return iter(sorted(key for key in self._objects.copy() if key.startswith(prefix)))

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        for key in self.list(prefix):
            # One that is deleted meanwhile is not shown.
            if (data := self._objects.get(key)) is not None:
                yield StoredObject(key, len(data), self._times.get(key, 0.0))

    def close(self) -> None:
        """Nothing to let go of: the objects stay."""

    def __repr__(self) -> str:
        return f"MemoryStorage({len(self._objects)} objects)"

    def __reduce__(self) -> NoReturn:
        raise StorageFailure(
            "objects in memory cannot be shared with another process: use file or s3 storage for Spark and for pools"
        )
