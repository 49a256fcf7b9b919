"""Jobs that lose a task, an executor, Redis or their driver: all rows are in exactly once, or nothing is visible."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jobs
import psutil
import pytest
import redis
from clusters import Application, JobFailed, executors_of, kill, wait_for
from servers import LOOPBACK, RedisServer, TcpProxy

from lake_spark import Lake
from lake_spark.index import TransactionIndex, scripts

ALL = {f"k{n}" for n in range(400)}
BEFORE = {f"c{n}": {"before": n} for n in range(10)}
# Of a publication without a sign of life; and no retries, so that a Redis that is gone is missed soon.
LEASE = 3.0
IMPATIENT = {"lease": LEASE, "redisTimeout": 1, "redisRetries": 0}


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory, spark_environment: dict[str, str]) -> Iterator[Application]:
    """Two executors with one core each, in processes of their own; a task may fail once."""
    settings = {"spark_task_maxFailures": 2, "spark_sql_execution_arrow_maxRecordsPerBatch": 10}
    folder = tmp_path_factory.mktemp("kills")
    with Application(folder / "local", spark_environment, "local-cluster[2,1,1024]", **settings) as found:
        yield found


@pytest.fixture
def lake(redis_url: str, file_config: dict[str, str]) -> Iterator[Lake]:
    """A lake with documents in all catalogs that the jobs write to."""
    with Lake(redis_url, snapshot="never", pending="wait", pending_wait=20.0) as found:
        found.update_config(file_config)
        found.write_many(list(BEFORE.items()))
        yield found


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[TcpProxy]:
    with TcpProxy(LOOPBACK, redis_server.port) as found:
        yield found


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    """Where the attempts at tasks leave their files."""
    folder = tmp_path / "attempts"
    folder.mkdir()
    return folder


def attempts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("[0-9].[0-9]"))


def through(proxy: TcpProxy) -> str:
    return f"redis://{LOOPBACK}:{proxy.port}/0"


def states(url: str) -> list[str]:
    """The states of the jobs' transactions; that of the documents before them is committed long since."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        found = sorted(str(client.hget(key, "state")) for key in client.scan_iter("*:txn:*"))
    found.remove("committed")
    return found


def assert_all_in(lake: Lake, url: str) -> None:
    """Every row is in, once."""
    listings = [lake.list(name) for name in BEFORE]
    assert sum(len(listing.deltas) for listing in listings) == len(BEFORE) + len(ALL)
    assert {key for name in BEFORE for key in lake.read_map(name)} == ALL | {"before"}
    assert_clean(url)


def assert_nothing_in(lake: Lake, url: str) -> None:
    """Nothing of the job is visible, and nobody has to wait for it."""
    assert {name: lake.read_map(name) for name in BEFORE} == BEFORE
    assert_clean(url)


def assert_clean(url: str) -> None:
    with Lake(url, snapshot="never", pending="error") as impatient:
        marks = impatient._session.index.high_water_marks([f"{n:02x}" for n in range(256)])
        assert [mark.token for mark in marks if mark.token] == [], "nothing open holds back a cut"
        assert impatient._session.index.inflight() == set()
        for name in BEFORE:
            assert not impatient.list(name).has_pending


def read(application: Application, url: str, **options: Any) -> int:
    """How many rows Spark sees, in the log of the lake."""
    return len(application.run(jobs.read, url, view="deltas", **options))


# Tasks and executors


def test_a_task_that_is_tried_again_adds_nothing_twice(
    application: Application, lake: Lake, redis_url: str, watched: Path
) -> None:
    application.run(jobs.write_watched, redis_url, str(watched), fails="2.0")
    assert attempts(watched) == ["0.0", "1.0", "2.0", "2.1", "3.0"]
    assert_all_in(lake, redis_url)
    assert read(application, redis_url) == len(BEFORE) + len(ALL)
    stored = {key.rpartition("/")[2].removesuffix(".parquet") for key in lake._session.storage.list("_segments/")}
    assert stored > {delta.segment for name in BEFORE for delta in lake.list(name).deltas}, "it had staged something"


def test_a_task_that_fails_every_time_leaves_nothing(
    application: Application, lake: Lake, redis_url: str, watched: Path
) -> None:
    with pytest.raises(JobFailed, match="the lights went out"):
        application.run(jobs.write_watched, redis_url, str(watched), fails="3.")
    assert {"3.0", "3.1"} <= {*attempts(watched)}
    assert_nothing_in(lake, redis_url)
    assert states(redis_url) == ["aborted"]
    # The same rows again, by a job that is well.
    application.run(jobs.write_watched, redis_url, str(watched))
    assert_all_in(lake, redis_url)


@pytest.mark.parametrize("whom", ["executor", "Python worker"])
def test_work_of_a_process_that_is_killed_is_done_by_another(
    application: Application, lake: Lake, redis_url: str, watched: Path, whom: str
) -> None:
    application.start(jobs.write_watched, redis_url, str(watched), slow="3.0")
    wait_for(lambda: "3.0" in attempts(watched))
    worker = psutil.Process(int((watched / "3.0").read_text()))
    if whom == "executor":
        [executor] = executors_of(worker.parents())
        kill([executor])
    else:
        kill([worker])
    application.result()
    assert "3.1" in attempts(watched)
    assert not (watched / "go").exists(), "the attempt that was killed never ended"
    assert_all_in(lake, redis_url)
    assert read(application, redis_url) == len(BEFORE) + len(ALL)


