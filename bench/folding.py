"""Question 1: what does a delta cost in the fold?"""

from __future__ import annotations

from functools import partial

import msgspec

from bench.measure import Work, interleave
from bench.place import Place
from bench.table import Row, Target
from lake_spark.merge import Fold, dumps
from lake_spark.model import MergeType

_KEYS, _DELTAS = 1_000, 10_000
_TARGET = Target("≤ 3 µs", lambda seconds, _: seconds <= 3e-6)


def question_1(place: Place) -> list[Row]:
    base = dumps({f"key{n}": {"count": n, "text": f"value {n}"} for n in range(_KEYS)})
    numbers = [(n * 7919 % _KEYS, n) for n in range(_DELTAS)]
    kinds: dict[str, tuple[MergeType, list[tuple[str, bytes]]]] = {
        "merge patch": (
            MergeType.RFC7396,
            [("/", dumps({f"key{k}": {"count": n, "text": f"value {n}", "by": "x" * 36}})) for k, n in numbers],
        ),
        "JSON patch": (
            MergeType.RFC6902,
            [
                ("/", dumps([{"op": "replace", "path": f"/key{k}/text", "value": f"value {n} " + "x" * 24}]))
                for k, n in numbers
            ],
        ),
        "replace at a path": (
            MergeType.REPLACE,
            [(f"/key{k}", dumps({"count": n, "text": f"value {n}", "by": "x" * 44})) for k, n in numbers],
        ),
    }
    rows = []
    for name, (merge_type, deltas) in kinds.items():
        works: dict[str, Work] = {
            "parse": partial(_parse, deltas),
            "fold": partial(_fold, base, merge_type, deltas),
        }
        found = interleave(works, rounds=place.rounds(100), operations=_DELTAS)
        size = sum(len(body) for _, body in deltas) // _DELTAS
        rows.append(
            Row(
                1,
                f"fold 10,000 of {name}, {size} B, onto 1,000 keys",
                found["fold"],
                "µs",
                found["parse"],
                "parsing the bodies",
                _TARGET if merge_type is MergeType.RFC7396 else None,
            )
        )
    return rows


def _parse(deltas: list[tuple[str, bytes]]) -> None:
    decode = msgspec.json.Decoder().decode
    for _, body in deltas:
        decode(body)


def _fold(base: bytes, merge_type: MergeType, deltas: list[tuple[str, bytes]]) -> bytes:
    fold = Fold(base)
    for path, body in deltas:
        fold.apply(merge_type, path, body)
    return fold.dump()
