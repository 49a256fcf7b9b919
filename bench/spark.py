"""Question 7: bulk writes and reads by Spark, beside Spark's own transport, Parquet and the bare scripts."""

from __future__ import annotations

import contextlib
import json
import os
import pstats
import shutil
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from servers import LOOPBACK

from bench.bulk import publish_calls
from bench.measure import Timing, Work, interleave
from bench.place import Place
from bench.table import Row, Target
from lake_spark import Lake, MergeType
from lake_spark.client.transaction import _BLOCKS
from lake_spark.embedded import use_java
from lake_spark.index import scripts
from lake_spark.index.connection import Call
from lake_spark.index.index import LIST_BATCH
from lake_spark.model import Run
from lake_spark.names import shard_of
from lake_spark.segment import write_segment
from lake_spark.segment.writer import GROUP_ROWS

_CORES = 2
_PARTITIONS = 4
_PER_CATALOG = 20
_THREADS = 8
_SPENT_ON = ("transport", "redis", "parquet", "storage", "waits")

_WRITTEN = Target("≥ 200,000/s", lambda seconds, _: 1 / seconds >= 200_000)
_MERGED = Target("≥ 400,000/s", lambda seconds, _: 1 / seconds >= 400_000)
_AFTER = Target("≥ 60,000/s", lambda seconds, _: 1 / seconds >= 60_000)
_FASTER = Target("≥ 20", lambda times, _: times >= 20)
_LINEAR = Target("≤ 4.4", lambda times, _: times <= 4.4)
_OUTSIDE = Target("≤ 40 %", lambda share, _: share <= 0.4)
_MEMORY = Target("< 1 GiB", lambda size, _: size < 1 << 30)
_CATALOG_BYTES = Target("≤ 350 B", lambda size, _: size <= 350)
_RUN_BYTES = Target("≤ 60 B", lambda size, _: size <= 60)


def question_7(place: Place) -> list[Row]:
    with _running(place) as spark:
        rows = _Ground(place, spark, on_s3=False).rows()
        if place.s3:
            rows += _Ground(place, spark, on_s3=True).rows()
    return rows


@contextlib.contextmanager
def _running(place: Place) -> Iterator[Any]:
    """A Spark with two cores, which knows the lake and the sources beside this module."""
    for name in [name for name in os.environ if name.startswith(("LAKE_", "SPARK_", "PYSPARK_"))]:
        del os.environ[name]
    use_java()
    root = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    os.environ["SPARK_LOCAL_DIRS"] = str(place.folder / "spark")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

    from bench.sources import Noop, Timed
    from lake_spark.spark.local import local_spark

    builder = local_spark(place.folder).appName("bench").master(f"local[{_CORES}]")
    spark = builder.config("spark.driver.memory", "2g").getOrCreate()
    for source in (Noop, Timed):
        spark.dataSource.register(source)
    try:
        yield spark
    finally:
        spark.stop()