# Commits


def test_a_transaction_that_was_given_up_does_not_commit(
    application: Application, lake: Lake, redis_url: str, watched: Path
) -> None:
    application.start(jobs.write_watched, redis_url, str(watched), slow="3.0", segmentRows=1000)
    wait_for(lambda: "3.0" in attempts(watched))
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        [txn] = [key for key in client.scan_iter("*:txn:*") if client.hget(key, "state") == "open"]
    TransactionIndex(lake._session.index, txn.rpartition(":")[2], LEASE).abort()
    (watched / "go").touch()
    with pytest.raises(JobFailed, match=r"TransactionAborted.*nothing of it is visible"):
        application.result()
    assert_nothing_in(lake, redis_url)
    assert read(application, redis_url) == len(BEFORE)


def at(script: scripts.Script) -> Any:
    """Whether a request runs this script."""
    return lambda sent: script.sha.encode() in sent or script.source.encode() in sent


@pytest.mark.parametrize("retries", [3, 0])
def test_a_commit_whose_answer_is_lost_is_in_once(
    application: Application, lake: Lake, redis_url: str, proxy: TcpProxy, watched: Path, retries: int
) -> None:
    proxy.drop_reply_to(at(scripts.TXN_COMMIT))
    options = {**IMPATIENT, "redisRetries": retries}
    application.start(jobs.write_watched, through(proxy), str(watched), **options)
    if retries:
        application.result()
    else:
        with pytest.raises(JobFailed, match=r"OutcomeUnknown.*may or may not be committed"):
            application.result()
    assert proxy.dropped_replies == 1
    assert_all_in(lake, redis_url)
    assert states(redis_url) == ["committed"]


def hold_from(proxy: TcpProxy, script: scripts.Script) -> list[int]:
    """Nothing gets through any more once this script was sent; the answer grows when that happens."""
    seen: list[int] = []

    def noticed(sent: bytes) -> bool:
        if not seen and at(script)(sent):
            seen.append(1)
            proxy.hold()
        return False

    proxy.drop_reply_to(noticed)
    return seen


def test_a_redis_that_goes_away_while_a_job_is_published(
    application: Application, lake: Lake, redis_url: str, proxy: TcpProxy, watched: Path
) -> None:
    seen = hold_from(proxy, scripts.TXN_PUBLISH)
    with pytest.raises(JobFailed, match="IndexUnavailable"):
        application.run(jobs.write_watched, through(proxy), str(watched), **IMPATIENT)
    assert seen
    assert states(redis_url) == ["publishing"], "it could not be given up"
    # Who waits reads what was before, once the lease is over; the transaction is given up on the way.
    assert read(application, redis_url, pendingWait=20) == len(BEFORE)
    assert states(redis_url) == ["aborted"]
    assert_nothing_in(lake, redis_url)
    application.run(jobs.write_watched, redis_url, str(watched))
    assert_all_in(lake, redis_url)


def test_a_commit_whose_process_is_killed(
    application: Application, lake: Lake, redis_url: str, proxy: TcpProxy, watched: Path
) -> None:
    seen = hold_from(proxy, scripts.TXN_PUBLISH)
    application.start(jobs.write_watched, through(proxy), str(watched))
    wait_for(lambda: seen)
    committing = [process for process in application.processes() if _talks_to(process, proxy.port)]
    assert committing
    kill(committing)
    proxy.release()
    with pytest.raises(JobFailed):
        application.result()
    # Spark has it aborted by another process: nobody waits for a lease.
    assert states(redis_url) == ["aborted"]
    assert_nothing_in(lake, redis_url)


def _talks_to(process: psutil.Process, port: int) -> bool:
    try:
        return any(each.raddr and each.raddr.port == port for each in process.net_connections())
    except psutil.NoSuchProcess:
        return False


# Drivers


@pytest.mark.parametrize("when", ["staging", "intended", "publishing"])
def test_a_driver_that_is_killed_leaves_nothing(
    application: Application,
    spark_environment: dict[str, str],
    lake: Lake,
    redis_url: str,
    proxy: TcpProxy,
    watched: Path,
    tmp_path: Path,
    when: str,
) -> None:
    script = {"intended": scripts.TXN_INTEND, "publishing": scripts.TXN_PUBLISH}.get(when)
    # Its tasks go with it: they run in the same process.
    with Application(tmp_path / "driver", spark_environment, spark_sql_execution_arrow_maxRecordsPerBatch=10) as driver:
        seen = hold_from(proxy, script) if script else []
        slow = "" if script else "3.0"
        driver.start(jobs.write_watched, through(proxy), str(watched), slow=slow, lease=LEASE)
        wait_for(lambda: seen or slow in attempts(watched))
        driver.kill()
    # What it staged is in nobody's way; what it began to publish is given up by whoever comes after the lease.
    states_after_it = {"staging": ["open"], "intended": ["publishing"], "publishing": ["publishing"]}
    assert states(redis_url) == states_after_it[when]
    assert read(application, redis_url) == len(BEFORE)
    assert states(redis_url) == (["open"] if when == "staging" else ["aborted"])
    assert_nothing_in(lake, redis_url)
    application.run(jobs.write_watched, redis_url, str(watched))
    assert_all_in(lake, redis_url)
