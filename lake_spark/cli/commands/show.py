"""Commands that look: ls, cat, log, diff, stat, trace. They change nothing but snapshots, as every reader does."""

from __future__ import annotations

import dataclasses
import difflib
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lake_spark.cli.app import LOOK, Json, Url, app
from lake_spark.cli.context import body_of, opened
from lake_spark.cli.output import Output, moment
from lake_spark.errors import InvalidBody, InvalidPath, MergeError, NotFound
from lake_spark.tally import size_of

if TYPE_CHECKING:
    from lake_spark.client import Lake
    from lake_spark.client.logbook import LogLine
    from lake_spark.model import Listing
    from lake_spark.trace import Trace

Catalog = Annotated[str, typer.Argument(metavar="CATALOG", help="The name of a document.", show_default=False)]
AsOf = Annotated[
    str | None,
    typer.Option("--as-of", metavar="VERSION", help="A TsSeq, or a moment such as 2024-01-31T12:00:00."),
]
_COLOURS = {"-": "red", "+": "green", "@": "cyan"}
_WATERFALL = 40


@app.command(rich_help_panel=LOOK)
def ls(
    prefix: Annotated[str, typer.Argument(help="Only names that begin with this.", show_default=False)] = "",
    long: Annotated[bool, typer.Option("--long", "-l", help="With version, time and deltas to replay.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Stop after so many; 0: never.")] = 0,
    url: Url = None,
    json: Json = False,
) -> None:
    """List the catalogs, in no order."""
    from lake_spark.client.reading import existing

    out = Output(json)
    with opened(url) as lake:
        for listing in islice(existing(lake._session, prefix), limit or None):
            row = _listed(listing)
            out.text(f"{row['updated_at']}  {row['version']:<17}  {row['deltas']:>6}  " * long + listing.catalog)
            out.result(row)


def _listed(listing: Listing) -> dict[str, Any]:
    return {
        "catalog": listing.catalog,
        "version": str(listing.version),
        "updated_at": moment(listing.version),
        "deltas": sum(entry.count for entry in listing.entries),
        "snapshot": str(listing.snapshot.stop) if listing.snapshot else None,
    }


@app.command(rich_help_panel=LOOK)
def cat(
    catalog: Catalog,
    as_of: AsOf = None,
    path: Annotated[str, typer.Option("--path", help="Only what is here, such as /profile/name or /tags/0.")] = "/",
    url: Url = None,
    json: Json = False,
) -> None:
    """Print a document."""
    import msgspec

    out = Output(json)
    with opened(url) as lake:
        data = lake.read_bytes(lake.list(catalog, as_of=as_of))
        data = data if path == "/" else _inside(catalog, data, path)
        out.document(data)
        out.result(msgspec.Raw(data))


def _inside(catalog: str, data: bytes, path: str) -> bytes:
    from lake_spark.merge import dumps, loads, value_at

    try:
        return dumps(value_at(loads(data), path))
    except InvalidBody as error:
        raise InvalidPath(f"{error}: expected /name/name, and in arrays a number") from None
    except MergeError as error:
        raise NotFound(f"the document of catalog {catalog!r} has nothing at {path}: {error}") from None


@app.command(rich_help_panel=LOOK)
def log(
    catalog: Catalog,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="The newest so many deltas; 0: all.")] = 100,
    url: Url = None,
    json: Json = False,
) -> None:
    """Show a catalog's log: deltas, snapshots and open writes, oldest first."""
    from lake_spark.client.logbook import log_lines
    from lake_spark.names import check_catalog

    out = Output(json)
    with opened(url) as lake:
        lines, left = log_lines(lake._session, check_catalog(catalog), limit)
    columns = ("ts_seq", "time", "type", "path", "bytes", "source", "")
    out.table("", columns, [_log_row(line) for line in lines])
    if left:
        out.note(f"{left} older deltas are not shown: --limit 0 shows all")
    out.result([_log_record(line) for line in lines])


def _log_row(line: LogLine) -> tuple[object, ...]:
    kind = line.merge_type.name if line.merge_type else ""
    remark = line.problem or ""
    if line.kind == "snapshot":
        kind = f"snapshot from {line.start}"
    elif line.kind == "pending":
        kind = f"pending {kind}".rstrip()
        owner = f"transaction {line.txn}, " if line.txn else ""
        remark = owner + ("open" if line.age is None else f"open for {line.age:.1f} s")
    return line.ts_seq, moment(line.ts_seq), kind, line.path, line.size, line.source, remark


def _log_record(line: LogLine) -> dict[str, Any]:
    return {
        **dataclasses.asdict(line),
        "ts_seq": str(line.ts_seq),
        "time": moment(line.ts_seq),
        "merge_type": line.merge_type.name if line.merge_type else None,
        "start": str(line.start) if line.start else None,
    }


