"""`lake fsck`: the index against the objects, and putting right what can be."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from lake_spark.cli.app import CARE, ExitCode, Json, Url, Yes, app
from lake_spark.cli.context import confirm, opened
from lake_spark.cli.output import Output

if TYPE_CHECKING:
    from lake_spark.client.problems import Problem

# What a repair does, by the name of its class.
_STEPS = {
    "Fence": "fence {} writes that expired",
    "Abort": "give up {} transactions whose writers are gone",
    "Forget": "take {} names without a log out of the registry",
    "DropSnapshot": "take {} snapshots that cannot be read out of the index",
    "DeleteObject": "delete {} objects that nothing names",
}


@app.command(rich_help_panel=CARE)
def fsck(
    deep: Annotated[bool, typer.Option("--deep", help="Load every body and merge every document.")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Put right what can be; with --yes it is done.")] = False,
    remove_unknown: Annotated[
        bool, typer.Option("--remove-unknown", help="With --repair: also objects that Redis may have forgotten.")
    ] = False,
    min_age: Annotated[
        float, typer.Option("--min-age", metavar="HOURS", help="Objects that are younger are nobody's orphans.", min=0)
    ] = 24.0,
    yes: Yes = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Check that every entry of the index has its object, and every object its entry.

    With --json each problem is a line, and the last line is the sum. Exit code 5: there are problems (left). No
    document and no version changes by a repair.
    """
    from lake_spark.client.fsck import Figures, Fsck
    from lake_spark.client.problems import repair as put_right
    from lake_spark.names import SHARDS

    out = Output(json)
    planned: Counter[str] = Counter()
    repaired: Counter[str] = Counter()
    left = 0
    figures = Figures()
    with opened(url) as lake:
        session = lake._session
        with out.progress("checking", sum(session.index.registry_sizes(SHARDS))) as progress:
            check = Fsck(session, deep, min_age * 3600, figures)
            for problem in check.problems(progress.advance):
                step = problem.repaired_by(remove_unknown=remove_unknown) if repair else None
                done = bool(step and yes and put_right(session, step))
                if step:
                    (repaired if done else planned)[type(step).__name__] += 1
                left += not done
                out.text(f"{'repaired' if done else problem.level:<8} {problem.kind:<20} {problem.place}")
                out.text(f"{'':8} {'':20} {problem.found}")
                if not done:
                    out.text(f"{'':8} {'do:':<20} {problem.action}")
                out.result({"problem": {**_shown(problem), "repaired": done}})
    found = asdict(figures)
    out.record(found)
    out.text(f"{left} problems" + (f", {sum(repaired.values())} repaired" if repaired else ""))
    out.result({"figures": found, "left": left, "repaired": sum(repaired.values())})
    if planned and not yes:
        confirm([_STEPS[name].format(count) for name, count in planned.items()], yes, out)
    if left:
        raise typer.Exit(ExitCode.FINDINGS)


def _shown(problem: Problem) -> dict[str, str]:
    names = ("kind", "level", "place", "found", "action")
    return {name: getattr(problem, name) for name in names}
