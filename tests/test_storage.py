"""One suite of behaviour for every store, then what is special about files and about S3."""

from __future__ import annotations

import errno
import http.server
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from servers import S3Server, TcpProxy, free_ports

from lake_spark.errors import (
    ConfigError,
    InvalidInput,
    LakeError,
    ObjectExists,
    ObjectMissing,
    StorageDenied,
    StorageFailure,
    StorageUnavailable,
)
from lake_spark.storage import FileStorage, MemoryStorage, S3Storage, Storage

REPOSITORY = Path(__file__).parent.parent
KEY = "9bc6/(users/delta/1700000000_1_1.json"
LONG = "0a1b/" + "k" * 410 + "/delta/1700000000_1_1.json"


def s3_storage(server: S3Server, bucket: str, **options: Any) -> S3Storage:
    options = {
        "endpoint": server.endpoint,
        "access_key": server.access_key,
        "secret_key": server.secret_key,
        "timeout": 10.0,
        **options,
    }
    return S3Storage(bucket, **options)


@pytest.fixture(params=["memory", "file", "s3", "s3 in a folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    made: Storage
    if request.param == "memory":
        made = MemoryStorage()
    elif request.param == "file":
        made = FileStorage(tmp_path / "lake")
    else:
        server, bucket = request.getfixturevalue("s3_server"), request.getfixturevalue("s3_bucket")
        made = s3_storage(server, bucket, base_path="" if request.param == "s3" else "/a/base path/")
    yield made
    made.close()


def test_it_is_a_storage(store: Storage) -> None:
    assert isinstance(store, Storage)
    assert store.kind in ("memory", "file", "s3")


def test_what_was_put_can_be_got_and_replaced(store: Storage) -> None:
    for data in (b"one", b"", b"three"):
        store.put(KEY, data)
        assert store.get(KEY) == data
        assert store.exists(KEY)


def test_what_is_missing_is_missing(store: Storage) -> None:
    assert not store.exists(KEY)
    with pytest.raises(ObjectMissing, match="1700000000_1_1"):
        store.get(KEY)
    with pytest.raises(ObjectMissing):
        store.get(KEY, start=0, length=0)
    with pytest.raises(ObjectMissing):
        store.get(KEY, start=-4)
    store.delete(KEY)
    assert list(store.list("")) == []
    assert list(store.list("9bc6/(users/")) == []


def test_put_if_absent_keeps_what_is_there(store: Storage) -> None:
    store.put(KEY, b"first", if_absent=True)
    with pytest.raises(ObjectExists, match="1700000000_1_1"):
        store.put(KEY, b"second", if_absent=True)
    assert store.get(KEY) == b"first"
    store.delete(KEY)
    store.put(KEY, b"third", if_absent=True)
    assert store.get(KEY) == b"third"


def test_a_range_is_a_slice(store: Storage) -> None:
    for data in (b"0123456789", b""):
        store.put(KEY, data)
        for start in (None, 0, 3, 9, 10, 11, -1, -4, -10, -11):
            for length in (None, 0, 1, 4, 100):
                expected = data[start:] if length is None else data[start:][:length]
                assert store.get(KEY, start=start, length=length) == expected, (start, length)


def test_a_negative_length_is_refused(store: Storage) -> None:
    with pytest.raises(InvalidInput):
        store.get(KEY, length=-1)


def test_keys_are_listed_in_order_by_any_prefix(store: Storage) -> None:
    long = "z" * 300
    keys = [
        *("a-b/1.json", "a.b/1.json", "a b/1.json", "a/1.json", "a/b-c/2.json", "a/b/2.json", "a/b.c/2.json"),
        *("ab/1.json", "b", "9bc6/(users/delta/1_2_1.json", "9bc6/(users-x/delta/1_1_1.json", "ünï/kö.json"),
        *(f"{long}.x/1.json", f"{long}/1.json", f"{long}b/1.json", f"{long[:240]}/1.json", f"{long[:240]}.json"),
        *("_segments/abcd/abcd.0.0.parquet", "9bc6/(users/snap/0_0~1_2~0123456789abcdef.snap", KEY),
    ]
    for key in keys:
        store.put(key, b"x")
    for prefix in ("", "a", "a/", "a/b", "a/b/", "9bc6/(us", "9bc6/(users/", "z", f"{long}", "nothing/", "_segments/"):
        expected = sorted(key for key in keys if key.startswith(prefix))
        assert list(store.list(prefix)) == expected


def test_more_keys_than_a_page_holds_are_listed(store: Storage) -> None:
    keys = [f"many/{number:05d}.json" for number in range(1203)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b""), keys))
    assert list(store.list("many/")) == keys


