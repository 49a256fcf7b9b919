"""The doctor: looks at Redis, the setting, the storage and the protocol, and says what it means and what to do."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from itertools import islice

from lake_spark.client.findings import Finding, Level
from lake_spark.client.lake import Lake
from lake_spark.client.probes import encryption, protocol, storage
from lake_spark.client.session import Session, read_config
from lake_spark.errors import ConfigError, IndexDenied, IndexFailure, LakeError
from lake_spark.index import Connection
from lake_spark.index.health import Health, load_scripts, look_at
from lake_spark.tally import size_of

_PACKAGES = ("lake-spark", "redis", "obstore", "boto3", "pyarrow", "cryptography", "msgspec", "pyspark")
_OLDEST_REDIS = (6, 2)
_CLOCK_SECONDS = 5.0
_FULL, _NEARLY_FULL = 0.95, 0.75


def examine(lake: Lake) -> Iterator[Finding]:
    """Every finding about a lake, as it is found; what cannot be looked at is left out, and the reason is an error."""
    yield versions()
    connection = lake._connection
    try:
        health = look_at(connection)
    except IndexFailure as error:
        yield unreachable(connection, error)
        return
    yield Finding("redis.connection", "ok", f"Redis at {connection.place} answers")
    yield from redis_findings(health)
    yield from scripts(connection)
    found = setting(lake)
    yield found
    if found.level == "error":
        return
    try:
        session = lake._session
    except LakeError as error:
        yield Finding(
            "storage.connection",
            "error",
            str(error),
            "the setting does not describe a storage that can be used: nothing can be read or written",
            "correct it with lake init",
        )
        return
    stored = list(storage(session.storage))
    yield from stored
    if any(finding.level == "error" for finding in stored):
        return
    yield protocol(session)
    yield encryption(session)
    yield backlog(session)


def versions() -> Finding:
    """The versions of Python and of the packages that matter."""
    found = [f"Python {platform.python_version()}"]
    for package in _PACKAGES:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return Finding("versions", "ok", ", ".join(found))


def unreachable(connection: Connection, error: IndexFailure) -> Finding:
    """The finding for a Redis that nobody can talk to."""
    if isinstance(error, IndexDenied):
        return Finding(
            "redis.connection",
            "error",
            str(error),
            f"Redis at {connection.place} answers but lets nobody in with this user and password, or this user may not "
            "do what the lake needs",
            "correct user and password in the URL (redis://user:password@host:port/db; characters such as @ and / are "
            "written %40 and %2F), or have the user's rights (ACL) extended",
        )
    return Finding(
        "redis.connection",
        "error",
        str(error),
        "without the index nothing can be read or written; nothing is lost by that",
        f"see that Redis runs at {connection.place} and that this machine may reach it (address, port, firewall, TLS: "
        "rediss://)",
    )


def redis_findings(health: Health) -> Iterator[Finding]:
    """What an index Redis must be like, by what it says of itself."""
    yield _version(health)
    yield _eviction(health)
    yield _persistence(health)
    yield from _disk(health)
    yield _replication(health)
    yield _memory(health)
    yield _clock(health)


def _version(health: Health) -> Finding:
    version = health.text("redis-version")
    if version is None:
        return _unknown("redis.version", "the version", "6.2 or newer is needed")
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if parts < _OLDEST_REDIS:
        return Finding(
            "redis.version",
            "error",
            f"Redis {version}",
            "the scripts need commands of Redis 6.2: writes fail",
            "upgrade Redis to 6.2 or newer",
        )
    return Finding("redis.version", "ok", f"Redis {version}")


def _eviction(health: Health) -> Finding:
    name = "redis.eviction"
    policy, limit = health.text("maxmemory-policy"), health.number("maxmemory")
    if policy is None or limit is None:
        return _unknown(name, "the eviction policy", "an index must never evict: it has to be noeviction")
    if policy == "noeviction":
        return Finding(name, "ok", "maxmemory-policy is noeviction")
    if limit:
        return Finding(
            name,
            "error",
            f"maxmemory-policy is {policy}, with a maxmemory of {size_of(limit)}",
            "when memory is full Redis throws keys away, and with them the logs of catalogs: documents lose changes or "
            "vanish without an error",
            "set maxmemory-policy noeviction (CONFIG SET maxmemory-policy noeviction, and in its configuration file); "
            "caches belong in a Redis of their own",
        )
    return Finding(
        name,
        "warning",
        f"maxmemory-policy is {policy}, without a maxmemory",
        "nothing is thrown away now, but logs of catalogs will be as soon as somebody sets a maxmemory",
        "set maxmemory-policy noeviction",
    )


def _persistence(health: Health) -> Finding:
    name = "redis.persistence"
    aof = health.text("appendonly") or {0: "no", 1: "yes"}.get(health.number("aof_enabled") or 0)
    fsync, save = health.text("appendfsync"), health.text("save")
    if aof == "yes":
        if fsync == "always":
            return Finding(name, "ok", "AOF, fsync always", "a crash loses nothing that was acknowledged")
        if fsync == "no":
            return Finding(
                name,
                "warning",
                "AOF, fsync left to the system",
                "a crash of the machine can lose the writes of about the last half minute, acknowledged ones too",
                "set appendfsync everysec, or always",
            )
        shown = fsync or "of an unknown policy (everysec is the default)"
        return Finding(
            name, "ok", f"AOF, fsync {shown}", "a crash of the machine can lose about the last second of writes"
        )
    since = health.number("rdb_changes_since_last_save")
    if save:
        return Finding(
            name,
            "warning",
            f"RDB only (save {save})",
            f"a crash loses every write since the last save, acknowledged ones too; now that is {since} changes"
            if since is not None
            else "a crash loses every write since the last save, acknowledged ones too",
            "turn AOF on: appendonly yes, appendfsync everysec",
        )
    if save is None:
        return _unknown(name, "whether RDB files are saved (AOF is off)", "without AOF a crash loses recent writes")
    return Finding(
        name,
        "error",
        "neither AOF nor RDB",
        "a restart of Redis loses the whole index: the bodies stay in storage, but no document can be read any more",
        "turn AOF on: CONFIG SET appendonly yes, and in its configuration file appendonly yes and appendfsync everysec",
    )


def _disk(health: Health) -> Iterator[Finding]:
    for what, status in (("AOF", "aof_last_write_status"), ("RDB", "rdb_last_bgsave_status")):
        if health.info.get(status, "ok") != "ok":
            yield Finding(
                "redis.disk",
                "error",
                f"the last write of the {what} failed",
                "what Redis has acknowledged since is only in its memory, and it may refuse writes (MISCONF)",
                "see Redis' log; most often its disk is full",
            )


def _replication(health: Health) -> Finding:
    name = "redis.replication"
    role, replicas = health.text("role"), health.number("connected_slaves")
    if role is None:
        return _unknown(name, "the role", "replication is asynchronous: a failover can lose the last writes")
    if role != "master":
        return Finding(
            name,
            "error",
            "this Redis is a replica",
            "it takes no writes, and shows what its primary did a moment ago",
            "connect to the primary, or through sentinels: redis+sentinel://host:port,host:port/service/db",
        )
    if not replicas:
        return Finding(name, "ok", "a primary without replicas", "while it is down nothing can be read or written")
    waits = health.number("min-replicas-to-write")
    found = f"a primary with {replicas} replica{'s' if replicas > 1 else ''}" + (
        f", min-replicas-to-write {waits}" if waits else ""
    )
    return Finding(
        name, "ok", found, "replication is asynchronous: a failover can lose the last writes, acknowledged ones too"
    )


def _memory(health: Health) -> Finding:
    name = "redis.memory"
    used, limit = health.number("used_memory"), health.number("maxmemory")
    if used is None:
        return _unknown(name, "the memory in use", "at its limit Redis refuses writes")
    total = limit or health.number("total_system_memory")
    if not total:
        return Finding(name, "ok", f"{size_of(used)} in use")
    share = used / total
    of_what = "" if limit else " of the machine, no maxmemory is set"
    found = f"{size_of(used)} of {size_of(total)} in use ({share:.0%}{of_what})"
    level: Level = "error" if share >= _FULL else "warning" if share >= _NEARLY_FULL else "ok"
    if level == "ok":
        return Finding(name, level, found)
    return Finding(
        name,
        level,
        found,
        "at its limit Redis refuses writes (or the system ends it); reads go on, and nothing is lost",
        "give Redis more memory, or clear history that nobody needs (lake clear)",
    )


def _clock(health: Health) -> Finding:
    ahead = health.ahead
    if abs(ahead) <= _CLOCK_SECONDS:
        return Finding("redis.clock", "ok", f"within {max(1, round(abs(ahead)))} s of this machine's clock")
    return Finding(
        "redis.clock",
        "warning",
        f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this machine's clock",
        "TsSeqs are of Redis' clock: moments that people name (as_of) mean other versions than they think. Order and "
        "open writes do not depend on it",
        "let both machines set their clocks by NTP",
    )


def scripts(connection: Connection) -> Iterator[Finding]:
    """Whether Redis takes every script."""
    refused = load_scripts(connection)
    if not refused:
        yield Finding("redis.scripts", "ok", "every script loads")
        return
    name, reason = next(iter(refused.items()))
    yield Finding(
        "redis.scripts",
        "error",
        f"{len(refused)} scripts do not load, such as {name}: {reason}",
        "every step of the lake is a script: nothing can be read or written",
        "allow the user SCRIPT, EVAL and EVALSHA (ACL: +@scripting), or upgrade Redis",
    )


def setting(lake: Lake) -> Finding:
    """Whether `lake.setting` is there and can be read."""
    name = "setting"
    try:
        config = lake._config if lake._config is not None else read_config(lake._connection)
    except ConfigError as error:
        return Finding(
            name,
            "error",
            str(error),
            "nobody can tell where the bodies are: nothing can be read or written",
            "write it again with lake init",
        )
    if lake._storage is not None:
        return Finding(name, "ok", "the storage was passed by the caller")
    if not config:
        return Finding(
            name,
            "error",
            "Redis has no lake.setting",
            "nobody can tell where the bodies are: they would be kept in the memory of a process, and be gone with it",
            "write it with lake init",
        )
    shown = {
        key: config[key] for key in ("Name", "Storage", "Bucket", "Endpoint", "Region", "BasePath") if key in config
    }
    # An endpoint must not hold credentials; one that does anyway is not shown with them.
    found = ", ".join(f"{key} {value.rpartition('@')[2]}" for key, value in shown.items())
    found += ", encrypted" if "AESPwd" in config else ""
    if config.get("Storage", "memory") == "memory":
        return Finding(
            name,
            "error",
            found or "no Storage",
            "bodies are kept in the memory of a process, and are gone when it ends",
            "name a storage with lake init",
        )
    return Finding(name, "ok", found)


def backlog(session: Session) -> Finding:
    """What writers that are gone have left behind."""
    aborted = session.index.aborted()
    inflight = session.index.inflight()
    some = ", ".join(islice(sorted(inflight), 5))
    found = (
        f"{len(inflight)} transactions are being published{f' ({some})' if some else ''}, {len(aborted)} were given up"
    )
    return Finding(
        "transactions", "ok", found, "runs of those that were given up are invisible, and stay until they are vacuumed"
    )


def _unknown(name: str, what: str, rule: str) -> Finding:
    return Finding(
        name,
        "warning",
        f"{what} is not known: Redis refuses to say (INFO, CONFIG GET)",
        rule,
        "look it up where this Redis is managed",
    )
