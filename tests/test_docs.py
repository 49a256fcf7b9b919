"""What the documentation says is run, compared and followed."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import typer

from lake_spark import Lake, errors
from lake_spark.cli import app as cli
from lake_spark.client.settings import Config, storage_of
from lake_spark.options import Options

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Shell lines that no test runs, and why.
NOT_RUN = {
    "make demo": "it runs the demo, and so does a test below",
    "make test": "it runs this test",
    "make venv": "it has made the environment of this test",
    "pip install .": "it needs the network",
    "pip install 'lake-spark[cli]'": "it needs the network",
    "lake demo": "it needs Spark; a test below runs it",
}
SERVERS = ("redis-server ", "lake serve ")

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PRINTED = re.compile(r"^\s*print\(.*\)  # (.*)$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
_REDIS = re.compile(r"redis://localhost:6379(/\d+)?")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for language, text in _BLOCK.findall(page.read_text()) if language in languages]


def lake_lines(page: Path) -> list[str]:
    """The lines of a page that run the `lake` command."""
    lines = "".join(blocks(page, "sh")).splitlines()
    return [line for line in lines if line.startswith("lake ") and line not in NOT_RUN and not line.startswith(SERVERS)]


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


@pytest.fixture
def namespace(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """Where the blocks of a page run: a folder of its own, and a Redis that is empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKE_URL", redis_url)
    names: dict[str, object] = {"__name__": "docs"}
    # Dataclasses look their module up by name.
    monkeypatch.setitem(sys.modules, "docs", ModuleType("docs"))
    yield names
    for value in names.values():
        if isinstance(value, Lake):
            value.close()


@pytest.mark.parametrize("page", pages_with("python"), ids=name_of)
def test_python_blocks_run_and_print_what_they_say(
    page: Path,
    namespace: dict[str, object],
    redis_url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    if any("spark" in block.replace("lake_spark", "") for block in blocks(page, "python")):
        # The session that the page gets is the one of the tests.
        request.getfixturevalue("spark")
        capsys.readouterr()
    server = redis_url.rpartition("/")[0]
    for number, block in enumerate(blocks(page, "python"), 1):
        source = _REDIS.sub(lambda match: server + (match[1] or "/0"), block).replace("/data/", f"{tmp_path}/")
        # For Spark it is relative to where its JVM was started.
        source = source.replace("file:./", f"file:{tmp_path}/")
        exec(compile(source, f"{name_of(page)}, block {number}", "exec"), namespace)
        assert capsys.readouterr().out.splitlines() == _PRINTED.findall(block)


def test_there_are_python_blocks_on_the_pages_that_teach() -> None:
    taught = {name_of(page) for page in pages_with("python")}
    assert taught >= {"README.md", "docs/getting-started.md", "docs/from-go.md", "docs/errors.md", "docs/spark.md"}


@pytest.mark.parametrize("page", pages_with("sh"), ids=name_of)
def test_shell_lines_run_or_have_a_reason_not_to(page: Path) -> None:
    for line in "".join(blocks(page, "sh")).splitlines():
        if line in NOT_RUN or line.startswith((*SERVERS, "lake ")):
            continue
        assert line.startswith(".venv/bin/python "), f"neither run nor explained: {line}"
        command = [sys.executable, *shlex.split(line)[1:]]
        subprocess.run(command, cwd=ROOT, check=True, timeout=60, capture_output=True)


@pytest.mark.parametrize("page", [page for page in PAGES if lake_lines(page)], ids=name_of)
def test_lake_command_lines_run_in_order(
    page: Path, redis_url: str, file_config: dict[str, str], tmp_path: Path
) -> None:
    with Lake(redis_url) as lake:
        lake.update_config(file_config)
    script = tmp_path / "bin" / "lake"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m lake_spark.cli "$@"\n')
    script.chmod(0o755)
    environment = {**os.environ, "LAKE_URL": redis_url, "LAKE_SNAPSHOT": "never", "PYTHONPATH": str(ROOT)}
    environment["PATH"] = f"{script.parent}:{os.environ['PATH']}"
    for line in lake_lines(page):
        # Anew for each line: one of them is `lake init`.
        with Lake(redis_url) as lake:
            written = [str(delta.ts_seq) for delta in lake.list("users").deltas]
        # The n-th change of users has this name on the pages.
        command = line
        for number, ts_seq in enumerate(written, 1):
            command = command.replace(f"1700000000_{number}", ts_seq)
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, timeout=60, capture_output=True, text=True
        )
        # The Redis of the tests keeps nothing on disk, and the doctor says so.
        code = cli.ExitCode.FINDINGS if line.startswith("lake doctor") else cli.ExitCode.OK
        assert done.returncode == code, f"{line}: {done.stderr}"


