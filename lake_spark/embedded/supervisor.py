"""The process behind an embedded lake: it starts the Redis of a folder, and stops it when nobody is connected any more.

It runs as a script with nothing but the standard library: somebody waits for it to start, and it lives for as long as
the lake is used. Its working directory is the folder of the index, and every name below is relative to that: the
limits of socket paths do not matter, and a folder that was removed and made again is not mistaken for its own.

Three locks, all of them gone with the process that holds them, however that ends:

- `lock`: shared by who connects, until connected; exclusive for who starts or stops the server. So nobody ever
  connects to a server that is about to stop.
- `supervisor.lock`: held by this process.
- `server.lock`: handed to Redis, which knows nothing of it: free means that no Redis has the files open.

Redis begins on the socket `starting.sock`. Once its data is loaded and the lake is configured, the socket gets the
name `redis.sock`: whoever can connect finds everything in place.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

LOCK, SUPERVISOR_LOCK, SERVER_LOCK = "lock", "supervisor.lock", "server.lock"
SOCKET, STARTING = "redis.sock", "starting.sock"
CONF, LOG = "redis.conf", "redis.log"
# That there is a lake, and in which folder it was last.
MARKER = "lake.json"
# The machine that has it open, or had it when it went down.
MACHINE = "machine.json"
BODIES = "lake-bodies"
# Where Redis keeps its append-only files from version 7 on; older ones do not look there.
NEWER_DATA = "appendonlydir"

READY = "ready"
# Long enough for one command of a shell to follow another without a start in between.
GRACE_SECONDS = 3.0
_POLL_SECONDS = 0.25
_START_SECONDS = 30.0
_STOP_SECONDS = 60.0

# What the lake relies on, whatever redis.conf says.
_OPTIONS = (
    *("--port", "0", "--unixsocket", STARTING, "--unixsocketperm", "700", "--daemonize", "no", "--dir", "."),
    *("--appendonly", "yes", "--maxmemory-policy", "noeviction", "--timeout", "0", "--logfile", ""),
)
# Written once, and then the user's.
_CONF = """\
# Read by the Redis of this lake when it starts. `appendfsync always` loses nothing when the machine goes down, and
# makes every write wait for the disk; `everysec` can lose about the last second.
appendfsync everysec
# A second copy, dump.rdb, now and then. It is the append-only file that is loaded.
save 3600 1
save 300 100
save 60 10000
stop-writes-on-bgsave-error no
"""


class Failed(Exception):
    """The server did not start, for the reason that this says."""


class Refused(Exception):
    """Redis answered with an error."""


class Wire:
    """The few words that are exchanged with Redis: redis-py would take more time to load than Redis to start."""

    def __init__(self, path: str, timeout: float | None = None) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout)
        try:
            self.socket.connect(path)
        except BaseException:
            self.socket.close()
            raise
        self._reader = self.socket.makefile("rb")

    def tell(self, *words: str) -> None:
        """Send a command."""
        given = [word.encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(given) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in given))

    def ask(self, *words: str) -> bytes | None:
        """Redis' answer to a command; EOFError when it has gone."""
        self.tell(*words)
        line = self._reader.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError("Redis has closed the connection")
        kind, text = line[:1], line[1:-2]
        if kind == b"-":
            raise Refused(text.decode(errors="replace"))
        if kind != b"$":
            return text
        size = int(text)
        return None if size < 0 else self._reader.read(size + 2)[:size]

    def clients(self) -> int:
        """How many are connected, this one among them."""
        lines = (self.ask("INFO", "clients") or b"").split()
        return next(int(line[18:]) for line in lines if line.startswith(b"connected_clients:"))

    def close(self) -> None:
        self._reader.close()
        self.socket.close()


def answers(path: str) -> bool:
    """Whether a Redis that has loaded its data listens there."""
    try:
        wire = Wire(path, timeout=5.0)
    except OSError:
        return False
    try:
        return wire.ask("PING") == b"PONG"
    except (OSError, EOFError, Refused):
        return False
    finally:
        wire.close()


def try_lock(path: str, how: int) -> int | None:
    """A descriptor that holds the lock until it is closed; None when somebody else has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def locked(path: str, how: int) -> Iterator[None]:
    """Hold the lock, as soon as it can be had."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        # Not only closed: a child that was forked meanwhile has the descriptor too.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def this_machine() -> dict[str, str]:
    """What tells this machine from others, and this run of it from those before a reboot."""

    def content(path: str) -> str:
        try:
            with open(path, encoding="ascii") as file:
                return file.read().strip()
        except (OSError, ValueError):
            return ""

    return {
        "name": socket.gethostname(),
        "id": content("/etc/machine-id"),
        "boot": content("/proc/sys/kernel/random/boot_id"),
    }


