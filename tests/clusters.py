"""Sparks of several processes for the tests: applications that can be killed, a standalone cluster, a Connect server.

A process has one JVM, so each application is a process of its own that is told what to run. Everything listens on
loopback, keeps its files in the folder it is given, and is ended by its process id.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from servers import LOOPBACK, _Process, _Server

# Start quickly and stay small: the tests share two cores.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss2m"
OTHER_LOOPBACK = "127.0.0.2"

# What an application runs: it gets the session, and what it returns comes back.
Task = Callable[..., Any]


class JobFailed(Exception):
    """What ran in the application raised; the message is the error's, with its type."""


def wait_for(what: Callable[[], Any], seconds: float = 120.0) -> Any:
    """The first true answer; an error when none comes in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.02)
    raise TimeoutError(f"nothing within {seconds:.0f} s")


class Application:
    """A Spark application in a process of its own, which finds the lake by itself: nobody registers it.

    `run` sends it a function of an importable module. What it and its JVM say is in `log`.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str], master: str = "local[2]", **settings: object
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log = folder / "application.log"
        self.events = folder / "events"
        self.events.mkdir()
        given = {
            "spark.app.name": folder.name,
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.driver.memory": "768m",
            "spark.executor.memory": "512m",
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
            "spark.executor.extraJavaOptions": JAVA_OPTIONS,
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": self.events.as_uri(),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            **{name.replace("_", "."): str(value) for name, value in settings.items()},
        }
        # What local-cluster keeps lies below SPARK_HOME, unless there are folders of its own.
        environment = {**environment, "SPARK_WORKER_DIR": str(folder / "work")}
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_application, args=(theirs, str(self.log), environment, master, given), daemon=True
        )
        self._connection: Connection = ours
        self._process.start()
        theirs.close()
        self._answer()

    def run(self, function: Task, *args: Any, **options: Any) -> Any:
        """What `function(session, *args, **options)` returns there."""
        self.start(function, *args, **options)
        return self.result()

    def start(self, function: Task, *args: Any, **options: Any) -> None:
        """Begin what `result` waits for."""
        self._connection.send((function, args, options))

    def result(self, seconds: float = 120.0) -> Any:
        return self._answer(seconds)

    @property
    def done(self) -> bool:
        """Whether what was started has ended."""
        return self._connection.poll()

    def _answer(self, seconds: float = 120.0) -> Any:
        if not self._connection.poll(seconds):
            raise TimeoutError(f"no answer within {seconds:.0f} s; {self._tail()}")
        try:
            good, answer = self._connection.recv()
        except EOFError:
            raise JobFailed(f"the application is gone; {self._tail()}") from None
        if not good:
            raise JobFailed(answer)
        return answer

    def _tail(self) -> str:
        return f"its log ends with:\n{self.log.read_text(errors='replace')[-3000:] if self.log.exists() else ''}"

    def processes(self) -> list[psutil.Process]:
        """The driver's Python, its JVM, and all that these started: executors too, unless a cluster has them."""
        found = psutil.Process(self._process.pid)
        return [found, *found.children(recursive=True)]

    def kill(self) -> None:
        """End it and all that it started with SIGKILL, as when its machine goes down."""
        processes = self.processes()
        kill(processes[1:], wait=False)
        self._process.kill()
        self._process.join()
        psutil.wait_procs(processes[1:], 10)
        self._connection.close()

    def stop(self) -> None:
        if self._process.is_alive():
            with contextlib.suppress(OSError):
                self._connection.send(None)
            self._process.join(20)
            if self._process.is_alive():
                self.kill()
        self._connection.close()

    def __enter__(self) -> Application:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def kill(processes: Sequence[psutil.Process], *, wait: bool = True) -> None:
    """End these with SIGKILL, and wait until they are gone."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    if wait:
        psutil.wait_procs(processes, 10)


def executors_of(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those of them that are executors."""
    return [process for process in processes if "CoarseGrainedExecutorBackend" in " ".join(_command(process))]


def _command(process: psutil.Process) -> Sequence[str]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return ()