def test_objects_are_listed_with_their_size_and_time(store: Storage) -> None:
    began = time.time()
    for key, size in (("a/b/2.json", 2), ("a-b/1.json", 0), (KEY, 5), ("z" * 300 + "/1.json", 7)):
        store.put(key, b"x" * size)
    found = list(store.objects(""))
    assert [(each.key, each.size) for each in found] == [
        *((KEY, 5), ("a-b/1.json", 0), ("a/b/2.json", 2), ("z" * 300 + "/1.json", 7))
    ]
    # To the second, as some stores tell it.
    assert all(began - 2 <= each.modified <= time.time() + 2 for each in found)
    assert [each.key for each in store.objects("a")] == list(store.list("a"))
    store.put(KEY, b"longer now")
    store.delete("a/b/2.json")
    assert [(each.key, each.size) for each in store.objects("")][:2] == [(KEY, 10), ("a-b/1.json", 0)]


UNUSUAL = [LONG, "kö/ü 語/($x~y)", "a%41/b%2Fc", "q?x=1&y#z", "(a/" + "語" * 70, ")A'\"<>:|*"]


def test_long_and_unusual_keys(store: Storage) -> None:
    for key in UNUSUAL:
        store.put(key, key.encode(), if_absent=True)
        with pytest.raises(ObjectExists):
            store.put(key, b"other", if_absent=True)
    assert list(store.list("")) == sorted(UNUSUAL)
    for key in UNUSUAL:
        assert store.get(key) == key.encode()
        assert store.exists(key)
        store.delete(key)
        assert not store.exists(key)
    assert list(store.list("")) == []


def test_a_key_that_could_lead_elsewhere_is_refused(store: Storage) -> None:
    dots = ("../x", "a/../b", "a/./b")
    for key in ("", "/", "/etc/passwd", *dots, "a//b", "a/", "a\\b", "a\0b", "a\nb", "a+b", "k" * 1025):
        for call in (store.get, store.delete, store.exists, lambda key: store.put(key, b"")):
            with pytest.raises(InvalidInput, match="object key"):
                call(key)
    with pytest.raises(InvalidInput):
        list(store.list("../"))


def test_a_big_object_comes_back_whole(store: Storage) -> None:
    data = os.urandom(5 * 1024 * 1024 + 1)
    store.put(KEY, data)
    assert store.get(KEY) == data
    store.put("b.json", data, if_absent=True)
    assert store.get("b.json", start=-7) == data[-7:]
    assert store.get("b.json", start=4_999_999, length=300_000) == data[4_999_999:5_299_999]


def test_one_of_many_concurrent_writers_wins(store: Storage) -> None:
    # A new bucket is slow at first: a put retried after a 5xx that had succeeded would lose against itself.
    store.put("warm.json", b"")
    start = threading.Barrier(16)
    winners: list[int] = []
    losers: list[int] = []

    def write(number: int) -> None:
        start.wait()
        try:
            store.put(KEY, b"writer %d" % number, if_absent=True)
            winners.append(number)
        except ObjectExists:
            losers.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 1
    assert len(losers) == 15
    assert store.get(KEY) == b"writer %d" % winners[0]


def test_it_can_be_closed_and_used_again(store: Storage) -> None:
    store.put(KEY, b"data")
    store.close()
    store.close()
    assert store.get(KEY) == b"data"


def test_it_travels_to_another_process_without_its_connections(store: Storage) -> None:
    store.put(KEY, b"data")
    if store.kind == "memory":
        with pytest.raises(StorageFailure, match="cannot be shared"):
            pickle.dumps(store)
        return
    again = pickle.loads(pickle.dumps(store))
    assert repr(again) == repr(store)
    assert again.get(KEY) == b"data"
    again.put(KEY, b"more")
    assert store.get(KEY) == b"more"
    again.close()