def read_json(path: str) -> dict[str, Any]:
    """The object in a file; an empty one where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_whole(path: str, text: str) -> None:
    """Put a file in its place whole: nobody reads half of it, after a crash either."""
    temporary = f"{path}.new"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def tail(path: str) -> str:
    """The last words of a log."""
    try:
        with open(path, "rb") as file:
            return file.read()[-1000:].decode(errors="replace").strip()
    except OSError:
        return ""


class Supervisor:
    """One Redis in the working directory: started or found, watched, and stopped."""

    def __init__(self, executable: str, folder: str, setting_key: str) -> None:
        self._executable = executable
        self._folder = folder
        self._setting_key = setting_key
        # None where the Redis is that of a supervisor that was killed.
        self._child: subprocess.Popen[bytes] | None = None
        self._wire: Wire | None = None

    def start(self) -> None:
        """Have a Redis that is ready for everybody."""
        if not os.path.exists(CONF):
            write_whole(CONF, _CONF)
        self._wire = self._ready()
        self._configure(self._wire)
        write_whole(MACHINE, json.dumps(this_machine()))
        # It has its name already where another supervisor began this.
        with contextlib.suppress(FileNotFoundError):
            os.rename(STARTING, SOCKET)

    def _ready(self) -> Wire:
        """A connection to a Redis that has loaded its data, however long that takes."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            held = try_lock(SERVER_LOCK, fcntl.LOCK_EX)
            if held is not None:
                try:
                    self._launch(held)
                finally:
                    os.close(held)
            for path in (SOCKET, STARTING):
                try:
                    wire = Wire(path, timeout=_START_SECONDS)
                except OSError:
                    continue
                try:
                    wire.ask("PING")
                    wire.socket.settimeout(None)
                    return wire
                except Refused:
                    # It is loading.
                    deadline = time.monotonic() + _START_SECONDS
                except (OSError, EOFError):
                    pass
                wire.close()
            if time.monotonic() > deadline:
                raise Failed(f"Redis does not answer; its log ends with: {tail(LOG)}")
            time.sleep(0.005)

    def _launch(self, held: int) -> None:
        if self._child is not None:
            code = self._child.wait()
            raise Failed(f"{self._executable} ended with {code}; its log ends with: {tail(LOG)}")
        for path in (SOCKET, STARTING):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        if os.path.isdir(NEWER_DATA) and _major_version(self._executable) < 7:
            # It would start with an empty lake.
            raise Failed(f"{self._executable} is older than the Redis that wrote this lake: use Redis 7 or newer")
        with open(LOG, "wb") as log:
            try:
                self._child = subprocess.Popen(
                    [self._executable, CONF, *_OPTIONS],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[held],
                )
            except OSError as error:
                raise Failed(f"{self._executable} cannot be run: {error.strerror}") from None

    def _configure(self, wire: Wire) -> None:
        """Say in Redis where the bodies are: at the first start, and after the folder was moved."""
        bodies = os.path.join(self._folder, BODIES)
        before = read_json(MARKER).get("folder")
        text = wire.ask("GET", self._setting_key)
        if text is None:
            setting = {"Name": "lake", "Storage": "file", "BasePath": bodies}
            wire.ask("SET", self._setting_key, json.dumps(setting))
        elif before and before != self._folder:
            setting = json.loads(text)
            if setting.get("BasePath") == os.path.join(before, BODIES):
                wire.ask("SET", self._setting_key, json.dumps({**setting, "BasePath": bodies}))
        if before != self._folder:
            write_whole(MARKER, json.dumps({"folder": self._folder}))

    def watch(self) -> None:
        """Wait until Redis has ended, or stop it when nobody has been connected for a while."""
        wire = self._wire
        assert wire is not None
        used = time.monotonic()
        with contextlib.suppress(OSError, EOFError):
            # Nothing is sent unasked: what can be read is the end.
            while not select.select([wire.socket], [], [], _POLL_SECONDS)[0]:
                if os.stat(".").st_nlink == 0:
                    # The folder was removed, and with it all that there is to lose.
                    self.stop()
                    return
                if wire.clients() > 1:
                    used = time.monotonic()
                elif time.monotonic() - used > GRACE_SECONDS:
                    held = try_lock(LOCK, fcntl.LOCK_EX)
                    # Somebody may have come at the last moment.
                    if held is not None and wire.clients() == 1:
                        # The lock is kept until this process has ended.
                        self.stop()
                        return
                    if held is not None:
                        os.close(held)

    def stop(self) -> None:
        """End Redis in order: what it has acknowledged is on disk then."""
        if self._wire is None:
            # It has not been in use.
            if self._child is not None:
                self._child.terminate()
                self._child.wait()
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET)
        with contextlib.suppress(OSError, EOFError):
            self._wire.socket.settimeout(_STOP_SECONDS)
            # The append-only file has everything: no need for another dump.rdb.
            self._wire.tell("SHUTDOWN", "NOSAVE")
            # Its answer is the end; an older one may come before.
            while self._wire.socket.recv(4096):
                pass
            if self._child is not None:
                self._child.wait(_STOP_SECONDS)
            os.unlink(MACHINE)


def _major_version(executable: str) -> int:
    try:
        said = subprocess.run([executable, "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError as error:
        raise Failed(f"{executable} cannot be run: {error.strerror}") from None
    found = re.search(rb"v=(\d+)", said.stdout)
    return int(found[1]) if found else 0


class _Told(Exception):
    """Somebody wants this process to end."""


def _told(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Told


def _claim() -> bool:
    """Become the folder's supervisor; False when another one has done the work meanwhile."""
    deadline = time.monotonic() + 2 * _START_SECONDS
    while try_lock(SUPERVISOR_LOCK, fcntl.LOCK_EX) is None:
        if answers(SOCKET):
            return False
        if time.monotonic() > deadline:
            raise Failed("another process has been starting it for a while: try again later")
        time.sleep(0.01)
    return True


def _report(text: str) -> None:
    """Tell who started this process, and let go of the pipe."""
    with contextlib.suppress(OSError):
        os.write(1, text.encode())
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)


def main(executable: str, folder: str, setting_key: str) -> None:
    """Start the server, say so, and stay until it has ended."""
    # Whose child this is has ended: nobody has to wait for it.
    if os.fork():
        os._exit(0)
    os.umask(0o077)
    supervisor = Supervisor(executable, folder, setting_key)
    signal.signal(signal.SIGTERM, _told)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        if not _claim():
            _report(READY)
            return
        supervisor.start()
        _report(READY)
        supervisor.watch()
    except _Told:
        supervisor.stop()
    except Exception as error:
        supervisor.stop()
        _report(str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
