"""Question 5: many deltas over many catalogs in one transaction, and reading some of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count, groupby
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.measure import Work, interleave
from bench.place import Place
from bench.table import Row
from lake_spark import Lake
from lake_spark.client.transaction import _BLOCKS
from lake_spark.index import Block, CatalogRun, Index, TransactionIndex, scripts
from lake_spark.index.connection import Call
from lake_spark.merge import dumps
from lake_spark.names import segment_key, segment_name
from lake_spark.segment import Segment, write_segment
from lake_spark.segment.writer import GROUP_ROWS


def question_5(place: Place) -> list[Row]:
    return _on(place, on_s3=False) + (_on(place, on_s3=True) if place.s3 else [])


def _on(place: Place, *, on_s3: bool) -> list[Row]:
    deltas, catalogs = (20_000, 1_000) if place.quick else (100_000, 5_000)
    where, rounds = "S3" if on_s3 else "files", place.rounds(10)
    names = [f"users/{n:06}" for n in range(catalogs)]
    changes = [
        (names[n * 7919 % catalogs], dumps({"count": n, "text": f"value {n}"}), "/", "rfc7396") for n in range(deltas)
    ]
    lake = partial(place.lake, on_s3=on_s3, fsync="never")
    # Lakes of their own: every round makes the logs longer, for the floors as for the subject.
    with lake("bulk-floors") as below, lake("bulk") as above:
        floors = _Floors(below, changes, rounds)
        works: dict[str, Work] = {
            "parquet": floors.parquet,
            "put": floors.put,
            "publish": floors.publish,
            "write": partial(above.write_many, changes),
        }
        found = interleave(works, rounds=rounds, operations=deltas)
    floor = found["parquet"] + found["put"] + found["publish"]
    with lake("bulk-read") as once:
        once.write_many(changes)
    return [
        Row(5, f"pyarrow writes the rows ({where})", found["parquet"], "/s"),
        Row(5, f"put of the segment ({where})", found["put"], "/s"),
        Row(5, f"publishing pipeline, bare ({where})", found["publish"], "/s"),
        Row(
            5,
            f"write_many, {deltas:,} deltas, {catalogs:,} catalogs ({where})",
            found["write"],
            "/s",
            floor,
            "sum of these three",
        ),
        *_reads(place, partial(lake, "bulk-read"), names[:: catalogs // 1_000], where),
    ]


def _reads(place: Place, lake: Callable[[], Lake], names: list[str], where: str) -> list[Row]:
    """The catalogs one by one, by a lake that has read nothing yet, and again by the same."""
    held: list[Lake] = []

    def cold() -> None:
        while held:
            held.pop().close()
        held.append(lake())
        cached()

    def cached() -> None:
        for name in names:
            held[0].read_bytes(name)

    def listed() -> None:
        for name in names:
            held[0].list(name)

    works: dict[str, Work] = {"cold": cold, "cached": cached, "listed": listed}
    found = interleave(works, rounds=place.rounds(5), operations=len(names))
    held.pop().close()
    return [
        Row(5, f"list {len(names):,} of them one by one ({where})", found["listed"], "/s"),
        Row(5, f"read them, cold ({where})", found["cold"], "/s", found["listed"], "listing them"),
        Row(5, f"read them again, cached ({where})", found["cached"], "/s", found["listed"], "listing them"),
    ]


class _Floors:
    """The parts of `write_many` without the library around them: the file, its put, the scripts that publish it."""

    def __init__(self, lake: Lake, changes: list[tuple[str, bytes, str, str]], rounds: int) -> None:
        session = lake._session
        self._storage = session.storage
        self._client: Any = session.index.connection.client
        self._columns: dict[str, list[Any]] = {
            "catalog": [change[0] for change in changes],
            "merge_type": [2] * len(changes),
            "path": ["/"] * len(changes),
            "body": [change[1] for change in changes],
        }
        segment = write_segment("floor.0.0", self._columns)
        self._data = segment.data
        self._numbers = count()
        # Made beforehand, one for each round and one for the warm-up: only the pipeline is timed.
        self._calls = [publish_calls(session.index, segment) for _ in range(rounds + 1)]

    def parquet(self) -> None:
        types = {"catalog": pa.string(), "merge_type": pa.int8(), "path": pa.string(), "body": pa.binary()}
        table = pa.table({name: pa.array(self._columns[name], kind) for name, kind in types.items()})
        pq.write_table(table, pa.BufferOutputStream(), compression="zstd", row_group_size=GROUP_ROWS)

    def put(self) -> None:
        self._storage.put(segment_key(f"floor.0.{next(self._numbers)}"), self._data, if_absent=True)

    def publish(self) -> None:
        calls = self._calls.pop()
        for start in range(0, len(calls), _BLOCKS):
            with self._client.pipeline(transaction=False) as pipeline:
                pipeline.script_load(scripts.TXN_PUBLISH.source)
                for keys, arguments in calls[start : start + _BLOCKS]:
                    pipeline.evalsha(scripts.TXN_PUBLISH.sha, len(keys), *keys, *arguments)
                pipeline.execute()


def publish_calls(index: Index, segment: Segment) -> list[Call]:
    """What publishes the segment in a transaction that is open for it."""
    transaction = TransactionIndex.begin(index, lease=3600.0)
    transaction.intend()
    name = segment_name(transaction.txn, 0, 0)
    blocks = (
        Block(shard, name, [CatalogRun(each.catalog, each.row, each.count) for each in spans])
        for shard, spans in groupby(segment.spans(), key=lambda each: each.shard)
    )
    return [transaction._publish_call(block) for block in blocks]
