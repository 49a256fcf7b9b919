"""What commands share: the lake that they work on, and the leave that they need."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lake_spark.cli.app import ExitCode
from lake_spark.cli.output import Output
from lake_spark.errors import ConfigError

if TYPE_CHECKING:
    from lake_spark.client import Lake


@contextmanager
def opened(url: str | None, *, configured: bool = True) -> Iterator[Lake]:
    """The lake of a command, closed at its end.

    A lake whose bodies would be in the memory of this process is refused, unless `configured` is False.
    """
    # Not at the top: `lake --help` needs none of it.
    from lake_spark.client import Lake

    url = url or os.environ.get("LAKE_URL")
    if not url:
        raise typer.BadParameter("no lake was named: pass --url, such as --url redis://localhost:6379, or set LAKE_URL")
    with Lake(url) as lake:
        if configured and lake.get_config().get("Storage", "memory") == "memory":
            place = lake._connection.place
            raise ConfigError(f"Redis at {place} has no lake.setting that says where bodies are: see lake init --help")
        yield lake


def confirm(plan_lines: Sequence[str], yes: bool, out: Output) -> None:
    """Show what is about to be deleted; without `yes` that is all, and the command ends here."""
    if yes:
        for line in plan_lines:
            out.note(line)
        return
    out.text("\n".join(plan_lines))
    out.result({"plan": plan_lines, "done": False})
    out.note("nothing was changed: add --yes to do it")
    raise typer.Exit(ExitCode.NEEDS_YES)


def body_of(given: str | None, what: str = "BODY") -> bytes:
    """The bytes that an argument means: itself, a file (`@name`), or standard input (`-`, or nothing)."""
    if given is None or given == "-":
        return sys.stdin.buffer.read()
    if given.startswith("@"):
        try:
            return Path(given[1:]).read_bytes()
        except OSError as error:
            raise typer.BadParameter(f"{what} is {given}, and that file cannot be read: {error.strerror}") from None
    return os.fsencode(given)
