"""What the README of Lake V2 shows its users, on real Redis with file and S3 storage."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from servers import RedisServer

from lake_spark import Lake, MergeType, TsSeq
from lake_spark.errors import InvalidBody, PendingError
from lake_spark.storage import MemoryStorage
from lake_spark.trace import trace


@pytest.fixture
def lake(redis_url: str, config: dict[str, Any]) -> Iterator[Lake]:
    with Lake(redis_url, config=config) as found:
        yield found


def test_quick_start(lake: Lake) -> None:
    ts_seq = lake.write("users", b'{"name":"Alice","age":30}', path="/profile", merge=MergeType.REPLACE)
    listing = lake.list("users")
    assert lake.read_string(listing) == '{"profile":{"name":"Alice","age":30}}'
    assert listing.error is None
    assert not listing.has_pending
    assert listing.exists
    assert TsSeq.parse(listing.last_updated) == listing.version == ts_seq


def test_merge_patch_sets_and_removes(lake: Lake) -> None:
    lake.write("users", {"name": "Alice", "age": 30, "oldField": True}, path="/profile")
    lake.write("users", b'{"age":31,"city":"NYC","oldField":null}', path="/profile", merge=MergeType.RFC7396)
    assert lake.read_string("users") == '{"profile":{"name":"Alice","age":31,"city":"NYC"}}'


def test_json_patch_adds(lake: Lake) -> None:
    lake.write("users", {"name": "Alice"})
    lake.write("users", b'[{"op":"add","path":"/tags","value":["vip"]}]', merge=MergeType.RFC6902)
    assert lake.read_map("users") == {"name": "Alice", "tags": ["vip"]}


def test_json_patch_moves_into_a_new_parent(lake: Lake) -> None:
    patch = [{"op": "add", "path": "/a/b/c", "value": 42}, {"op": "move", "from": "/a/b/c", "path": "/x/y/z"}]
    lake.write("users", patch, path="/", merge=MergeType.RFC6902)
    assert lake.read_map("users") == {"a": {"b": {}}, "x": {"y": {"z": 42}}}


def test_replace_at_a_path(lake: Lake) -> None:
    lake.write("users", b'"Alice"', path="/user/name")
    lake.write("users", {"dark": True}, path="/user.info/$theme")
    assert lake.read_map("users") == {"user": {"name": "Alice"}, "user.info": {"$theme": {"dark": True}}}


@dataclass
class Profile:
    name: str
    age: int


class ProfileDict(TypedDict):
    name: str
    age: int


class ProfileStruct(msgspec.Struct):
    name: str
    age: int


class ProfileModel(pydantic.BaseModel):
    name: str
    age: int


def test_typed_read(lake: Lake) -> None:
    lake.write("users", {"name": "Alice", "age": 30})
    listing = lake.list("users")
    assert lake.read(listing, Profile) == Profile("Alice", 30)
    assert lake.read(listing, ProfileStruct) == ProfileStruct("Alice", 30)
    assert lake.read(listing, ProfileModel) == ProfileModel(name="Alice", age=30)
    as_dict: ProfileDict = lake.read(listing, ProfileDict)
    assert as_dict == {"name": "Alice", "age": 30}
    lake.write("users", {"name": "Alice", "age": "thirty"})
    for kind in (Profile, ProfileStruct, ProfileModel, ProfileDict):
        with pytest.raises(InvalidBody, match="users"):
            lake.read("users", kind)


def test_pending_writes_show_in_the_listing_and_pass(lake: Lake) -> None:
    lake.write("users", {"a": 1})
    index = lake._session.index
    opened = index.precommit("users", MergeType.REPLACE, "/b")
    assert not lake.list("users").has_pending
    assert lake.list("users", strict_pending=True).has_pending
    lake.write("users", 3, path="/c")
    listing = lake.list("users")
    assert listing.has_pending
    assert isinstance(listing.error, PendingError)
    assert listing.error.retryable
    assert "pending" in listing.dump()
    with pytest.raises(PendingError, match="users"):
        lake.read_string(listing)
    assert lake.read_map(listing, pending="prefix") == {"a": 1}

    def finish() -> None:
        time.sleep(0.2)
        index.rollback(opened, orphan=True)

    thread = threading.Thread(target=finish)
    thread.start()
    assert lake.read_map(listing, pending="wait") == {"a": 1, "c": 3}
    thread.join()


def test_files(lake: Lake) -> None:
    logo = bytes(range(256)) * 10
    lake.write_file("users", "/docs/logo.png", logo, meta={"type": "image/png", "size": len(logo)})
    lake.write_file("users", "/README.md", b"")
    assert lake.read_file("users", "/docs/logo.png") == logo
    assert lake.read_file("users", "/README.md") == b""
    assert lake.file_exists("users", "/docs/logo.png")
    assert not lake.file_exists("users", "/docs")
    assert lake.files_and_meta("users") == {"/README.md": {}, "/docs/logo.png": {"type": "image/png", "size": 2560}}
    lake.write_file("users", "/docs/logo.png", b"new")
    assert lake.read_file("users", "/docs/logo.png") == b"new"


def test_meta_is_merged_key_by_key_and_keeps_its_numbers(lake: Lake) -> None:
    lake.write("users", {"a": 1}, meta={"by": "alice", "empty": [], "big": 2**70})
    lake.write("users", {"a": 2}, meta=b'{"by":"bob","exact":0.1000000000000000055}')
    assert json.dumps(lake.meta("users")["big"]) == str(2**70)
    assert repr(lake.meta("users")["exact"]) == "0.1000000000000000055"
    assert lake.meta("users")["by"] == "bob"
    assert lake.meta("users")["empty"] == []
    lake.write("users", [], merge=MergeType.RFC6902, meta={"by": None})
    assert sorted(lake.meta("users")) == ["big", "empty", "exact"]
    assert lake.batch_meta(["users", "nobody"])["nobody"] == {}
    assert len(lake.list("users").deltas) == 2, "an empty JSON patch writes only its meta"


def test_clear_history_with_retention(lake: Lake) -> None:
    for n in range(6):
        lake.write("users", {f"k{n}": n}, merge=MergeType.RFC7396)
        lake.read_bytes("users")
        lake.flush()
    before = lake.read_string("users")
    snapshots, members = lake._session.index.history("users")
    assert len(snapshots) >= 3
    plan = lake.clear_history("users", keep_snaps=2, dry_run=True)
    assert lake._session.index.history("users") == (snapshots, members)
    done = lake.clear_history("users", keep_snaps=2)
    assert done == plan
    assert lake.read_string("users") == before
    assert len(lake._session.index.history("users")[0]) == 2
    lake.clear_history("users")
    snapshots, members = lake._session.index.history("users")
    assert (len(snapshots), members) == (1, [])
    assert lake.read_string("users") == before
    objects = [key for key in lake._session.storage.list("") if "(users/" in key]
    assert len(objects) == 1, "only the kept snapshot's object is left"


def test_trace_of_a_write(lake: Lake) -> None:
    with trace("Write") as t:
        lake.write("users", {"a": 1})
    assert [span.name for span in t.spans] == ["Init", "PreCommit", "StoragePut", "Commit"]
    assert t.dump().startswith("=== Trace [Write]: Total ")
    assert "[2] PreCommit: " in t.dump()
    assert "tsSeq:" in t.dump()


def test_separate_cache(redis_url: str, config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    with RedisServer(tmp_path_factory.mktemp("cache")) as cache:
        options: dict[str, Any] = {"snapshot": "always", "snapshot_cache_url": cache.url, "snapshot_cache_ttl": 300}
        with Lake(redis_url, config=config, **options) as lake:
            lake.write("users", {"a": 1})
            lake.read_string("users")
        with Lake(redis_url, config=config, **options) as other:
            assert other.read_string("users") == '{"a":1}'
            assert other.cache_stats()["snapshots"].hits == 1
        cache.kill()
        with Lake(redis_url, config=config, **options) as lonely:
            assert lonely.read_string("users") == '{"a":1}', "a cache that is gone costs time, not answers"


def test_custom_storage(redis_url: str) -> None:
    storage = MemoryStorage()
    with Lake(redis_url, storage=storage) as lake, Lake(redis_url, storage=storage) as same:
        lake.write("users", {"a": 1})
        assert same.read_map("users") == {"a": 1}
        assert lake.list("users").exists
        with Lake(redis_url, storage=MemoryStorage()) as other:
            assert not other.list("users").exists, "another memory has another index"


def test_configuration_in_redis(redis_url: str, config: dict[str, Any]) -> None:
    with Lake(redis_url) as lake:
        assert dict(lake.get_config()) == {}
        lake.update_config({**config, "AESPwd": "secret words"})
        lake.write("users", {"a": 1})
    with Lake(redis_url) as other:
        assert other.get_config()["AESPwd"] == "secret words"
        assert other.read_map("users") == {"a": 1}
        assert "secret words" not in repr(other.get_config())


def test_motion_sample(lake: Lake) -> None:
    seen: list[list[str]] = []

    def sample() -> float:
        return lake.motion_sample("report", "daily", ["a", "b"], None, lambda changed: seen.append(list(changed)))

    assert sample() == 0.0
    lake.write("a", 1)
    second = lake.write("b", 2)
    assert sample() >= float(second.score)
    assert sorted(seen.pop()) == ["a", "b"]
    before = sample()
    assert seen == []
    time.sleep(1.1)
    third = lake.write("b", 3)
    never = lake.motion_sample("report", "daily", ["a", "b"], lambda last, now: False, lambda changed: 1 / 0)
    assert never == before
    with pytest.raises(ZeroDivisionError):
        lake.motion_sample("report", "daily", ["a", "b"], None, lambda changed: 1 / 0)
    assert sample() == float(third.score)
    assert seen == [["b"]], "a callback that failed is asked again"