def _in_child(store: Storage, answers: Any) -> None:
    signal.alarm(60)
    try:
        seen = store.get(KEY)
        store.put("child.json", b"of child", if_absent=True)
        try:
            store.put("child.json", b"again", if_absent=True)
            twice = "stored twice"
        except ObjectExists:
            twice = "exists"
        parts = store.get("child.json", start=-5), store.get("child.json", start=1, length=2), store.exists("nope")
        store.put("gone.json", b"x")
        store.delete("gone.json")
        answers.send((seen, twice, parts, sorted(store.list(""))))
    except BaseException as error:
        answers.send(repr(error))
    store.close()


def test_a_forked_child_goes_on(store: Storage) -> None:
    store.put(KEY, b"of parent")
    assert store.get(KEY) == b"of parent"
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_in_child, args=(store, theirs))
    child.start()
    assert ours.poll(60)
    answer = ours.recv()
    child.join()
    for end in (ours, theirs, child):
        end.close()
    assert answer == (b"of parent", "exists", (b"child", b"f ", False), sorted([KEY, "child.json"]))
    assert store.get(KEY) == b"of parent"
    assert store.exists("child.json") == (store.kind != "memory")


# Files


def files_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_objects_of_the_lake_are_plain_files(tmp_path: Path) -> None:
    store = FileStorage(tmp_path)
    for key in (KEY, "_segments/abcd/abcd.0.0.parquet"):
        store.put(key, b"data", if_absent=True)
        store.put(key, b"data")
        assert (tmp_path / key).read_bytes() == b"data"
    assert files_under(tmp_path) == sorted([KEY, "_segments/abcd/abcd.0.0.parquet"])


def test_a_refused_put_leaves_no_temporary_file(tmp_path: Path) -> None:
    store = FileStorage(tmp_path)
    store.put(KEY, b"data")
    with pytest.raises(ObjectExists):
        store.put(KEY, b"other", if_absent=True)
    assert files_under(tmp_path) == [KEY]


@pytest.mark.parametrize("pair", [("a", "a/b"), ("a.json", "a.json/b.json"), ("x/y.snap", "x/y.snap/z")])
@pytest.mark.parametrize("turned", [False, True])
def test_an_object_and_a_folder_can_share_a_name(tmp_path: Path, pair: tuple[str, str], turned: bool) -> None:
    store = FileStorage(tmp_path)
    for key in reversed(pair) if turned else pair:
        store.put(key, key.encode(), if_absent=True)
    assert [store.get(key).decode() for key in pair] == list(pair)
    assert list(store.list("")) == sorted(pair)
    for key in pair:
        store.delete(key)
    assert [path.name for path in tmp_path.iterdir()] == ["_tmp"]


def test_a_name_of_any_length_is_cut_between_characters(tmp_path: Path) -> None:
    store = FileStorage(tmp_path)
    keys = sorted(f"{character * length}/x.json" for character in "k語" for length in (79, 80, 81, 239, 240, 241, 330))
    for key in keys:
        store.put(key, key.encode(), if_absent=True)
    assert list(store.list("")) == keys
    assert [store.get(key).decode() for key in keys] == keys
    for key in keys:
        store.delete(key)
    assert [path.name for path in tmp_path.iterdir()] == ["_tmp"]


def test_temporary_files_are_no_objects(tmp_path: Path) -> None:
    store = FileStorage(tmp_path)
    store.put(KEY, b"data")
    (tmp_path / "_tmp" / "1-abc").write_bytes(b"half")
    assert list(store.list("")) == [KEY]
    assert list(store.list("_tmp/")) == []
    for key in ("_tmp/1-abc", "_tmp"):
        with pytest.raises(InvalidInput, match="temporary"):
            store.get(key)


def test_temporary_files_of_long_ago_are_removed(tmp_path: Path) -> None:
    FileStorage(tmp_path).put(KEY, b"data")
    old, new = tmp_path / "_tmp" / "1-old", tmp_path / "_tmp" / "1-new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 90_000,) * 2)
    FileStorage(tmp_path).put("b.json", b"data")
    assert not old.exists()
    assert new.exists()


