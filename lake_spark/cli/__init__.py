"""The `lake` command."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the `lake` command with the arguments of this process."""
    try:
        # typer and rich are an extra: the library does without them.
        from lake_spark.cli import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.exit(f"error: the lake command needs {error.name}: pip install 'lake-spark[cli]'")
    app.main()
