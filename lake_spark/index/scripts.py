"""The Lua scripts: loaded from `lua/`, named, and each with the retries it can bear.

redis-py repeats nothing here (its own retries are off); `Connection` does, by this table. Every script
that changes something may run twice with the same arguments, so a lost reply is answered by asking again.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

_PACKAGED = Path(__file__).parent.parent / "_lua"
_FOLDER = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parents[2] / "lua"
_INCLUDE = re.compile(r"^--@include (\w+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A script's source, and whether it is tried again when its reply is lost."""

    name: str
    source: str
    sha: str
    retried: bool


def _load(name: str, *, retried: bool = True) -> Script:
    def included(match: re.Match[str]) -> str:
        return (_FOLDER / "lib" / f"{match[1]}.lua").read_text()

    source = _INCLUDE.sub(included, (_FOLDER / f"{name}.lua").read_text())
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest(), retried)


# Known by its token: a repeat finds the pending that the first run made.
PRECOMMIT = _load("precommit")
# Known by its member: a repeat finds the delta. What stays unanswered is an OutcomeUnknown.
COMMIT = _load("commit")
ROLLBACK = _load("rollback")
# Fences what it passes; a repeat finds it fenced.
LIST = _load("list")
# An optimisation off the critical path: not worth a retry, the next read makes it again.
SNAPSHOT = _load("snapshot", retried=False)
CLEAR = _load("clear")
REMOVE_DELTA = _load("remove_delta")
REMOVE_SNAPSHOT = _load("remove_snapshot")
FORGET_CATALOG = _load("forget_catalog")
# Known by its `once` key.
META = _load("meta")
HIGH_WATER_MARK = _load("high_water_mark")
SAMPLE = _load("sample")
# Known by the transaction's id and owner, its state, and the markers of its blocks.
TXN_STAGE = _load("txn_stage")
TXN_INTEND = _load("txn_intend")
TXN_PUBLISH = _load("txn_publish")
TXN_COMMIT = _load("txn_commit")
TXN_ABORT = _load("txn_abort")