class Syncs:
    """Counts what reaches fsync, by path."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        real = os.fsync

        def fsync(descriptor: int) -> None:
            self.paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            real(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)


def test_always_syncs_the_file_and_every_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch)
    store = FileStorage(tmp_path, fsync="always")
    store.put("a/b/c.json", b"data")
    assert syncs.paths[0].startswith(str(tmp_path / "_tmp"))
    assert set(syncs.paths[1:]) == {str(tmp_path / "a" / "b"), str(tmp_path / "a"), str(tmp_path)}
    syncs.paths.clear()
    store.put("a/b/d.json", b"data", if_absent=True)
    assert syncs.paths[1:] == [str(tmp_path / "a" / "b")]


def test_never_does_not_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch)
    store = FileStorage(tmp_path, fsync="never")
    store.put("a/b/c.json", b"data")
    store.close()
    assert syncs.paths == []


def test_interval_syncs_once_for_many_puts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch)
    store = FileStorage(tmp_path, fsync="interval", fsync_interval=0.3)
    for number in range(20):
        store.put(f"a/{number % 2}.json", b"data")
    assert syncs.paths == []
    deadline = time.monotonic() + 10
    while len(syncs.paths) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    expected = {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "0.json"), str(tmp_path / "a" / "1.json")}
    assert set(syncs.paths) == expected
    assert len(syncs.paths) == 4
    store.close()
    assert len(syncs.paths) == 4


def test_close_syncs_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch)
    store = FileStorage(tmp_path, fsync="interval", fsync_interval=3600)
    store.put(KEY, b"data")
    assert syncs.paths == []
    store.close()
    assert str(tmp_path / KEY) in syncs.paths
    assert not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())


def test_a_late_sync_that_failed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    store = FileStorage(tmp_path, fsync="interval", fsync_interval=3600)
    store.put(KEY, b"data")
    with pytest.raises(StorageFailure, match="may not be on disk"):
        store.close()
    store.close()


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, StorageFailure), (errno.EROFS, StorageDenied)])
@pytest.mark.parametrize("call", ["fsync", "link", "replace"])
def test_a_failing_disk_is_reported_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[LakeError], call: str
) -> None:
    store = FileStorage(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(kind, match=os.strerror(number)) as caught:
        store.put("a.json", b"data", if_absent=call != "replace")
    assert "a.json" in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert files_under(tmp_path) == []


def test_put_if_absent_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    test_one_of_many_concurrent_writers_wins(FileStorage(tmp_path))
    assert files_under(tmp_path) == [KEY, "_tmp/create.lock", "warm.json"]


# Root may write anywhere, so the rights are tried by a child that gave that up.
DENIED = """
import os, sys
from lake_spark.storage import FileStorage
from lake_spark.errors import StorageDenied
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
store = FileStorage(sys.argv[1])
for call in (lambda: store.put("a.json", b"x"), lambda: store.put("b.json", b"x", if_absent=True)):
    try:
        call()
    except StorageDenied as error:
        assert isinstance(error, PermissionError) and sys.argv[1] in str(error), error
        print("denied")
"""


def test_a_folder_without_rights_is_denied() -> None:
    with tempfile.TemporaryDirectory() as outer:
        os.chmod(outer, 0o755)
        folder = Path(outer) / "lake"
        folder.mkdir()
        folder.chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", DENIED, str(folder)], capture_output=True, text=True, cwd=REPOSITORY
        )
        assert done.stdout == "denied\ndenied\n", done.stderr
        assert list(folder.iterdir()) == []


KILLED = """
import sys, itertools
from lake_spark.storage import FileStorage
store = FileStorage(sys.argv[1], fsync=sys.argv[2])
body = bytes(range(256)) * 2000
for number in itertools.count():
    store.put(f"a/{number}.json", body, if_absent=number % 2 == 0)
    print(number, flush=True)
