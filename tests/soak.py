"""Random histories against the plain fold, for as long as wanted; a seed replays a failure.

python tests/soak.py --seconds 600
python tests/soak.py --seed 123
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import json_merge_patch
from servers import RedisServer

from lake_spark import Lake, MergeType, TsSeq
from lake_spark.errors import HistoryGone, InvalidInput

CATALOGS = ("a", "b", "Mixed Case", "ü/x")
STEPS = 50


class Oracle:
    """A catalog as a list of changes; its document is their fold, by other people's code."""

    def __init__(self) -> None:
        self.log: list[tuple[TsSeq, Callable[[Any], Any]]] = []
        self.floor = TsSeq(0, 0)

    def document(self, as_of: TsSeq | None = None) -> Any:
        value: Any = {}
        for ts_seq, change in self.log:
            if as_of is None or ts_seq <= as_of:
                value = change(value)
        return value


def change(random_: random.Random) -> tuple[object, str, MergeType, Callable[[Any], Any]]:
    """A write, and what it does to a document."""
    key, value = f"k{random_.randrange(6)}", random_.choice([None, 1, 1.5, "x", [1, None], {"y": {"z": 1}}, {}])
    kind = random_.randrange(4)
    if kind == 0:
        document = {key: value, "list": []}
        return document, "/", MergeType.REPLACE, lambda before: json.loads(json.dumps(document))
    if kind == 1:
        patch = {key: value, f"k{random_.randrange(6)}": {"n": random_.randrange(100)}}
        return (
            patch,
            "/",
            MergeType.RFC7396,
            lambda before: json_merge_patch.merge(before, json.loads(json.dumps(patch))),
        )
    if kind == 2:
        operations = [
            {"op": "add", "path": f"/{key}", "value": value},
            {"op": "test", "path": f"/{key}", "value": value},
        ]
        return operations, "/", MergeType.RFC6902, lambda before: {**before, key: json.loads(json.dumps(value))}
    return value, f"/{key}", MergeType.REPLACE, lambda before: {**before, key: json.loads(json.dumps(value))}


def run(lakes: list[Lake], seed: int, steps: int = STEPS) -> None:
    """One history: two clients take turns at random, and every read is what the oracle says."""
    random_ = random.Random(seed)
    names = [f"{name} {seed}" for name in CATALOGS]
    oracles = {name: Oracle() for name in names}
    for step in range(steps):
        lake, name = random_.choice(lakes), random_.choice(names)
        oracle = oracles[name]
        kind = random_.choice(
            ["write"] * 6 + ["many"] * 2 + ["read"] * 3 + ["as of", "clear", "remove", "flush", "abandon"]
        )
        where = f"seed {seed}, step {step}: {kind} of {name!r}"
        if kind == "write":
            body, path, merge, effect = change(random_)
            oracle.log.append((lake.write(name, body, path=path, merge=merge), effect))
        elif kind == "many":
            rows = [(random_.choice(names), change(random_)) for _ in range(random_.randrange(1, 8))]
            written = lake.write_many([(n, body, path, merge) for n, (body, path, merge, _) in rows])
            for (n, (*_, effect)), ts_seq in zip(rows, written, strict=True):
                oracles[n].log.append((ts_seq, effect))
        elif kind == "read" and oracle.log:
            assert lake.read_map(name) == oracle.document(), where
            assert lake.list(name).version == oracle.log[-1][0], where
        elif kind == "as of" and oracle.log:
            as_of = random_.choice(oracle.log)[0]
            try:
                found = lake.read_map(lake.list(name, as_of=as_of))
            except HistoryGone:
                assert as_of < oracle.floor, where
            else:
                assert found == oracle.document(as_of), where
        elif kind == "clear" and oracle.log:
            cleared = lake.clear_history(name, keep_snaps=random_.randrange(3))
            oracle.floor = max(oracle.floor, cleared.stop or oracle.floor)
        elif kind == "remove" and oracle.log:
            at = random_.randrange(len(oracle.log))
            try:
                lake.remove_delta(name, oracle.log[at][0])
            except InvalidInput:
                pass
            else:
                del oracle.log[at]
        elif kind == "flush":
            lake.flush()
        elif kind == "abandon":
            # A writer that dies here: everybody else fences it when they go past.
            lake._session.index.precommit(name, MergeType.REPLACE, "/abandoned")
            time.sleep(2 * lake._options.pending_timeout)
    for name, oracle in oracles.items():
        for lake in lakes:
            assert lake.list(name).exists == bool(oracle.log), (seed, name)
            if oracle.log:
                assert lake.read_map(name) == oracle.document(), (seed, name)


def lakes_at(url: str, folder: Path, **config: str) -> list[Lake]:
    settings = {"Name": "soak", "Storage": "file", "BasePath": str(folder), **config}
    return [Lake(url, config=settings, snapshot=how, pending_timeout=0.01, fsync="never") for how in ("auto", "always")]


def main() -> None:
    parser = argparse.ArgumentParser(description="Random histories against the plain fold.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, help="replay this one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder) / "redis") as server:
        lakes = lakes_at(server.url, Path(folder) / "lake")
        end = time.monotonic() + given.seconds
        seed = given.seed if given.seed is not None else random.randrange(10**9)
        count = 0
        while True:
            run(lakes, seed)
            seed, count = seed + 1, count + 1
            if given.seed is not None or time.monotonic() > end:
                break
        for lake in lakes:
            lake.close()
    print(f"{count} histories of {STEPS} steps, the last with seed {seed - 1}: every read was the fold of its log")


if __name__ == "__main__":
    main()
