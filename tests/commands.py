"""The `lake` command as a process of its own, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def start_lake(url: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start a command on the lake of that URL; warnings are errors there too."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LAKE_")}
    own = {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "LAKE_URL": url}
    return subprocess.Popen(
        [sys.executable, "-m", "lake_spark.cli", *arguments],
        env={**inherited, **own, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_lake(url: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    with start_lake(url, *arguments, **environment) as process:
        output, errors = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)
