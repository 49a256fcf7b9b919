"""The plan of a Spark read, without Spark: which catalogs, up to where, and never a job in part."""

from __future__ import annotations

import threading
import time

import pytest
import redis

from lake_spark import Lake, MergeType
from lake_spark.client.transaction import publish, stage
from lake_spark.client.writing import check_change
from lake_spark.errors import InvalidCatalog, PendingError
from lake_spark.index import TransactionIndex
from lake_spark.names import shard_of
from lake_spark.options import BatchOptions
from lake_spark.spark.planning import Selection, names_of, names_of_all, plan, take_cut
from lake_spark.spark.reading import VIEWS, read_tasks


@pytest.fixture
def filled(lake: Lake) -> Lake:
    lake.write_many([(f"c{n}", {"n": n}) for n in range(500)])
    return lake


def documents(lake: Lake, **given: str) -> dict[str, str]:
    options = BatchOptions.of({"url": "redis://unused", **given})
    session = lake._session
    return {
        row["catalog"]: row["document"]
        for part in plan(session.index, options)
        for batch in read_tasks(session, "documents", part, options.batch_bytes)
        for row in batch.to_pylist()
    }


def test_selections() -> None:
    def of(**given: str) -> Selection:
        return Selection.of(BatchOptions.of(given))

    assert of() == Selection()
    assert of(path="users") == Selection(("users",))
    assert of(catalogs="a, b,a", path="c") == Selection(("a", "b", "c"))
    assert of(path="user-*").prefix == "user-"
    assert of(path="user-[12]?").prefix == "user-"
    with pytest.raises(InvalidCatalog):
        of(path="x" * 300)


def test_every_catalog_is_in_exactly_one_partition(filled: Lake) -> None:
    index = filled._session.index
    parts = plan(index, BatchOptions(num_partitions=7))
    assert len(parts) == 7
    shards = [task.shard for part in parts for task in part]
    assert sorted(shards) == sorted({shard_of(f"c{n}") for n in range(500)})
    sizes = [sum(len(list(index.catalogs(shards=[task.shard]))) for task in part) for part in parts]
    assert sum(sizes) == 500
    assert max(sizes) - min(sizes) < 20, "about the same work for each"
    [[task]] = plan(index, BatchOptions(path="c7"))
    assert task.catalogs == ("c7",)
    assert documents(filled, path="c7*") == {
        name: f'{{"n":{name[1:]}}}' for name in documents(filled) if name[1] == "7"
    }


def test_an_empty_lake_has_no_rows(lake: Lake) -> None:
    assert documents(lake) == {}
    assert documents(lake, path="nobody") == {}


def test_a_plan_sees_nothing_of_what_is_written_after_it(filled: Lake) -> None:
    session, options = filled._session, BatchOptions(path="c1")
    [part] = plan(session.index, options)
    filled.write("c1", {"later": 1}, merge=MergeType.RFC7396)
    filled.read_bytes("c1")
    [batch] = read_tasks(session, "documents", part, 1 << 20)
    assert batch.column("document").to_pylist() == ['{"n":1}']
    assert documents(filled, path="c1") == {"c1": '{"n":1,"later":1}'}


def test_batches_have_the_schema_of_their_view_and_are_bounded(filled: Lake) -> None:
    session = filled._session
    for view, schema in VIEWS.items():
        options = BatchOptions(view=view, num_partitions=1)
        [part] = plan(session.index, options)
        batches = list(read_tasks(session, view, part, 2000))
        assert all(batch.schema == schema for batch in batches)
        assert len(batches) > 5
        assert sum(batch.num_rows for batch in batches) == 500


def test_a_job_that_is_being_published_is_seen_whole_or_not_at_all(filled: Lake) -> None:
    session = filled._session
    first, second = "c1", next(f"c{n}" for n in range(500) if shard_of(f"c{n}") != shard_of("c1"))
    txn = TransactionIndex.begin(session.index, 60.0)
    changes = [check_change(1 << 20, name, {"job": 1}, merge=2) for name in (first, second)]
    blocks = stage(session, txn, 0, 0, changes)
    txn.intend()
    # Half of it is in the logs.
    list(publish(session, txn, blocks[:1]))
    with pytest.raises(PendingError, match=txn.txn):
        documents(filled, pending="error")
    assert "job" not in "".join(documents(filled, pending="prefix").values())

    def finish() -> None:
        time.sleep(0.2)
        list(publish(session, txn, blocks[1:]))
        txn.commit()

    thread = threading.Thread(target=finish)
    thread.start()
    found = documents(filled)
    thread.join()
    assert ['"job":1' in found[name] for name in (first, second)] == [True, True]


def test_open_writes_are_waited_for_or_named(filled: Lake) -> None:
    index = filled._session.index
    opened = index.precommit("c1", MergeType.REPLACE, "/open")
    filled.write("c1", {"after": 1}, merge=MergeType.RFC7396)
    shards = [shard_of("c1")]
    with pytest.raises(PendingError, match=r"catalog 'c1' at [0-9_]+, open for [0-9.]+ s"):
        take_cut(index, shards, BatchOptions(pending="error"))
    with pytest.raises(PendingError, match="pendingWait"):
        take_cut(index, shards, BatchOptions(pending="wait", pending_wait=0.1))
    [cut] = take_cut(index, shards, BatchOptions(pending="prefix"))
    assert cut < opened.ts_seq
    timer = threading.Timer(0.2, lambda: index.rollback(opened, orphan=False))
    timer.start()
    assert documents(filled, path="c1") == {"c1": '{"n":1,"after":1}'}
    timer.join()


def test_a_lost_allocator_hides_nothing(filled: Lake, redis_url: str) -> None:
    before = documents(filled)
    with redis.Redis.from_url(redis_url) as client:
        lost = list(client.scan_iter("*:seq:*"))
        assert client.delete(*lost) == len(lost) > 100
    assert len(before) == 500
    assert documents(filled) == before


def test_a_job_whose_driver_died_is_given_up(filled: Lake) -> None:
    session = filled._session
    txn = TransactionIndex.begin(session.index, 0.3)
    blocks = stage(session, txn, 0, 0, [check_change(1 << 20, "c1", {"job": 1})])
    txn.intend()
    list(publish(session, txn, blocks))
    assert documents(filled, path="c1") == {"c1": '{"n":1}'}


def test_shards_scanned_together_give_each_task_its_names_in_order(lake: Lake) -> None:
    lake.write_many([(f"user-{n}", {"n": n}) for n in range(600)] + [(f"other-{n}", {"n": n}) for n in range(50)])
    index = lake._session.index
    for given in ({}, {"path": "user-1*"}, {"shards": "00-1f", "num_partitions": 300}, {"catalogs": "user-1,user-2"}):
        tasks = [task for part in plan(index, BatchOptions(**given)) for task in part]
        expected = [name for task in tasks for name in names_of(index, task)]
        assert list(names_of_all(index, tasks)) == expected
        assert len(expected) == len(set(expected)) > 0
