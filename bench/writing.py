"""Question 2: what does a single write cost beyond its two round trips and its put?"""

from __future__ import annotations

from itertools import count
from typing import Any

from bench.measure import interleave
from bench.place import Place
from bench.table import Row, Target
from lake_spark import Lake, MergeType
from lake_spark.index import scripts
from lake_spark.merge import dumps
from lake_spark.model import TsSeq
from lake_spark.names import b64, delta_key, shard_of

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


class _BareWrite:
    """The steps of a write, on catalogs of their own, with keys and arguments made beforehand where they can be."""

    def __init__(self, lake: Lake, catalogs: list[str]) -> None:
        session = lake._session
        self._client: Any = session.index.connection.client
        self._storage = session.storage
        self._codec = session.codec
        self._turn = 0
        self._catalogs = catalogs
        self._token = ""
        self._ts_seq = b""
        self._opening, self._closing = [], []
        for catalog in catalogs:
            keys, shard = session.index.keys, shard_of(catalog)
            delta, pending, opened = keys.delta(catalog), keys.pending(shard), keys.opened(shard)
            self._opening.append((delta, keys.snap(catalog), keys.seq(shard), pending, opened))
            self._closing.append((delta, pending, opened, keys.fenced(shard), keys.catalogs(shard), keys.meta(catalog)))
        for script in (scripts.PRECOMMIT, scripts.COMMIT):
            self._client.script_load(script.source)

    def precommit(self) -> None:
        at = self._turn % len(self._catalogs)
        self._token = f"w|{self._turn:016x}|2|/|{b64(self._catalogs[at])}"
        keys = self._opening[at]
        self._ts_seq = self._client.evalsha(scripts.PRECOMMIT.sha, len(keys), *keys, self._token, "2", "/")

    def put(self) -> None:
        catalog = self._catalogs[self._turn % len(self._catalogs)]
        key = delta_key(catalog, TsSeq.parse(self._ts_seq.decode()), MergeType.RFC7396)
        self._storage.put(key, self._codec.encode(key, _BODY), if_absent=True)

    def commit(self) -> None:
        at = self._turn % len(self._catalogs)
        catalog, keys = self._catalogs[at], self._closing[at]
        arguments = (self._token, "2", "/", self._ts_seq, b64(catalog), catalog)
        if self._client.evalsha(scripts.COMMIT.sha, len(keys), *keys, *arguments) != b"committed":
            raise RuntimeError("the bare write was not committed")
        self._turn += 1
