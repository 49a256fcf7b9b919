"""Secrets stay secret: in reprs, errors, tracebacks, logs, traces, warnings and pickled errors."""

from __future__ import annotations

import base64
import logging
import pickle
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
import redis
from servers import RedisServer, S3Server, TcpProxy, free_ports

from lake_spark import Lake, LakeError, MergeType
from lake_spark.cache import RedisCache
from lake_spark.client import Config
from lake_spark.client.session import Session
from lake_spark.errors import (
    ConfigError,
    CorruptObject,
    IndexDenied,
    IndexFailure,
    IndexUnavailable,
    InvalidInput,
    MergeError,
    OutcomeUnknown,
    StorageDenied,
    StorageFailure,
    StorageUnavailable,
)
from lake_spark.index import Connection, Index, TransactionIndex
from lake_spark.names import Keys
from lake_spark.options import Options
from lake_spark.storage import Codec, S3Storage
from lake_spark.trace import trace

# As awkward as passwords are: characters that a URL has to encode, and a quote that a repr escapes.
REDIS_PASSWORD = "r3dis p@ss:w/rd%'é"
CACHE_PASSWORD = "c@che-w0rds!"
AES_PASSWORD = "a3s op'en sesame"
WRONG_PASSWORD = "wr0ng-p@ssword"
ACCESS_KEY = "AKIDSOMEBODYELSE"
SECRET_KEY = "s3cr3t/key+of=somebody"
PLAIN_SECRETS = [REDIS_PASSWORD, CACHE_PASSWORD, AES_PASSWORD, WRONG_PASSWORD, ACCESS_KEY, SECRET_KEY]
PLAIN_SECRETS += [S3Server.secret_key, S3Server.access_key, S3Server.read_only_secret_key]


def spellings(secret: str) -> set[str]:
    """The ways in which a secret could be written out."""
    encoded = base64.b64encode(secret.encode()).decode().rstrip("=")
    return {
        *(secret, repr(secret)[1:-1], quote(secret), quote(secret, safe=""), quote_plus(secret), encoded),
        *(str(secret.encode())[2:-1], secret.encode("unicode_escape").decode()),
    }


SECRETS = {spelling for secret in PLAIN_SECRETS for spelling in spellings(secret)}


def assert_hidden(text: str) -> None:
    found = sorted(secret for secret in SECRETS if secret in text)
    assert not found, f"{found} in {text}"


def assert_error_hides(error: BaseException) -> None:
    """Nothing that an error shows, or that hangs on it, holds a secret."""
    assert_hidden("".join(traceback.format_exception(error)))
    seen: list[BaseException] = [error]
    while seen:
        each = seen.pop()
        assert_hidden(f"{each} {each!r} {each.args} {vars(each) if hasattr(each, '__dict__') else ''}")
        seen += [linked for linked in (each.__cause__, each.__context__) if linked is not None]
    data = pickle.dumps(error)
    assert_hidden(data.decode("latin-1"))
    again = pickle.loads(data)
    assert (type(again), str(again)) == (type(error), str(error))


def url_of(port: int, password: str = REDIS_PASSWORD) -> str:
    return f"redis://:{quote(password, safe='')}@127.0.0.1:{port}/0"


@pytest.fixture(scope="module")
def locked_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("locked"), args=("--requirepass", REDIS_PASSWORD)) as server:
        yield server


@pytest.fixture
def url(locked_redis: RedisServer) -> str:
    found = url_of(locked_redis.port)
    with redis.Redis.from_url(found) as client:
        client.flushall()
        client.config_set("maxmemory", "0")
    return found


