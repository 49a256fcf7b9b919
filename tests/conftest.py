"""Servers shared by all tests: started once, on first use."""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from servers import LOOPBACK, RedisServer, S3Server

from lake_spark import Lake
from lake_spark.embedded import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


@pytest.fixture(scope="session")
def spark_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Spark of the tests: some Java, this Python, loopback, and no lake that it could know."""
    with pytest.MonkeyPatch.context() as patch:
        # Recorded here, so that what use_java sets is undone.
        patch.setenv("JAVA_HOME", os.environ.get("JAVA_HOME", ""))
        use_java()
        for name in [name for name in os.environ if name.startswith(("LAKE_", "SPARK_", "PYSPARK_"))]:
            patch.delenv(name)
        patch.setenv("SPARK_LOCAL_IP", LOOPBACK)
        patch.setenv("SPARK_LOCAL_DIRS", str(tmp_path_factory.mktemp("spark-local")))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        return dict(os.environ)


@pytest.fixture(scope="session")
def spark(spark_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for all tests: two cores in this process's own JVM, which knows the lake."""
    # Not at the top: most tests do without Spark, and importing it takes a second.
    import lake_spark
    from lake_spark.spark.local import local_spark

    folder = tmp_path_factory.mktemp("spark")
    builder = (
        local_spark(folder)
        .appName("lake_spark tests")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .config("spark.sql.session.timeZone", "UTC")
    )
    # The JVM and the Python workers that it starts keep the environment of this moment.
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - spark_environment.keys():
            patch.delenv(name)
        for name, value in spark_environment.items():
            patch.setenv(name, value)
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    lake_spark.register(session)
    yield session
    session.stop()
