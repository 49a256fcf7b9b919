"""A Spark on this machine that says nothing but what goes wrong."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

_LOOPBACK = "127.0.0.1"

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
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={logging}")
        .config("spark.driver.host", _LOOPBACK)
        .config("spark.driver.bindAddress", _LOOPBACK)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    )
