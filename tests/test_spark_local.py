"""The small Spark of notebooks and demos: what it says when it does not start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", "4.0")

SCRIPT = """
import sys
from lake_spark.errors import ConfigError
from lake_spark.spark.local import local_spark

try:
    local_spark("test", sys.argv[1])
except ConfigError as error:
    print(error)
print("still heard", file=sys.stderr)
"""


def test_a_spark_that_does_not_start_says_why_and_gives_stderr_back(
    spark_environment: dict[str, str], tmp_path: Path
) -> None:
    environment = {**spark_environment, "PYSPARK_SUBMIT_ARGS": "--no-such-option pyspark-shell"}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "home")]
    ran = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=120, check=True
    )
    log = tmp_path / "home" / "spark.log"
    assert ran.stdout.startswith(f"Spark did not start; its log {log} says: ")
    assert "--no-such-option" in ran.stdout
    assert ran.stderr == "still heard\n"
