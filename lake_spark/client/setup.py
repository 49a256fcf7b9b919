"""Setting a lake up: its configuration, checked before it is written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from lake_spark.client.doctor import redis_findings, unreachable
from lake_spark.client.findings import Finding, errors_of
from lake_spark.client.lake import Lake
from lake_spark.client.probes import storage
from lake_spark.client.session import read_config
from lake_spark.client.settings import Config, storage_of
from lake_spark.errors import ConfigError, IndexFailure, LakeError
from lake_spark.index import write_setting
from lake_spark.index.health import look_at
from lake_spark.names import SHARDS
from lake_spark.storage import S3Storage

# Names that say which lake it is: with another value, what was written before is out of sight.
_IDENTITY = ("Name", "Storage", "Bucket", "Endpoint", "BasePath", "AESPwd")
# What goes on when a lake moves to another kind of storage.
_KEPT = ("Name", "AESPwd")


def current_config(lake: Lake) -> Config:
    """The configuration that is there; one that cannot be read counts as none."""
    try:
        return read_config(lake._connection) or Config({})
    except ConfigError:
        return Config({})


def new_config(before: Config, given: Mapping[str, str]) -> Config:
    """The configuration with what was given in the place of what was there."""
    moved = given.get("Storage", before.get("Storage")) != before.get("Storage")
    kept = {name: value for name, value in before.items() if name in _KEPT or not moved}
    values = {**kept, **given}
    if values.get("Storage") in ("file", "local") and values.get("BasePath"):
        # Every process that uses the lake has a working folder of its own.
        values["BasePath"] = os.path.abspath(values["BasePath"])
    config = Config(values)
    if config.get("Storage", "memory") == "memory":
        raise ConfigError("name a storage for the bodies: file (with a base path), s3 or oss (with a bucket)")
    if "Name" not in config:
        raise ConfigError("name the lake: its name is part of every key in Redis, and two lakes need two names")
    return config


def check_config(lake: Lake, config: Config, *, create_bucket: bool = False) -> Iterator[Finding]:
    """What the doctor says of Redis and of the storage that the configuration describes."""
    try:
        health = look_at(lake._connection)
    except IndexFailure as error:
        yield unreachable(lake._connection, error)
        return
    yield from redis_findings(health)
    store = storage_of(config, lake._options)
    try:
        if create_bucket and isinstance(store, S3Storage):
            store.create_bucket()
        yield from storage(store)
    except LakeError as error:
        yield Finding("storage.connection", "error", str(error), "the bucket could not be made", "see the reason")
    finally:
        store.close()


def refusals(findings: Iterable[Finding]) -> list[Finding]:
    """The errors for which a setting is not written. A Redis without persistence can still be given one."""
    return [finding for finding in errors_of(findings) if finding.name != "redis.persistence"]


def consequences(lake: Lake, before: Config, config: Config) -> list[str]:
    """What becomes of the catalogs that are there: nothing to say where the lake stays the same one."""
    changed = [name for name in _IDENTITY if before.get(name) != config.get(name)]
    if not before or not changed:
        return []
    with Lake(lake._url, config=before, redis_timeout=lake._options.redis_timeout) as old:
        count = sum(old._session.index.registry_sizes(SHARDS)) if before.get("Storage", "memory") != "memory" else 0
    if not count:
        return []
    lines = [f"this lake has {count} catalogs, and the new setting is that of another lake:"]
    for name in changed:
        if name == "AESPwd":
            lines.append("  AESPwd changes: what was written before can no longer be read")
        else:
            lines.append(f"  {name} {_shown(before.get(name))} becomes {_shown(config.get(name))}")
    lines.append("nothing of it is copied or deleted: with the old setting the catalogs are there again")
    return lines


def apply_config(lake: Lake, config: Config) -> None:
    """Write the configuration."""
    write_setting(lake._connection, config.dump())


def _shown(value: str | None) -> str:
    return "(none)" if value is None else value.rpartition("@")[2]
