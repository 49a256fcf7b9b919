"""Export and import: what goes out comes back, in any format; and an import that is interrupted doubles nothing."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis
from commands import run_lake, start_lake

from lake_spark import Lake, MergeType
from lake_spark.client.exporting import export_file
from lake_spark.client.importing import begin_import, import_file
from lake_spark.client.lake import version_at
from lake_spark.client.rowfiles import RowFile
from lake_spark.errors import ConfigError, HistoryGone, InvalidInput, PendingError
from lake_spark.model import MergeType as Kind

FORMATS = ["a.ndjson", "a.jsonl.gz", "a.ndjson.zst", "a.parquet"]
NUMBERS = b'{"int":123456789012345678901234567890,"dec":1.50,"exp":1E400,"neg":-0,"a":{"z":1,"b":[]}}'


@pytest.fixture
def other(redis_url: str, tmp_path: Path) -> Iterator[Lake]:
    """A second lake, to import into."""
    with Lake(redis_url, config={"Name": "other", "Storage": "file", "BasePath": str(tmp_path / "other")}) as lake:
        yield lake


def export(lake: Lake, path: Path, **options: Any) -> int:
    return export_file(lake._session, RowFile.of(path), **options)


def bring_in(lake: Lake, path: Path, *, again: bool = False, **options: Any) -> Any:
    state = begin_import(lake._session, RowFile.of(path), again=again)
    import_file(lake._session, RowFile.of(path), state, **options)
    return state


def documents(lake: Lake, **options: Any) -> dict[str, bytes]:
    return {name: lake.read_bytes(name, **options) for name in lake.catalogs()}


def log_of(lake: Lake, catalog: str) -> list[tuple[int, str, bytes]]:
    """Type, path and body of each delta that is left, in order."""
    from lake_spark.client.reading import deltas

    [listing] = lake._session.index.listings([catalog], whole_log=True)
    return [(kind, path, body) for _, kind, path, body in deltas(lake._session, catalog, listing.entries)]


def fill(lake: Lake) -> None:
    """Single writes and a job; all merge types, meta, odd names and numbers."""
    lake.write("numbers", NUMBERS)
    lake.write("Users/Ünï", b'{\n "name": "line\\nfeed",\r\n "tags": []\n}', meta={"owner": "a", "n": 1})
    lake.write_many([(f"job-{n}", {"n": n, "tags": ["new"]}) for n in range(300)])
    for n in range(0, 300, 7):
        lake.write(f"job-{n}", [{"op": "add", "path": "/tags/-", "value": n}], merge=MergeType.RFC6902)
        lake.write(f"job-{n}", {"extra": {"x": n}}, merge=MergeType.RFC7396, path="/more")
    lake.write("null", None)
    lake.write("text", b'"just text"')


@pytest.mark.parametrize("name", FORMATS)
def test_documents_come_back_with_their_digits_and_meta(lake: Lake, other: Lake, tmp_path: Path, name: str) -> None:
    fill(lake)
    assert export(lake, tmp_path / name) == 304
    state = bring_in(other, tmp_path / name, chunk_rows=100)
    assert (state.rows, state.chunks, state.bad) == (304, 4, 0)
    assert documents(other) == documents(lake)
    assert other.read_bytes("numbers") == NUMBERS
    assert other.meta("Users/Ünï") == {"owner": "a", "n": 1}
    assert other.meta("job-1") == {}


@pytest.mark.parametrize("name", FORMATS)
def test_logs_come_back_in_their_order(lake: Lake, other: Lake, tmp_path: Path, name: str) -> None:
    fill(lake)
    export(lake, tmp_path / name, deltas=True)
    bring_in(other, tmp_path / name, chunk_rows=37)
    names = list(lake.catalogs())
    assert documents(other) == documents(lake)
    squeezed = str.maketrans("", "", "\r\n ")
    for catalog in names:
        ours, theirs = log_of(lake, catalog), log_of(other, catalog)
        assert [row[:2] for row in theirs] == [row[:2] for row in ours]
        assert [row[2].decode().translate(squeezed) for row in theirs] == [
            row[2].decode().translate(squeezed) for row in ours
        ]
    assert other.meta("Users/Ünï") == {"owner": "a", "n": 1}


def test_a_history_that_was_cleared_begins_with_its_oldest_snapshot(lake: Lake, other: Lake, tmp_path: Path) -> None:
    for n in range(5):
        lake.write("c", {f"f{n}": n}, merge=MergeType.RFC7396)
    lake.clear_history("c")
    lake.write("c", {"after": 1}, merge=MergeType.RFC7396)
    lake.write("only-a-snapshot", {"a": 1})
    lake.clear_history("only-a-snapshot")
    export(lake, tmp_path / "a.ndjson", deltas=True)
    bring_in(other, tmp_path / "a.ndjson")
    assert documents(other) == documents(lake)
    assert [row[:2] for row in log_of(other, "c")] == [(Kind.REPLACE, "/"), (Kind.RFC7396, "/")]


def test_an_export_is_as_of_a_moment_and_of_a_prefix(lake: Lake, other: Lake, tmp_path: Path) -> None:
    lake.write("user-1", {"v": 1})
    before = lake.write("user-2", {"v": 1})
    lake.write("group-1", {"v": 1})
    lake.write("user-2", {"v": 2})
    lake.write("user-3", {"v": 1})
    last = max(lake.list(name).version for name in lake.catalogs())
    assert export(lake, tmp_path / "a.ndjson", prefix="user-") == 3
    export(lake, tmp_path / "b.ndjson", prefix="user-2", as_of=version_at(before))
    bring_in(other, tmp_path / "b.ndjson")
    assert documents(other) == {"user-2": b'{"v":1}'}
    lake.clear_history("user-2")
    assert lake.list("user-2").version <= last
    with pytest.raises(HistoryGone, match="user-2"):
        export(lake, tmp_path / "c.ndjson", as_of=version_at(before))
    assert not (tmp_path / "c.ndjson").exists()
    assert sorted(each.name for each in tmp_path.iterdir() if each.is_file()) == ["a.ndjson", "b.ndjson"]


def test_an_export_has_a_job_whole_or_not_at_all(lake: Lake, tmp_path: Path) -> None:
    from lake_spark.client.transaction import publish, stage
    from lake_spark.client.writing import check_change
    from lake_spark.index import TransactionIndex

    lake.write("a", {"v": 1})
    session = lake._session
    txn = TransactionIndex.begin(session.index, 60)
    blocks = stage(session, txn, 0, 0, [check_change(1 << 20, name, {"v": 2}) for name in "abcdefgh"])
    txn.intend()
    list(publish(session, txn, blocks[:1]))
    with Lake(lake._url, config=lake.get_config(), pending_wait=0.1) as impatient:
        with pytest.raises(PendingError, match=txn.txn):
            export(impatient, tmp_path / "a.ndjson")
    list(publish(session, txn, blocks[1:]))
    txn.commit()
    assert export(lake, tmp_path / "a.ndjson") == 8
    assert {json.loads(line)["document"]["v"] for line in (tmp_path / "a.ndjson").read_text().splitlines()} == {2}


def test_lines_may_be_changes(lake: Lake, tmp_path: Path) -> None:
    lines = [
        {"catalog": "a", "document": {"n": 1}},
        {"catalog": "a", "body": {"m": 2}, "merge_type": "RFC7396"},
        {"catalog": "a", "body": 3, "path": "/p/q"},
        {"catalog": "a", "body": [{"op": "add", "path": "/list", "value": []}], "merge_type": 3, "meta": {"k": 1.50}},
        {"catalog": "b", "document": None, "meta": None},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n\n".join(map(json.dumps, lines)))
    state = bring_in(lake, path)
    assert (state.rows, state.done) == (5, 9), "blank lines are counted as an editor counts them"
    assert documents(lake) == {"a": b'{"n":1,"m":2,"p":{"q":3},"list":[]}', "b": b"null"}
    assert lake.meta("a") == {"k": 1.5}


BAD = [
    (b"{", "not JSON"),
    (b"[1]", "no row of an import"),
    (b'{"document":1}', "catalog"),
    (b'{"catalog":"a"}', "either a document"),
    (b'{"catalog":"a","document":1,"body":1}', "either a document"),
    (b'{"catalog":"a","document":1,"path":"/x"}', "replaces the whole"),
    (b'{"catalog":"","document":1}', "0 bytes"),
    (b'{"catalog":"a","body":1,"path":"x"}', "not a field path"),
    (b'{"catalog":"a","body":{},"merge_type":"RFC6902"}', "refused"),
    (b'{"catalog":"a","body":1,"merge_type":"WHAT"}', "there is no merge type"),
    (b'{"catalog":"a","document":NaN}', "JSON"),
    (b'{"catalog":"a","document":1,"meta":[1]}', "meta"),
    (b'{"catalog":"a","docment":1}', "docment"),
    (b'{"catalog":"a","document":"\xff"}', ""),
    (b'{"catalog":"a","document":null,"error":"it was damaged"}', "it was damaged"),
    (b'{"catalog":"a","document":"' + b"x" * 3_000_000 + b'"}', "bytes"),
]


@pytest.mark.parametrize(("line", "reason"), BAD, ids=range(len(BAD)))
def test_a_bad_row_is_an_error_with_its_number_and_nothing_of_its_chunk_is_in(
    redis_url: str, file_config: dict[str, str], tmp_path: Path, line: bytes, reason: str
) -> None:
    good = [json.dumps({"catalog": f"c{n}", "document": n}).encode() for n in range(10)]
    path, aside = tmp_path / "a.ndjson", tmp_path / "bad.ndjson"
    path.write_bytes(b"\n".join([*good[:6], line, *good[6:]]))
    with Lake(redis_url, config=file_config, max_body_bytes=1 << 20) as lake:
        with pytest.raises(InvalidInput, match="row 7 of") as caught:
            bring_in(lake, path, chunk_rows=4)
        assert reason in str(caught.value)
        assert "the rows up to 4 are in" in str(caught.value)
        assert len(str(caught.value)) < 2000
        assert sorted(lake.catalogs()) == ["c0", "c1", "c2", "c3"]
        state = bring_in(lake, path, chunk_rows=4, bad_records=aside)
        assert (state.rows, state.bad, state.before) == (6, 1, 4)
        assert len(list(lake.catalogs())) == 10
    [put_aside] = map(json.loads, aside.read_text().splitlines())
    assert put_aside["row"] == 7
    assert reason in put_aside["reason"]


def test_bad_records_of_parquet(lake: Lake, tmp_path: Path) -> None:
    path, aside = tmp_path / "a.parquet", tmp_path / "bad.ndjson"
    rows = {"catalog": ["a", "b", None, "d"], "document": ["1", "{", "3", "4"], "version": ["x", None, None, None]}
    pq.write_table(pa.table(rows), path)
    with pytest.raises(InvalidInput, match="row 2 of"):
        bring_in(lake, path)
    state = bring_in(lake, path, bad_records=aside)
    assert (state.rows, state.bad) == (2, 2)
    assert documents(lake) == {"a": b"1", "d": b"4"}
    assert [json.loads(line)["row"] for line in aside.read_text().splitlines()] == [2, 3]
    pq.write_table(pa.table({"catalog": ["a"], "document": [{"n": 1}]}), path)
    with pytest.raises(InvalidInput, match="not JSON text"):
        bring_in(lake, path)


def test_a_damaged_file_is_an_error_that_names_it(lake: Lake, tmp_path: Path) -> None:
    line = b'{"catalog":"a","document":1}\n'
    (tmp_path / "a.ndjson.gz").write_bytes(gzip.compress(line * 1000)[:-20])
    (tmp_path / "b.parquet").write_bytes(line)
    for name in ("a.ndjson.gz", "b.parquet"):
        with pytest.raises(InvalidInput, match=name):
            bring_in(lake, tmp_path / name)
    assert list(lake.catalogs()) == []
    with pytest.raises(FileNotFoundError):
        bring_in(lake, tmp_path / "nothing.ndjson")


@pytest.mark.parametrize("name", ["a.csv", "a", "a.gz", "a.parquet.gz"])
def test_a_name_that_tells_no_format_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"format|Parquet"):
        RowFile.of(name)
    if name != "a.parquet.gz":
        assert RowFile.of(name, "ndjson").format == "ndjson"


def additions(path: Path, rows: int, lists: int) -> dict[str, list[int]]:
    """A file of rows that each add to a list: whatever comes in twice shows. The lists that it makes."""
    expected: dict[str, list[int]] = {}
    with path.open("w") as file:
        for n in range(lists):
            file.write(json.dumps({"catalog": f"list-{n}", "document": {"list": []}}) + "\n")
        for n in range(rows - lists):
            name = f"list-{n * 7919 % lists}"
            patch = [{"op": "add", "path": "/list/-", "value": n}]
            file.write(json.dumps({"catalog": name, "merge_type": "RFC6902", "body": patch}) + "\n")
            expected.setdefault(name, []).append(n)
    return expected


def test_an_import_again_skips_what_is_in_whatever_the_size_of_chunks(lake: Lake, tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    expected = additions(path, 200, 10)
    stopped = begin_import(lake._session, RowFile.of(path))

    def stop(_: int) -> None:
        if stopped.done >= 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_file(lake._session, RowFile.of(path), stopped, chunk_rows=20, advance=stop)
    state = bring_in(lake, path, chunk_rows=33)
    assert (state.before, state.rows) == (60, 140)
    assert {name: lake.read_map(name)["list"] for name in lake.catalogs()} == expected
    assert bring_in(lake, path).rows == 0
    path.rename(tmp_path / "renamed.ndjson")
    assert bring_in(lake, tmp_path / "renamed.ndjson").rows == 0
    assert bring_in(lake, tmp_path / "renamed.ndjson", again=True).rows == 200
    assert bring_in(lake, tmp_path / "renamed.ndjson").rows == 0
    # Each document is replaced by an empty list again before it is filled.
    assert {name: lake.read_map(name)["list"] for name in lake.catalogs()} == expected


def test_two_imports_of_one_file_at_a_time_bring_each_row_once(lake: Lake, tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    expected = additions(path, 300, 10)
    states: list[Any] = []

    def run(size: int) -> None:
        with Lake(lake._url, config=lake.get_config()) as own:
            states.append(bring_in(own, path, chunk_rows=size))

    threads = [threading.Thread(target=run, args=(size,)) for size in (7, 16, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(states) == 3
    assert sum(state.rows for state in states) == 300
    assert {name: lake.read_map(name)["list"] for name in lake.catalogs()} == expected


CHUNK, ROWS, LISTS = 20, 1200, 40


def start_import(url: str, path: Path, *more: str) -> subprocess.Popen[str]:
    return start_lake(url, "import", str(path), f"--chunk-rows={CHUNK}", *more)


def rows_in(lake: Lake) -> int:
    """How many rows of the file the documents show; each at most once, and only the first ones of the file."""
    found = {name: lake.read_map(name, pending="wait")["list"] for name in lake.catalogs()}
    values = [value for each in found.values() for value in each]
    assert max(Counter(values).values(), default=1) == 1
    assert sorted(values) == list(range(len(values)))
    return len(found) + len(values)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill -9"])
def test_an_import_that_is_interrupted_leaves_whole_chunks_and_is_finished_by_the_next(
    redis_url: str, file_config: dict[str, str], tmp_path: Path, number: int
) -> None:
    path = tmp_path / "a.ndjson"
    expected = additions(path, ROWS, LISTS)
    # A killed writer is waited for until its lease is over.
    with Lake(redis_url) as setup:
        setup.update_config(file_config)
    url = f"{redis_url}?lease=1.5&fsync=never"
    with Lake(url) as lake, redis.Redis.from_url(redis_url) as client:
        index = lake._session.index
        app = index.keys.app(begin_import(lake._session, RowFile.of(path)).app_id)
        before = 0
        for wanted in (CHUNK, ROWS // 4, ROWS // 2):
            process = start_import(url, path)
            while int(client.get(app) or 0) < wanted and process.poll() is None:
                time.sleep(0.001)
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
            assert process.returncode == (130 if number == signal.SIGINT else -number), errors
            done = int(client.get(app) or 0)
            assert before < done < ROWS
            assert rows_in(lake) == done
            assert done % CHUNK == 0
            assert "Traceback" not in errors
            if number == signal.SIGINT:
                assert f"the rows up to {done} of" in errors
            before = done
        process = start_import(url, path, "--json")
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        told = json.loads(output)
        assert (told["skipped"], told["rows"]) == (before, ROWS - before)
        assert {name: lake.read_map(name)["list"] for name in lake.catalogs()} == expected
        process = start_import(url, path)
        output, errors = process.communicate(timeout=60)
        assert f"the rows up to {ROWS} of {path} are in already" in errors
        assert output.startswith("0 rows of")


def test_the_commands_export_and_import(redis_url: str, file_config: dict[str, str], tmp_path: Path) -> None:
    with Lake(redis_url) as lake:
        lake.update_config(file_config)
        lake.write("a", b'{"n":1.50}')
        lake.write("b", {"n": 2})
        target = tmp_path / "out.ndjson.zst"
        done = run_lake(redis_url, "export", str(target), "--prefix", "a")
        assert (done.returncode, done.stdout) == (0, f"1 documents in {target}\n")
        assert run_lake(redis_url, "export", str(target)).returncode == 4, "a file that is there needs --yes"
        done = run_lake(redis_url, "export", str(target), "--yes", "--json")
        assert json.loads(done.stdout) == {"file": str(target), "documents": 2}
        lake.write("a", {"n": 0})
        done = run_lake(redis_url, "import", str(target))
        assert (done.returncode, done.stdout) == (0, f"2 rows of {target} are in, in 1 chunks\n")
        assert lake.read_bytes("a") == b'{"n":1.50}'
        (tmp_path / "bad.ndjson").write_text("{\n")
        done = run_lake(redis_url, "import", str(tmp_path / "bad.ndjson"))
        assert done.returncode == 1
        assert "row 1 of" in done.stderr
        assert run_lake(redis_url, "import", str(tmp_path / "nothing.ndjson")).returncode == 1
