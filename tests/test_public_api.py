"""What others build on: names, signatures, errors, and what travels to other processes."""

from __future__ import annotations

import inspect
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from servers import TcpProxy, free_ports

import lake_spark
import lake_spark.client
import lake_spark.storage
from lake_spark import Lake, LakeError, MergeType, TsSeq, errors
from lake_spark.client import Cleared, Config
from lake_spark.errors import ConfigError, IndexUnavailable, PendingError, StorageFailure
from lake_spark.index import Block, CatalogRun, Connection, Index, OpenWrite, SnapshotClaim, TransactionIndex
from lake_spark.model import Delta, Listing, Pending, Run, Snapshot
from lake_spark.names import Keys
from lake_spark.options import Options
from lake_spark.storage import Codec, FileStorage, MemoryStorage, S3Storage

DEAD = f"redis://127.0.0.1:{free_ports(1)[0]}/0"


def test_the_package_exports() -> None:
    assert lake_spark.__all__ == ["Lake", "LakeError", "MergeType", "TsSeq", "errors", "register"]
    assert lake_spark.client.__all__ == ["Cleared", "Config", "Lake"]
    storage = ["Codec", "FileStorage", "MemoryStorage", "S3Storage", "Storage", "StoredObject"]
    assert lake_spark.storage.__all__ == storage
    for module in (lake_spark, lake_spark.client, lake_spark.storage):
        for name in module.__all__:
            assert getattr(module, name).__doc__, name


SIGNATURES = {
    "__init__": "(url=None, *, storage=None, config=None, **options)",
    "write": "(catalog, body, *, path='/', merge=REPLACE, meta=None)",
    "write_many": "(rows)",
    "list": "(catalog, *, strict_pending=False, as_of=None)",
    "read_bytes": "(target, *, pending=None)",
    "read_string": "(target, *, pending=None)",
    "read_map": "(target, *, pending=None)",
    "read": "(target, kind, *, pending=None)",
    "catalogs": "(prefix='')",
    "meta": "(catalog)",
    "batch_meta": "(catalogs)",
    "write_file": "(catalog, path, data, *, meta=None)",
    "read_file": "(catalog, path)",
    "file_exists": "(catalog, path)",
    "files_and_meta": "(catalog)",
    "motion_sample": "(catalog, indicator, motion_catalogs, should_update, callback)",
    "clear_history": "(catalog, keep_snaps=0, dry_run=False)",
    "remove_delta": "(catalog, ts_seq)",
    "get_config": "()",
    "update_config": "(cfg)",
    "cache_stats": "()",
    "flush": "()",
    "close": "()",
}


def signature(method: Any) -> str:
    found = inspect.signature(method)
    plain = [
        each.replace(annotation=inspect.Parameter.empty) for name, each in found.parameters.items() if name != "self"
    ]
    text = str(inspect.Signature(plain))
    return re.sub(r"<MergeType\.(\w+): \d>|MergeType\.(\w+)", lambda match: match[1] or match[2], text)


def test_the_methods_of_a_lake() -> None:
    public = {
        name: signature(method)
        for name, method in vars(Lake).items()
        if callable(method) and (not name.startswith("_") or name == "__init__")
    }
    assert public == SIGNATURES
    for name in public:
        assert name == "__init__" or getattr(Lake, name).__doc__, f"{name} says nothing about itself"


def test_merge_types_have_the_numbers_that_are_stored() -> None:
    assert {kind.name: kind.value for kind in MergeType} == {"REPLACE": 1, "RFC7396": 2, "RFC6902": 3}


# Errors

CLASSES = [
    each
    for each in vars(errors).values()
    if inspect.isclass(each) and issubclass(each, BaseException) and each.__module__ == errors.__name__
]
RETRYABLE = {"PendingError", "FencedError", "IndexUnavailable", "StorageUnavailable"}
BUILTINS = (ValueError, LookupError, ConnectionError, PermissionError)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_is_a_lake_error_that_knows_whether_to_retry(kind: type[LakeError]) -> None:
    assert issubclass(kind, LakeError)
    assert kind.retryable is (kind.__name__ in RETRYABLE)
    assert kind.__doc__


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_survives_a_pickle(kind: type[LakeError]) -> None:
    error = kind("catalog 'users' at 1700000000_1: try again")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), again.args, again.retryable) == (str(error), error.args, error.retryable)
    assert str(error) == "catalog 'users' at 1700000000_1: try again", "a KeyError would quote it"


