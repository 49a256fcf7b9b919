"""Question 4: what does encryption add to a body?"""

from __future__ import annotations

from functools import partial

from bench.measure import interleave, repeated
from bench.place import Place
from bench.table import Row, Target
from lake_spark.merge import dumps
from lake_spark.options import COMPRESSIONS
from lake_spark.storage import Codec

_TIMES = 20
_KEY = "9bc6/(users/delta/1700000000_1_2.json"
_TARGET = Target("adds < 50 µs", lambda seconds, floor: seconds - floor < 50e-6)


def question_4(place: Place) -> list[Row]:
    body = dumps({f"field{n}": f"value {n * 7919 % 10_007}" for n in range(38)})[:-1].ljust(1023) + b"}"
    rows = []
    for compression in COMPRESSIONS:
        found = interleave(
            {
                "plain": repeated(partial(_there_and_back, Codec(compression), body), _TIMES),
                "sealed": repeated(partial(_there_and_back, Codec(compression, "a password", "bench"), body), _TIMES),
            },
            rounds=place.rounds(400),
            operations=_TIMES,
        )
        rows.append(
            Row(
                4,
                f"encode and decode {len(body)} B encrypted, {compression}",
                found["sealed"],
                "µs",
                found["plain"],
                "the same without password",
                _TARGET,
            )
        )
    return rows


def _there_and_back(codec: Codec, body: bytes) -> bytes:
    return codec.decode(_KEY, codec.encode(_KEY, body))
