"""An embedded lake that is kept running, for as long as a process stays."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator

from lake_spark.embedded.server import EmbeddedRedis
from lake_spark.embedded.supervisor import Wire


def serve(folder: str, ready: Callable[[str], None]) -> None:
    """Keep the lake in this folder running until SIGINT or SIGTERM.

    `ready` gets the URL at which others on this machine find its Redis, each time that it has started. A Redis that
    dies is started again. In the main thread only, where signals arrive.
    """
    server = EmbeddedRedis(os.path.realpath(folder))
    with _told_to_end() as told:
        while not _waits(told, 0.0):
            with server.running():
                wire = Wire(server.socket)
                # An answer: the server has seen this connection, and stays for it.
                wire.ask("PING")
            with contextlib.closing(wire):
                ready(server.url)
                select.select([wire.socket.fileno(), told], [], [])


def _waits(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


@contextlib.contextmanager
def _told_to_end() -> Iterator[int]:
    """A descriptor that can be read once somebody wants this process to end."""
    told, tell = os.pipe()

    def note(*_: object) -> None:
        os.write(tell, b"!")

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(told)
        os.close(tell)