"""


@pytest.mark.parametrize("fsync", ["always", "interval", "never"])
def test_a_killed_writer_leaves_whole_objects_or_none(tmp_path: Path, fsync: str) -> None:
    body = bytes(range(256)) * 2000
    for attempt in range(4):
        folder = tmp_path / str(attempt)
        command = [sys.executable, "-c", KILLED, str(folder), fsync]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY) as child:
            assert child.stdout
            for _ in range(3 + attempt):
                acknowledged = int(child.stdout.readline())
            time.sleep(0.003 * attempt)
            child.kill()
            acknowledged = max([acknowledged, *(int(line) for line in child.stdout.read().splitlines())])
        store = FileStorage(folder)
        keys = list(store.list(""))
        assert set(keys) >= {f"a/{number}.json" for number in range(acknowledged + 1)}
        assert all(store.get(key) == body for key in keys)


# S3


def every_call(store: S3Storage) -> list[Callable[[], Any]]:
    return [
        lambda: store.put(KEY, b"x"),
        lambda: store.put(KEY, b"x", if_absent=True),
        lambda: store.get(KEY),
        lambda: store.get(KEY, start=-4),
        lambda: store.exists(KEY),
        lambda: store.delete(KEY),
        lambda: list(store.list("")),
        lambda: list(store.objects("")),
        store.check_bucket,
    ]


def errors_of(calls: list[Callable[[], Any]], kind: type[LakeError]) -> list[str]:
    """The messages of what the calls raise, each with its whole traceback checked for secrets."""
    messages = []
    for call in calls:
        with pytest.raises(kind) as caught:
            call()
        shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
        for secret in (S3Server.secret_key, S3Server.read_only_secret_key, "not-the-secret-77"):
            assert secret not in shown
        assert caught.value.__cause__ is None
        messages.append(str(caught.value))
    return messages


def test_a_wrong_secret_key_is_denied_and_not_shown(s3_server: S3Server, s3_bucket: str) -> None:
    store = s3_storage(s3_server, s3_bucket, secret_key="not-the-secret-77")
    for message in errors_of(every_call(store), StorageDenied):
        assert s3_bucket in message
        # The refusal of a HEAD has no body that says more than 403.
        assert "secret key does not fit" in message or "(or are wrong)" in message
    assert "secret key does not fit" in errors_of([lambda: store.get(KEY)], StorageDenied)[0]
    assert "not-the-secret-77" not in repr(store)


def test_a_wrong_access_key_is_denied(s3_server: S3Server, s3_bucket: str) -> None:
    store = s3_storage(s3_server, s3_bucket, access_key="nobody")
    assert "access key is not known" in errors_of(every_call(store), StorageDenied)[0]


def test_a_reader_may_read_and_not_write(s3_server: S3Server, s3_bucket: str) -> None:
    s3_storage(s3_server, s3_bucket).put(KEY, b"data")
    reader = s3_storage(
        s3_server, s3_bucket, access_key=s3_server.read_only_access_key, secret_key=s3_server.read_only_secret_key
    )
    assert reader.get(KEY) == b"data"
    assert list(reader.list("")) == [KEY]
    writes: list[Callable[[], Any]] = [
        lambda: reader.put("b.json", b"x"),
        lambda: reader.put("b.json", b"x", if_absent=True),
        lambda: reader.delete(KEY),
    ]
    for message in errors_of(writes, StorageDenied):
        assert "lack the right" in message
        assert s3_bucket in message


def test_a_missing_bucket_is_told_from_a_missing_object(s3_server: S3Server, s3_bucket: str) -> None:
    store = s3_storage(s3_server, "no-such-bucket")
    for message in errors_of(every_call(store), StorageDenied):
        assert "no-such-bucket" in message
        assert "does not exist" in message
    with pytest.raises(ObjectMissing):
        s3_storage(s3_server, s3_bucket).get(KEY)


def test_a_bucket_can_be_made_and_checked(s3_server: S3Server) -> None:
    store = s3_storage(s3_server, "lake-made-here")
    store.create_bucket()
    store.create_bucket()
    store.check_bucket()
    s3_server.delete_bucket("lake-made-here")
    with pytest.raises(StorageDenied, match="does not exist"):
        store.check_bucket()
    reader = s3_storage(
        s3_server, "lake-2", access_key=s3_server.read_only_access_key, secret_key=s3_server.read_only_secret_key
    )
    errors_of([reader.create_bucket], StorageDenied)


def test_an_unreachable_endpoint_is_named_in_time() -> None:
    port = free_ports(1)[0]
    store = S3Storage(
        "a-bucket", endpoint=f"http://127.0.0.1:{port}", access_key="a", secret_key="s3cr3t-55", timeout=1, retries=2
    )
    for call in every_call(store):
        began = time.monotonic()
        (message,) = errors_of([call], StorageUnavailable)
        assert time.monotonic() - began < 5
        assert f"127.0.0.1:{port}" in message
        assert "s3cr3t-55" not in message


def test_a_store_that_does_not_answer_is_given_up_in_time(s3_server: S3Server, s3_bucket: str) -> None:
    with TcpProxy("127.0.0.1", s3_server.port) as proxy:
        endpoint = f"http://127.0.0.1:{proxy.port}"
        store = s3_storage(s3_server, s3_bucket, endpoint=endpoint, timeout=0.5, retries=1)
        store.put(KEY, b"data")
        proxy.hold()
        for call in every_call(store)[:7]:
            began = time.monotonic()
            (message,) = errors_of([call], StorageUnavailable)
            assert time.monotonic() - began < 4
            assert "no answer within 0.5 s" in message
            assert f"127.0.0.1:{proxy.port}" in message
        # What was held would still run, the delete among it.
        proxy.reset_all()
        proxy.release()
        assert store.get(KEY) == b"data"
        proxy.reset_all()
        assert store.get(KEY) == b"data"


def test_a_put_that_lost_its_answer_finds_itself(s3_server: S3Server, s3_bucket: str) -> None:
    with TcpProxy("127.0.0.1", s3_server.port) as proxy:
        store = s3_storage(s3_server, s3_bucket, endpoint=f"http://127.0.0.1:{proxy.port}")
        store.check_bucket()
        proxy.drop_reply_to(b"PUT /")
        with pytest.raises(ObjectExists):
            store.put(KEY, b"data", if_absent=True)
        assert proxy.dropped_replies == 1
        assert store.get(KEY) == b"data"
        proxy.drop_reply_to(b"PUT /")
        store.put(KEY, b"other")
        assert proxy.dropped_replies == 2
        assert store.get(KEY) == b"other"


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers with the statuses it is given, then with 200."""

    statuses: list[int]
    seen: list[str]

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append(self.headers.get("If-None-Match", ""))
        status = self.statuses.pop(0) if self.statuses else 200
        code = {409: "ConditionalRequestConflict", 400: "ExpiredToken", 301: "PermanentRedirect"}.get(status, "Oops")
        body = b"" if status == 200 else f"<Error><Code>{code}</Code><Message>x</Message></Error>".encode()
        self.send_response(status)
        self.send_header("ETag", '"0"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def scripted() -> Iterator[Callable[[list[int]], tuple[S3Storage, list[str]]]]:
    servers: list[http.server.ThreadingHTTPServer] = []

    def make(statuses: list[int]) -> tuple[S3Storage, list[str]]:
        handler = type("Handler", (Scripted,), {"statuses": statuses, "seen": []})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        store = S3Storage("a-bucket", endpoint=endpoint, access_key="a", secret_key="b", timeout=3, retries=1)
        return store, handler.seen  # type: ignore[attr-defined]

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


Scripts = Callable[[list[int]], tuple[S3Storage, list[str]]]


def test_a_race_of_conditional_puts_is_run_again(scripted: Scripts) -> None:
    store, seen = scripted([409, 409])
    store.put(KEY, b"data", if_absent=True)
    assert seen == ["*", "*", "*"]


def test_a_race_without_end_is_given_up(scripted: Scripts) -> None:
    store, _ = scripted([409] * 100)
    with pytest.raises(StorageUnavailable, match="try again") as caught:
        store.put(KEY, b"data", if_absent=True)
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (503, StorageUnavailable, "answered 503"),
        (400, StorageDenied, "session token"),
        (301, StorageDenied, "another region"),
        (418, StorageFailure, "answered 418 Oops"),
    ],
)
def test_answers_of_a_store_become_errors(scripted: Scripts, status: int, kind: type[LakeError], message: str) -> None:
    store, _ = scripted([status] * 10)
    with pytest.raises(kind, match=message):
        store.put(KEY, b"data")