class _Ground:
    """One kind of storage, and lakes on it that come and go: each in the place of the one before."""

    def __init__(self, place: Place, spark: Any, *, on_s3: bool) -> None:
        self.place, self.spark, self.on_s3 = place, spark, on_s3
        self.where = "S3" if on_s3 else "files"
        self.catalogs = 5_000 if place.quick else 50_000
        self.deltas = self.catalogs * _PER_CATALOG
        # A database of its own: a lake's configuration is one of its keys.
        self.url = place.tcp.rpartition("/")[0] + ("/2" if on_s3 else "/1")
        self.lake = Lake(self.url, snapshot="never", fsync="never")
        self._number = 0

    def rows(self) -> list[Row]:
        writes = self.writes()
        return [*writes, *self.reads(), *self.memory_of_redis()]

    # Lakes

    def new_lake(self) -> None:
        """An empty lake in place of the one before."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._number += 1
        config = {"Storage": "file", "BasePath": str(self._folder)}
        if self.on_s3:
            assert self.place.s3 is not None
            config = {**self.place.s3, "BasePath": self._folder.name}
        self.redis.flushdb()
        self.lake.update_config({"Name": self._folder.name, "Region": "", **config})

    def forget(self) -> None:
        """Make the workers' caches useless: a session is one configuration's, and where Region says nothing, it may."""
        self._number += 1
        self.lake.update_config({"Region": f"r{self._number}"})

    @property
    def _folder(self) -> Path:
        return self.place.folder / f"spark-{self._number}"

    @property
    def redis(self) -> Any:
        return self.lake._connection.client

    # Frames

    def frame(self, deltas: int, catalogs: int) -> Any:
        """Merge patches of about 80 bytes, held in Spark's memory; those of one catalog in one partition, in no order.

        A catalog has ten fields, each written again and again.
        """
        field, text = f"id div {catalogs} % 10", "the text of row number"
        body = f"""format_string('{{"field%d":{{"count":%d,"text":"{text} %d","seen":true}}}}', {field}, id, id) body"""
        rows = self.spark.range(deltas).selectExpr(f"{_name(f'id * 7919 % {catalogs}')} catalog", body)
        rows = rows.repartition(_PARTITIONS, "catalog").persist()
        rows.count()
        return rows

    @cached_property
    def all(self) -> Any:
        return self.frame(self.deltas, self.catalogs)

    @cached_property
    def quarter(self) -> Any:
        return self.frame(self.deltas // 4, self.catalogs // 4)

    def write(self, frame: Any, source: str = "lake", **options: Any) -> None:
        options = {"url": self.url, "mergeType": "RFC7396", "fsync": "never", **options}
        frame.write.format(source).options(**options).mode("append").save()

    def read(self, source: str = "lake", **options: Any) -> None:
        _consume(self.spark.read.format(source).options(url=self.url, **{"snapshot": "never", **options}).load())

    # Writing

    def writes(self) -> list[Row]:
        floors = _WriteFloors(self.place, self.all.toArrow(), self.place.rounds(5))
        sample, few = 2_000 if self.place.quick else 4_000, 100
        works: dict[str, Work] = {
            "noop": lambda: self.all.write.format("bench-noop").mode("append").save(),
            "parquet": floors.parquet,
            "publish": floors.publish,
            "quarter": partial(self.write, self.quarter),
            "objects": self._objects(self.frame(sample, few)),
            "write": partial(self.write, self.all),
        }
        before = dict.fromkeys(("quarter", "objects", "write"), self.new_lake)
        found = interleave(works, rounds=self.place.rounds(5), before=before)
        floor = found["noop"] + found["parquet"] + found["publish"]
        each, single = found["write"] / self.deltas, found["objects"] / sample
        peak = self.peak(partial(self.write, self.all), before=self.new_lake)
        self.new_lake()
        spent = self.spent(partial(self.write, self.all), "write", found["noop"].median)
        return [
            Row(7, f"Spark into a Python sink that does nothing ({self.where})", found["noop"] / self.deltas, "/s"),
            Row(7, "pyarrow writes the rows, 2 threads", found["parquet"] / self.deltas, "/s"),
            Row(7, "publishing pipeline, bare, a run a catalog", found["publish"] / self.deltas, "/s"),
            Row(
                7,
                f"df.write, {self.deltas:,} deltas, {self.catalogs:,} catalogs ({self.where})",
                each,
                "/s",
                floor / self.deltas,
                "sum of these three",
                _WRITTEN,
            ),
            Row(7, f"· an object for each delta ({sample:,} of them)", single, "/s", each, "df.write"),
            Row(7, "· how many times as fast as that", _times(single, each), "×", target=_FASTER),
            Row(7, "· runs of a catalog, on average", _figure(self.runs()), "×"),
            self._linear(found["write"], found["quarter"]),
            Row(7, "· most memory of a Python worker", _figure(peak), "MiB", target=_MEMORY),
            *spent,
        ]

    def _linear(self, whole: Timing, quarter: Timing) -> Row:
        # Of a small job, most is what every job takes.
        target = None if self.place.quick else _LINEAR
        return Row(7, "· as long as a quarter of it, so many times", _times(whole, quarter), "×", target=target)

    def _objects(self, frame: Any) -> Work:
        """What writes an object for each row: the data source, or threads with the same protocol where it cannot."""
        self.new_lake()
        work = partial(self.write, frame, layout="objects")
        work()
        rows = frame.collect()
        with Lake(self.url) as lake:
            if not isinstance(lake.list(rows[0].catalog).entries[0], Run):
                return work
        print(f"layout=objects wrote runs: {_THREADS} threads of one process stand in for it", file=sys.stderr)

        def by_hand() -> None:
            with Lake(self.url, fsync="never") as lake, ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(lambda row: lake.write(row.catalog, row.body.encode(), merge=MergeType.RFC7396), rows))

        return by_hand

    def runs(self) -> float:
        """How many runs a catalog has."""
        with Lake(self.url) as lake:
            names = [_catalog(n) for n in range(0, self.catalogs, self.catalogs // 100)]
            return statistics.mean(len(lake.list(name).entries) for name in names)

    # Reading

    def reads(self) -> list[Row]:
        rounds = self.place.rounds(5)
        self.new_lake()
        self.write(self.quarter)
        quarter = interleave({"read": self.read}, rounds=rounds, before={"read": self.forget})["read"]
        self.new_lake()
        self.write(self.all)
        floors = _ReadFloors(self)
        works: dict[str, Work] = {
            "noop": floors.noop,
            "parquet": floors.parquet,
            "list": floors.listing,
            "read": self.read,
        }
        found = interleave(works, rounds=rounds, before={"read": self.forget})
        floor = found["noop"] + found["parquet"] + found["list"]
        peak = self.peak(self.read, before=self.forget)
        self.forget()
        spent = self.spent(self.read, "read", found["noop"].median)
        rows = [
            Row(7, f"a Python source of the same documents ({self.where})", found["noop"] / self.deltas, "/s"),
            Row(7, "pyarrow reads the rows, 2 threads", found["parquet"] / self.deltas, "/s"),
            Row(7, "list script, bare, all catalogs", found["list"] / self.deltas, "/s"),
            Row(
                7,
                f"read {self.catalogs:,} documents of {_PER_CATALOG} deltas, cold ({self.where})",
                found["read"] / self.deltas,
                "/s",
                floor / self.deltas,
                "sum of these three",
                _MERGED,
            ),
            self._linear(found["read"], quarter),
            Row(7, "· most memory of a Python worker", _figure(peak), "MiB", target=_MEMORY),
            *spent,
        ]
        began = time.perf_counter()
        self.read(snapshot="always")
        saved = time.perf_counter() - began
        with Lake(self.url) as lake:
            assert lake.list(_catalog(0)).snapshot, "the read before this has saved snapshots"
        again = interleave({"noop": floors.noop, "read": self.read}, rounds=rounds, before={"read": self.forget})
        return [
            *rows,
            Row(7, f"read and save snapshots, once ({self.where})", _figure(saved / self.catalogs), "/s"),
            Row(
                7,
                f"read {self.catalogs:,} documents after that ({self.where})",
                again["read"] / self.catalogs,
                "/s",
                again["noop"] / self.catalogs,
                "the source that does nothing",
                _AFTER,
            ),
        ]

    # What it takes

    def memory_of_redis(self) -> list[Row]:
        """What Redis keeps for a catalog: with one run, and for each further one."""
        if self.on_s3:
            return []
        self.new_lake()
        frame = self.frame(self.catalogs, self.catalogs)
        sizes = [self.redis.info("memory")["used_memory"]]
        for _ in range(5):
            self.write(frame)
            sizes.append(self.redis.info("memory")["used_memory"])
        first, further = (sizes[1] - sizes[0]) / self.catalogs, (sizes[5] - sizes[1]) / 4 / self.catalogs
        return [
            Row(7, "Redis keeps for a catalog with one run", _figure(first), "B", target=_CATALOG_BYTES),
            Row(7, "Redis keeps for each further run", _figure(further), "B", target=_RUN_BYTES),
        ]

    def peak(self, work: Work, *, before: Work) -> float:
        """The most memory that a Python worker has had while the work was done."""
        before()
        for worker in _workers():
            with contextlib.suppress(OSError):
                Path(f"/proc/{worker.pid}/clear_refs").write_text("5")
        work()
        return max(map(_high_water_mark, _workers()))

    def spent(self, work: Callable[..., object], kind: str, transport: float) -> list[Row]:
        """Where the time of a job goes: the source or sink that does nothing is Spark's transport."""
        folder = self.place.folder / f"seconds-{kind}-{self.where}"
        folder.mkdir()
        began = time.perf_counter()
        work(source="bench-lake", seconds=str(folder))
        total = time.perf_counter() - began
        seconds: Counter[str] = Counter()
        for note in map(Path.read_text, folder.glob("*.json")):
            found = json.loads(note)
            # Tasks share the time between them; while the driver plans or commits, all wait.
            cores = _CORES if found.pop("kind") in ("read", "write") else 1
            seconds.update({name: value / cores for name, value in found.items()})
        if self.place.profile:
            (self.new_lake if kind == "write" else self.forget)()
            work(source="bench-lake", seconds=str(folder), profile="true")
            figures = [str(path) for path in folder.glob("*.prof")]
            print(f"\n{kind} ({self.where})", file=sys.stderr)
            pstats.Stats(*figures, stream=sys.stderr).sort_stats("tottime").print_stats(30)
        outside = total - transport - seconds["redis"] - seconds["parquet"]
        own = seconds["total"] - sum(seconds[name] for name in _SPENT_ON)
        return [
            Row(7, "· outside transport, Redis and Parquet", _figure(outside / total), "%", target=_OUTSIDE),
            *(Row(7, f"·   in {name}", _figure(seconds[name] / total), "%") for name in _SPENT_ON[1:]),
            Row(7, "·   in the lake's own code", _figure(own / total), "%"),
        ]