def _application(
    connection: Connection, log: str, environment: Mapping[str, str], master: str, settings: Mapping[str, str]
) -> None:
    """The application's own process: a session, and what it is told to do with it."""
    with open(log, "ab") as output:
        for standard in (1, 2):
            os.dup2(output.fileno(), standard)
    os.environ.clear()
    os.environ.update(environment)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    if master.startswith("sc://"):
        spark = builder.remote(master).create()
    else:
        for name, value in settings.items():
            builder = builder.config(name, value)
        spark = builder.master(master).getOrCreate()
    calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, calls), daemon=True).start()
    connection.send((True, "ready"))
    while call := calls.get():
        function, args, options = call
        try:
            answer = True, function(spark, *args, **options)
        except Exception as error:
            answer = False, f"{type(error).__name__}: {error}"
        connection.send(answer)
    spark.stop()


def _receive(connection: Connection, calls: queue.SimpleQueue[Any]) -> None:
    try:
        while True:
            calls.put(connection.recv())
    except (EOFError, OSError):
        # Nobody is left to tell us anything. The JVM ends when the pipe to its standard input does.
        os._exit(1)


class _SparkServer(_Server):
    """A part of Spark that runs as a server."""

    memory = "256m"
    ready: re.Pattern[str]

    def __init__(self, folder: Path, environment: Mapping[str, str], command: Sequence[str]) -> None:
        super().__init__(folder)
        self._environment = {**environment, "SPARK_DAEMON_MEMORY": self.memory, "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS}
        self._command = command
        self.found = ""
        self.start()

    def start(self) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        self.process = _Process(
            [str(home / "bin" / self._command[0]), *self._command[1:]], self.log, {**os.environ, **self._environment}
        )
        try:
            if not self._wait(self._is_ready, 60.0):
                raise self._failed("did not start")
        except BaseException:
            self.kill()
            raise

    def _is_ready(self) -> bool:
        match = self.ready.search(self.log.read_text(errors="replace"))
        self.found = match[match.lastindex or 0] if match else ""
        return bool(match)


class _Master(_SparkServer):
    name = "master"
    ready = re.compile(r"Starting Spark master at (spark://\S+)(?s:.*)New state: ALIVE")

    def _is_ready(self) -> bool:
        return super()._is_ready() and bool(self.found)


class _Worker(_SparkServer):
    name = "worker"
    ready = re.compile(r"Successfully registered with master")


class ConnectServer(_SparkServer):
    """A Spark Connect server on `url`."""

    name = "connect"
    memory = "768m"
    ready = re.compile(r"Spark Connect server started at: \S*?:(\d+)")

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        settings = {
            "spark.connect.grpc.binding.address": LOOPBACK,
            "spark.connect.grpc.binding.port": "0",
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.driver.memory": "768m",
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
            "spark.ui.enabled": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        }
        flags = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        kind = "org.apache.spark.sql.connect.service.SparkConnectServer"
        super().__init__(folder, environment, ["spark-submit", "--master", "local[2]", "--class", kind, *flags])

    @property
    def url(self) -> str:
        return f"sc://{LOOPBACK}:{self.found}"


class StandaloneCluster:
    """A master and two workers with one core each, on two addresses: what Spark takes for two machines."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.master: _Master | None = None
        self.workers: list[_Worker] = []
        package = "org.apache.spark.deploy"
        try:
            where = ["--host", LOOPBACK, "--port", "0", "--webui-port", "0"]
            self.master = _Master(folder / "master", environment, ["spark-class", f"{package}.master.Master", *where])

            def work(host: str) -> None:
                place = folder / f"worker-{host}"
                where = ["--host", host, "--port", "0", "--webui-port", "0", "--work-dir", str(place / "work")]
                size = ["--cores", "1", "--memory", "1g"]
                command = ["spark-class", f"{package}.worker.Worker", *where, *size, self.url]
                self.workers.append(_Worker(place, {**environment, "SPARK_LOCAL_IP": host}, command))

            with ThreadPoolExecutor() as pool:
                list(pool.map(work, (LOOPBACK, OTHER_LOOPBACK)))
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        assert self.master
        return self.master.found

    def stop(self) -> None:
        for server in (*self.workers, self.master):
            if server:
                server.stop()

    def __enter__(self) -> StandaloneCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def texts_below(folder: Path) -> Iterator[tuple[Path, str]]:
    """Every file below a folder that says something: logs, events, what executors printed."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix not in (".jar", ".parquet"):
            yield path, path.read_text(errors="replace")