def drawn() -> Iterator[tuple[str, str, str]]:
    """Name, parent and builtin of every error in the tree that the module's docstring draws."""
    way: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"([│├└─ ]*)([A-Z]\w+)(?: \((\w+)\))?", line)
        if match and (match[1] or match[2] == "LakeError"):
            depth = len(match[1]) // 4
            way[depth:] = [match[2]]
            yield match[2], way[depth - 1] if depth else "", match[3] or ""


def test_the_tree_of_errors_is_as_it_is_drawn() -> None:
    wanted = {}
    for kind in CLASSES:
        bases = [base.__name__ for base in kind.__bases__]
        also = [name for name in bases[1:] if name in {each.__name__ for each in BUILTINS}]
        parent = "" if kind is LakeError else bases[0]
        wanted[kind.__name__] = (parent, also[0] if also else "")
    assert {name: (parent, also) for name, parent, also in drawn()} == wanted


def test_what_the_tree_calls_retryable_is() -> None:
    text = errors.__doc__ or ""
    assert {name for name in wanted_names() if re.search(rf"{name}\b.*\(retryable", text)} == RETRYABLE


def wanted_names() -> list[str]:
    return [kind.__name__ for kind in CLASSES]


# What travels to other processes


def values(tmp_path: Path) -> dict[str, Any]:
    connection = Connection(DEAD)
    index = Index(connection, Keys("file:test"), 60.0)
    ts_seq = TsSeq(1700000000, 1)
    delta = Delta(ts_seq, MergeType.RFC7396, "/a")
    run = Run(ts_seq, 3, "abcdefghijkl.0.0", 7)
    snapshot = Snapshot(TsSeq(0, 0), ts_seq, "0123456789abcdef")
    error = PendingError("an open write")
    return {
        "TsSeq": ts_seq,
        "MergeType": MergeType.RFC6902,
        "Delta": delta,
        "Run": run,
        "Pending": Pending(ts_seq, 1.5, "abcdefghijkl"),
        "Snapshot": snapshot,
        "Listing": Listing("users", snapshot, (delta, run), (Pending(ts_seq, 1.0),), None, ts_seq, True, (b"member",)),
        "Options": Options(compression="zstd", lease=5.0),
        "Config": Config({"Name": "test", "Storage": "file", "BasePath": str(tmp_path), "AESPwd": "words"}),
        "Cleared": Cleared("users", ts_seq, 1, 2, ("key",)),
        "Keys": index.keys,
        "Connection": connection,
        "Index": index,
        "TransactionIndex": TransactionIndex(index, "abcdefghijkl", 300.0, "app", 7),
        "Block": Block("9b", "abcdefghijkl.0.0", [CatalogRun("users", 0, 3, ts_seq)]),
        "OpenWrite": OpenWrite("users", MergeType.REPLACE, "/", ts_seq, "token"),
        "SnapshotClaim": SnapshotClaim("users", snapshot, "0123456789abcdef"),
        "error": error.args,
    }


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_values_travel(tmp_path: Path, protocol: int) -> None:
    for name, value in values(tmp_path).items():
        assert pickle.loads(pickle.dumps(value, protocol)) == value, name


def test_a_listing_travels_with_its_error() -> None:
    listing = Listing("users", error=PendingError("an open write"))
    again = pickle.loads(pickle.dumps(listing))
    assert isinstance(again.error, PendingError)
    assert str(again.error) == "an open write"


def test_a_codec_travels_with_its_password() -> None:
    codec = Codec("gzip", "open sesame", "test")
    again = pickle.loads(pickle.dumps(codec))
    assert again.decode("key", codec.encode("key", b"[1,2]")) == b"[1,2]"


