"""Commands that start something: demo, serve."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lake_spark.cli.app import START, Json, app
from lake_spark.cli.output import Output


@app.command(rich_help_panel=START)
def demo(
    folder: Annotated[Path, typer.Argument(help="Where its lake is made.")] = Path("demo-lake"),
    json: Json = False,
) -> None:
    """Write, patch, read and travel in time with Spark, on a lake of its own."""
    from lake_spark.spark.demo import demo as run

    run(str(folder), quiet=json)
    Output(json).result({"url": f"file:{folder}"})


@app.command(rich_help_panel=START)
def serve(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the lake.", show_default=False)],
    json: Json = False,
) -> None:
    """Keep the embedded lake of a folder running until Ctrl-C."""
    from lake_spark.embedded import serve as keep

    out = Output(json)

    def ready(redis: str) -> None:
        out.text(f"file:{folder} is served until Ctrl-C; its Redis is {redis}")
        out.result({"url": f"file:{folder}", "redis": redis})
        # Whoever started this may wait for the line.
        sys.stdout.flush()

    keep(str(folder), ready)
