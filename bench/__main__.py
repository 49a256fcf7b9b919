"""Runs the questions and prints one table: `python -m bench [--quick] [--s3] [--only 2 3] [--json PATH]`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import redis

from bench import bulk, folding, reading, sealing, writing
from bench.place import Place, running
from bench.table import Row, render


def _question_7(place: Place) -> list[Row]:
    # Not at the top: the other questions do without Spark.
    from bench.spark import question_7

    return question_7(place)


_QUESTIONS = {
    1: folding.question_1,
    2: writing.question_2,
    3: reading.question_3,
    4: sealing.question_4,
    5: bulk.question_5,
    6: reading.question_6,
    7: _question_7,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="How fast the lake is, beside its floors.")
    parser.add_argument("--quick", action="store_true", help="smaller work and fewer rounds: about a minute")
    parser.add_argument("--s3", action="store_true", help="also on S3 (a SeaweedFS of its own)")
    parser.add_argument("--only", type=int, nargs="+", choices=_QUESTIONS, help="these questions alone")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results to this file")
    parser.add_argument("--profile", action="store_true", help="also print where the functions of 7 spend their time")
    given = parser.parse_args()

    rows: list[Row] = []
    with running(s3=given.s3, quick=given.quick, profile=given.profile) as place:
        for number in given.only or _QUESTIONS:
            began = time.monotonic()
            rows += _QUESTIONS[number](place)
            print(f"question {number}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    machine = {
        "python": platform.python_version(),
        "redis-py": redis.__version__,
        "hiredis": find_spec("hiredis") is not None,
        "processors": os.cpu_count(),
        "load": os.getloadavg()[0],
    }
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(render(rows))
    if given.json:
        results = {"machine": machine, "quick": given.quick, "rows": [row.as_json() for row in rows]}
        given.json.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
