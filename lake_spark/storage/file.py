"""Objects as files under one folder."""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from lake_spark.errors import ConfigError, InvalidInput, ObjectExists, ObjectMissing, StorageDenied, StorageFailure
from lake_spark.storage.base import ForkSafeLock, StoredObject, check_key, check_prefix, check_range
from lake_spark.tally import count

Fsync = Literal["always", "interval", "never"]

_TEMPORARY = "_tmp"
# A file name may have 255 bytes; a few are for the marks of `_encode`.
_PIECE_BYTES = 240
# Objects the lake names itself keep their names, for people and for tools that look for *.parquet.
_PLAIN_SUFFIXES = (".json", ".snap", ".parquet")
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT)
# A parent can vanish between its making and its use when another process deletes the last object in it.
_PARENT_ATTEMPTS = 20
_ABANDONED_SECONDS = 24 * 3600


class FileStorage:
    """Objects as files under `path`, written to a temporary file first, so that none is ever seen in part.

    `fsync` says when an object is on disk for good: `always` before `put` returns, `interval` within
    `fsync_interval` seconds and on `close()`, `never` when the system gets to it. A killed process
    loses nothing under any of them; they differ when the machine itself goes down.
    """

    kind = "file"

    def __init__(self, path: str | os.PathLike[str], *, fsync: Fsync = "always", fsync_interval: float = 1.0) -> None:
        if fsync not in ("always", "interval", "never"):
            raise ConfigError(f"fsync is always, interval or never, not {fsync!r}")
        if fsync_interval <= 0:
            raise ConfigError(f"fsync_interval is a number of seconds above 0, not {fsync_interval!r}")
        self.path = Path(os.path.abspath(path))
        self.fsync: Fsync = fsync
        self.fsync_interval = fsync_interval
        self._open()

    def _open(self) -> None:
        self._pid = os.getpid()
        self._lock = ForkSafeLock()
        self._dirty: set[str] = set()
        self._timer: threading.Timer | None = None
        self._sync_error: OSError | None = None
        self._swept = False

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        target = self._target(key)
        self._raise_sync_error()
        try:
            temporary = self._write_temporary(data)
            try:
                made = self._publish(key, temporary, target, if_absent)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
            changed = [os.path.dirname(target), *made]
            if self.fsync == "always":
                for folder in changed:
                    _sync(folder)
        except OSError as error:
            raise self._failure("store", key, error) from error
        count(objects_written=1, bytes_written=len(data))
        if self.fsync == "interval":
            self._sync_later(target, *changed)

    def get(self, key: str, *, start: int | None = None, length: int | None = None) -> bytes:
        target = self._target(key)
        check_range(length)
        try:
            with open(target, "rb") as file:
                if start:
                    size = os.fstat(file.fileno()).st_size
                    file.seek(max(0, size + start) if start < 0 else start)
                data = file.read(-1 if length is None else length)
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectMissing(f"no object {key} under {self.path}") from None
        except OSError as error:
            raise self._failure("read", key, error) from error
        count(objects_read=1, bytes_read=len(data))
        return data

    def delete(self, key: str) -> None:
        target = self._target(key)
        try:
            os.unlink(target)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self._failure("delete", key, error) from error
        # Empty folders would stay forever otherwise; the first that is in use ends it.
        folder = os.path.dirname(target)
        with contextlib.suppress(OSError):
            while folder != str(self.path):
                os.rmdir(folder)
                folder = os.path.dirname(folder)

    def exists(self, key: str) -> bool:
        try:
            os.stat(self._target(key))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise self._failure("look for", key, error) from error
        return True

    def list(self, prefix: str) -> Iterator[str]:
        return (key for key, _ in self._found(prefix))

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        for key, path in self._found(prefix):
            try:
                state = os.stat(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._failure("look at", key, error) from error
            yield StoredObject(key, state.st_size, state.st_mtime)

    def _found(self, prefix: str) -> Iterator[tuple[str, str]]:
        """The keys that start with the prefix, in order, each with its file."""
        folder = check_prefix(prefix)
        if folder.startswith(_TEMPORARY + "/"):
            return
        place = os.path.join(self.path, *(part for name in folder.split("/")[:-1] for part in _folder_parts(name)))
        try:
            for key, path in _walk(place, folder, prefix):
                if key.startswith(prefix):
                    yield key, path
        except OSError as error:
            raise self._failure("list", prefix or "all objects", error) from error

    def close(self) -> None:
        """Write out what the `interval` policy still holds back."""
        timer = self._timer
        if timer is not None and self._pid == os.getpid():
            timer.cancel()
            self._sync_dirty()
            # One that had already fired may be in the middle of its work.
            if timer is not threading.current_thread():
                timer.join()
        self._raise_sync_error()

    def __repr__(self) -> str:
        return f"FileStorage({str(self.path)!r}, fsync={self.fsync!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "fsync": self.fsync, "fsync_interval": self.fsync_interval}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def _target(self, key: str) -> str:
        *folders, leaf = check_key(key).split("/")
        if (folders or [leaf])[0] == _TEMPORARY:
            raise InvalidInput(f"object key {key!r} is in the folder of temporary files")
        parts = [part for name in folders for part in _folder_parts(name)]
        return os.path.join(self.path, *parts, *_leaf_parts(leaf))

    def _write_temporary(self, data: bytes) -> str:
        folder = os.path.join(self.path, _TEMPORARY)
        temporary = os.path.join(folder, f"{os.getpid()}-{secrets.token_hex(8)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        if not self._swept:
            self._swept = True
            _sweep(folder)
        try:
            descriptor = os.open(temporary, flags, 0o666)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            descriptor = os.open(temporary, flags, 0o666)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest) :]
                if self.fsync == "always":
                    os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        return temporary

    def _publish(self, key: str, temporary: str, target: str, if_absent: bool) -> Sequence[str]:
        """Give the temporary file its name; the folders that got a new folder in them."""
        made: set[str] = set()
        for _ in range(_PARENT_ATTEMPTS):
            try:
                if if_absent:
                    self._link(key, temporary, target)
                else:
                    os.replace(temporary, target)
            except FileNotFoundError:
                made.update(self._make_parents(target))
            else:
                return tuple(made)
        raise StorageFailure(f"cannot store {key}: something keeps deleting its folder under {self.path}")

    def _link(self, key: str, temporary: str, target: str) -> None:
        try:
            os.link(temporary, target)
        except FileExistsError:
            raise ObjectExists(f"object {key} already exists under {self.path}") from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._rename_if_absent(key, temporary, target)

    def _rename_if_absent(self, key: str, temporary: str, target: str) -> None:
        """What a link does in one step, for file systems without links: under a lock shared by all processes."""
        import fcntl

        with open(os.path.join(self.path, _TEMPORARY, "create.lock"), "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.lexists(target):
                raise ObjectExists(f"object {key} already exists under {self.path}")
            os.replace(temporary, target)

    def _make_parents(self, target: str) -> Sequence[str]:
        missing = []
        folder = os.path.dirname(target)
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                os.mkdir(folder)
        return [os.path.dirname(folder) for folder in missing]

    def _sync_later(self, *paths: str) -> None:
        if self._pid != os.getpid():
            # What the parent wrote is the parent's to sync.
            self._open()
        with self._lock:
            self._dirty.update(paths)
            if self._timer is None:
                self._timer = threading.Timer(self.fsync_interval, self._sync_dirty)
                self._timer.daemon = True
                self._timer.start()

    def _sync_dirty(self) -> None:
        with self._lock:
            dirty, self._dirty = self._dirty, set()
            self._timer = None
        try:
            for path in dirty:
                _sync(path)
        except OSError as error:
            self._sync_error = error

    def _raise_sync_error(self) -> None:
        error, self._sync_error = self._sync_error, None
        if error is not None:
            raise StorageFailure(
                f"objects put under {self.path} in the last seconds may not be on disk: {error}; write them again"
            ) from error

    def _failure(self, action: str, key: str, error: OSError) -> StorageFailure:
        reason = f"cannot {action} {key} under {self.path}: {error.strerror or error}"
        if error.errno in _DENIED:
            return StorageDenied(f"{reason}; give this user the right to the folder, or mount it writable")
        if error.errno in _FULL:
            return StorageFailure(f"{reason}; make room, then try again (nothing was stored)")
        return StorageFailure(reason)


def _sweep(folder: str) -> None:
    """Remove the temporary files of processes that were killed long ago."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if time.time() - entry.stat().st_mtime > _ABANDONED_SECONDS:
                    os.unlink(entry.path)


def _sync(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems refuse to sync a folder; they keep its entries by themselves.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


# A plus is in no key, so it can mark what a plain file name cannot say:
#   folder `x+`   the name goes on in what is inside (names over 255 bytes)
#   folder `x++`  the folder x.json, which could otherwise be in the way of an object x.json
#   file   `x+`   the object x, which could otherwise be in the way of a folder x


def _pieces(name: str) -> list[str]:
    raw = name.encode()
    if len(raw) <= _PIECE_BYTES:
        return [name]
    pieces = []
    while len(raw) > _PIECE_BYTES:
        cut = _PIECE_BYTES
        while raw[cut] & 0xC0 == 0x80:
            cut -= 1
        pieces.append(raw[:cut].decode() + "+")
        raw = raw[cut:]
    return [*pieces, raw.decode()]


def _folder_parts(name: str) -> list[str]:
    parts = _pieces(name)
    if parts[-1].endswith(_PLAIN_SUFFIXES):
        parts[-1] += "++"
    return parts


def _leaf_parts(name: str) -> list[str]:
    parts = _pieces(name)
    if not parts[-1].endswith(_PLAIN_SUFFIXES):
        parts[-1] += "+"
    return parts


def _walk(place: str, before: str, prefix: str) -> Iterator[tuple[str, str]]:
    """The keys under a folder, in order, each with its file; `before` is what they start with."""
    whole: list[tuple[str, str]] = []
    continued: list[Iterator[tuple[str, str]]] = []
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                name, path = entry.name, entry.path
                if not entry.is_dir(follow_symlinks=False):
                    whole.append((before + name.removesuffix("+"), path))
                elif name.endswith("+") and not name.endswith("++"):
                    continued.append(_walk(path, before + name[:-1], prefix))
                elif before or name != _TEMPORARY:
                    whole.append((before + name.removesuffix("++") + "/", path))
    except (FileNotFoundError, NotADirectoryError):
        return
    whole.sort()
    # A continued name sorts somewhere among its neighbours, not all in one place: merge it in.
    yield from heapq.merge(_in_order(whole, prefix), *continued) if continued else _in_order(whole, prefix)


def _in_order(entries: list[tuple[str, str]], prefix: str) -> Iterator[tuple[str, str]]:
    for key, path in entries:
        # The names of folders end with a slash here, and those of objects never do.
        if not key.endswith("/"):
            yield key, path
        elif key.startswith(prefix) or prefix.startswith(key):
            yield from _walk(path, key, prefix)