def test_a_store_without_conditions_looks_before_it_puts(s3_server: S3Server, s3_bucket: str) -> None:
    with TcpProxy("127.0.0.1", s3_server.port) as proxy:
        store = s3_storage(s3_server, s3_bucket, conditional_put=False, endpoint=f"http://127.0.0.1:{proxy.port}")
        conditions: list[bytes] = []
        proxy.drop_reply_to(lambda sent: bool(conditions.append(sent)) if b"if-none-match" in sent.lower() else False)
        store.put(KEY, b"first", if_absent=True)
        with pytest.raises(ObjectExists):
            store.put(KEY, b"second", if_absent=True)
        assert store.get(KEY) == b"first"
        assert conditions == []


@pytest.mark.parametrize(
    ("given", "endpoint", "host"),
    [
        ("oss-cn-hangzhou", "https://oss-cn-hangzhou.aliyuncs.com", "b1-x.oss-cn-hangzhou.aliyuncs.com:443"),
        ("oss-cn-beijing.aliyuncs.com", "https://oss-cn-beijing.aliyuncs.com", "b1-x.oss-cn-beijing.aliyuncs.com:443"),
        ("http://127.0.0.1:8", "http://127.0.0.1:8", "b1-x.127.0.0.1:8"),
    ],
)
def test_an_oss_endpoint(given: str, endpoint: str, host: str) -> None:
    store = S3Storage.oss("b1-x", given, access_key="a", secret_key="b")
    assert (store.kind, store.endpoint, store.conditional_put) == ("oss", endpoint, False)
    assert host in repr(store)