def test_every_lake_command_is_on_its_page() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    for command in typer.main.get_command(cli.load()).commands:  # type: ignore[attr-defined] # of a group
        assert re.search(rf"^lake {command}\b", text, re.M), f"docs/cli.md has no line for lake {command}"


def test_no_reason_not_to_run_a_line_is_left_over() -> None:
    lines = {line for page in PAGES for line in "".join(blocks(page, "sh")).splitlines()}
    assert lines >= NOT_RUN.keys()
    assert not [language for page in PAGES for language in ("bash", "shell", "console") if blocks(page, language)]


@pytest.mark.parametrize("page", pages_with("json"), ids=name_of)
def test_json_blocks_are_configurations(page: Path) -> None:
    for block in blocks(page, "json"):
        config = Config(json.loads(block))
        with_keys = Config({**config, "AccessKey": "a", "SecretKey": "s"})
        assert storage_of(with_keys, Options()).kind == config["Storage"]


# Two Sparks, one after the other, on a machine that may have other things to do.
@pytest.mark.timeout(900)
def test_the_demo_runs_twice_and_shows_its_steps(tmp_path: Path) -> None:
    folder = tmp_path / "demo-lake"
    command = [sys.executable, "-m", "lake_spark.cli", "demo"]
    # The library is found as it is in this process.
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [*command, *arguments],
            cwd=tmp_path,
            timeout=400,
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    lines = [line.strip() for line in run().splitlines()]
    for expected in (
        ">>> lake = Lake(url)",
        '>>> users.write.format("lake").option("url", url).mode("append").save()',
        "4 of 3000 rows",
        ">>> diff(old, new, MergeType.RFC6902)",
        "The lake is still there, in demo-lake. Where to go next:",
    ):
        assert expected in lines
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert [cell[1] for cell in cells if cell[0] == "user-0000"] == [
        '{"name":"User 0","visits":0,"city":"Oslo"}',
        '{"name":"User 0","visits":1,"tags":["vip"]}',
        '{"name":"User 0","visits":0,"city":"Oslo"}',
    ]
    assert [cell[1] for cell in cells if re.fullmatch(r"\d+_\d+", cell[0])] == ["REPLACE", "RFC7396", "RFC6902"]
    assert sorted(cell for cell in cells if cell[0] in ("add", "remove", "replace")) == [
        ["add", "/tags", "['vip']"],
        ["remove", "/city", ""],
        ["replace", "/visits", "2"],
    ]
    with Lake(f"file:{folder}") as lake:
        first = lake.list("user-0010").version
    assert json.loads(run("--json")) == {"url": "file:demo-lake"}
    with Lake(f"file:{folder}") as lake:
        assert lake.read_map("user-0010")["tags"] == ["vip"]
        assert lake.list("user-0010").version > first, "a lake of its own"


def test_the_demo_leaves_a_folder_alone_that_no_demo_has_made(tmp_path: Path) -> None:
    from lake_spark.spark.demo import demo

    (tmp_path / "mine").mkdir()
    with pytest.raises(errors.ConfigError, match="no demo has made it"):
        demo(str(tmp_path / "mine"))
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]


def test_options_page_is_what_generate_writes() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert (ROOT / "docs" / "options.md").read_text() == generate.render(), "run docs/generate.py"


def test_errors_page_has_every_error_with_its_bases_and_whether_to_retry() -> None:
    classes = {
        name: kind for name, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__
    }
    rows = re.findall(
        r"^\| `(\w+)`(?: \(`(\w+)`\))? \|.*\| (yes|no) \|$", (ROOT / "docs" / "errors.md").read_text(), re.M
    )
    assert sorted(name for name, _, _ in rows) == sorted(classes)
    for name, builtin, retryable in rows:
        kind = classes[name]
        assert (retryable == "yes") is kind.retryable, name
        own = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins" and base is not Exception]
        assert [builtin] * bool(builtin) == own, name


def test_tests_named_on_the_guarantees_page_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "guarantees.md").read_text()))
    known = {
        name
        for file in (ROOT / "tests").glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)
    }
    assert len(named) > 20
    assert named <= known


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", re.sub(_BLOCK, "", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(re.sub(_BLOCK, "", page.read_text())):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} on {name_of(page)}"
        assert target.is_relative_to(ROOT)
        assert not anchor or anchor in headings(target), f"{link} on {name_of(page)}"


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        found = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a checkout")
    place = re.compile(rb"(?<![\w.{}])/(?:work|root|home/\w+)/")
    named = []
    for name in filter(None, found.split("\0")):
        file = ROOT / name
        if file.is_file() and (data := file.read_bytes()) and b"\0" not in data and place.search(data):
            named.append(name)
    assert named == []
