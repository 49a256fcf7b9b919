"""The `lake` command: what it prints, for people and for programs, and how it ends."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from servers import RedisServer, TcpProxy, free_ports
from typer.testing import CliRunner

from lake_spark import Lake, MergeType
from lake_spark.cli import app as cli
from lake_spark.client import reading
from lake_spark.names import delta_key
from lake_spark.tally import size_of

ROOT = Path(__file__).parents[1]
PASSWORD = "w0rds-of-redis"
COMMAND = [sys.executable, "-m", "lake_spark.cli"]
BIG = '{"b":12345678901234567890123.50,"a":1E400,"z":-0}'

Run = Callable[..., Any]


@pytest.fixture
def url(redis_url: str, file_config: dict[str, str]) -> str:
    """A lake that is configured and empty."""
    with Lake(redis_url) as lake:
        lake.update_config(file_config)
    return redis_url


@pytest.fixture
def lake(url: str) -> Iterator[Lake]:
    with Lake(url, snapshot="never") as found:
        yield found


@pytest.fixture
def run(url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process; its stdout, stderr and exit code."""
    monkeypatch.setenv("LAKE_URL", url)
    monkeypatch.setenv("LAKE_SNAPSHOT", "never")
    app = cli.load()

    def once(*arguments: str, stdin: bytes | None = None, code: int = 0) -> Any:
        result = CliRunner().invoke(app, arguments, input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
        assert result.exit_code == code, result.output
        return result

    return once


@pytest.fixture
def result(run: Run) -> Run:
    """Run a command with --json; the value that it prints."""

    def once(*arguments: str, code: int = 0, stdin: bytes | None = None) -> Any:
        done = run("--json", *arguments, code=code, stdin=stdin)
        return json.loads(done.stdout) if code in (0, 4) else json.loads(done.stderr)["error"]

    return once


def process(*arguments: str, url: str | None, **given: Any) -> subprocess.CompletedProcess[str]:
    """Run the real command; warnings are errors there too."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LAKE_")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "COLUMNS": "200"}
    if url is not None:
        environment["LAKE_URL"] = url
    command = [*COMMAND, *arguments]
    return subprocess.run(
        command, env=environment, timeout=60, capture_output=True, text=True, check=False, **{"input": "", **given}
    )


def words(usage: str) -> str:
    """What a usage error says, out of the box that it is drawn in."""
    return re.sub(r"[\s│╭╮╰╯─]+", " ", usage)


# The real command


def test_the_command_is_installed() -> None:
    [script] = importlib.metadata.entry_points(group="console_scripts", name="lake")
    assert script.value == "lake_spark.cli:main"


def test_help_is_grouped_says_what_exit_codes_mean_and_loads_no_client() -> None:
    done = process("--help", url=None)
    assert done.returncode == 0
    assert re.findall(r"─ (\w+) ─", done.stdout)[:5] == ["Options", "Start", "Look", "Change", "Care"]
    assert "Exit codes: 0 done, 1 error, 2 wrong usage, 3 not found, 4 needs --yes" in done.stdout
    loaded = "import sys; from lake_spark.cli import app; app.load(); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", loaded], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"redis", "pyarrow", "obstore", "boto3", "pyspark"} & set(modules.stdout.split())


def test_a_document_goes_in_and_comes_out(url: str) -> None:
    done = process("put", "users", "-", url=url, input=BIG)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"\d+_\d+\n", done.stdout)
    shown = process("cat", "users", url=url)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout == '{\n  "b": 12345678901234567890123.50,\n  "a": 1E400,\n  "z": -0\n}\n'
    assert process("cat", "users", "--json", url=url).stdout == BIG + "\n"


def test_exit_codes_of_the_real_command(url: str) -> None:
    assert process("cat", "users", url=None).returncode == 2
    assert process("cat", url=url).returncode == 2
    assert process("dance", url=url).returncode == 2
    missing = process("cat", "users", url=url)
    assert (missing.returncode, missing.stdout, missing.stderr) == (3, "", "error: there is no catalog 'users'\n")
    assert process("put", "users", "{oops", url=url).returncode == 1
    assert process("put", "users", "{}", url=url).returncode == 0
    plan = process("clear", "users", url=url)
    assert (plan.returncode, plan.stderr) == (4, "nothing was changed: add --yes to do it\n")


def test_an_error_for_programs_is_one_line_of_json_on_stderr(url: str) -> None:
    dead = f"redis://:{PASSWORD}@127.0.0.1:{free_ports(1)[0]}/0?redis_retries=0"
    done = process("ls", "--json", "--url", dead, url=url)
    assert (done.returncode, done.stdout) == (1, "")
    error = json.loads(done.stderr)["error"]
    assert (error["kind"], error["retryable"]) == ("IndexUnavailable", True)
    assert "cannot be reached" in error["message"]
    assert PASSWORD not in done.stderr


def test_ctrl_c_ends_with_130(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        port = client.connection_pool.connection_kwargs["port"]
    with TcpProxy("127.0.0.1", port) as proxy:
        proxy.hold()
        # Whoever runs the tests may have told their children to ignore it.
        start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        start += "from lake_spark.cli import main; main()"
        command = [sys.executable, "-c", start, "cat", "users", "-u", f"redis://127.0.0.1:{proxy.port}/0"]
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            deadline = time.monotonic() + 60
            while not proxy.connections and time.monotonic() < deadline:
                time.sleep(0.05)
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()
    assert (child.returncode, out, err) == (130, "", "interrupted\n")


def test_a_reader_that_has_gone_is_no_error(url: str) -> None:
    with Lake(url) as lake:
        lake.write_many({"catalog": f"c{n}", "body": n} for n in range(20_000))
    environment = {**os.environ, "LAKE_URL": url, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen([*COMMAND, "ls"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline().startswith(b"c")
    child.stdout.close()
    assert child.stderr is not None
    with child.stderr:
        assert child.stderr.read() == b""
    child.wait(60)


def test_without_typer_it_says_what_to_install() -> None:
    start = "import sys; sys.modules['typer'] = None\nfrom lake_spark.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", start], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: the lake command needs typer: pip install 'lake-spark[cli]'\n"


def on_a_terminal(url: str, *arguments: str) -> str:
    """What the command prints when somebody is looking."""
    environment = {**os.environ, "LAKE_URL": url, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "120"}
    environment.pop("NO_COLOR", None)
    ours, theirs = pty.openpty()
    child = subprocess.Popen([*COMMAND, *arguments], env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    found = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        while True:
            try:
                part = terminal.read(65536)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            found += part
    assert child.wait(60) == 0
    return found.decode().replace("\r\n", "\n")


def test_a_terminal_has_colours_and_the_same_text(url: str, lake: Lake) -> None:
    first = lake.write("users", {"n": 1, "long": "x" * 500})
    lake.write("users", {"n": 2}, merge=MergeType.RFC7396)
    shown = on_a_terminal(url, "cat", "users")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert plain != shown
    assert plain == process("cat", "users", url=url).stdout
    changes = on_a_terminal(url, "diff", "users", str(first))
    assert re.search(r"\x1b\[31m-  \"n\": 1", changes)
    assert re.search(r"\x1b\[32m\+  \"n\": 2", changes)


def test_json_is_utf_8_whatever_the_terminal_speaks(url: str, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.write("Ünï", {"city": "Tromsø"})
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    assert process("cat", "Ünï", "--json", url=url, encoding="utf-8").stdout == '{"city":"Tromsø"}\n'
    assert "Ünï" in process("ls", url=url, encoding="utf-8").stdout
    assert process("cat", "Ø", url=url, encoding="utf-8").stderr == "error: there is no catalog 'Ø'\n"


# Secrets


def test_no_command_shows_a_secret(tmp_path: Path, s3_config: dict[str, str]) -> None:
    with RedisServer(tmp_path, args=("--requirepass", PASSWORD)) as server:
        url = server.url.replace("redis://", f"redis://:{PASSWORD}@")
        with Lake(url) as lake:
            lake.update_config({**s3_config, "AESPwd": "open sesame"})
        secrets = (PASSWORD, s3_config["AccessKey"], s3_config["SecretKey"], "open sesame")
        wrong = url.replace(PASSWORD, f"{PASSWORD}-no")
        for line in (
            *("put users {}", "cat users", "log users", "stat", "stat users", "ls -l", "trace users"),
            *("trace users --write []", "meta users", "files users", "clear users --yes", "cat nobody"),
            *(f"ls -u {wrong}", f"ls --json -u {wrong}", f"ls -u {url}x", "put users {oops", f"stat -u {url}?pendin=1"),
        ):
            done = process(*line.split(), url=url)
            assert done.returncode in (0, 1, 3), done.stderr
            for secret in secrets:
                assert secret not in done.stdout + done.stderr, line


# Options of all commands


def test_options_may_stand_before_and_after_the_command(
    run: Run, lake: Lake, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.write("users", {"n": 1})
    monkeypatch.delenv("LAKE_URL")
    assert "no lake was named: pass --url" in words(run("cat", "users", code=2).stderr)
    for arguments in (
        ("--json", "--url", url, "cat", "users"),
        ("cat", "users", "--json", "--url", url),
        ("-u", url, "cat", "--json", "users"),
        ("--url", "redis://127.0.0.1:1", "cat", "users", "--json", "--url", url),
    ):
        assert run(*arguments).stdout == '{"n":1}\n'


@pytest.mark.parametrize(
    "name", ["ls", "cat", "log", "diff", "stat", "trace", "put", "patch", "files", "meta", "clear", "rm-delta"]
)
def test_every_command_explains_itself(run: Run, name: str) -> None:
    text = run(name, "--help").stdout
    assert "--json" in text
    assert "--url" in text


def test_a_lake_without_a_setting_is_refused(redis_url: str) -> None:
    done = process("put", "users", "{}", url=redis_url)
    assert done.returncode == 1
    assert re.fullmatch(r"error: Redis at 127.0.0.1:\d+ has no lake.setting .*: see lake init --help\n", done.stderr)


def test_a_warning_is_one_line(url: str) -> None:
    command = "import sys, warnings; warnings.simplefilter('always'); from lake_spark.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", command, "ls", "-u", f"{url}?pendin=wait"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "warning: unknown option 'pendin' is ignored; did you mean 'pending'?\n"


# ls


def test_ls_lists_names_and_stops_where_told(run: Run, lake: Lake) -> None:
    lake.write_many({"catalog": f"{kind}/{n}", "body": n} for kind in ("a", "b") for n in range(30))
    assert sorted(run("ls").stdout.split()) == sorted(f"{kind}/{n}" for kind in ("a", "b") for n in range(30))
    assert sorted(run("ls", "a/2").stdout.split()) == sorted(["a/2", *(f"a/{n}" for n in range(20, 30))])
    assert len(run("ls", "--limit", "7").stdout.split()) == 7
    assert run("ls", "none").stdout == ""


def test_ls_long_and_for_programs(run: Run, lake: Lake) -> None:
    lake.write("users", {"n": 1})
    version = lake.write("users", {"n": 2}, merge=MergeType.RFC7396)
    updated = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(version.seconds))
    assert run("ls", "--long").stdout.split() == [updated, str(version), "2", "users"]
    [line] = run("ls", "--json").stdout.splitlines()
    assert json.loads(line) == {
        "catalog": "users",
        "version": str(version),
        "updated_at": updated,
        "deltas": 2,
        "snapshot": None,
    }


def test_very_many_names_are_walked_shard_by_shard(run: Run, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {f"c{n}" for n in range(2000)}
    lake.write_many({"catalog": name, "body": 1} for name in names)
    monkeypatch.setattr(reading, "_MANY_NAMES", 1000)
    found = run("ls").stdout.split()
    assert len(found) == len(names)
    assert set(found) == names


# cat


def test_cat_as_of_a_version_or_a_moment(run: Run, result: Run, lake: Lake) -> None:
    first = lake.write("users", {"n": 1})
    lake.write("users", {"n": 2}, merge=MergeType.RFC7396)
    assert result("cat", "users", "--as-of", str(first)) == {"n": 1}
    assert result("cat", "users", "--as-of", "2900-01-01T00:00:00Z") == {"n": 2}
    assert result("cat", "users", "--as-of", "yesterday", code=1)["kind"] == "InvalidTsSeq"
    gone = result("cat", "users", "--as-of", "1700000000_1", code=3)
    assert gone["message"] == "there is no catalog 'users' as of 1700000000_1"


def test_cat_shows_what_is_at_a_path(run: Run, result: Run, lake: Lake) -> None:
    lake.write("users", b'{"a":{"b/c":[1.50,{"d":null}]}}')
    assert run("cat", "users", "--path", "/a/b~1c/0").stdout == "1.50\n"
    assert result("cat", "users", "--path", "/a/b~1c/1") == {"d": None}
    assert result("cat", "users", "--path", "/") == {"a": {"b/c": [1.5, {"d": None}]}}
    missing = result("cat", "users", "--path", "/a/x", code=3)
    assert missing["message"] == "the document of catalog 'users' has nothing at /a/x: there is no \"x\""
    assert result("cat", "users", "--path", "/a/b~1c/7", code=3)["kind"] == "NotFound"
    assert result("cat", "users", "--path", "a", code=1)["kind"] == "InvalidPath"


def test_cat_of_a_cleared_version_is_not_found(result: Run, lake: Lake) -> None:
    first = lake.write("users", {"n": 1})
    lake.write("users", {"n": 2})
    lake.clear_history("users")
    assert result("cat", "users", "--as-of", str(first), code=3)["kind"] == "HistoryGone"


def test_deep_documents_are_shown(run: Run, lake: Lake) -> None:
    body = b"[" * 500 + b"]" * 500
    lake.write("deep", body)
    assert "".join(run("cat", "deep").stdout.split()).encode() == body


# log


def test_log_shows_deltas_snapshots_and_where_they_are(run: Run, result: Run, lake: Lake) -> None:
    first = lake.write("users", {"n": 1}, path="/profile")
    many = lake.write_many([("users", {"n": 2}, "/profile", "RFC7396"), ("users", [], "/list")])
    with Lake(os.environ["LAKE_URL"], snapshot="always") as saving:
        saving.read_bytes("users")
    last = lake.write("users", [{"op": "remove", "path": "/list"}], merge=MergeType.RFC6902)
    lines = result("log", "users")
    assert [(line["ts_seq"], line["kind"], line["merge_type"], line["path"], line["size"]) for line in lines] == [
        (str(first), "delta", "REPLACE", "/profile", 7),
        (str(many[0]), "delta", "RFC7396", "/profile", 7),
        (str(many[1]), "delta", "REPLACE", "/list", 2),
        (str(many[1]), "snapshot", None, None, 29),
        (str(last), "delta", "RFC6902", "/", 32),
    ]
    assert lines[0]["source"] == "object"
    assert re.fullmatch(r"[0-9a-z]{12}\.0\.0:0", lines[1]["source"])
    assert lines[2]["source"] == lines[1]["source"][:-1] + "1"
    text = run("log", "users").stdout
    assert [line.split()[0] for line in text.splitlines()[2:]] == [line["ts_seq"] for line in lines]
    assert "snapshot from 0_0" in text


def test_log_shows_open_writes_and_what_stands_behind_them(run: Run, result: Run, lake: Lake) -> None:
    lake.write("users", {"n": 1})
    opened = lake._session.index.precommit("users", MergeType.RFC7396, "/profile")
    behind = lake.write("users", {"n": 2})
    lines = result("log", "users")
    assert [(line["kind"], line["ts_seq"]) for line in lines[1:]] == [
        ("pending", str(opened.ts_seq)),
        ("delta", str(behind)),
    ]
    assert lines[1]["path"] == "/profile"
    assert lines[1]["age"] >= 0
    assert re.search(r"pending RFC7396 +/profile +object +open for \d+\.\d s", run("log", "users").stdout)
    assert result("cat", "users", code=1)["kind"] == "PendingError"


def test_log_shows_the_newest_also_of_a_run(run: Run, result: Run, lake: Lake) -> None:
    lake.write("users", 0)
    written = lake.write_many([("users", n) for n in range(10)])
    last = lake.write("users", 11)
    shown = run("log", "users", "-n", "4")
    assert shown.stderr == "8 older deltas are not shown: --limit 0 shows all\n"
    wanted = [*map(str, written[-3:]), str(last)]
    assert [line.split()[0] for line in shown.stdout.splitlines()[2:]] == wanted
    assert [line["ts_seq"] for line in result("log", "users", "-n", "4")] == wanted
    assert len(result("log", "users", "-n", "0")) == 12


def test_log_tells_what_cannot_be_loaded(run: Run, result: Run, lake: Lake, file_config: dict[str, str]) -> None:
    lost = lake.write("users", {"n": 1})
    lake.write("users", {"n": 2}, merge=MergeType.RFC7396)
    (Path(file_config["BasePath"]) / delta_key("users", lost, MergeType.REPLACE)).unlink()
    lines = result("log", "users")
    assert [line["size"] for line in lines] == [None, 7]
    assert str(lost) in lines[0]["problem"]
    assert lines[0]["problem"] in run("log", "users").stdout
    assert result("cat", "users", code=1)["kind"] == "CorruptObject"
    assert result("log", "nobody", code=3)["kind"] == "CatalogNotFound"


# diff


def test_diff_of_two_versions(run: Run, result: Run, lake: Lake) -> None:
    first = lake.write("users", b'{"n":1.50,"same":true}')
    second = lake.write("users", b'{"n":1.5}', merge=MergeType.RFC7396)
    third = lake.write("users", {"tags": ["vip"]}, merge=MergeType.RFC7396)
    found = result("diff", "users", str(first), str(second))
    assert (found["from"], found["to"]) == (str(first), str(second))
    assert found["patch"] == [{"op": "replace", "path": "/n", "value": 1.5}]
    assert result("diff", "users", str(second))["patch"] == [{"op": "add", "path": "/tags", "value": ["vip"]}]
    text = run("diff", "users", str(first), str(third)).stdout.splitlines()
    assert text[0].startswith(f"--- users {first}  ")
    assert text[1].startswith(f"+++ users {third}  ")
    assert {'-  "n": 1.50,', '+  "n": 1.5,', '   "same": true'} - set(text) == {'   "same": true'}
    assert '{"op":"add","path":"/tags","value":["vip"]}' in text
    assert run("diff", "users", str(first), str(first)).stdout == ""
    assert result("diff", "users", "1700000000_1", code=3)["kind"] == "CatalogNotFound"


# stat, trace


def test_stat_of_a_catalog(run: Run, result: Run, lake: Lake) -> None:
    lake.write("users", {"n": 1}, meta={"by": "me"})
    with Lake(os.environ["LAKE_URL"], snapshot="always") as saving:
        saving.read_bytes("users")
    for n in range(3):
        lake.write("users", {"n": n}, merge=MergeType.RFC7396)
    lake.write_file("users", "/a", b"x")
    found = result("stat", "users")
    wanted = {"document_bytes": 7, "deltas": 4, "replayed": 3, "replayed_bytes": 21, "snapshots": 1, "files": 1}
    assert {name: found[name] for name in wanted} == wanted
    assert (found["meta"], found["snapshot_bytes"], found["open_writes"]) == (1, 7, 0)
    assert found["snapshot"].startswith("0_0 ~ ")
    assert (found["cache"]["snapshots"]["misses"], found["cache"]["deltas"]["misses"]) == (1, 3)
    text = run("stat", "users").stdout
    assert re.search(r"^replayed +3$", text, re.M)
    assert re.search(r"^cache of deltas +hits 0, misses 3$", text, re.M)
    assert result("stat", "nobody", code=3)["kind"] == "CatalogNotFound"


def test_stat_of_the_lake(run: Run, result: Run, lake: Lake, url: str) -> None:
    lake.write_many({"catalog": f"c{n}", "body": n} for n in range(10))
    lake._session.index.precommit("open", MergeType.REPLACE, "/")
    found = result("stat")
    assert (found["name"], found["storage"], found["open_writes"], found["transactions"]) == ("test", "file", 1, 0)
    assert found["catalogs"] >= 10
    assert found["oldest_open"] >= 0
    assert found["redis_memory"] > 100_000
    assert re.search(r"^redis memory +[\d.]+ [KM]iB$", run("stat").stdout, re.M)
    with redis.Redis.from_url(url) as client:
        client.acl_setuser("reader", enabled=True, nopass=True, keys="*", commands=["+@all", "-info"])
        try:
            shy = url.replace("redis://", "redis://reader:any@")
            assert result("stat", "--url", shy)["redis_memory"] is None
        finally:
            client.acl_deluser("reader")


def test_sizes_as_people_read_them() -> None:
    assert [size_of(n) for n in (0, 1023, 1024, 1536 << 10, 5 << 30, 7 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 MiB",
        "5.0 GiB",
        "7.0 TiB",
    ]


def test_trace_of_a_read_and_of_a_write(run: Run, result: Run, lake: Lake) -> None:
    lake.write("users", {"n": 1})
    read = result("trace", "users")
    assert [step["name"] for step in read["steps"]] == ["Init", "List", "LoadDeltas", "Merge"]
    assert read["total_ms"] >= max(step["start_ms"] + step["duration_ms"] for step in read["steps"])
    written = result("trace", "users", "--write", '{"n":2}')
    assert [step["name"] for step in written["steps"]] == ["Init", "PreCommit", "StoragePut", "Commit"]
    assert lake.read_map("users") == {"n": 2}
    text = run("trace", "users").stdout
    assert text.startswith("Read: ")
    assert re.search(r"^ ?List +[\d.]+ ms +█+ +catalog users", text, re.M)


# put, patch


def test_put_takes_a_body_from_everywhere(run: Run, result: Run, lake: Lake, tmp_path: Path) -> None:
    assert run("put", "users", '{"n":1}').stdout == f"{lake.list('users').version}\n"
    file = tmp_path / "body.json"
    file.write_text('{"n":2}')
    for arguments, stdin, wanted in (
        ((f"@{file}",), None, '{"n":2}'),
        (("-",), b'{"n":3}\n', '{"n":3}'),
        ((), b'{"n":4}', '{"n":4}'),
        (("5", "--path", "/n"), None, '{"n":5}'),
    ):
        found = result("put", "users", *arguments, stdin=stdin)
        assert found == {"catalog": "users", "ts_seq": str(lake.list("users").version)}
        assert lake.read_string("users") == wanted
    missing = run("put", "users", "@missing.json", code=2)
    assert "that file cannot be read: No such file or directory" in words(missing.stderr)


def test_put_with_meta(run: Run, lake: Lake) -> None:
    run("put", "users", "1", "--meta", '{"by":"me"}')
    assert lake.meta("users") == {"by": "me"}


def test_put_refuses_what_is_wrong_and_stores_nothing(result: Run, lake: Lake) -> None:
    for arguments, kind in (
        (("users", "{oops"), "InvalidBody"),
        (("users", "NaN"), "InvalidBody"),
        (("users", "1", "--path", "nope"), "InvalidPath"),
        (("users", "1", "--meta", "[]"), "InvalidBody"),
        (("a\tb", "1"), "InvalidCatalog"),
    ):
        assert result("put", *arguments, code=1)["kind"] == kind
    assert list(lake.catalogs()) == []


def test_patch_knows_a_patch_by_its_shape(run: Run, lake: Lake) -> None:
    run("put", "users", '{"a":1}')
    run("patch", "users", '{"b":2}')
    run("patch", "users", ' [{"op":"add","path":"/c","value":3}]')
    run("patch", "users", '{"d":4}', "--path", "/inner")
    assert lake.read_map("users") == {"a": 1, "b": 2, "c": 3, "inner": {"d": 4}}
    run("patch", "users", "[1]", "--merge")
    assert lake.read_string("users") == "[1]"
    assert "not both" in words(run("patch", "users", "[]", "--merge", "--json-patch", code=2).stderr)
    assert "a JSON patch is an array" in run("patch", "users", "{}", "--json-patch", code=1).stderr


# files, meta


def test_files_come_and_go(run: Run, result: Run, lake: Lake, tmp_path: Path) -> None:
    data = bytes(range(256))
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(data)
    assert run("files", "users", "put", "/a/b.bin", str(source), "--meta", '{"n":1.50}').stdout == "256 bytes\n"
    assert result("files", "users", "put", "/c", "-", stdin=b"hi") == {"path": "/c", "bytes": 2}
    assert run("files", "users", "get", "/a/b.bin").stdout_bytes == data
    assert result("files", "users", "get", "/a/b.bin", "-o", str(target))["bytes"] == 256
    assert target.read_bytes() == data
    assert result("files", "users") == [{"path": "/a/b.bin", "meta": {"n": 1.5}}, {"path": "/c", "meta": {}}]
    assert '{"n":1.50}' in run("files", "users").stdout


def test_files_that_are_asked_for_wrongly(run: Run, result: Run, tmp_path: Path) -> None:
    target = str(tmp_path / "no" / "where")
    assert result("files", "users", "get", "/none", "-o", target, code=3)["kind"] == "LakeFileNotFound"
    assert "needs the PATH" in words(run("files", "users", "get", code=2).stderr)
    assert "needs the FILE" in words(run("files", "users", "put", "/a", code=2).stderr)
    assert "needs --output" in words(run("files", "users", "get", "/a", "--json", code=2).stderr)
    run("files", "users", "put", "/a", "-", stdin=b"x")
    nowhere = run("files", "users", "get", "/a", "-o", target, code=1)
    assert nowhere.stderr.startswith("error: ")
    assert "No such file or directory" in nowhere.stderr


def test_meta_is_shown_and_changed(run: Run, result: Run, lake: Lake) -> None:
    lake.write("users", 1, meta={"by": "me"})
    assert result("meta", "users", "--set", '{"n":1.50,"gone":null}') == {"by": "me", "n": 1.5}
    assert run("meta", "users", "n").stdout == "1.50\n"
    assert run("meta", "users", "--set", '{"n":null}').stdout == '{\n  "by": "me"\n}\n'
    assert result("meta", "users", "n", code=3)["kind"] == "NotFound"
    assert result("meta", "users", "--set", "[]", code=1)["kind"] == "InvalidBody"
    assert len(lake.list("users").deltas) == 1


# clear, rm-delta


@pytest.mark.parametrize("keep", [0, 1, 2, 3])
def test_clear_does_what_its_plan_says(run: Run, result: Run, lake: Lake, url: str, keep: int) -> None:
    with Lake(url, snapshot="always") as saving:
        for n in range(3):
            lake.write("users", {f"n{n}": n}, merge=MergeType.RFC7396)
            saving.read_bytes("users")
            saving.flush()
    lake.write("users", {"last": 1}, merge=MergeType.RFC7396)
    before, listing = lake.read_string("users"), lake.list("users")
    plan = result("clear", "users", "--keep-snaps", str(keep), code=4)
    assert plan["done"] is False
    assert run("clear", "users", "--keep-snaps", str(keep), code=4).stdout == plan["plan"][0] + "\n"
    assert lake.list("users") == listing
    done = run("clear", "users", "--keep-snaps", str(keep), "--yes")
    assert done.stderr == plan["plan"][0] + "\n"
    assert done.stdout == plan["plan"][0].replace(": forget", ": forgot") + "\n"
    gone = {0: 4, 1: 4, 2: 3, 3: 2}[keep]
    assert re.match(rf"users: forget {gone} deltas, {gone - 1} snapshots?, {2 * gone - 1} objects up to ", done.stderr)
    assert lake.read_string("users") == before


def test_clear_of_several_catalogs_changes_none_when_one_is_missing(result: Run, lake: Lake) -> None:
    for name in ("a", "b"):
        lake.write(name, 1)
        lake.write(name, 2)
    assert result("clear", "a", "nobody", "b", "--yes", code=3)["message"] == "there is no catalog 'nobody'"
    assert len(lake.list("a").deltas) == 2
    done = result("clear", "a", "b", "--yes")
    assert [(each["catalog"], each["deltas"], each["objects"]) for each in done] == [("a", 2, 2), ("b", 2, 2)]


def test_rm_delta_shows_it_first_and_takes_it_out(run: Run, result: Run, lake: Lake) -> None:
    lake.write("users", {"n": 1})
    wrong = lake.write("users", [{"op": "remove", "path": "/missing"}], merge=MergeType.RFC6902)
    assert result("cat", "users", code=1)["kind"] == "MergeError"
    plan = run("rm-delta", "users", str(wrong), code=4).stdout.splitlines()
    assert plan == [f"users: remove {wrong}, RFC6902 at /, 35 bytes", '[{"op":"remove","path":"/missing"}]']
    assert len(lake.list("users").deltas) == 2
    assert result("rm-delta", "users", str(wrong), "--yes") == {"catalog": "users", "removed": str(wrong)}
    assert lake.read_map("users") == {"n": 1}
    assert result("rm-delta", "users", str(wrong), "--yes", code=3)["kind"] == "DeltaNotFound"
    assert result("rm-delta", "users", "yesterday", code=1)["kind"] == "InvalidTsSeq"


def test_rm_delta_out_of_a_run(run: Run, lake: Lake) -> None:
    written = lake.write_many([("users", {str(n): n}, "/", "RFC7396") for n in range(5)])
    assert '{"3":3}' in run("rm-delta", "users", str(written[3]), code=4).stdout
    run("rm-delta", "users", str(written[3]), "--yes")
    assert lake.read_map("users") == {"0": 0, "1": 1, "2": 2, "4": 4}


def test_rm_delta_refuses_one_that_a_snapshot_contains(result: Run, lake: Lake, url: str) -> None:
    first = lake.write("users", {"n": 1})
    with Lake(url, snapshot="always") as saving:
        saving.read_bytes("users")
    refused = result("rm-delta", "users", str(first), code=1)
    assert "is part of a snapshot already: write the change that undoes it" in refused["message"]


# An embedded lake


def test_a_lake_in_a_folder_is_made_by_a_write_and_never_by_a_look(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'lake'}"

    def lake(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, "--url", url, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    for look in (("ls",), ("cat", "users"), ("stat",)):
        done = lake(*look)
        assert (done.returncode, done.stdout) == (1, "")
        assert "there is no lake in" in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert lake("put", "users", '{"n":1}').returncode == 0
    assert lake("cat", "users", "--json").stdout == '{"n":1}\n'


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_says_where_it_is_and_ends_when_told(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "lake"
    with subprocess.Popen([*COMMAND, "serve", str(folder), "--json"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        found = json.loads(server.stdout.readline())
        assert found["url"] == f"file:{folder}"
        with Lake(found["redis"]) as lake:
            lake.write("a", {"n": 1})
        server.send_signal(number)
        assert server.wait(timeout=30) == 0
    with Lake(found["url"]) as lake:
        assert lake.read_map("a") == {"n": 1}
