"""Question 2: what does a single write cost beyond its two round trips and its put?"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import count
from typing import Any

from bench.measure import interleave
from bench.place import Place
from bench.table import Row, Target
from lake_spark import Lake, MergeType
from lake_spark.index import Index, scripts
from lake_spark.index.connection import Argument, Call
from lake_spark.merge import dumps
from lake_spark.model import TsSeq
from lake_spark.names import delta_key

_CATALOGS = 20
_BODY = dumps({"name": "Ada", "email": "ada@example.com", "tags": ["a", "b"], "note": "x" * 120})
_TARGET = Target("≤ 1.5 × floor", lambda seconds, floor: seconds <= 1.5 * floor)


def question_2(place: Place) -> list[Row]:
    rows = _on(place.lake("write-always"), "files, fsync always", place.rounds(2000))
    rows += _on(place.lake("write-never", fsync="never"), "files, fsync never", place.rounds(4000))
    if place.s3:
        rows += _on(place.lake("write-s3", on_s3=True), "S3", place.rounds(300))
    return rows


def _on(lake: Lake, where: str, rounds: int) -> list[Row]:
    with lake:
        names = [f"users/{n}" for n in range(_CATALOGS)]
        bare = _BareWrite(lake, [f"basis/{n}" for n in range(_CATALOGS)])
        turns = count()

        def write() -> None:
            lake.write(names[next(turns) % _CATALOGS], _BODY, merge=MergeType.RFC7396)

        steps = {"precommit": bare.precommit, "put": bare.put, "commit": bare.commit}
        # The first write of a catalog makes its folders.
        for _ in range(_CATALOGS):
            write()
            for step in steps.values():
                step()
        found = interleave({"write": write, **steps}, rounds=rounds)
    floor = found["precommit"] + found["put"] + found["commit"]
    return [
        Row(2, f"pre-commit script, bare ({where})", found["precommit"], "µs"),
        Row(2, f"put if absent, bare ({where})", found["put"], "µs"),
        Row(2, f"commit script, bare ({where})", found["commit"], "µs"),
        Row(2, f"write ({where})", found["write"], "µs", floor, "sum of these three", _TARGET),
    ]


class _Recorder:
    """Stands in for the connection, to learn what the index sends for a write."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def run(self, script: scripts.Script, keys: Sequence[str], arguments: Sequence[Argument]) -> bytes:
        self.calls.append((keys, arguments))
        return b"1700000000_1" if script is scripts.PRECOMMIT else b"committed"


class _BareWrite:
    """The steps of a write, on catalogs of their own, with keys and arguments made beforehand where they can be."""

    def __init__(self, lake: Lake, catalogs: list[str]) -> None:
        session = lake._session
        self._client: Any = session.index.connection.client
        self._storage = session.storage
        self._codec = session.codec
        self._turn = 0
        self._catalogs = catalogs
        self._calls = [_recorded(session.index, catalog) for catalog in catalogs]
        self._token = ""
        self._ts_seq = b""
        for script in (scripts.PRECOMMIT, scripts.COMMIT):
            self._client.script_load(script.source)

    def precommit(self) -> None:
        (keys, (token, *rest)), _ = self._calls[self._turn % len(self._calls)]
        self._token = f"{token!s}{self._turn}"
        self._ts_seq = self._client.evalsha(scripts.PRECOMMIT.sha, len(keys), *keys, self._token, *rest)

    def put(self) -> None:
        catalog = self._catalogs[self._turn % len(self._catalogs)]
        key = delta_key(catalog, TsSeq.parse(self._ts_seq.decode()), MergeType.RFC7396)
        self._storage.put(key, self._codec.encode(key, _BODY), if_absent=True)

    def commit(self) -> None:
        _, (keys, (_, merge_type, path, _, *rest)) = self._calls[self._turn % len(self._calls)]
        arguments = (self._token, merge_type, path, self._ts_seq, *rest)
        if self._client.evalsha(scripts.COMMIT.sha, len(keys), *keys, *arguments) != b"committed":
            raise RuntimeError("the bare write was not committed")
        self._turn += 1


def _recorded(index: Index, catalog: str) -> list[Call]:
    recorder: Any = _Recorder()
    asked = dataclasses.replace(index, connection=recorder)
    asked.commit(asked.precommit(catalog, MergeType.RFC7396, "/"), {})
    calls: list[Call] = recorder.calls
    return calls
