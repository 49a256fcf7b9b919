"""Questions 3 and 6: a read from the cache, and a read behind a long log."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from bench.measure import Timing, Work, in_threads, interleave, repeated
from bench.place import Place
from bench.table import Row, Target
from lake_spark import Lake, MergeType
from lake_spark.index import scripts
from lake_spark.merge import Fold, dumps
from lake_spark.names import delta_key, shard_of
from lake_spark.trace import trace

_TIMES = 20
_THREADS = 4
_RATE = Target("≥ 5,000/s", lambda seconds, _: 1 / seconds >= 5_000)
_CATALOG = "users"


def question_3(place: Place) -> list[Row]:
    rows = []
    for where, url in (("TCP", place.tcp), ("unix socket", place.unix)):
        with place.lake("read-cached", url=url) as lake, ThreadPoolExecutor(_THREADS) as pool:
            lake.write(_CATALOG, {f"field{n}": n for n in range(50)})
            lake.clear_history(_CATALOG)
            works: dict[str, Work] = {
                "ping": lake._session.index.connection.client.ping,
                "script": _bare_list(lake),
                "read": partial(lake.read_bytes, _CATALOG),
            }
            alone = interleave(
                {name: repeated(work, _TIMES) for name, work in works.items()},
                rounds=place.rounds(250),
                operations=_TIMES,
            )
            together = interleave(
                {name: in_threads(work, _TIMES, pool, _THREADS) for name, work in works.items()},
                rounds=place.rounds(100),
                operations=_TIMES * _THREADS,
            )
        rows += _rates(f"{where}, 1 thread", alone) + _rates(f"{where}, {_THREADS} threads", together)
    return rows


def _rates(where: str, found: dict[str, Timing]) -> list[Row]:
    return [
        Row(3, f"PING ({where})", found["ping"], "/s"),
        Row(3, f"list script, bare ({where})", found["script"], "/s", found["ping"], "PING"),
        Row(3, f"read from the cache ({where})", found["read"], "/s", found["script"], "list script", _RATE),
    ]


def _bare_list(lake: Lake) -> Work:
    index = lake._session.index
    client: Any = index.connection.client
    keys, arguments = index._list_call(shard_of(_CATALOG), [_CATALOG], None)
    client.script_load(scripts.LIST.source)
    return lambda: client.evalsha(scripts.LIST.sha, len(keys), *keys, *arguments)


def question_6(place: Place) -> list[Row]:
    count = 2_000 if place.quick else 10_000
    bodies = [dumps({f"key{n * 7919 % 1_000}": {"count": n, "text": "x" * 40}}) for n in range(count)]
    with place.lake("long-log", fsync="never") as lake:
        for body in bodies:
            lake.write(_CATALOG, body, merge=MergeType.RFC7396)
        entries: Any = lake.list(_CATALOG).entries
        storage, spans = lake._session.storage, dict[str, list[float]]()

        def read() -> None:
            # A lake of its own has nothing in its caches.
            with place.lake("long-log") as fresh, trace("Read") as taken:
                fresh.read_bytes(_CATALOG)
            for span in taken.spans:
                if span.depth == 0 and span.duration is not None:
                    spans.setdefault(span.name, []).append(span.duration)

        def get() -> None:
            for entry in entries:
                storage.get(delta_key(_CATALOG, entry.ts_seq, entry.merge_type))

        def fold() -> bytes:
            document = Fold()
            for body in bodies:
                document.apply(MergeType.RFC7396, "/", body)
            return document.dump()

        works: dict[str, Work] = {"script": _bare_list(lake), "get": get, "fold": fold, "read": read}
        found = interleave(works, rounds=place.rounds(15))
    floor = found["script"] + found["get"] + found["fold"]
    rows = [
        Row(6, "list script, bare", found["script"], "ms"),
        Row(6, f"get of {count:,} objects, one by one", found["get"], "ms"),
        Row(6, f"fold of {count:,} bodies", found["fold"], "ms"),
        Row(6, f"read behind {count:,} single deltas, cold", found["read"], "ms", floor, "sum of these three"),
    ]
    for name, seconds in spans.items():
        # The first read was the warm-up of the rounds.
        taken = sorted(seconds[1:])
        rows.append(Row(6, f"· of it in {name}", Timing(taken[len(taken) // 2], taken[0]), "ms"))
    return rows
