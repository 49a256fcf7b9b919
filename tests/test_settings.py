"""The lake's configuration: given, kept in Redis, or missing."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from servers import RedisServer

from lake_spark import Lake
from lake_spark.client import Config
from lake_spark.client.settings import NAMES, STORAGES, storage_of
from lake_spark.errors import ConfigError, IndexFailure
from lake_spark.options import Options
from lake_spark.storage import FileStorage, MemoryStorage, S3Storage, Storage

BUCKET = {"Bucket": "my-lake", "Endpoint": "http://localhost:9000", "AccessKey": "key", "SecretKey": "words"}


@pytest.fixture
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis at a URL that no other test has used: the fallback to memory is remembered by URL."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


def put_setting(url: str, value: object) -> None:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    with redis.Redis.from_url(url) as client:
        client.set("lake.setting", text)


def setting(url: str) -> Any:
    with redis.Redis.from_url(url) as client:
        return json.loads(client.get("lake.setting") or b"null")


# What a configuration may hold


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("storage", "did you mean Storage?"),
        ("BucketName", "did you mean Bucket?"),
        ("AESPassword", "AESPwd"),
        ("x", ""),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown name '{name}' in the lake's configuration") as caught:
        Config({name: "value"})
    assert (hint or f"known are {', '.join(NAMES)}") in str(caught.value)
    assert "value" not in str(caught.value)


@pytest.mark.parametrize("value", ["", "Memory", "gcs", "file:///x"])
def test_an_unknown_storage_is_refused_with_those_that_are_known(value: str) -> None:
    if value == "":
        assert "Storage" not in Config({"Storage": value}), "an empty value is none"
        return
    with pytest.raises(ConfigError, match="Storage in the lake's configuration is one of") as caught:
        Config({"Storage": value})
    assert ", ".join(STORAGES) in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [None, 1, True, b"text", ["text"], {}])
def test_what_is_no_text_is_refused_without_being_shown(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} in the lake's configuration is text, not {type(value).__name__}"):
        Config({name: value})


@pytest.mark.parametrize("value", ["a:b", ":", "a\nb", "a\x00"])
def test_a_name_fits_into_redis_keys(value: str) -> None:
    with pytest.raises(ConfigError, match="Name in the lake's configuration has no colon and is printable") as caught:
        Config({"Name": value})
    assert repr(value) in str(caught.value)


def test_a_folder_may_be_a_path(tmp_path: Path) -> None:
    assert Config({"Storage": "file", "BasePath": tmp_path})["BasePath"] == str(tmp_path)


def test_a_configuration_is_a_mapping_that_hides_its_secrets() -> None:
    config = Config({"Storage": "s3", **BUCKET, "AESPwd": "open sesame", "Region": ""})
    assert dict(config) == {"Storage": "s3", **BUCKET, "AESPwd": "open sesame"}
    assert len(config) == 6
    assert config == Config(dict(config)) == pickle.loads(pickle.dumps(config))
    assert Config.parse(config.dump()) == config
    shown = repr(config)
    assert shown == str(config)
    assert "my-lake" in shown
    for name in ("AccessKey", "SecretKey", "AESPwd"):
        assert config[name] not in shown
        assert f"'{name}': '***'" in shown


# The storage that it describes


@pytest.mark.parametrize(
    ("given", "kind", "described"),
    [
        ({}, MemoryStorage, "MemoryStorage(0 objects)"),
        ({"Storage": "memory"}, MemoryStorage, "MemoryStorage(0 objects)"),
        ({"Storage": "file", "BasePath": "/data/lake"}, FileStorage, "FileStorage('/data/lake', fsync='never')"),
        ({"Storage": "local", "BasePath": "/data/lake"}, FileStorage, "FileStorage('/data/lake', fsync='never')"),
        ({"Storage": "s3", **BUCKET}, S3Storage, "S3Storage('my-lake', kind='s3', host='localhost:9000')"),
        (
            {"Storage": "s3", **BUCKET, "BasePath": "/a/b/"},
            S3Storage,
            "S3Storage('my-lake', kind='s3', host='localhost:9000', base_path='a/b')",
        ),
        (
            {"Storage": "s3", "Bucket": "my-lake", "Region": "eu-west-1"},
            S3Storage,
            "S3Storage('my-lake', kind='s3', host='s3.eu-west-1.amazonaws.com:443')",
        ),
        (
            {"Storage": "oss", **BUCKET, "Endpoint": "oss-cn-hangzhou"},
            S3Storage,
            "S3Storage('my-lake', kind='oss', host='my-lake.oss-cn-hangzhou.aliyuncs.com:443')",
        ),
    ],
)
def test_a_configuration_describes_a_storage(
    given: dict[str, str], kind: type[Storage], described: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    storage = storage_of(Config(given), Options(fsync="never"))
    assert type(storage) is kind
    assert repr(storage) == described


def test_file_and_local_are_one_kind_of_storage(redis_url: str, tmp_path: Path) -> None:
    """So a lake that Lake V2 calls local keeps its Redis keys when it is called file."""
    config = {"Name": "same", "BasePath": str(tmp_path)}
    with Lake(redis_url, config={**config, "Storage": "local"}) as one:
        one.write("users", {"a": 1})
    with Lake(redis_url, config={**config, "Storage": "file"}) as other:
        assert other.read_map("users") == {"a": 1}


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"Storage": "file"}, "BasePath"),
        ({"Storage": "local"}, "BasePath"),
        ({"Storage": "s3"}, "Bucket"),
        ({"Storage": "s3", "Bucket": ""}, "Bucket"),
        ({"Storage": "oss", "Endpoint": "oss-cn-hangzhou"}, "Bucket"),
        ({"Storage": "oss", "Bucket": "my-lake"}, "Endpoint"),
    ],
)
def test_what_a_storage_needs_is_named(given: dict[str, str], missing: str, redis_url: str) -> None:
    message = f"the lake's configuration has Storage='{given['Storage']}' but no {missing}"
    with pytest.raises(ConfigError, match=message):
        storage_of(Config(given), Options())
    with Lake(redis_url, config=given) as lake, pytest.raises(ConfigError, match=message):
        lake.write("users", 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"Endpoint": "localhost:9000"}, "not an endpoint"),
        ({"Endpoint": "http://user:words@localhost:9000"}, "an endpoint holds no credentials"),
        ({"Bucket": "My Lake"}, "not a bucket name: 'My Lake'"),
        ({"SecretKey": ""}, "give both an access key and a secret key, or neither"),
        ({"AccessKey": ""}, "give both an access key and a secret key, or neither"),
    ],
)
def test_a_bucket_that_cannot_be_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        storage_of(Config({"Storage": "s3", **BUCKET, **given}), Options())
    assert "words" not in str(caught.value)


def test_the_options_of_a_bucket_reach_its_storage() -> None:
    options = Options(storage_timeout=7.0, storage_connect_timeout=3.0, storage_retries=1)
    storage = storage_of(Config({"Storage": "s3", **BUCKET}), options)
    assert isinstance(storage, S3Storage)
    assert storage._limits == (7.0, 3.0, 1)


# The setting in Redis


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "lake.setting in Redis is not JSON"),
        (b"{", "lake.setting in Redis is not JSON"),
        (b"Storage=file", "lake.setting in Redis is not JSON"),
        (b'{"AESPwd":"open sesame"', "lake.setting in Redis is not JSON"),
        (b"[]", "lake.setting in Redis is not a JSON object"),
        (b"null", "lake.setting in Redis is not a JSON object"),
        (b'"file"', "lake.setting in Redis is not a JSON object"),
        (b'{"Storage":"tape"}', "Storage in the lake's configuration is one of"),
        (b'{"Storage":5}', "Storage in the lake's configuration is text, not int"),
        (b'{"Storage":"file"}', "no BasePath"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused(redis_url: str, text: bytes, message: str) -> None:
    put_setting(redis_url, text)
    with Lake(redis_url) as lake:
        with pytest.raises(ConfigError, match=message) as caught:
            lake.write("users", 1)
        assert not caught.value.retryable
        assert "open sesame" not in str(caught.value)
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys() == [b"lake.setting"]


def test_a_setting_of_another_type_is_refused(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.hset("lake.setting", "Storage", "file")
    with Lake(redis_url) as lake, pytest.raises(IndexFailure, match="WRONGTYPE"):
        lake.get_config()


def test_names_of_other_tools_in_the_setting_are_left_alone(redis_url: str, file_config: dict[str, str]) -> None:
    put_setting(redis_url, {**file_config, "Owner": {"team": 7}, "Region": None, "storage": "s3"})
    with Lake(redis_url) as lake:
        lake.write("users", {"a": 1})
        assert lake.read_map("users") == {"a": 1}
        assert dict(lake.get_config()) == file_config


def test_a_given_configuration_goes_before_the_setting(redis_url: str, file_config: dict[str, str]) -> None:
    put_setting(redis_url, {**file_config, "Name": "other", "Storage": "s3", "Bucket": "nowhere"})
    with Lake(redis_url, config=file_config) as lake:
        lake.write("users", 1)
        assert dict(lake.get_config()) == file_config
        assert setting(redis_url)["Name"] == "other"


def test_an_updated_configuration_is_merged_and_used(redis_url: str, tmp_path: Path) -> None:
    first = {"Name": "one", "Storage": "file", "BasePath": str(tmp_path / "one")}
    with Lake(redis_url) as lake:
        assert dict(lake.get_config()) == {}
        assert dict(lake.update_config(first)) == first
        assert setting(redis_url) == dict(lake.get_config()) == first
        lake.write("users", {"in": "one"})
        second = lake.update_config({"BasePath": str(tmp_path / "two"), "Name": "two", "AESPwd": "open sesame"})
        assert dict(second) == {**first, "Name": "two", "BasePath": str(tmp_path / "two"), "AESPwd": "open sesame"}
        assert setting(redis_url) == dict(second)
        assert not lake.list("users").exists, "another name is another lake"
        lake.write("users", {"in": "two"})
        # An empty value removes a name.
        assert dict(lake.update_config({"AESPwd": "", "Name": "one", "BasePath": first["BasePath"]})) == first
        assert setting(redis_url) == first
        assert lake.read_map("users") == {"in": "one"}


def test_updating_ends_the_configuration_that_was_given(redis_url: str, file_config: dict[str, str]) -> None:
    with Lake(redis_url, config={**file_config, "Name": "given"}) as lake:
        lake.write("users", 1)
        lake.update_config(file_config)
        assert dict(lake.get_config()) == file_config
        assert not lake.list("users").exists


@pytest.mark.parametrize("wrong", [{"Storage": "tape"}, {"Nmae": "x"}, {"Name": "a:b"}, {"AESPwd": 5}])
def test_a_wrong_update_changes_nothing(redis_url: str, file_config: dict[str, str], wrong: dict[str, Any]) -> None:
    with Lake(redis_url) as lake:
        lake.update_config(file_config)
        with pytest.raises(ConfigError):
            lake.update_config(wrong)
        assert setting(redis_url) == file_config
        lake.write("users", 1)


# No configuration at all


def test_without_configuration_bodies_are_in_memory_and_one_warning_says_so(own_redis: RedisServer) -> None:
    with Lake(own_redis.url) as lake:
        with pytest.warns(UserWarning, match="has no lake.setting") as caught:
            lake.write("users", {"a": 1})
        message = str(caught[0].message)
        assert len(caught) == 1
        assert f"127.0.0.1:{own_redis.port}" in message
        assert "memory of this process" in message
        for way in ("lake.update_config({", "config=", "storage="):
            assert way in message
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert lake.read_map("users") == {"a": 1}
            lake.close()
            assert lake.read_map("users") == {"a": 1}
            with Lake(own_redis.url, redis_timeout=9) as other:
                assert other.read_map("users") == {"a": 1}, "one memory for one URL"


def test_the_way_out_of_memory_works(own_redis: RedisServer, file_config: dict[str, str]) -> None:
    with Lake(own_redis.url) as lake:
        with pytest.warns(UserWarning, match="has no lake.setting"):
            lake.write("users", {"in": "memory"})
        lake.update_config(file_config)
        assert not lake.list("users").exists
        lake.write("users", {"in": "files"})
    with Lake(own_redis.url) as other:
        assert other.read_map("users") == {"in": "files"}


def test_reading_the_configuration_warns_of_nothing(own_redis: RedisServer) -> None:
    with Lake(own_redis.url) as lake:
        assert dict(lake.get_config()) == {}
