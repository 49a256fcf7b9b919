"""Every option in one table: parsed from Python names, Spark names, URL parameters and the environment."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from lake_spark.errors import ConfigError

SomeOptions = TypeVar("SomeOptions", bound="Options")

_CONNECTION_PARAMETERS = ("db", "username", "password", "client_name", "health_check_interval")
ENVIRONMENT_PREFIX = "LAKE_"
VIEWS = ("documents", "deltas", "snapshots", "pending", "catalogs", "files", "history")
# An envelope names its compression by its place here: new ones go to the end.
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
_BOOLEANS = {"true": True, "false": False}
_KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def _option(
    default: Any,
    meaning: str,
    *,
    choices: tuple[str, ...] = (),
    least: float | None = None,
    secret: bool = False,
    environment: bool = True,
) -> Any:
    """An option. One that is secret, or may hold a password, is shown neither in reprs nor in errors.

    What one job is about is never taken from the environment.
    """
    metadata = {"meaning": meaning, "choices": choices, "least": least, "secret": secret, "environment": environment}
    return field(default=default, metadata=metadata, repr=not secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a lake is used. Python names are these; Spark names are the same in camelCase."""

    name: str = _option("", "name of the lake when no configuration gives one; part of every Redis key")
    create: bool = _option(True, "file:DIR: make a lake in the folder if there is none")
    pending: str = _option(
        "error", "what a read does when open writes stand in its way", choices=("error", "wait", "prefix")
    )
    pending_timeout: float = _option(120.0, "seconds after which an open write counts as abandoned", least=0.001)
    pending_wait: float = _option(30.0, "seconds that pending=wait waits before it gives up", least=0)
    snapshot: str = _option(
        "auto",
        "when a read saves a snapshot (auto: 16 or more deltas were replayed, or bytes over a quarter of the document)",
        choices=("auto", "always", "never"),
    )
    compression: str = _option("none", "compression of bodies and snapshots", choices=COMPRESSIONS)
    segment_compression: str = _option("zstd", "compression of segments", choices=COMPRESSIONS)
    segment_rows: int = _option(500_000, "deltas in a segment, at most", least=1)
    segment_bytes: int = _option(64 << 20, "bytes of bodies in a segment, about", least=1)
    max_body_bytes: int = _option(64 << 20, "largest body or file that is accepted", least=1)
    lease: float = _option(
        300.0, "seconds a transaction that is being published lives without a sign of its writer", least=0.001
    )
    load_workers: int = _option(10, "bodies that one read loads at the same time", least=1)
    redis_timeout: float = _option(5.0, "seconds to wait for an answer of Redis", least=0.001)
    redis_connect_timeout: float = _option(5.0, "seconds to wait for a connection to Redis", least=0.001)
    redis_retries: int = _option(3, "times a call to Redis is made again after its connection failed", least=0)
    storage_timeout: float = _option(30.0, "seconds to wait for an answer of the object store", least=0.001)
    storage_connect_timeout: float = _option(5.0, "seconds to wait for a connection to the object store", least=0.001)
    storage_retries: int = _option(3, "times a call to the object store is made again", least=0)
    fsync: str = _option("always", "when file storage forces bodies to disk", choices=("always", "interval", "never"))
    snapshot_cache_url: str = _option(
        "", "Redis that caches snapshots, such as redis://host:6379/1; memory if empty", secret=True
    )
    snapshot_cache_ttl: float = _option(300.0, "seconds a cached snapshot lives after its last use", least=0)
    snapshot_cache_bytes: int = _option(64 << 20, "bytes of snapshots cached in memory, at most", least=0)
    delta_cache_ttl: float = _option(300.0, "seconds a cached delta lives", least=0)
    delta_cache_bytes: int = _option(64 << 20, "bytes of deltas cached in memory, at most", least=0)

    @classmethod
    def of(cls: type[SomeOptions], given: Mapping[str, Any]) -> SomeOptions:
        """Options from Python or Spark names; what is not given comes from the environment, else the default.

        A name that is not an option gets one warning with the nearest one that is.
        """
        known = {f.name: f for f in dataclasses.fields(cls)}
        bare = {name.replace("_", ""): name for name in known}
        values: dict[str, Any] = {}
        for name, option in known.items():
            text = os.environ.get(ENVIRONMENT_PREFIX + name.upper())
            if text is not None and option.metadata["environment"]:
                values[name] = text
        for given_name, value in given.items():
            # Spark hands its options over in lower case.
            bare_name = given_name.replace("_", "").lower()
            if bare_name in bare:
                values[bare[bare_name]] = value
            else:
                near = difflib.get_close_matches(snake_case(given_name), known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                warnings.warn(f"unknown option {given_name!r} is ignored{hint}", UserWarning, stacklevel=3)
        return cls(**{name: _coerce(known[name], value) for name, value in values.items()})


_of_a_job = partial(_option, environment=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions(Options):
    """How a Spark job reads or writes a lake: the options above, and these."""

    url: str = _option("", "the index Redis of the lake, or file:DIR; default: LAKE_URL", secret=True)
    pending: str = _option(
        "wait", "what a read does when open writes stand in its way", choices=("error", "wait", "prefix")
    )
    path: str = _of_a_job("", "read: a catalog or a pattern such as user-*, as load() takes it; write: the field path")
    catalogs: str = _of_a_job("", "read: catalogs, separated by commas")
    catalog_prefix: str = _of_a_job("", "read: only catalogs whose names begin with this")
    shards: str = _of_a_job("", "read: only these shards, such as 00,1f or 00-3f")
    updated_since: str = _of_a_job("", "read: only catalogs with a change after this TsSeq or moment")
    columns: str = _of_a_job("", "read: only these columns of the view, separated by commas")
    view: str = _of_a_job("documents", "read: what the rows are", choices=VIEWS)
    document_type: str = _of_a_job("string", "read: the type of the column document", choices=("string", "variant"))
    infer_schema: bool = _of_a_job(False, "read: take columns and types from a sample of the documents")
    sample_size: int = _of_a_job(1000, "read: documents that inferSchema looks at, at most", least=1)
    mode: str = _of_a_job(
        "PERMISSIVE",
        "read with a schema: what becomes of a document that does not fit",
        choices=("PERMISSIVE", "DROPMALFORMED", "FAILFAST"),
    )
    column_name_of_corrupt_record: str = _of_a_job(
        "_corrupt_record", "read with a schema: the column that says why a document does not fit"
    )
    as_of: str = _of_a_job("", "read: a TsSeq, or a moment in ISO 8601, to the end of its second")
    num_partitions: int = _of_a_job(0, "read: partitions, about; 0 means twice the processors", least=0)
    batch_bytes: int = _option(16 << 20, "read: bytes in an Arrow batch, about", least=1)
    catalog: str = _of_a_job("", "write: the catalog of every row that has no column for it")
    catalog_column: str = _of_a_job(
        "", "write: the column, or a template such as user-{id}, that names a row's catalog; the others are its body"
    )
    null_fields: str = _of_a_job(
        "",
        "write with catalogColumn: a null is left out, deletes the field, or is kept (default: omit for RFC7396, else "
        "keep)",
        choices=("", "omit", "delete", "keep"),
    )
    merge_type: str = _of_a_job("REPLACE", "write: the merge type of every row that has no column for it")
    order_by: str = _of_a_job(
        "", "write: columns by which a task sorts its rows, separated by commas; -name: descending"
    )
    expected_version: str = _of_a_job("", "write: commit only if every catalog written is at this TsSeq (0_0: new)")
    atomicity: str = _of_a_job(
        "job", "write: what becomes visible at once: the job, or each task by itself", choices=("job", "task")
    )
    layout: str = _of_a_job(
        "segments", "write: many deltas in a Parquet object, or an object for each", choices=("segments", "objects")
    )
    bad_records: str = _of_a_job("fail", "write: fail, or a folder for the rows that are refused, as JSON lines")
    txn_app_id: str = _of_a_job("", "write: the application whose versions apply once")
    txn_version: int = _of_a_job(-1, "write: the version that this job brings, with txnAppId", least=-1)
    metrics_path: str = _of_a_job("", "a folder to which every task and job adds a line of JSON with its figures")

    @property
    def lake(self) -> dict[str, Any]:
        """Those of them that are a lake's, not a job's."""
        return {option.name: getattr(self, option.name) for option in dataclasses.fields(Options)}


def split_url(url: str) -> tuple[str, dict[str, str]]:
    """A lake's URL without the options in its query, and those options; what is redis-py's own stays."""
    place, _, text = url.partition("?")
    query = parse_qsl(text, keep_blank_values=True)
    own = [(name, value) for name, value in query if name in _CONNECTION_PARAMETERS or name.startswith("ssl_")]
    options = {name: value for name, value in query if (name, value) not in own}
    return f"{place}?{urlencode(own)}" if own else place, options


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def camel_case(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def _coerce(option: dataclasses.Field[Any], value: Any) -> Any:
    """The value as the option's type, or an error that names the option and what it takes."""
    kind: type[Any] = type(option.default)
    shown = f"a {type(value).__name__}" if option.metadata["secret"] else repr(value)
    try:
        if kind is bool:
            return _BOOLEANS[str(value).lower()]
        if isinstance(value, bool) or (kind is str and not isinstance(value, str)):
            raise TypeError
        found = kind(value)
        # What a conversion would cut off or no clock can count to was not meant.
        if kind is not str and (not math.isfinite(found) or (isinstance(value, float) and found != value)):
            raise ValueError
    except (TypeError, ValueError, OverflowError, KeyError):
        raise ConfigError(f"option {option.name} takes {_KINDS[kind]}, not {shown}") from None
    choices, least = option.metadata["choices"], option.metadata["least"]
    if choices and found not in choices:
        raise ConfigError(f"option {option.name} is one of {', '.join(choices)}; not {shown}")
    if least is not None and found < least:
        raise ConfigError(f"option {option.name} is {least} or more; not {shown}")
    return found
