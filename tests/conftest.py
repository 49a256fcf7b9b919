"""Servers shared by all tests: started once, on first use."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from servers import RedisServer, S3Server

from lake_spark import Lake


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="lake-redis-") as folder, RedisServer(folder) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The URL of a running and empty Redis."""
    redis_server.start()
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    # A short path: the server's unix sockets live in this folder.
    with tempfile.TemporaryDirectory(prefix="lake-s3-", ignore_cleanup_errors=True) as folder:
        with S3Server(folder) as server:
            yield server


@pytest.fixture
def s3_bucket(s3_server: S3Server) -> Iterator[str]:
    """The name of a new and empty bucket."""
    name = s3_server.create_bucket(f"lake-{uuid.uuid4().hex[:12]}")
    yield name
    s3_server.delete_bucket(name)


@pytest.fixture
def file_config(tmp_path: Path) -> dict[str, str]:
    return {"Name": "test", "Storage": "file", "BasePath": str(tmp_path / "lake")}


@pytest.fixture
def s3_config(s3_server: S3Server, s3_bucket: str) -> dict[str, str]:
    return {
        "Name": "test",
        "Storage": "s3",
        "Bucket": s3_bucket,
        "Endpoint": s3_server.endpoint,
        "AccessKey": s3_server.access_key,
        "SecretKey": s3_server.secret_key,
    }


@pytest.fixture(params=["file_config", "s3_config"])
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The configuration of a lake on each kind of storage that a deployment uses."""
    found: dict[str, str] = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def lake(redis_url: str, file_config: dict[str, str]) -> Iterator[Lake]:
    """A lake on file storage."""
    with Lake(redis_url, config=file_config) as found:
        yield found