@app.command(rich_help_panel=LOOK)
def diff(
    catalog: Catalog,
    a: Annotated[str, typer.Argument(metavar="A", help="A TsSeq or a moment.", show_default=False)],
    b: Annotated[str | None, typer.Argument(metavar="B", help="The later one; default: now.")] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Show what changed between two versions of a document, by line and as a JSON patch."""
    from lake_spark.merge import diff as patch_between
    from lake_spark.merge import dumps, loads, pretty
    from lake_spark.model import MergeType

    out = Output(json)
    with opened(url) as lake:
        listings = [lake.list(catalog, as_of=version) for version in (a, b)]
        before, after = (lake.read_bytes(listing) for listing in listings)
    patch = patch_between(loads(before), loads(after), MergeType.RFC6902)
    old, new = (listing.version for listing in listings)
    lines = [pretty(data).decode().splitlines() for data in (before, after)]
    names = [f"{catalog} {version}  {moment(version)}" for version in (old, new)]
    for line in difflib.unified_diff(lines[0], lines[1], names[0], names[1], lineterm=""):
        out.text(line, style=_COLOURS.get(line[0], ""))
    for operation in patch:
        out.text(dumps(operation).decode())
    out.result({"catalog": catalog, "from": str(old), "to": str(new), "patch": patch})


@app.command(rich_help_panel=LOOK)
def stat(
    catalog: Annotated[str | None, typer.Argument(help="Of one document; default: of the lake.")] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Show sizes, depth of replay and cache hits."""
    out = Output(json)
    with opened(url) as lake:
        figures = _lake_figures(lake) if catalog is None else _catalog_figures(lake, catalog)
    caches = figures.pop("caches")
    shown = {name: size_of(value) if _is_size(name, value) else value for name, value in figures.items()}
    for name, stats in caches.items():
        shown[f"cache of {name}"] = f"hits {stats.hits}, misses {stats.misses}"
    out.record({name.replace("_", " "): value for name, value in shown.items()})
    out.result({**figures, "cache": caches})


def _is_size(name: str, value: object) -> bool:
    return name.endswith(("_bytes", "_memory")) and value is not None


def _lake_figures(lake: Lake) -> dict[str, Any]:
    from lake_spark.client.figures import lake_figures

    config = lake.get_config()
    where = {"redis": lake._connection.place, "name": config.get("Name"), "storage": config.get("Storage")}
    return {**where, **_fields(lake_figures(lake._session))}


def _fields(figures: Any) -> dict[str, Any]:
    return {field.name: getattr(figures, field.name) for field in dataclasses.fields(figures)}


def _catalog_figures(lake: Lake, catalog: str) -> dict[str, Any]:
    from lake_spark.client.figures import catalog_figures
    from lake_spark.names import check_catalog

    found = catalog_figures(lake._session, check_catalog(catalog))
    snapshot = f"{found.snapshot.start} ~ {found.snapshot.stop}" if found.snapshot else None
    return {**_fields(found), "version": str(found.version), "updated_at": moment(found.version), "snapshot": snapshot}


@app.command(rich_help_panel=LOOK)
def trace(
    catalog: Catalog,
    write: Annotated[
        str | None,
        typer.Option("--write", metavar="BODY", help="Write this (- and @file as for put) instead of reading."),
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Read (or write) a document and show what the time went to."""
    from lake_spark.trace import trace as tracing

    out = Output(json)
    with opened(url) as lake:
        body = None if write is None else body_of(write, "--write")
        with tracing("Read" if body is None else "Write") as steps:
            if body is None:
                lake.read_bytes(catalog)
            else:
                lake.write(catalog, body)
    _show_trace(out, steps)


def _show_trace(out: Output, steps: Trace) -> None:
    total = steps.total
    rows, records = [], []
    for step in steps.spans:
        details = {name: str(value) for name, value in step.details.items()}
        took = step.duration or 0.0
        begin = min(_WATERFALL - 1, round(_WATERFALL * step.start / total))
        bar = " " * begin + "█" * max(1, round(_WATERFALL * took / total))
        shown = ", ".join(f"{name} {value}" for name, value in details.items())
        rows.append(("  " * step.depth + step.name, f"{took * 1e3:.2f} ms", bar, shown))
        timing = {"name": step.name, "depth": step.depth, "start_ms": step.start * 1e3, "duration_ms": took * 1e3}
        records.append({**timing, "details": details})
    out.table(f"{steps.name}: {total * 1e3:.2f} ms", ("step", "took", "when", "details"), rows)
    out.result({"name": steps.name, "total_ms": total * 1e3, "steps": records})