@pytest.fixture
def bucket_config(s3_config: dict[str, str]) -> dict[str, str]:
    return {**s3_config, "AESPwd": AES_PASSWORD}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever is logged in a test, by anybody and at any level, holds no secret."""
    caplog.set_level(logging.DEBUG)
    yield
    # Not those of the setup: the client that makes buckets for the tests is none of ours.
    for record in caplog.get_records("call"):
        assert_hidden(f"{record.getMessage()} {record.args} {record.exc_text or ''}")


def test_the_check_finds_secrets() -> None:
    for secret in PLAIN_SECRETS:
        for text in (f"at {secret}.", repr([secret]), url_of(1, secret), str(secret.encode())):
            with pytest.raises(AssertionError, match="in "):
                assert_hidden(text)


def test_nothing_shows_its_secrets(url: str, bucket_config: dict[str, str]) -> None:
    cache_url = url_of(1, CACHE_PASSWORD)
    config = Config(bucket_config)
    connection = Connection(url)
    index = Index(connection, Keys("s3:test"))
    options = Options(snapshot_cache_url=cache_url)
    lake = Lake(url, config=bucket_config, snapshot_cache_url=cache_url)
    session = Session(connection, options, config, None)
    with lake:
        lake.write("users", {"a": 1})
        shown: list[object] = [
            *(lake, config, connection, index, options, session, session.codec, session.storage, session.index),
            *(TransactionIndex(index, "abcdefghijkl", 1.0), Codec("zstd", AES_PASSWORD, "test")),
            *(RedisCache(cache_url, "test", 1.0), session.snapshots, session.snapshots.cache, session.deltas),
            *(lake.get_config(), lake.list("users"), lake.cache_stats(), lake._session, lake._session.storage),
            S3Storage("bucket", endpoint="http://localhost:1", access_key=ACCESS_KEY, secret_key=SECRET_KEY),
        ]
        for each in shown:
            for text in (repr(each), str(each), f"{each}", f"{[each]}"):
                assert_hidden(text)
    session.close()


def test_work_that_goes_well_tells_no_secret(url: str, bucket_config: dict[str, str], tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with trace("everything") as steps, Lake(url, config=bucket_config, snapshot="always") as lake:
            lake.write("users", {"a": 1}, meta={"by": "alice"})
            lake.write_many([("users", {"b": 2}, "/", MergeType.RFC7396), ("others", 1)])
            lake.read_string("users")
            lake.flush()
            lake.write_file("users", "/a.txt", b"x")
            assert lake.read_file("users", "/a.txt") == b"x"
            lake.clear_history("users")
            assert lake.read_map("users") == {"a": 1, "b": 2}
        with trace("configuration") as more, Lake(url) as lake:
            lake.update_config(bucket_config)
            lake.read_string("users")
    assert len(steps.spans) > 10
    for text in (steps.dump(), more.dump(), str(steps.spans), str([str(each.message) for each in warned])):
        assert_hidden(text)


Failing = Callable[[], object]


def fails(kind: type[LakeError], call: Failing) -> LakeError:
    """The error of a call, looked at from every side; so is the trace of it."""
    with trace("failing") as steps, pytest.raises(kind) as caught:
        call()
    assert_error_hides(caught.value)
    assert_hidden(steps.dump() + str(steps.spans))
    return caught.value


def test_a_redis_that_is_not_there(file_config: dict[str, str]) -> None:
    port = free_ports(1)[0]
    for scheme in ("redis", "rediss"):
        given = url_of(port).replace("redis", scheme, 1)
        with Lake(given, config=file_config, redis_retries=0) as lake:
            fails(IndexUnavailable, lambda: lake.write("users", 1))
    with Lake(f"unix://:{quote(REDIS_PASSWORD, safe='')}@/nowhere/redis.sock", redis_retries=0) as lake:
        fails(IndexUnavailable, lambda: lake.list("users"))


def test_a_redis_that_does_not_answer(url: str, locked_redis: RedisServer, file_config: dict[str, str]) -> None:
    with TcpProxy("127.0.0.1", locked_redis.port) as proxy:
        proxy.hold()
        with Lake(url_of(proxy.port), config=file_config, redis_timeout=0.2, redis_retries=0) as lake:
            fails(IndexUnavailable, lambda: lake.write("users", 1))


def test_a_commit_whose_reply_is_lost(url: str, locked_redis: RedisServer, file_config: dict[str, str]) -> None:
    with TcpProxy("127.0.0.1", locked_redis.port) as proxy:
        with Lake(url_of(proxy.port), config=file_config, redis_timeout=0.5, redis_retries=0) as lake:
            lake.write("users", 1)
            proxy.drop_reply_to(lambda sent: b"EVALSHA" in sent and sent.count(b"users") > 0)
            fails(OutcomeUnknown, lambda: lake.write("users", 2))


@pytest.mark.parametrize("user", ["", "nobody", "default"])
def test_a_wrong_password(locked_redis: RedisServer, file_config: dict[str, str], user: str) -> None:
    given = f"redis://{user}:{quote(WRONG_PASSWORD, safe='')}@127.0.0.1:{locked_redis.port}/0"
    with Lake(given, config=file_config, snapshot_cache_url=given) as lake:
        fails(IndexDenied, lambda: lake.write("users", 1))


def test_a_redis_without_memory(url: str, file_config: dict[str, str]) -> None:
    with Lake(url, config=file_config) as lake, redis.Redis.from_url(url) as client:
        lake.write("users", 1)
        client.config_set("maxmemory", "1")
        fails(IndexDenied, lambda: lake.write("users", 1))
        client.config_set("maxmemory", "0")


def test_a_key_of_another_type(url: str, file_config: dict[str, str]) -> None:
    with Lake(url, config=file_config) as lake, redis.Redis.from_url(url) as client:
        client.set("file:test:delta:dXNlcnM", "x")
        fails(IndexFailure, lambda: lake.write("users", 1))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"Endpoint": f"http://127.0.0.1:{free_ports(1)[0]}"}, StorageUnavailable),
        ({"Bucket": "lake-that-is-not-there"}, StorageDenied),
        ({"AccessKey": ACCESS_KEY, "SecretKey": SECRET_KEY}, StorageDenied),
        ({"SecretKey": SECRET_KEY}, StorageDenied),
        ({"AccessKey": S3Server.read_only_access_key, "SecretKey": S3Server.read_only_secret_key}, StorageDenied),
    ],
    ids=["endpoint", "bucket", "access key", "secret key", "rights"],
)
def test_a_bucket_that_takes_nothing(
    url: str, bucket_config: dict[str, str], changes: dict[str, str], kind: type[LakeError]
) -> None:
    options: dict[str, Any] = {"storage_timeout": 1.0, "storage_connect_timeout": 0.5, "storage_retries": 0}
    with Lake(url, config={**bucket_config, **changes}, **options) as lake:
        fails(kind, lambda: lake.write("users", 1))
        fails(kind, lambda: lake.write_many([("users", 1)]))
        fails(kind, lambda: lake.write_file("users", "/a", b""))
        storage = lake._session.storage
        assert isinstance(storage, S3Storage)
        fails(StorageFailure, lambda: storage.put("key", b"x"))


def test_a_snapshot_that_cannot_be_saved(
    url: str, bucket_config: dict[str, str], s3_server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    with Lake(url, config=bucket_config) as lake:
        lake.write("users", 1)
    reader = {"AccessKey": s3_server.read_only_access_key, "SecretKey": s3_server.read_only_secret_key}
    with Lake(url, config={**bucket_config, **reader}, snapshot="always") as lake:
        lake.read_string("users")
        lake.flush()
    assert "a snapshot of 'users' was not saved" in caplog.text, "what is logged is looked at after every test"


def test_a_cache_that_is_not_there(
    url: str, file_config: dict[str, str], caplog: pytest.LogCaptureFixture, locked_redis: RedisServer
) -> None:
    for cache in (url_of(free_ports(1)[0], CACHE_PASSWORD), url_of(locked_redis.port, WRONG_PASSWORD)):
        with Lake(url, config=file_config, snapshot="always", snapshot_cache_url=cache) as lake:
            lake.write("users", {"a": 1})
            lake.read_string("users")
            lake.flush()
            lake.read_string("users")
    assert "cache Redis" in caplog.text


def test_an_object_under_another_password(url: str, file_config: dict[str, str]) -> None:
    with Lake(url, config={**file_config, "AESPwd": AES_PASSWORD}) as lake:
        lake.write("users", {"a": 1})
    for password in (WRONG_PASSWORD, ""):
        with Lake(url, config={**file_config, "AESPwd": password}) as lake:
            fails(CorruptObject, lambda: lake.read_string("users"))


def test_a_delta_that_cannot_be_applied(url: str, file_config: dict[str, str]) -> None:
    with Lake(url, config={**file_config, "AESPwd": AES_PASSWORD}) as lake:
        lake.write("users", [{"op": "remove", "path": "/a"}], merge=MergeType.RFC6902)
        fails(MergeError, lambda: lake.read_string("users"))
        fails(InvalidInput, lambda: lake.write("users", b"{"))


QUOTED = quote(REDIS_PASSWORD, safe="")


@pytest.mark.parametrize(
    "given",
    [
        f"http://:{QUOTED}@localhost:6379/0",
        f"redis://:{QUOTED}@localhost:port/0",
        f"redis://:{QUOTED}@localhost:6379/zero",
        f"redis://:{QUOTED}@localhost:99999",
        f"redis://:{QUOTED}@",
        f"redis:/:{QUOTED}@localhost",
        f":{QUOTED}@localhost:6379",
        f"redis+sentinel://:{QUOTED}@",
        f"redis://:{REDIS_PASSWORD}@localhost:6379/0",
    ],
)
def test_a_malformed_url(given: str) -> None:
    fails(ConfigError, lambda: Lake(given))


def test_wrong_options_and_settings(url: str) -> None:
    cache = url_of(1, CACHE_PASSWORD)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        Lake(url, snapshotCacheUri=cache, AESPwd=AES_PASSWORD, SecretKey=SECRET_KEY)
    assert len(warned) == 3
    assert_hidden(str([str(each.message) for each in warned]))
    fails(ConfigError, lambda: Lake(url, snapshot_cache_url=cache.encode()))
    fails(ConfigError, lambda: Lake(url, snapshot_cache_url=[cache]))
    fails(ConfigError, lambda: Lake(url, config={"AESPwd": AES_PASSWORD.encode()}))
    fails(ConfigError, lambda: Lake(url, config={"AESPassword": AES_PASSWORD}))
    fails(ConfigError, lambda: Lake(url, config={"AESPwd": AES_PASSWORD, "Storage": "tape"}))
    bucket = {"Storage": "s3", "Bucket": "bucket", "AESPwd": AES_PASSWORD}
    for wrong in (
        {"SecretKey": SECRET_KEY},
        {"AccessKey": ACCESS_KEY},
        {"Endpoint": f"http://{ACCESS_KEY}:{quote(SECRET_KEY, safe='')}@localhost:1"},
    ):
        with Lake(url, config={**bucket, **wrong}) as lake:
            fails(ConfigError, lambda: lake.list("users"))
    with Lake(url, config={"Storage": "memory"}, snapshot_cache_url=cache.replace("redis", "http", 1)) as lake:
        fails(ConfigError, lambda: lake.list("users"))


def test_a_setting_that_cannot_be_read(url: str) -> None:
    with redis.Redis.from_url(url) as client, Lake(url) as lake:
        for text in (
            f'{{"AESPwd":"{AES_PASSWORD}"',
            f'{{"AESPwd":"{AES_PASSWORD}" "SecretKey":"{SECRET_KEY}"}}',
            f'["{SECRET_KEY}"]',
            f'"{SECRET_KEY}"',
            f'{{"AESPwd":["{AES_PASSWORD}"]}}',
            f'{{"n":-0,"AESPwd":"{AES_PASSWORD}\\ud800"}}',
        ):
            client.set("lake.setting", text.encode())
            fails(ConfigError, lake.get_config)
            fails(ConfigError, lambda: lake.write("users", 1))


def test_memory_that_stands_in(url: str) -> None:
    # A database of its own: the fallback is remembered by URL.
    with pytest.warns(UserWarning, match="has no lake.setting") as warned, Lake(url.removesuffix("0") + "1") as lake:
        lake.write("users", 1)
    assert_hidden(str(warned[0].message))
