"""`lake doctor` and `lake init`: each thing that can be wrong is found, explained, and comes with what to do."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import redis
from commands import run_lake
from servers import RedisServer, S3Server, free_ports

from lake_spark import Lake
from lake_spark.client.doctor import examine, redis_findings
from lake_spark.client.findings import Finding
from lake_spark.errors import ConfigError
from lake_spark.index.health import Health

PASSWORD = "r3dis p@ss/word"
AES_PASSWORD = "a3s op'en sesame"


@pytest.fixture(scope="module")
def durable() -> Iterator[RedisServer]:
    """A Redis as an index needs it."""
    args = ("--appendonly", "yes", "--appendfsync", "everysec", "--requirepass", PASSWORD)
    with tempfile.TemporaryDirectory(prefix="lake-aof-") as folder, RedisServer(folder, args=args) as server:
        yield server


@pytest.fixture
def url(durable: RedisServer) -> Iterator[str]:
    found = f"redis://:{quote(PASSWORD, safe='')}@127.0.0.1:{durable.port}/0"
    with redis.Redis.from_url(found) as client:
        client.flushall()
        yield found
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "0")


def keys_in(url: str) -> set[bytes]:
    with redis.Redis.from_url(url) as client:
        return set(client.keys("*"))


def look(url: str, config: dict[str, str] | None = None, **options: object) -> dict[str, Finding]:
    with Lake(url, config=config, **options) as lake:
        return {finding.name: finding for finding in examine(lake)}


def levels(found: dict[str, Finding]) -> dict[str, str]:
    return {name: finding.level for name, finding in found.items() if finding.level != "ok"}


def assert_hidden(done: subprocess.CompletedProcess[str]) -> None:
    for secret in (
        PASSWORD,
        quote(PASSWORD, safe=""),
        AES_PASSWORD,
        S3Server.secret_key,
        S3Server.read_only_secret_key,
    ):
        assert secret not in done.stdout + done.stderr


def test_a_healthy_lake_has_no_findings_and_the_probes_leave_no_trace(url: str, config: dict[str, str]) -> None:
    with Lake(url) as lake:
        lake.update_config({**config, "AESPwd": AES_PASSWORD})
        lake.write("users", {"a": 1})
        lake.write_many([("users", {"b": 1}), ("groups", {"c": 1})])
        before, objects = keys_in(url), list(lake._session.storage.list(""))
        found = {finding.name: finding for finding in examine(lake)}
        assert levels(found) == {}
        assert list(lake._session.storage.list("")) == objects
    assert keys_in(url) == before
    assert list(found) == [
        *("versions", "redis.connection", "redis.version", "redis.eviction", "redis.persistence", "redis.replication"),
        *("redis.memory", "redis.clock", "redis.scripts", "setting", "storage.connection", "storage.write"),
        *("storage.read", "storage.list", "storage.put_if_absent", "storage.delete", "protocol", "encryption"),
        "transactions",
    ]
    assert "everysec" in found["redis.persistence"].found
    assert "last second" in found["redis.persistence"].meaning
    assert "encrypted" in found["setting"].found


def test_the_command_says_it_and_its_exit_code_too(url: str, s3_config: dict[str, str]) -> None:
    done = run_lake(url, "doctor")
    assert done.returncode == 5
    assert "Redis has no lake.setting" in done.stdout
    assert "lake init" in done.stdout
    with Lake(url) as lake:
        lake.update_config({**s3_config, "AESPwd": AES_PASSWORD})
    done = run_lake(url, "doctor", "--json")
    assert done.returncode == 0, done.stdout
    told = json.loads(done.stdout)
    assert told["healthy"] is True
    assert {finding["level"] for finding in told["findings"]} == {"ok"}
    assert_hidden(done)
    with redis.Redis.from_url(url) as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
    done = run_lake(url, "doctor")
    assert done.returncode == 5
    assert "error    redis.eviction         maxmemory-policy is allkeys-lru" in done.stdout
    assert "do:" in done.stdout
    assert_hidden(done)


def test_a_redis_that_evicts(url: str, file_config: dict[str, str]) -> None:
    with redis.Redis.from_url(url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        found = look(url, file_config)
        assert levels(found) == {"redis.eviction": "warning"}, "without a limit nothing is evicted yet"
        client.config_set("maxmemory", "100mb")
    found = look(url, file_config)
    assert levels(found) == {"redis.eviction": "error"}
    assert "allkeys-lru" in found["redis.eviction"].found
    assert "throws keys away" in found["redis.eviction"].meaning
    assert "maxmemory-policy noeviction" in found["redis.eviction"].action


def test_a_redis_that_is_nearly_full(url: str, file_config: dict[str, str]) -> None:
    with redis.Redis.from_url(url) as client:
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", str(round(used / 0.85)))
        found = look(url, file_config)["redis.memory"]
        assert found.level == "warning"
        assert "refuses writes" in found.meaning
        assert "more memory" in found.action


def test_what_each_kind_of_persistence_can_lose(redis_url: str, file_config: dict[str, str], url: str) -> None:
    found = look(redis_url, file_config)["redis.persistence"]
    assert (found.level, found.found) == ("error", "neither AOF nor RDB")
    assert "loses the whole index" in found.meaning
    assert "appendonly yes" in found.action
    with redis.Redis.from_url(redis_url) as client:
        client.config_set("save", "900 1")
        try:
            found = look(redis_url, file_config)["redis.persistence"]
            assert (found.level, found.found) == ("warning", "RDB only (save 900 1)")
            assert "since the last save" in found.meaning
        finally:
            client.config_set("save", "")
    with redis.Redis.from_url(url) as client:
        for fsync, level, loses in (("always", "ok", "nothing"), ("no", "warning", "half minute")):
            client.config_set("appendfsync", fsync)
            found = look(url, file_config)["redis.persistence"]
            assert found.level == level
            assert loses in found.meaning
        client.config_set("appendfsync", "everysec")


def test_a_wrong_password(durable: RedisServer, file_config: dict[str, str]) -> None:
    for password in ("", ":wr0ng-p@ss@".replace("p@ss", "p%40ss")):
        found = look(f"redis://{password}127.0.0.1:{durable.port}/0", file_config)
        assert levels(found) == {"redis.connection": "error"}
        assert "lets nobody in" in found["redis.connection"].meaning
        assert "password in the URL" in found["redis.connection"].action
        assert "wr0ng" not in str(found)


def test_nobody_at_that_address(file_config: dict[str, str]) -> None:
    found = look(f"redis://127.0.0.1:{free_ports(1)[0]}/0", file_config, redis_retries=0)
    assert levels(found) == {"redis.connection": "error"}
    assert "nothing is lost" in found["redis.connection"].meaning
    assert "firewall" in found["redis.connection"].action


def test_a_redis_that_keeps_things_to_itself(url: str, file_config: dict[str, str]) -> None:
    """As managed ones do: what is not known is said to be, and the rest goes on."""
    with redis.Redis.from_url(url) as client:
        client.acl_setuser("guest", enabled=True, passwords=["+guest"], categories=["+@all"], keys=["*"])
        client.execute_command("ACL", "SETUSER", "guest", "-config", "-info")
    try:
        found = look(url.replace(":" + quote(PASSWORD, safe=""), "guest:guest"), file_config)
    finally:
        with redis.Redis.from_url(url) as client:
            client.acl_deluser("guest")
    assert set(levels(found).values()) == {"warning"}
    for name in ("redis.version", "redis.eviction", "redis.persistence", "redis.replication", "redis.memory"):
        assert "not known" in found[name].found
    assert found["protocol"].level == "ok"


def test_a_user_who_may_not_run_scripts(url: str, file_config: dict[str, str]) -> None:
    with redis.Redis.from_url(url) as client:
        client.acl_setuser("guest", enabled=True, passwords=["+guest"], categories=["+@all", "-@scripting"], keys=["*"])
    try:
        found = look(url.replace(":" + quote(PASSWORD, safe=""), "guest:guest"), file_config)
    finally:
        with redis.Redis.from_url(url) as client:
            client.acl_deluser("guest")
    assert found["redis.scripts"].level == "error"
    assert "+@scripting" in found["redis.scripts"].action


def test_a_clock_that_is_wrong(file_config: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="lake-clock-") as folder, RedisServer(folder, clock=True) as server:
        server.set_clock(-3600)
        found = look(server.url, file_config)["redis.clock"]
    assert found.level == "warning"
    assert "behind this machine's clock" in found.found
    assert "NTP" in found.action


def test_a_replica_and_an_old_redis_by_what_they_say() -> None:
    health = Health({"redis_version": "5.0.14", "role": "slave", "aof_last_write_status": "err"}, {})
    found = {finding.name: finding for finding in redis_findings(health)}
    assert found["redis.version"].level == "error"
    assert "6.2" in found["redis.version"].action
    assert found["redis.replication"].level == "error"
    assert "primary" in found["redis.replication"].action
    assert found["redis.disk"].level == "error"
    health = Health({"role": "master", "connected_slaves": 2}, {"min-replicas-to-write": "1"})
    [replication] = [finding for finding in redis_findings(health) if finding.name == "redis.replication"]
    assert "2 replicas, min-replicas-to-write 1" in replication.found
    assert "asynchronous" in replication.meaning


@pytest.mark.parametrize("text", ["{", "[]", '{"Storage":"tape"}', '{"Storage":"memory"}', '{"Storage":"s3"}'])
def test_a_setting_that_is_not_sound(url: str, text: str) -> None:
    with redis.Redis.from_url(url) as client:
        client.set("lake.setting", text)
    found = look(url)
    assert list(levels(found).values()) == ["error"]
    [name] = levels(found)
    assert name in ("setting", "storage.connection")
    assert "lake init" in found[name].action


def test_a_bucket_that_is_not_there(url: str, s3_config: dict[str, str]) -> None:
    found = look(url, {**s3_config, "Bucket": "lake-that-is-not-there"})
    assert levels(found) == {"storage.connection": "error"}
    assert "lake-that-is-not-there" in found["storage.connection"].found
    assert "create the bucket" in found["storage.connection"].action


def test_a_bucket_that_denies_writes(url: str, s3_config: dict[str, str], s3_server: S3Server) -> None:
    reader = {"AccessKey": s3_server.read_only_access_key, "SecretKey": s3_server.read_only_secret_key}
    found = look(url, {**s3_config, **reader})
    assert levels(found) == {"storage.write": "error"}
    assert "writes fail" in found["storage.write"].meaning
    assert "allow these credentials" in found["storage.write"].action
    assert s3_server.read_only_secret_key not in str(found)


def test_wrong_credentials(url: str, s3_config: dict[str, str]) -> None:
    found = look(url, {**s3_config, "SecretKey": "s3cr3t-of-somebody"})
    assert levels(found) == {"storage.connection": "error"}
    assert "secret key" in found["storage.connection"].action
    assert "s3cr3t" not in str(found)


def test_a_folder_that_cannot_be_written(url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = look(url, {"Name": "test", "Storage": "file", "BasePath": str(tmp_path / "file" / "lake")})
    assert levels(found) == {"storage.write": "error"}
    assert "file" in found["storage.write"].found


def test_a_password_that_is_not_the_one_of_the_bodies(url: str, file_config: dict[str, str]) -> None:
    for write in (lambda lake: lake.write("users", 1), lambda lake: lake.write_many([("users", 1)])):
        with Lake(url, config={**file_config, "AESPwd": AES_PASSWORD}) as lake:
            write(lake)
        for wrong in ({"AESPwd": "another one"}, {}):
            found = look(url, {**file_config, **wrong})
            assert levels(found) == {"encryption": "error"}
            assert "AESPwd" in found["encryption"].meaning
            assert "lake init" in found["encryption"].action


def test_another_storage_than_the_one_that_was_written(url: str, file_config: dict[str, str], tmp_path: Path) -> None:
    with Lake(url, config=file_config) as lake:
        lake.write("users", 1)
    found = look(url, {**file_config, "BasePath": str(tmp_path / "elsewhere")})
    assert levels(found) == {"encryption": "error"}
    assert "another one" in found["encryption"].meaning


# init


def test_init_writes_the_setting_and_shows_no_secret(url: str, s3_config: dict[str, str]) -> None:
    options = [
        "--name",
        "test",
        "--storage",
        "s3",
        "--bucket",
        s3_config["Bucket"],
        "--endpoint",
        s3_config["Endpoint"],
    ]
    secrets = ["--access-key-env", "AK", "--secret-key-env", "SK", "--aes-password-env", "PW"]
    environment = {"AK": s3_config["AccessKey"], "SK": s3_config["SecretKey"], "PW": AES_PASSWORD}
    done = run_lake(url, "init", *options, *secrets, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lake.setting is written" in done.stdout
    assert_hidden(done)
    with Lake(url) as lake:
        assert dict(lake.get_config()) == {**s3_config, "AESPwd": AES_PASSWORD}
        lake.write("users", {"a": 1})
    done = run_lake(url, "init", "--region", "us-east-1", "--json")
    assert json.loads(done.stdout)["written"] is True, "what is not given stays, and the lake stays the same one"
    assert_hidden(done)
    with Lake(url) as lake:
        assert lake.read_map("users") == {"a": 1}


def test_init_refuses_another_storage_for_a_lake_with_catalogs_without_yes(
    url: str, file_config: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "setting.json"
    file.write_text(json.dumps({**file_config, "AESPwd": AES_PASSWORD}))
    assert run_lake(url, "init", "--from", str(file)).returncode == 0
    relative = os.path.relpath(tmp_path / "first")
    assert run_lake(url, "init", "--base-path", relative).returncode == 0, "it has no catalogs yet"
    with Lake(url) as lake:
        assert lake.get_config()["BasePath"] == str(tmp_path / "first")
        lake.write("users", 1)
    for change in (["--base-path", str(tmp_path / "other")], ["--name", "new"], ["--aes-password-env", "PW"]):
        done = run_lake(url, "init", *change, PW="another password")
        assert done.returncode == 4
        assert "1 catalogs" in done.stdout
        assert "another password" not in done.stdout
        assert_hidden(done)
        with Lake(url) as lake:
            assert lake.read_string("users") == "1"
    assert run_lake(url, "init", "--base-path", str(tmp_path / "other"), "--yes").returncode == 0
    with Lake(url) as lake:
        assert lake.get_config()["BasePath"] == str(tmp_path / "other")


def test_init_refuses_a_redis_that_evicts_and_a_bucket_that_is_not_there(
    url: str, s3_config: dict[str, str], tmp_path: Path, s3_server: S3Server
) -> None:
    file = tmp_path / "setting.json"
    file.write_text(json.dumps({**s3_config, "Bucket": f"{s3_config['Bucket']}-new"}))
    done = run_lake(url, "init", "--from", str(file))
    assert done.returncode == 5
    assert "the bucket does not exist" in done.stdout
    with redis.Redis.from_url(url) as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "volatile-lru")
        done = run_lake(url, "init", "--from", str(file), "--create-bucket")
        assert done.returncode == 5
        assert "volatile-lru" in done.stdout
        assert "nothing was written" in done.stderr
        assert client.get("lake.setting") is None
        client.config_set("maxmemory", "0")
        client.config_set("maxmemory-policy", "noeviction")
    done = run_lake(url, "init", "--from", str(file), "--create-bucket")
    assert done.returncode == 0, done.stdout + done.stderr
    s3_server.delete_bucket(f"{s3_config['Bucket']}-new")


def test_init_says_what_is_missing(url: str, tmp_path: Path) -> None:
    for arguments, word in (
        (["--name", "a"], "name a storage"),
        (["--storage", "file", "--base-path", str(tmp_path)], "name the lake"),
        (["--name", "a", "--storage", "s3"], "no Bucket"),
        (["--name", "a", "--storage", "tape"], "Storage"),
    ):
        done = run_lake(url, "init", *arguments)
        assert done.returncode == 1
        assert word in done.stderr
    done = run_lake(url, "init", "--name", "a", "--secret-key-env", "S3CRET/itself")
    assert done.returncode == 2
    assert "S3CRET/itself" not in done.stdout + done.stderr
    done = run_lake("file:" + str(tmp_path), "init", "--name", "a")
    assert done.returncode == 0
    assert "has its setting already" in done.stdout
    with pytest.raises(ConfigError):
        Lake("nonsense://")