def test_storages_travel_without_connections(tmp_path: Path) -> None:
    for storage in (
        FileStorage(tmp_path, fsync="interval"),
        S3Storage("my-lake", endpoint="http://localhost:9000", access_key="a", secret_key="b", base_path="x"),
    ):
        again = pickle.loads(pickle.dumps(storage))
        assert type(again) is type(storage)
        assert repr(again) == repr(storage)
        assert again.__getstate__() == storage.__getstate__()
    with pytest.raises(StorageFailure, match="objects in memory cannot be shared with another process"):
        pickle.dumps(MemoryStorage())


def test_a_lake_travels_without_its_connections(redis_url: str, config: dict[str, Any]) -> None:
    with Lake(redis_url, config=config, compression="zstd", snapshot="never") as lake:
        lake.write("users", {"a": 1})
        data = pickle.dumps(lake)
        again = pickle.loads(data)
        assert again._resolved is None
        assert again._options == lake._options
        with again:
            assert again.read_map("users") == {"a": 1}


def test_a_used_index_travels_without_its_client(redis_url: str) -> None:
    index = Index(Connection(redis_url), Keys("file:test"))
    index.listing("users")
    again = pickle.loads(pickle.dumps(index))
    assert again == index
    assert again.listing("users") == index.listing("users")
    index.connection.close()


# Making a lake


def test_making_a_lake_connects_to_nothing(redis_url: str, tmp_path: Path) -> None:
    with redis.Redis.from_url(redis_url) as client:
        port = client.connection_pool.connection_kwargs["port"]
    with TcpProxy("127.0.0.1", port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        bucket = {"Storage": "s3", "Bucket": "b", "Endpoint": url.replace("redis", "http").removesuffix("/0")}
        for config in (None, {"Storage": "file", "BasePath": str(tmp_path / "lake")}, bucket):
            lake = Lake(url, config=config, snapshot_cache_url=url)
            repr(lake)
            pickle.loads(pickle.dumps(lake))
            lake.flush()
            lake.close()
        assert proxy.connections == 0
    assert not (tmp_path / "lake").exists()


def test_a_lake_at_a_dead_port_fails_at_its_first_call() -> None:
    with Lake(DEAD, redis_retries=0) as lake, pytest.raises(IndexUnavailable):
        lake.list("users")


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            " ",
            "http://localhost:6379",
            "redis://",
            "redis:///0",
            "redis://localhost:port",
            "redis://localhost:99999",
        ),
        *(
            "redis://localhost/zero",
            "redis://localhost/0/1",
            "localhost:6379:1",
            "local host",
            "redis//localhost",
            ":6379",
        ),
    ],
)
def test_a_malformed_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigError, match=r"redis://"):
        Lake(url)


@pytest.mark.parametrize("url", [5, b"redis://localhost", ["localhost"], {}])
def test_a_url_is_text(url: Any) -> None:
    with pytest.raises(ConfigError, match=f"a lake URL is text, not {type(url).__name__}"):
        Lake(url)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("localhost", "localhost:6379"),
        ("localhost:7000", "localhost:7000"),
        ("localhost:7000/3", "localhost:7000"),
        ("redis://localhost", "localhost:6379"),
        ("rediss://user:words@localhost:7000/1", "localhost:7000"),
        ("unix:///run/redis.sock", "/run/redis.sock"),
        ("redis+sentinel://localhost:26379/mymaster/0", "localhost:26379"),
    ],
)
def test_a_lake_shows_where_it_is(url: str, place: str) -> None:
    assert repr(Lake(url)) == f"Lake('{place}')"


def test_the_environment_names_the_lake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_URL", "redis://elsewhere:7000/0")
    assert repr(Lake()) == "Lake('elsewhere:7000')"
    assert repr(Lake("localhost")) == "Lake('localhost:6379')"


def test_a_lake_without_a_url_fails_at_its_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAKE_URL", raising=False)
    lake = Lake()
    assert repr(lake) == "Lake('nowhere')"
    for call in (lake.get_config, lambda: lake.list("users"), lambda: lake.write("users", 1)):
        with pytest.raises(ConfigError, match=r"no lake was named: pass a URL .* or set LAKE_URL"):
            call()
    lake.close()
