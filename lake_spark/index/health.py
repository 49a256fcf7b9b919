"""How the index Redis is: what it says of itself, its clock, whether it takes the scripts; and keys of a probe."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lake_spark.errors import IndexFailure, IndexUnavailable
from lake_spark.index import scripts
from lake_spark.index.connection import Connection
from lake_spark.index.index import Index
from lake_spark.names import shard_of

T = TypeVar("T")

_SETTINGS = ("maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "save", "min-replicas-to-write")
_INFO = ("server", "memory", "persistence", "replication")


@dataclass(frozen=True, slots=True)
class Health:
    """What Redis told. A managed one may refuse to say: then a name is missing."""

    info: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    # Seconds by which its clock is ahead of ours.
    ahead: float = 0.0

    def number(self, name: str) -> int | None:
        """A figure, by its name in INFO or in CONFIG."""
        value = self.info.get(name, self.settings.get(name))
        return int(value) if value is not None and str(value).isdigit() else None

    def text(self, name: str) -> str | None:
        """A word, by its name in CONFIG or, with underscores, in INFO."""
        value = self.settings.get(name, self.info.get(name.replace("-", "_")))
        return None if value is None else str(value)


def look_at(connection: Connection) -> Health:
    """Ask Redis how it is. That it cannot be reached, or lets nobody in, is an error; that it keeps things to itself
    is not.
    """
    client = connection.client
    before = time.time()
    seconds, micros = connection.call(lambda: client.time())
    ahead = seconds + micros / 1e6 - (before + time.time()) / 2
    info: dict[str, Any] = {}
    for section in _INFO:
        info.update(_unless_refused(connection, lambda name=section: client.info(name)) or {})  # type: ignore[misc]
    settings: dict[str, str] = {}
    for setting in _SETTINGS:
        # One by one: Redis 6 takes no more.
        found: Any = _unless_refused(connection, lambda name=setting: client.config_get(name))  # type: ignore[misc]
        settings.update(found or {})
    return Health(info, settings, ahead)


def load_scripts(connection: Connection) -> dict[str, str]:
    """Load every script; those that Redis does not take, each with the reason."""
    refused: dict[str, str] = {}
    for script in vars(scripts).values():
        if isinstance(script, scripts.Script):
            try:
                connection.call(lambda source=script.source: connection.client.script_load(source))  # type: ignore[misc]
            except IndexUnavailable:
                raise
            except IndexFailure as error:
                refused[script.name] = str(error)
    return refused


def probe_keys(index: Index, catalog: str, txns: Sequence[str]) -> list[str]:
    """Every key that writes to one catalog, some of them in transactions, can leave in an index of its own."""
    keys, shard = index.keys, shard_of(catalog)
    return [
        *(keys.delta(catalog), keys.snap(catalog), keys.meta(catalog), keys.files(catalog), keys.sample(catalog)),
        *(keys.seq(shard), keys.catalogs(shard), keys.pending(shard), keys.opened(shard), keys.fenced(shard)),
        *(keys.floor(shard), keys.inflight, keys.aborted),
        *map(keys.txn, txns),
    ]


def expire(index: Index, keys: Sequence[str], seconds: int) -> None:
    """Let Redis forget these keys by itself, should nobody come to do it."""

    def ask() -> object:
        with index.connection.client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.expire(key, seconds)
            return pipeline.execute()

    index.connection.call(ask)


def forget(index: Index, keys: Sequence[str]) -> None:
    """Delete these keys."""
    index.connection.call(lambda: index.connection.client.delete(*keys))


def _unless_refused(connection: Connection, ask: Callable[[], T]) -> T | None:
    try:
        return connection.call(ask)
    except IndexUnavailable:
        raise
    except IndexFailure:
        return None
