"""The views of a lake on a real Spark: what is in them, as of when, and what they cost."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_spark_batch import Job, moment

from lake_spark import Lake, MergeType
from lake_spark.client.transaction import publish, stage
from lake_spark.client.writing import check_change
from lake_spark.index import TransactionIndex
from lake_spark.names import segment_key, shard_of
from lake_spark.options import VIEWS as VIEW_NAMES
from lake_spark.options import BatchOptions
from lake_spark.spark.planning import plan
from lake_spark.spark.views import VIEWS, view_batches

pytest.importorskip("pyspark", "4.0")

from pyspark.sql import SparkSession


@pytest.fixture
def lake(redis_url: str, file_config: dict[str, str]) -> Iterator[Lake]:
    """A lake whose configuration is in Redis, where Spark finds it."""
    with Lake(redis_url, snapshot="never") as found:
        found.update_config(file_config)
        yield found


@pytest.fixture
def job(spark: SparkSession, redis_url: str) -> Job:
    return Job(spark, redis_url)


def saved(lake: Lake, redis_url: str, catalog: str) -> None:
    """Save a snapshot of the catalog as it stands."""
    with Lake(redis_url, snapshot="always") as other:
        other.read_bytes(catalog)
        other.flush()


def test_every_view_has_its_columns(lake: Lake, job: Job) -> None:
    lake.write("a", {"n": 1})
    assert set(VIEWS) == set(VIEW_NAMES)
    for view, schema in VIEWS.items():
        frame = job.read(view=view)
        assert frame.columns == schema.names, view
        frame.collect()


def test_catalogs_say_what_a_read_of_them_takes(lake: Lake, redis_url: str, job: Job) -> None:
    for n in range(3):
        lake.write("a", {f"k{n}": n}, merge=MergeType.RFC7396)
    saved(lake, redis_url, "a")
    lake.write_many([("a", {"x": 1}, "/", "RFC7396"), ("a", {"y": 1}, "/", "RFC7396"), ("b", {})])
    lake.write("b", {}, meta={"owner": "x", "ratio": 1.50, "ü": []})
    found = {row.catalog: row for row in job.rows(view="catalogs")}
    version = lake.list("a").version
    assert (found["a"].version, found["a"].updated_at) == (str(version), moment(version))
    assert (found["a"].deltas, found["a"].snapshots, found["a"].meta) == (2, 1, "{}")
    assert (found["b"].deltas, found["b"].snapshots) == (2, 0)
    assert found["b"].meta == '{"owner":"x","ratio":1.5,"ü":[]}'


def test_snapshots_that_stop_at_or_before_the_cut(lake: Lake, redis_url: str, job: Job) -> None:
    first = lake.write("a", {"n": 1})
    lake.write("b", {"n": 1})
    saved(lake, redis_url, "a")
    second = lake.write("a", {"m": 2}, merge=MergeType.RFC7396)
    saved(lake, redis_url, "a")
    older, newer = sorted(job.rows(view="snapshots"), key=lambda row: row.stop)
    assert (older.catalog, older.start, older.stop) == ("a", "0_0", str(first))
    assert (newer.start, newer.stop, newer.stopped_at) == (str(first), str(second), moment(second))
    assert (newer.source, newer.row) == ("object", None)
    assert len(newer.digest) == 16
    assert json.loads(lake._session.storage.get(newer.key)) == {"n": 1, "m": 2}
    assert [row.stop for row in job.rows(view="snapshots", asOf=str(first))] == [str(first)]


def test_snapshots_that_tasks_packed_are_rows_of_a_segment(lake: Lake, job: Job) -> None:
    lake.write_many([(f"c{n}", {"n": n}) for n in range(5)])
    assert job.read(snapshot="always").count() == 5
    found = job.rows(view="snapshots")
    assert [row.catalog for row in found] == [f"c{n}" for n in range(5)]
    for row in found:
        assert row.key == segment_key(row.source)
        assert row.digest is None
        assert row.row is not None


def test_pending_shows_open_writes_and_waits_for_none(lake: Lake, job: Job) -> None:
    lake.write("a", {"n": 1})
    session = lake._session
    opened = session.index.precommit("a", MergeType.RFC7396, "/in/side")
    session.index.precommit("never-committed", MergeType.REPLACE, "/")
    rows = {row.catalog: row for row in job.rows(view="pending")}
    assert rows.keys() == {"a", "never-committed"}
    row = rows["a"]
    assert (row.ts_seq, row.merge_type, row.path, row.txn) == (str(opened.ts_seq), "RFC7396", "/in/side", None)
    assert 0 <= row.age < 120
    assert abs(row.opened_at - datetime.datetime.now()) < datetime.timedelta(seconds=120)
    assert [row.catalog for row in job.rows("a", view="pending")] == ["a"]
    assert [row.catalog for row in job.rows("nev*", view="pending")] == ["never-committed"]
    session.index.rollback(opened, orphan=False)
    assert [row.catalog for row in job.rows(view="pending")] == ["never-committed"]


def test_pending_shows_transactions_that_are_being_published(lake: Lake, job: Job) -> None:
    lake.write("a", {"n": 1})
    session = lake._session
    txn = TransactionIndex.begin(session.index, 60.0)
    blocks = stage(session, txn, 0, 0, [check_change(1 << 20, "a", {"job": 1}, merge=2)])
    txn.intend()
    list(publish(session, txn, blocks))
    for names in ((), ("a",)):
        [row] = job.rows(*names, view="pending")
        assert (row.catalog, row.txn, row.path) == (None, txn.txn, None)
    other = next(name for name in map(str, range(99)) if shard_of(name) != shard_of("a"))
    assert job.rows(other, view="pending") == []
    txn.commit()
    assert job.rows(view="pending") == []


def test_files_with_their_meta(lake: Lake, job: Job) -> None:
    lake.write("a", {})
    lake.write_file("a", "/img/x.png", b"1", meta={"w": 10})
    lake.write_file("a", "/b.txt", b"2")
    lake.write_file("alone", "/c.txt", b"3", meta={"n": 1.50})
    found = sorted((row.catalog, row.path, row.meta) for row in job.rows(view="files"))
    assert found == [("a", "/b.txt", "{}"), ("a", "/img/x.png", '{"w":10}')]
    [row] = job.rows("alone", view="files")
    assert (row.path, json.loads(row.meta)) == ("/c.txt", {"n": 1.5})


def test_history_is_every_version_merged(lake: Lake, job: Job) -> None:
    versions = [lake.write("a", {"n": 1})]
    lake.write_many([("a", {"m": 2}, "/", "RFC7396"), ("a", 3, "/deep/er")])
    versions += [delta.ts_seq for delta in lake.list("a").deltas[1:]]
    versions.append(lake.write("a", [{"op": "remove", "path": "/n"}], merge=MergeType.RFC6902))
    lake.write("b", [1])
    found = sorted(job.read("a", view="history").collect(), key=lambda row: versions.index(_ts(row.version)))
    assert [row.version for row in found] == [str(version) for version in versions]
    assert [row.document for row in found] == [
        '{"n":1}',
        '{"n":1,"m":2}',
        '{"n":1,"m":2,"deep":{"er":3}}',
        '{"m":2,"deep":{"er":3}}',
    ]
    assert [(row.kind, row.merge_type, row.path) for row in found] == [
        ("delta", "REPLACE", "/"),
        ("delta", "RFC7396", "/"),
        ("delta", "REPLACE", "/deep/er"),
        ("delta", "RFC6902", "/"),
    ]
    assert found[0].committed_at == moment(versions[0])
    # Each is what a read as of that version gives.
    for row in found:
        [read] = job.rows("a", asOf=row.version)
        assert read.document == row.document
    assert job.read(view="history").count() == 5
    assert job.read("a", view="history", asOf=str(versions[1])).count() == 2
    since = [row.version for row in job.rows(view="history", updatedSince=str(versions[1]), catalogs="a")]
    assert sorted(since) == sorted(map(str, versions[2:]))


def _ts(text: str) -> tuple[int, int]:
    seconds, _, seq = text.partition("_")
    return int(seconds), int(seq)


def test_history_that_was_cleared_begins_with_its_snapshot(lake: Lake, redis_url: str, job: Job) -> None:
    lake.write("a", {"n": 1})
    lake.write("a", {"m": 2}, merge=MergeType.RFC7396)
    saved(lake, redis_url, "a")
    assert job.read(view="history").count() == 2, "nothing is gone: a snapshot is no version of its own"
    lake.clear_history("a")
    kept = lake.list("a").version
    [row] = job.rows(view="history")
    assert (row.version, row.kind, row.merge_type, row.document) == (str(kept), "snapshot", None, '{"n":1,"m":2}')
    lake.write("a", {"o": 3}, merge=MergeType.RFC7396)
    saved(lake, redis_url, "a")
    rows = sorted(job.rows(view="history"), key=lambda row: _ts(row.version))
    assert [(row.kind, row.document) for row in rows] == [
        ("snapshot", '{"n":1,"m":2}'),
        ("delta", '{"n":1,"m":2,"o":3}'),
    ]


def test_a_version_that_cannot_be_merged_says_so_until_the_next_replace(lake: Lake, job: Job) -> None:
    lake.write("a", {"n": 1})
    lake.write("a", [{"op": "remove", "path": "/missing"}], merge=MergeType.RFC6902)
    lake.write("a", {"m": 2}, merge=MergeType.RFC7396)
    lake.write("a", {"n": 3})
    found = sorted(job.read(view="history").collect(), key=lambda row: _ts(row.version))
    assert [row.document for row in found] == ['{"n":1}', None, None, '{"n":3}']
    assert [row.error is None for row in found] == [True, False, False, True]
    assert "'a'" in found[1].error
    assert "missing" in found[1].error


def test_every_view_stays_at_the_cut_of_its_plan(lake: Lake, redis_url: str, job: Job) -> None:
    lake.write("a", {"n": 1})
    saved(lake, redis_url, "a")
    for view in ("catalogs", "snapshots", "history"):
        frame = job.read(view=view)
        before = sorted(frame.collect())
        lake.write("a", {"n": 2})
        lake.write("late", {})
        saved(lake, redis_url, "a")
        assert sorted(frame.collect()) == before, view
        assert sorted(job.read(view=view).collect()) != before


def test_columns_are_all_that_is_read(lake: Lake, job: Job, tmp_path: Path) -> None:
    lake.write("a", {"n": 1})
    version = str(lake.list("a").version)
    assert job.read(columns="version, catalog").collect() == [(version, "a")]
    assert job.read(columns="document").collect() == [('{"n":1}',)]
    assert job.read(view="deltas", columns="merge_type").collect() == [("REPLACE",)]
    # Without bodies nothing is fetched: not even what is gone is missed.
    for path in (tmp_path / "lake").rglob("*.json"):
        path.unlink()
    assert [tuple(row) for row in job.rows(columns="catalog,version")] == [("a", version)]
    assert job.read(view="deltas", columns="ts_seq,source").collect() == [(version, "object")]
    assert "not stored" in job.rows("a", deltaCacheBytes=0)[0].error
    fails = job.fails_in_planning
    fails(lambda: job.rows(columns="catalog,size"), "'size'", "documents", "catalog, document")
    fails(lambda: job.rows(columns="catalog,catalog"), "twice")
    fails(lambda: job.rows(columns="catalog,"), "columns")


def test_batches_of_every_view_are_bounded(lake: Lake) -> None:
    lake.write_many([(f"c{n}", {"n": n}) for n in range(300)])
    session = lake._session
    for n in range(300):
        session.index.add_file(f"c{n}", "/x", b"{}")
    for view, schema in VIEWS.items():
        options = BatchOptions(view=view, num_partitions=1)
        [part] = plan(session.index, options)
        batches = list(view_batches(session, view, schema.names, part, 2000, snapshots=False))
        assert all(batch.schema == schema for batch in batches), view
        if view not in ("snapshots", "pending"):
            assert sum(batch.num_rows for batch in batches) == 300, view
            assert len(batches) > 5, view
