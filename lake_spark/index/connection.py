"""A connection to the index Redis: lazy, one client per process, bounded retries, errors of our own."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from lake_spark.errors import ConfigError, IndexDenied, IndexFailure, IndexUnavailable
from lake_spark.index.scripts import Script
from lake_spark.tally import count

T = TypeVar("T")
Argument = str | bytes | int
Call = tuple[Sequence[str], Sequence[Argument]]

_SCHEMES = ("redis", "rediss", "unix", "redis+sentinel")
_BARE = re.compile(r"[A-Za-z0-9._\-]+(:[0-9]+)?(/[0-9]+)?", re.ASCII)
_REFUSED = (AuthenticationError, AuthorizationError, NoPermissionError)
# A failover or a restart in progress: the same call may succeed in a moment.
_PASSING = (RedisConnectionError, RedisTimeoutError, BusyLoadingError, ReadOnlyError)
# After these nobody knows whether the call ran.
_LOST = (RedisConnectionError, RedisTimeoutError)
# Inside a script these are texts of a general error.
_DENIED_WORDS = ("READONLY", "OOM ", "MISCONF", "NOPERM", "NOAUTH", "WRONGPASS", "unauthenticated")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0

_clients: dict[tuple[int, Connection], redis.Redis] = {}


def check_url(url: str) -> str:
    """The URL in full form, or an error that says what one looks like and never shows a password."""
    if _BARE.fullmatch(url):
        url = f"redis://{url}"
    try:
        parts = urlsplit(url)
        for host in _place(parts).split(","):
            _ = urlsplit(f"//{host}").port
    except ValueError:
        parts = SplitResult("", "", "", "", "")
    if parts.scheme not in _SCHEMES or not (parts.hostname or parts.scheme == "unix"):
        shown = f"{parts.scheme}://…" if parts.scheme else "this one"
        raise ConfigError(
            f"not a lake URL: {shown} (expected redis://host:port/db, rediss://…, unix:///path, "
            "redis+sentinel://host:port,host:port/service/db, host:port, or file:DIR for an embedded lake)"
        )
    if parts.scheme in ("redis", "rediss") and not re.fullmatch(r"/?|/[0-9]+", parts.path):
        raise ConfigError(
            f"what follows the host in this {parts.scheme}:// URL is no database number "
            "(a / in a password is written %2F there)"
        )
    return url


def _place(parts: SplitResult) -> str:
    """Where it is, without user and password: a path, or hosts and ports."""
    if parts.scheme == "unix":
        return unquote(parts.path)
    hosts = parts.netloc.rpartition("@")[2].split(",")
    return ",".join(host if re.search(r":[0-9]+$", host) else f"{host}:6379" for host in hosts)


class Server(Protocol):
    """A Redis that runs when somebody connects to it. A plain value, as a connection is."""

    def running(self) -> AbstractContextManager[None]:
        """The server runs while this is held, and afterwards for as long as somebody is connected."""


class _ToServer(redis.UnixDomainSocketConnection):
    """A connection that starts the server where it must: the first one, and any after it has died."""

    def __init__(self, *, server: Server, **settings: Any) -> None:
        super().__init__(**settings)  # type: ignore[no-untyped-call] # redis-py leaves it untyped
        self._server = server

    def connect(self) -> None:
        if self._sock is not None:
            return
        with self._server.running():
            super().connect()  # type: ignore[no-untyped-call] # as above
            # An answer: the server has seen this connection, and stays for it.
            self.send_command("PING")  # type: ignore[no-untyped-call] # as above
            self.read_response()


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the index is and how long to try. A plain value: clients are kept per process.

    `server` is what must run for that, if it is ours to start; the URL is that of its socket.
    """

    url: str = field(repr=False)
    timeout: float = 5.0
    connect_timeout: float = 5.0
    retries: int = 3
    server: Server | None = None

    @property
    def place(self) -> str:
        """Host and port, without user or password."""
        return _place(urlsplit(self.url))

    @property
    def client(self) -> redis.Redis:
        """This process's client: made on first use, shared by every lake at the same place."""
        key = (os.getpid(), self)
        client = _clients.get(key)
        # Two threads may both make one; only the first is kept, and making one connects to nothing.
        return client if client is not None else _clients.setdefault(key, self._connect())

    def _connect(self) -> redis.Redis:
        settings: dict[str, Any] = {
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": self.timeout,
            "socket_connect_timeout": self.connect_timeout,
            "socket_keepalive": True,
        }
        if self.server is not None:
            del settings["socket_keepalive"]
            pool = redis.ConnectionPool(connection_class=_ToServer, path=self.place, server=self.server, **settings)
            return redis.Redis(connection_pool=pool)
        parts = urlsplit(self.url)
        if parts.scheme != "redis+sentinel":
            if parts.scheme == "unix":
                del settings["socket_keepalive"]
            return redis.Redis.from_url(self.url, **settings)
        hosts = [host.rpartition(":") for host in self.place.split(",")]
        service, _, db = parts.path.strip("/").partition("/")
        sentinel = redis.Sentinel(  # type: ignore[no-untyped-call] # redis-py leaves it untyped
            [(host, int(port)) for host, _, port in hosts],
            sentinel_kwargs={"socket_timeout": self.timeout},
            username=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
            db=int(db or 0),
            **settings,
            **dict(parse_qsl(parts.query)),
        )
        client: redis.Redis = sentinel.master_for(service or "mymaster")  # type: ignore[no-untyped-call] # as above
        return client

    def close(self) -> None:
        """Drop this process's idle connections; those of other lakes at the same place are made again."""
        client = _clients.get((os.getpid(), self))
        if client is not None:
            client.connection_pool.disconnect(inuse_connections=False)

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """Run a script by its digest, or by its source where Redis does not know it (any more)."""

        def once() -> Any:
            try:
                return self.client.evalsha(script.sha, len(keys), *keys, *args)
            except NoScriptError:
                return self.client.eval(script.source, len(keys), *keys, *args)

        return self.call(once, retried=script.retried)

    def run_many(self, script: Script, calls: Sequence[Call], *, atomic: bool = False) -> list[Any]:
        """Run one script for many sets of arguments in one round trip. Each run is atomic; all are if asked for."""
        if len(calls) == 1:
            return [self.run(script, *calls[0])]

        def once() -> list[Any]:
            try:
                return pipelined("EVALSHA", script.sha)
            except NoScriptError:
                # Those that ran run again: that is no more than what a lost reply does.
                return pipelined("EVAL", script.source)

        def pipelined(command: str, what: str) -> list[Any]:
            with self.client.pipeline(transaction=atomic) as pipeline:
                for keys, args in calls:
                    pipeline.execute_command(command, what, len(keys), *keys, *args)  # type: ignore[no-untyped-call] # redis-py
                return pipeline.execute()

        return self.call(once, retried=script.retried) if calls else []

    def call(self, attempt: Callable[[], T], *, retried: bool = True) -> T:
        """Do something with Redis, again if the connection failed, and give failures our own names."""
        pause = _FIRST_PAUSE
        lost = False
        for left in range(self.retries if retried else 0, -1, -1):
            count(redis_calls=1)
            try:
                return attempt()
            except RedisError as error:
                # On Redis 6 a script on a replica fails with a general error that has this word in it.
                passing = isinstance(error, _PASSING) or "READONLY" in str(error)
                lost = lost or isinstance(error, _LOST)
                if not left or isinstance(error, _REFUSED) or not passing:
                    failure = self._named(error)
                    failure.may_have_run = lost
                    raise failure from None
            count(retries=1)
            # Full jitter: writers that failed together do not come back together.
            time.sleep(random.uniform(0, pause))
            pause = min(2 * pause, _LONGEST_PAUSE)
        raise AssertionError("unreachable")

    def _named(self, error: RedisError) -> IndexFailure:
        text = self._without_secrets(str(error))
        denied = isinstance(error, (*_REFUSED, OutOfMemoryError, ReadOnlyError))
        if denied or any(word in text for word in _DENIED_WORDS):
            return IndexDenied(f"Redis at {self.place} refuses: {text}")
        if isinstance(error, _PASSING):
            return IndexUnavailable(f"Redis at {self.place} cannot be reached: {text}")
        return IndexFailure(f"Redis at {self.place} failed: {text}")

    def _without_secrets(self, text: str) -> str:
        parts = urlsplit(self.url)
        for secret in (parts.password, dict(parse_qsl(parts.query)).get("password")):
            for form in (secret, unquote(secret)) if secret else ():
                text = text.replace(form, "***")
        return text
