"""What a command prints: for people, or with --json for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Protocol

from lake_spark.model import TsSeq

if TYPE_CHECKING:
    from rich.console import Console

# A pipe has no width: nothing is cut there.
_ENDLESS = 100_000


class Progress(Protocol):
    """How far a long piece of work is."""

    def advance(self, n: float = 1) -> None: ...


class Output:
    """Prints for people or, with `json`, for programs.

    A command says everything both ways, in any order: `table`, `record`, `text`, `document` and `note` are for people
    and print nothing with --json; `result` is for programs and prints nothing without it.
    """

    def __init__(self, json: bool) -> None:
        self.json = json

    # For people

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Rows under headings. None is shown as nothing; numbers are at the right."""
        if self.json:
            return
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        shown = [list(row) for row in rows]
        table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        for at, column in enumerate(columns):
            numeric = any(isinstance(row[at], (int, float)) for row in shown)
            table.add_column(column, justify="right" if numeric else "left", overflow="fold")
        for row in shown:
            table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
        console = self._console()
        with console.capture() as drawn:
            console.print(table)
        print("\n".join(line.rstrip() for line in drawn.get().splitlines()).strip("\n"))

    def record(self, mapping: Mapping[str, object]) -> None:
        """Names and values, one pair to a line. None is left out."""
        if self.json:
            return
        width = max((len(name) for name in mapping), default=0)
        for name, value in mapping.items():
            if value is not None:
                self.text(f"{name:<{width}}  {value}")

    def text(self, text: str, *, style: str = "") -> None:
        """A line, or several, as they are; in colour on a terminal."""
        if self.json:
            return
        if style and sys.stdout.isatty():
            from rich.text import Text

            self._console().print(Text(text, style=style), soft_wrap=True)
        else:
            print(text)

    def document(self, data: bytes) -> None:
        """JSON, indented; numbers and the order of keys stay as they are."""
        if self.json:
            return
        from lake_spark.merge import pretty

        text = pretty(data).decode()
        if sys.stdout.isatty():
            from rich.highlighter import JSONHighlighter

            self._console().print(JSONHighlighter()(text), soft_wrap=True)
        else:
            print(text)

    def note(self, text: str) -> None:
        """A remark on standard error."""
        if not self.json:
            print(text, file=sys.stderr)

    @contextmanager
    def progress(self, description: str, total: float | None = None) -> Iterator[Progress]:
        """A progress bar on standard error while the block runs; only where somebody may be looking."""
        if self.json or not sys.stderr.isatty():
            yield _Silent()
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
            yield _Bar(bars, bars.add_task(description, total=total))

    # For programs

    def result(self, value: Any) -> None:
        """One JSON value on a line of its own: call it once, or once for each of many.

        Documents go in as `msgspec.Raw`, and come out byte for byte.
        """
        if self.json:
            from lake_spark.merge import dumps

            sys.stdout.write(dumps(value).decode() + "\n")

    def error(self, kind: str, message: str, *, retryable: bool) -> None:
        """What went wrong, on standard error, both ways."""
        if self.json:
            from lake_spark.merge import dumps

            value = {"error": {"kind": kind, "message": message, "retryable": retryable}}
            print(dumps(value).decode(), file=sys.stderr)
        else:
            print(f"error: {' '.join(message.split())}", file=sys.stderr)

    def _console(self) -> Console:
        from rich.console import Console

        return Console(highlight=False, width=None if sys.stdout.isatty() else _ENDLESS)


class _Silent:
    def advance(self, n: float = 1) -> None:
        pass


class _Bar:
    def __init__(self, bars: Any, task: Any) -> None:
        self._bars = bars
        self._task = task

    def advance(self, n: float = 1) -> None:
        self._bars.advance(self._task, n)


def moment(ts_seq: TsSeq) -> str:
    """The second of a TsSeq, as ISO 8601 in UTC."""
    return datetime.fromtimestamp(ts_seq.seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
