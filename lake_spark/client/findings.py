"""What a check finds: how bad it is, what it means, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

Level = Literal["ok", "warning", "error"]


class Finding(NamedTuple):
    """One thing that was looked at. `name` stays the same from version to version."""

    name: str
    level: Level
    found: str
    meaning: str = ""
    action: str = ""


def errors_of(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that are errors."""
    return [finding for finding in findings if finding.level == "error"]
