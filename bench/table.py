"""Results: a row each, printed as one table and kept as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.measure import Timing

_UNITS = {"µs": 1e6, "ms": 1e3, "s": 1.0, "×": 1.0, "%": 100.0, "B": 1.0, "MiB": 1 / 2**20}


@dataclass(frozen=True, slots=True)
class Target:
    """What is promised: a text, and a test of the seconds taken and of the floor's."""

    text: str
    test: Callable[[float, float], bool]


@dataclass(frozen=True, slots=True)
class Row:
    """A measured subject, or a floor. `unit` is µs, ms or s for an operation, or /s for a rate.

    Where the figure is no time but a ratio (×), a share (%) or a size (B, MiB), that is what `timing` holds.
    """

    question: int
    what: str
    timing: Timing
    unit: str
    floor: Timing | None = None
    floor_name: str = ""
    target: Target | None = None

    @property
    def ratio(self) -> float | None:
        return self.timing.median / self.floor.median if self.floor else None

    @property
    def verdict(self) -> str:
        """Whether the target is met in the median, only in the best round, or not: and whether the floor would."""
        if self.target is None:
            return ""
        floor = self.floor or Timing(0.0, 0.0)
        if self.target.test(self.timing.median, floor.median):
            return "met"
        if self.target.test(self.timing.best, floor.best):
            return "met at best"
        if self.floor is None or self.target.test(floor.median, floor.median):
            return "missed"
        return "missed, by the floor too"

    def shown(self, seconds: float) -> str:
        number = 1 / seconds if self.unit == "/s" else seconds * _UNITS[self.unit]
        return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"

    def as_json(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "what": self.what,
            "median_seconds": self.timing.median,
            "best_seconds": self.timing.best,
            "floor": self.floor_name,
            "floor_median_seconds": self.floor.median if self.floor else None,
            "ratio": self.ratio,
            "target": self.target.text if self.target else None,
            "verdict": self.verdict or None,
        }


_HEAD = ("", "what", "median", "best", "", "× floor", "floor", "target", "verdict")
_RIGHT = {2, 3, 5}


def render(rows: Sequence[Row]) -> str:
    """The rows as lines of text; a question's number stands at its first row."""
    lines = [_HEAD]
    asked = 0
    for row in rows:
        number = "" if row.question == asked else str(row.question)
        asked = row.question
        lines.append(
            (
                number,
                row.what,
                row.shown(row.timing.median),
                row.shown(row.timing.best),
                row.unit,
                f"{row.ratio:.2f}" if row.ratio else "",
                row.floor_name,
                row.target.text if row.target else "",
                row.verdict,
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at in _RIGHT else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
