"""The app that the commands add themselves to: options that all of them take, errors and exit codes."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import io
import sys
import warnings
from enum import IntEnum
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lake_spark.cli.output import Output
from lake_spark.errors import LakeError, NotFound


class ExitCode(IntEnum):
    """What the exit code of every command means."""

    OK = 0
    ERROR = 1
    USAGE = 2
    NOT_FOUND = 3
    NEEDS_YES = 4
    FINDINGS = 5
    INTERRUPTED = 130


# The sections of `lake --help`: a command says with `rich_help_panel` where it belongs.
START, LOOK, CHANGE, CARE = "Start", "Look", "Change", "Care"

# The modules of commands, in the order of `lake --help`.
_MODULES = ("run", "show", "change", "care", "check", "repair", "transfer")
_URL, _JSON = "lake_spark.url", "lake_spark.json"


def _inherited(name: str, ctx: typer.Context, value: Any) -> Any:
    """An option's value: as given here, else as given before the subcommand."""
    if value:
        ctx.meta[name] = value
    return ctx.meta.get(name, value)


def _url(ctx: typer.Context, value: str | None) -> str | None:
    found: str | None = _inherited(_URL, ctx, value)
    return found


def _json(ctx: typer.Context, value: bool) -> bool:
    return bool(_inherited(_JSON, ctx, value))


# Every command has these two, as `url: Url = None, json: Json = False`; both may also stand before the subcommand.
Url = Annotated[
    str | None,
    typer.Option("--url", "-u", metavar="URL", help="The lake; default: LAKE_URL.", callback=_url, show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.", callback=_json)]
# Whatever deletes has this one, as `yes: Yes = False`, and calls `confirm`.
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this only the plan is shown.")]


class _Group(TyperGroup):
    """Gives errors their exit codes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            # Here, and not at the end of the process: a reader that has gone is no error.
            sys.stdout.flush()
            return result
        except LakeError as error:
            _report(ctx, error, retryable=error.retryable)
            raise typer.Exit(ExitCode.NOT_FOUND if isinstance(error, NotFound) else ExitCode.ERROR) from None
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            _report(ctx, error, retryable=False)
            raise typer.Exit(ExitCode.ERROR) from None
        except KeyboardInterrupt:
            Output(bool(ctx.meta.get(_JSON))).note("interrupted")
            raise typer.Exit(ExitCode.INTERRUPTED) from None


def _report(ctx: Any, error: Exception, *, retryable: bool) -> None:
    Output(bool(ctx.meta.get(_JSON))).error(type(error).__name__, str(error), retryable=retryable)


app = typer.Typer(
    name="lake",
    cls=_Group,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Exit codes: 0 done, 1 error, 2 wrong usage, 3 not found, 4 needs --yes, 5 findings (doctor, fsck), "
        "130 interrupted."
    ),
)


@app.callback()
def lake(url: Url = None, json: Json = False) -> None:
    """JSON documents, each kept as an ordered log of changes."""


def load() -> typer.Typer:
    """The app with all its commands."""
    for name in _MODULES:
        module = f"lake_spark.cli.commands.{name}"
        if importlib.util.find_spec(module):
            importlib.import_module(module)
    return app


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"warning: {message}", file=sys.stderr)


def main() -> None:
    """Run the command that the arguments of this process name."""
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        # JSON is UTF-8, whatever the locale is.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    load()(prog_name="lake")
