"""The demo: a tour of the lake on Spark, in a folder, that shows every statement it runs and what comes of it."""

from __future__ import annotations

import ast
import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

from lake_spark.errors import ConfigError
from lake_spark.spark.local import local_spark

# In the folder of a demo, which the next one may remove.
MARKER = ".made-by-lake-demo"
_SHOWN_ROWS = 4
_WIDTH = 120

TOUR = [
    (
        "A lake is a folder here: a Redis of its own keeps the order of all changes, files keep their bodies.",
        """
from datetime import datetime, timezone
from time import sleep
from lake_spark import Lake, MergeType
from lake_spark.merge import diff
lake = Lake(url)
lake.get_config()
""",
    ),
    (
        "Write 3,000 documents in a Spark job: all of them become visible at once.",
        """
users = spark.range(3000).selectExpr(
    "format_string('user-%04d', id) AS catalog",
    "struct(concat('User ', id) AS name, 0 AS visits, elt(1 + int(id % 3), 'Oslo', 'Lima', 'Kyiv') AS city) AS body",
)
users.write.format("lake").option("url", url).mode("append").save()
documents = spark.read.format("lake").option("url", url).load()
documents.select("catalog", "document", "version").sort("catalog")
""",
    ),
    (
        "Remember this moment (to the end of its second), for later.",
        """
before = datetime.now(timezone.utc).isoformat(timespec="seconds")
sleep(1)
""",
    ),
    (
        "A second job patches a thousand of them with merge patches (RFC 7396): fields are set, null removes one.",
        """
visits = spark.range(1000).selectExpr(
    "format_string('user-%04d', id) AS catalog",
    "concat('{\\"visits\\": ', 1 + id % 9, ', \\"city\\": null}') AS body",
)
visits.write.format("lake").option("url", url).option("mergeType", "rfc7396").mode("append").save()
""",
    ),
    (
        "A third one applies a JSON patch (RFC 6902), a list of operations, to every tenth.",
        """
tags = spark.range(0, 3000, 10).selectExpr(
    "format_string('user-%04d', id) AS catalog",
    "'[{\\"op\\": \\"add\\", \\"path\\": \\"/tags\\", \\"value\\": [\\"vip\\"]}]' AS body",
)
tags.write.format("lake").option("url", url).option("mergeType", "rfc6902").mode("append").save()
""",
    ),
    (
        "Read the documents as they are now: each is the fold of its changes.",
        """
documents = spark.read.format("lake").option("url", url).load()
documents.select("catalog", "document", "deltas").sort("catalog")
""",
    ),
    (
        "With a schema, documents are ordinary columns.",
        """
typed = spark.read.format("lake").option("url", url).schema("catalog string, visits int").load()
typed.groupBy("visits").count().sort("visits")
""",
    ),
    (
        "Travel back: the same documents as of the moment before the patches.",
        """
past = spark.read.format("lake").option("url", url).option("asOf", before).load()
past.select("catalog", "document", "version").sort("catalog")
""",
    ),
    (
        "The changes of one document, as its log has them.",
        """
log = spark.read.format("lake").option("url", url).option("view", "deltas").load("user-0010")
log.select("ts_seq", "merge_type", "path", "body").sort("ts_seq")
""",
    ),
    (
        "What has changed between two versions of it, as a JSON patch.",
        """
old = lake.read_map(lake.list("user-0010", as_of=before))
new = lake.read_map("user-0010")
diff(old, new, MergeType.RFC6902)
""",
    ),
]

NEXT = """\
The lake is still there, in {folder}. Where to go next:
  from lake_spark import Lake; Lake({url!r}).read_map("user-0010")    the same lake, in Python
  docs/getting-started.md    writing, reading, history, files
  docs/spark.md              views, schemas, options of jobs
  docs/guarantees.md         what is promised, and where it ends"""


def demo(folder: str, *, quiet: bool = False) -> None:
    """Make a fresh lake in this folder and show what can be done with it; with `quiet`, do it without showing it.

    The lake stays, and the next demo replaces it. A folder that no demo has made is left alone: that is an error.
    """
    console = Console(width=_WIDTH, highlight=False, quiet=quiet)
    _make_fresh(Path(folder))
    url = f"file:{folder}"
    console.print("Starting Spark …", style="dim")
    with _spark() as spark:
        names: dict[str, Any] = {"spark": spark, "url": url}
        for number, (heading, source) in enumerate(TOUR, 1):
            console.print(f"\n[bold]{number}. {heading}[/bold]")
            _run(console, source.strip(), names)
        names["lake"].close()
    console.print("\n" + NEXT.format(folder=folder, url=url), markup=False)


def _make_fresh(folder: Path) -> None:
    if folder.exists() and not (folder / MARKER).exists():
        raise ConfigError(f"{folder} is there, and no demo has made it: name another folder, or remove this one")
    # A Redis that is still running there notices that its folder is gone, and ends.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    (folder / MARKER).touch()


@contextlib.contextmanager
def _spark() -> Iterator[SparkSession]:
    """A small Spark that leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="lake-demo-") as home:
        spark = local_spark("lake demo", home)
        # One partition is enough to sort a few thousand rows.
        spark.conf.set("spark.sql.shuffle.partitions", "1")
        try:
            yield spark
        finally:
            spark.stop()


def _run(console: Console, source: str, names: dict[str, Any]) -> None:
    """Show every statement and run it; the value of an expression is shown as a table."""
    for statement in ast.parse(source).body:
        text = ast.get_source_segment(source, statement) or ""
        shown = ">>> " + text.replace("\n", "\n... ")
        console.print(Syntax(shown, "pycon", background_color="default", word_wrap=True))
        if isinstance(statement, ast.Expr):
            _show(console, eval(compile(ast.Expression(statement.value), "demo", "eval"), names))
        else:
            exec(compile(ast.Module([statement], []), "demo", "exec"), names)


def _show(console: Console, value: object) -> None:
    if isinstance(value, DataFrame):
        # A few thousand: once read, they are counted as well.
        rows = [row.asDict() for row in value.collect()]
        caption = f"{_SHOWN_ROWS} of {len(rows)} rows" if len(rows) > _SHOWN_ROWS else ""
        _table(console, rows[:_SHOWN_ROWS], caption)
    elif isinstance(value, list):
        _table(console, value, "")
    elif value is not None:
        _table(console, [{"name": name, "value": each} for name, each in dict(value).items()], "")  # type: ignore[call-overload] # a mapping


def _table(console: Console, rows: Sequence[dict[str, Any]], caption: str) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(*columns)
    for row in rows:
        table.add_row(*(escape(str(row.get(name, ""))) for name in columns))
    console.print(table)
    if caption:
        console.print(caption, style="dim")