def test_an_oss_bucket_is_part_of_the_host(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with TcpProxy("127.0.0.1", s3_server.port) as proxy:
        # As an HTTP proxy it is sent the whole address, and no name has to be resolved.
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        sent: list[bytes] = []
        proxy.drop_reply_to(lambda request: bool(sent.append(request)))
        store = S3Storage.oss(
            "a-bucket", "http://oss-cn-x.invalid", access_key="a", secret_key="b", timeout=2, retries=0
        )
        with pytest.raises(StorageFailure):
            store.get(KEY)
        assert sent[0].startswith(b"GET http://a-bucket.oss-cn-x.invalid/9bc6/")
        assert b"/oss-cn-x/s3/aws4_request" in sent[0]


@pytest.mark.parametrize(
    "arguments",
    [
        {"bucket": ""},
        {"bucket": "a/b"},
        {"bucket": "a-bucket", "endpoint": "127.0.0.1:80"},
        {"bucket": "a-bucket", "endpoint": "http://user:hunter2@127.0.0.1:80"},
        {"bucket": "a-bucket", "endpoint": "http://127.0.0.1/bucket"},
        {"bucket": "a-bucket", "access_key": "only"},
        {"bucket": "a-bucket", "secret_key": "hunter2"},
    ],
)
def test_wrong_settings_are_refused_without_their_secrets(arguments: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        S3Storage(**arguments)
    assert "hunter2" not in str(caught.value)


def without_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


def test_credentials_come_from_environment_and_profile(
    s3_server: S3Server, s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_credentials(monkeypatch, tmp_path)
    with pytest.raises(StorageDenied, match="no credentials found"):
        S3Storage(s3_bucket, endpoint=s3_server.endpoint).put(KEY, b"data")
    with pytest.raises(ConfigError, match="'lake'"):
        S3Storage(s3_bucket, endpoint=s3_server.endpoint, profile="lake").get(KEY)
    (tmp_path / "credentials").write_text(
        f"[lake]\naws_access_key_id={s3_server.access_key}\naws_secret_access_key={s3_server.secret_key}\n"
    )
    S3Storage(s3_bucket, endpoint=s3_server.endpoint, profile="lake").put(KEY, b"data")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.read_only_access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.read_only_secret_key)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    store = S3Storage(s3_bucket)
    assert store.get(KEY) == b"data"
    with pytest.raises(StorageDenied, match="lack the right"):
        store.put(KEY, b"data")


def test_given_keys_are_not_mixed_with_a_token_of_the_environment(
    s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "belongs-to-other-keys")
    with TcpProxy("127.0.0.1", s3_server.port) as proxy:
        tokens: list[bytes] = []
        proxy.drop_reply_to(lambda sent: bool(tokens.append(sent)) if b"belongs-to-other" in sent else False)
        s3_storage(s3_server, s3_bucket, endpoint=f"http://127.0.0.1:{proxy.port}").put(KEY, b"data")
        assert tokens == []


def test_a_store_shows_no_secret(s3_server: S3Server, s3_bucket: str) -> None:
    store = s3_storage(s3_server, s3_bucket, session_token="token-31337")
    shown = f"{store!r} {store}"
    assert s3_bucket in shown
    for secret in (s3_server.secret_key, s3_server.access_key, "token-31337"):
        assert secret not in shown