def _name(number: str) -> str:
    return f"format_string('user-%06d', {number})"


def _catalog(number: int) -> str:
    return f"user-{number:06}"


def _consume(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _figure(value: float) -> Timing:
    return Timing(value, value)


def _times(one: Timing, other: Timing) -> Timing:
    return Timing(one.median / other.median, one.best / other.best)


def _workers() -> list[psutil.Process]:
    return [process for process in psutil.Process().children(recursive=True) if process.name().startswith("python")]


def _high_water_mark(process: psutil.Process) -> int:
    """The most memory that a process had; what it has now where the system does not say."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) << 10
    return int(process.memory_info().rss)


def _in_two_threads(work: Callable[[Any], object], halves: Sequence[Any]) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, halves))


def _to_parquet(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=GROUP_ROWS)
    return sink.getvalue()


def _segment_rows(table: pa.Table) -> pa.Table:
    rows = table.num_rows
    return pa.table(
        {
            "catalog": table["catalog"],
            "merge_type": pa.repeat(pa.scalar(2, pa.int8()), rows),
            "path": pa.repeat("/", rows),
            "body": table["body"],
        }
    )


def _halves(table: pa.Table) -> list[pa.Table]:
    middle = table.num_rows // 2
    return [table.slice(0, middle), table.slice(middle)]


class _WriteFloors:
    """What no writer can do without: the file, and the scripts that publish a run for every catalog."""

    def __init__(self, place: Place, table: pa.Table, rounds: int) -> None:
        rows = _segment_rows(table)
        self._halves = _halves(rows)
        session = place.lake("spark-floors")._session
        self._client: Any = session.index.connection.client
        segment = write_segment("floor.0.0", rows)
        # Made beforehand, one for each round and one for the warm-up: only the pipeline is timed.
        self._calls = [publish_calls(session.index, segment) for _ in range(rounds + 1)]

    def parquet(self) -> None:
        _in_two_threads(_to_parquet, self._halves)

    def publish(self) -> None:
        _pipelined(self._client, scripts.TXN_PUBLISH, self._calls.pop(), _BLOCKS)


class _ReadFloors:
    """What no reader can do without: the rows from the file, the list script, the documents on their way to Spark."""

    def __init__(self, ground: _Ground) -> None:
        self._ground = ground
        documents = ground.spark.read.format("lake").options(url=ground.url, snapshot="never").load()
        self._columns = documents.schema.toDDL()
        self._sample = ground.place.folder / f"documents-{ground.where}.parquet"
        pq.write_table(documents.toArrow().slice(0, 4096), self._sample)
        self._files = [_to_parquet(half) for half in _halves(_segment_rows(ground.all.toArrow()))]
        with Lake(ground.url) as lake:
            index = lake._session.index
            self._client: Any = index.connection.client
            by_shard: dict[str, list[str]] = {}
            for name in map(_catalog, range(ground.catalogs)):
                by_shard.setdefault(shard_of(name), []).append(name)
            self._calls = [
                index._list_call(shard, names[start : start + LIST_BATCH], None)
                for shard, names in by_shard.items()
                for start in range(0, len(names), LIST_BATCH)
            ]

    def noop(self) -> None:
        options = {"columns": self._columns, "sample": str(self._sample), "rows": str(self._ground.catalogs)}
        source = self._ground.spark.read.format("bench-noop").options(**options, partitions=str(_PARTITIONS))
        _consume(source.load())

    def parquet(self) -> None:
        _in_two_threads(lambda data: pq.read_table(pa.BufferReader(data), use_threads=False), self._files)

    def listing(self) -> None:
        _pipelined(self._client, scripts.LIST, self._calls, 4)


def _pipelined(client: Any, script: Any, calls: Sequence[Call], together: int) -> None:
    for start in range(0, len(calls), together):
        with client.pipeline(transaction=False) as pipeline:
            pipeline.script_load(script.source)
            for keys, arguments in calls[start : start + together]:
                pipeline.evalsha(script.sha, len(keys), *keys, *arguments)
            pipeline.execute()
