"""Lake: the client of one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from lake_spark.cache import CacheStats
from lake_spark.client import files, history, reading, transaction, writing
from lake_spark.client.session import Session, read_config
from lake_spark.client.settings import Config
from lake_spark.errors import ConfigError, InvalidBody, InvalidInput, InvalidTsSeq
from lake_spark.index import Connection, check_url, write_setting
from lake_spark.merge import loads
from lake_spark.model import Listing, MergeType, TsSeq
from lake_spark.names import check_catalog, check_file_path
from lake_spark.options import Options, split_url
from lake_spark.storage import Storage
from lake_spark.storage.base import ForkSafeLock
from lake_spark.trace import span

T = TypeVar("T")
Target = Listing | str
Moment = TsSeq | datetime | str | int | float

_PENDING = ("error", "wait", "prefix")


class Lake:
    """JSON documents, each kept as an ordered log of changes.

    `url` is the index Redis (`redis://`, `rediss://`, `unix://`, `redis+sentinel://` or `host:port`; default:
    the environment's LAKE_URL); its query may hold options, as in `?pending=wait`. Bodies go to `storage`, else
    to what `config` describes, else to what `lake.setting` in Redis describes, else to memory with a warning.
    Making a Lake connects to nothing.
    Thread-safe, usable after a fork, picklable without its connections.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        storage: Storage | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        url = url if url is not None else os.environ.get("LAKE_URL")
        if url is not None and not isinstance(url, str):
            raise ConfigError(f"a lake URL is text, not {type(url).__name__}")
        self._url: str | None = None
        in_url: dict[str, str] = {}
        if url is not None:
            self._url, in_url = split_url(check_url(url))
        self._options = Options.of({**in_url, **options})
        self._storage = storage
        self._config = None if config is None else Config(config)
        self._start()

    def _start(self) -> None:
        self._lock = ForkSafeLock()
        self._resolved: tuple[int, Session] | None = None

    # Writing

    def write(
        self,
        catalog: str,
        body: object,
        *,
        path: str = "/",
        merge: MergeType | int | str = MergeType.REPLACE,
        meta: object = None,
    ) -> TsSeq:
        """Write a change and return its TsSeq; every later read has it.

        `bytes` are JSON as it is; any other value is encoded. `meta` (a JSON object) is merged into the
        catalog's meta key by key; null removes a key.
        """
        change = writing.check_change(self._options.max_body_bytes, catalog, body, path, merge, meta)
        return writing.write(self._session, change)

    def write_many(self, rows: Iterable[Mapping[str, Any] | Sequence[Any]]) -> Sequence[TsSeq]:
        """Write many changes, all or none of them; the TsSeq of each.

        A row is a mapping with `catalog`, `body` and, where wanted, `path`, `merge` and `meta`, or a sequence
        of them in this order. Every row is checked before anything of it is stored.
        """
        return transaction.write_many(self._session, map(self._change, enumerate(rows)))

    def _change(self, row: tuple[int, Mapping[str, Any] | Sequence[Any]]) -> writing.Change:
        number, given = row
        try:
            return writing.change_of_row(self._options.max_body_bytes, given)
        except InvalidInput as error:
            raise type(error)(f"row {number}: {error}") from None

    # Reading

    def list(self, catalog: str, *, strict_pending: bool = False, as_of: Moment | None = None) -> Listing:
        """One atomic view of a catalog's log. Open writes are in the listing (`has_pending`, `error`), not raised.

        An open write counts when something committed stands behind it; with `strict_pending`, always.
        `as_of` is a TsSeq or a moment (to the end of its second).
        """
        check_catalog(catalog)
        return reading.list_catalog(
            self._session, catalog, strict_pending=strict_pending, as_of=None if as_of is None else version_at(as_of)
        )

    def read_bytes(self, target: Target, *, pending: str | None = None) -> bytes:
        """The document as JSON."""
        document = self._read(target, pending)
        body = reading.dump(document)
        reading.save_snapshot_later(self._session, document, body)
        return body

    def read_string(self, target: Target, *, pending: str | None = None) -> str:
        """The document as JSON text."""
        return self.read_bytes(target, pending=pending).decode()

    def read_map(self, target: Target, *, pending: str | None = None) -> dict[str, Any]:
        """The document as a dict. Decimals that a float cannot hold are floats that remember their digits."""
        value = loads(self.read_bytes(target, pending=pending))
        if not isinstance(value, dict):
            raise InvalidInput(f"the document of catalog {_name(target)!r} is no object: use read_bytes or read_string")
        return value

    def read(self, target: Target, kind: type[T], *, pending: str | None = None) -> T:
        """The document as a dataclass, TypedDict, msgspec Struct, pydantic model, or any type msgspec knows."""
        body = self.read_bytes(target, pending=pending)
        validate = getattr(kind, "model_validate_json", None)
        try:
            value: T = validate(body) if validate else msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, ValueError) as error:
            raise InvalidBody(f"the document of catalog {_name(target)!r} is no {kind.__name__}: {error}") from None
        return value

    def _read(self, target: Target, pending: str | None) -> reading.Document:
        pending = self._options.pending if pending is None else pending
        if pending not in _PENDING:
            raise InvalidInput(f"pending is one of {', '.join(_PENDING)}; not {pending!r}")
        listing = target if isinstance(target, Listing) else self.list(target)
        return reading.read(self._session, listing, pending)

    def catalogs(self, prefix: str = "") -> Iterator[str]:
        """The names of the catalogs that exist, in no order."""
        return (listing.catalog for listing in reading.existing(self._session, _text("prefix", prefix)))

    # Meta, files, samples

    def meta(self, catalog: str) -> dict[str, Any]:
        """The catalog's meta."""
        return self.batch_meta([catalog])[catalog]

    def batch_meta(self, catalogs: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The meta of several catalogs, in one round trip."""
        names = _catalogs(catalogs)
        index = self._session.index
        found = index.fields([index.keys.meta(name) for name in names]) if names else ()
        return {
            name: {key: loads(text) for key, text in sorted(fields.items())}
            for name, fields in zip(names, found, strict=True)
        }

    def write_file(self, catalog: str, path: str, data: bytes, *, meta: object = None) -> None:
        """Store a file beside the document, with meta of its own; one that is there is replaced."""
        files.write_file(self._session, catalog, path, data, meta)

    def read_file(self, catalog: str, path: str) -> bytes:
        """A file's bytes."""
        return files.read_file(self._session, catalog, path)

    def file_exists(self, catalog: str, path: str) -> bool:
        """Whether the catalog has that file."""
        return check_file_path(path) in self.files_and_meta(catalog)

    def files_and_meta(self, catalog: str) -> dict[str, Any]:
        """The catalog's files: path → meta."""
        return files.files_and_meta(self._session, catalog)

    def motion_sample(
        self,
        catalog: str,
        indicator: str,
        motion_catalogs: Iterable[str],
        should_update: Callable[[float, float], bool] | None,
        callback: Callable[[Sequence[str]], object],
    ) -> float:
        """Sample an indicator of a catalog when the catalogs that it depends on have moved.

        `should_update(last, newest)` gets the timestamps of the last sample and of the newest change and decides
        (None: whenever something is newer). `callback(changed)` gets the catalogs that changed since the last
        sample; when it returns, the sample is noted. Returns the timestamp of the last sample.
        """
        index = self._session.index
        names = _catalogs(motion_catalogs)
        last = index.last_sample(check_catalog(catalog), _text("indicator", indicator))
        versions = {listing.catalog: listing.version for listing in index.listings(names) if listing.exists}
        newest = max(versions.values(), default=None)
        if newest is None or not (should_update or (lambda before, now: now > before))(last, float(newest.score)):
            return last
        callback([name for name, version in versions.items() if float(version.score) > last])
        return index.sample(catalog, indicator, newest)

    # History

    def clear_history(self, catalog: str, keep_snaps: int = 0, dry_run: bool = False) -> history.Cleared:
        """Forget history, keeping the newest `keep_snaps` snapshots (at least one) and all that follows them.

        A snapshot of the current document is made first. With `dry_run` nothing changes: the answer says what
        clearing up to the snapshots that exist would remove.
        """
        return history.clear_history(self._session, check_catalog(catalog), keep_snaps, dry_run=dry_run)

    def remove_delta(self, catalog: str, ts_seq: TsSeq | str | float) -> None:
        """Take a delta out of the log, such as one that cannot be applied."""
        history.remove_delta(self._session, check_catalog(catalog), TsSeq.parse(ts_seq))

    # Configuration

    def get_config(self) -> Config:
        """The lake's configuration: the one given to this Lake, else the one in Redis."""
        if self._config is not None:
            return self._config
        return read_config(self._connection) or Config({})

    def update_config(self, cfg: Mapping[str, Any]) -> Config:
        """Set names of the configuration in Redis (an empty value removes a name) and use it from now on."""
        connection = self._connection
        config = Config({**(read_config(connection) or {}), **cfg})
        write_setting(connection, config.dump())
        self.close()
        self._config = None
        return config

    def cache_stats(self) -> dict[str, CacheStats]:
        """Hits and misses of the caches of this process."""
        return self._session.cache_stats()

    # Life

    @property
    def _connection(self) -> Connection:
        if self._url is None:
            raise ConfigError("no lake was named: pass a URL such as redis://localhost:6379, or set LAKE_URL")
        options = self._options
        return Connection(self._url, options.redis_timeout, options.redis_connect_timeout, options.redis_retries)

    @property
    def _session(self) -> Session:
        resolved = self._resolved
        if resolved is None or resolved[0] != os.getpid():
            with self._lock:
                resolved = self._resolved
                if resolved is None or resolved[0] != os.getpid():
                    with span("Init"):
                        session = Session(self._connection, self._options, self._config, self._storage)
                    resolved = self._resolved = (os.getpid(), session)
        return resolved[1]

    def flush(self) -> None:
        """Wait for the snapshots that are being saved."""
        if self._resolved and self._resolved[0] == os.getpid():
            self._resolved[1].flush()

    def close(self) -> None:
        """Finish what is being saved and let go of connections; the next call makes new ones."""
        with self._lock:
            resolved, self._resolved = self._resolved, None
        if resolved and resolved[0] == os.getpid():
            resolved[1].close()
            self._connection.close()

    def __enter__(self) -> Lake:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        names = ("_url", "_options", "_storage", "_config")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def __repr__(self) -> str:
        place = self._connection.place if self._url else "nowhere"
        return f"Lake({place!r})"


def version_at(moment: Moment) -> TsSeq:
    """A TsSeq, also as text or as a score; else a moment (datetime, seconds, ISO 8601), to the end of its second."""
    if isinstance(moment, TsSeq):
        return moment
    if isinstance(moment, float) and not moment.is_integer():
        return TsSeq.parse(moment)
    at = moment
    try:
        if isinstance(at, str):
            try:
                return TsSeq.parse(at)
            except InvalidTsSeq:
                at = datetime.fromisoformat(at.replace("Z", "+00:00"))
        if isinstance(at, bool) or not isinstance(at, (datetime, int, float)):
            raise TypeError
        version = TsSeq.end_of(at)
        if version.seconds < 1:
            raise ValueError
    except (TypeError, ValueError, OverflowError, OSError):
        raise InvalidTsSeq(
            f"there is no version as of {moment!r} (expected a TsSeq such as 1700000000_1, a time from 1970 to 2999 "
            "such as 2024-01-31T12:00:00, or its seconds)"
        ) from None
    return version


def _catalogs(names: Iterable[str]) -> list[str]:
    if isinstance(names, (str, bytes)):
        raise InvalidInput(f"expected several catalogs, such as [{names!r}], not one")
    return [check_catalog(name) for name in names]


def _text(what: str, value: str) -> str:
    try:
        value.encode()
    except (AttributeError, UnicodeEncodeError):
        raise InvalidInput(f"{what} is text, not {value!r}") from None
    return value


def _name(target: Target) -> str:
    return target if isinstance(target, str) else target.catalog
