"""Commands that take something out of a lake: clear, rm-delta."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lake_spark.cli.app import CARE, Json, Url, Yes, app
from lake_spark.cli.commands.show import Catalog
from lake_spark.cli.context import confirm, opened
from lake_spark.cli.output import Output
from lake_spark.model import TsSeq

# What a plan shows of a body.
_SHOWN_BYTES = 500


@app.command(rich_help_panel=CARE)
def clear(
    catalogs: Annotated[list[str], typer.Argument(metavar="CATALOG...", help="Names.", show_default=False)],
    keep_snaps: Annotated[
        int, typer.Option("--keep-snaps", min=0, help="Keep so many snapshots, and all that follows them.")
    ] = 0,
    yes: Yes = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Forget history behind a snapshot; documents stay as they are."""
    from lake_spark.client.history import plan_clear
    from lake_spark.names import check_catalog

    out = Output(json)
    with opened(url) as lake:
        plans = [plan_clear(lake._session, check_catalog(catalog), keep_snaps) for catalog in catalogs]
        lines = [f"{plan.catalog}: forget {_counts(plan)} up to {plan.stop}" for plan in plans]
        confirm(lines, yes, out)
        cleared = []
        with out.progress("clearing", len(catalogs)) as progress:
            for catalog in catalogs:
                cleared.append(lake.clear_history(catalog, keep_snaps))
                progress.advance(1)
    for done in cleared:
        out.text(f"{done.catalog}: forgot {_counts(done)} up to {done.stop}")
    out.result([_record(done) for done in cleared])


def _counts(cleared: Any) -> str:
    numbers = {"delta": cleared.deltas, "snapshot": cleared.snapshots, "object": len(cleared.objects)}
    return ", ".join(f"{number} {name}{'s' * (number != 1)}" for name, number in numbers.items())


def _record(done: Any) -> dict[str, Any]:
    counts = {"deltas": done.deltas, "snapshots": done.snapshots, "objects": len(done.objects)}
    return {"catalog": done.catalog, "stop": str(done.stop) if done.stop else None, **counts}


@app.command("rm-delta", rich_help_panel=CARE)
def rm_delta(
    catalog: Catalog,
    ts_seq: Annotated[str, typer.Argument(metavar="TSSEQ", help="Such as 1700000000_1.", show_default=False)],
    yes: Yes = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Take one delta out of a log, such as one that cannot be applied."""
    from lake_spark.client.logbook import find_delta
    from lake_spark.names import check_catalog

    out = Output(json)
    with opened(url) as lake:
        place = TsSeq.parse(ts_seq)
        line, body = find_delta(lake._session, check_catalog(catalog), place)
        kind = line.merge_type.name if line.merge_type else "a delta"
        size = f"{line.size} bytes" if body is not None else line.problem
        plan = [f"{catalog}: remove {place}, {kind} at {line.path or 'an unknown path'}, {size}"]
        if body is not None:
            plan.append(body[:_SHOWN_BYTES].decode(errors="replace") + "…" * (len(body) > _SHOWN_BYTES))
        confirm(plan, yes, out)
        lake.remove_delta(catalog, place)
    out.text(f"{place} is gone")
    out.result({"catalog": catalog, "removed": str(place)})
