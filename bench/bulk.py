"""Question 5: many deltas over many catalogs in one transaction, and reading some of them."""

from __future__ import annotations

from itertools import count, groupby
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.measure import Timing, Work, interleave
from bench.place import Place
from bench.table import Row
from lake_spark import Lake
from lake_spark.index import Block, CatalogRun, TransactionIndex, scripts
from lake_spark.index.connection import Call
from lake_spark.merge import dumps
from lake_spark.names import segment_key
from lake_spark.segment import Segment, write_segment


def question_5(place: Place) -> list[Row]:
    rows = _on(place, place.lake("bulk", fsync="never"), "files")
    if place.s3:
        rows += _on(place, place.lake("bulk-s3", on_s3=True), "S3")
    return rows


def _on(place: Place, lake: Lake, where: str) -> list[Row]:
    deltas, catalogs = (20_000, 1_000) if place.quick else (100_000, 5_000)
    names = [f"users/{n:06}" for n in range(catalogs)]
    changes = [(names[n * 7919 % catalogs], dumps({"count": n, "text": f"value {n}"})) for n in range(deltas)]
    with lake:
        floors = _Floors(lake, changes)
        works: dict[str, Work] = {
            "parquet": floors.parquet,
            "put": floors.put,
            "publish": floors.publish,
            "write": lambda: lake.write_many((name, body, "/", "rfc7396") for name, body in changes),
        }
        found = {name: each / deltas for name, each in interleave(works, rounds=place.rounds(10)).items()}
    floor = found["parquet"] + found["put"] + found["publish"]
    size = f"{deltas:,} deltas, {catalogs:,} catalogs, {where}"
    return [
        Row(5, f"pyarrow writes the rows ({where})", found["parquet"], "/s"),
        Row(5, f"put of the segment ({where})", found["put"], "/s"),
        Row(5, f"publishing pipeline, bare ({where})", found["publish"], "/s"),
        Row(5, f"write_many ({size})", found["write"], "/s", floor, "sum of these three"),
        *_read_some(place, names[:: max(1, catalogs // 1_000)], where),
    ]


def _read_some(place: Place, names: list[str], where: str) -> list[Row]:
    """The catalogs one by one, by a lake that has read nothing yet, and again by the same."""
    on_s3 = where == "S3"
    name = "bulk-s3" if on_s3 else "bulk"
    held: list[Lake] = []

    def listed() -> None:
        index = held[0]._session.index
        for each in names:
            index.listing(each)

    def cold() -> None:
        while held:
            held.pop().close()
        held.append(place.lake(name, on_s3=on_s3))
        cached()

    def cached() -> None:
        for each in names:
            held[0].read_bytes(each)

    found = interleave(
        {"cold": cold, "cached": cached, "listed": listed}, rounds=place.rounds(5), operations=len(names)
    )
    held.pop().close()
    floor: Timing = found["listed"]
    return [
        Row(5, f"read {len(names):,} of them one by one, cold ({where})", found["cold"], "/s", floor, "listing each"),
        Row(5, f"read them again, cached ({where})", found["cached"], "/s", floor, "listing each"),
    ]


class _Floors:
    """The parts of `write_many` without the library around them: the file, its put, the scripts that publish it."""

    def __init__(self, lake: Lake, changes: list[tuple[str, bytes]]) -> None:
        session = lake._session
        self._storage, self._index = session.storage, session.index
        self._client: Any = session.index.connection.client
        self._columns: dict[str, list[Any]] = {
            "catalog": [name for name, _ in changes],
            "merge_type": [2] * len(changes),
            "path": ["/"] * len(changes),
            "body": [body for _, body in changes],
        }
        self._segment: Segment = write_segment("floor0000000.0.0", self._columns)
        self._numbers = count()
        # Publishing needs a transaction of its own each time: the first is for the round that warms up.
        self._open: list[tuple[TransactionIndex, list[Call]]] = []

    def parquet(self) -> None:
        types = {"catalog": pa.string(), "merge_type": pa.int8(), "path": pa.string(), "body": pa.binary()}
        table = pa.table({name: pa.array(self._columns[name], kind) for name, kind in types.items()})
        pq.write_table(table, pa.BufferOutputStream(), compression="zstd", row_group_size=8192)

    def put(self) -> None:
        # What is timed next is published under a transaction that is opened here, outside of its time.
        self._storage.put(segment_key(f"floor{next(self._numbers):07}.0.0"), self._segment.data, if_absent=True)

    def publish(self) -> None:
        transaction, calls = self._transaction()
        for start in range(0, len(calls), 64):
            with self._client.pipeline(transaction=False) as pipeline:
                pipeline.script_load(scripts.TXN_PUBLISH.source)
                for keys, arguments in calls[start : start + 64]:
                    pipeline.evalsha(scripts.TXN_PUBLISH.sha, len(keys), *keys, *arguments)
                pipeline.execute()
        transaction.abort()

    def _transaction(self) -> tuple[TransactionIndex, list[Call]]:
        transaction = TransactionIndex.begin(self._index, 300.0)
        transaction.intend()
        name = f"{transaction.txn}.0.0"
        blocks = [
            Block(shard, name, [CatalogRun(each.catalog, each.row, each.count) for each in spans])
            for shard, spans in groupby(self._segment.spans(), key=lambda each: each.shard)
        ]
        return transaction, [transaction._publish_call(block) for block in blocks]
