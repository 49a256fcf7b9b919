"""Where it is measured: a Redis of its own on TCP and on a unix socket, a temporary folder, and S3 if asked for."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lake_spark import Lake

# The tests' own servers: a folder beside this package, and none that is installed.
sys.path.append(str(Path(__file__).parents[1] / "tests"))
from servers import RedisServer, S3Server


@dataclass(frozen=True, slots=True)
class Place:
    """Servers that run; `quick` asks for smaller work and fewer rounds, `profile` for what functions take."""

    folder: Path
    tcp: str
    unix: str
    s3: dict[str, str] | None
    quick: bool
    profile: bool

    def lake(self, name: str, *, url: str = "", on_s3: bool = False, **options: Any) -> Lake:
        """A lake with its bodies in files (or on S3), which saves snapshots only if told to."""
        config = {"Storage": "file", "BasePath": str(self.folder / name)}
        if on_s3:
            assert self.s3 is not None
            config = {**self.s3, "BasePath": name}
        return Lake(url or self.tcp, config={"Name": name, **config}, **{"snapshot": "never", **options})

    def rounds(self, full: int) -> int:
        return max(3, full // 5) if self.quick else full


@contextlib.contextmanager
def running(*, s3: bool, quick: bool, profile: bool = False) -> Iterator[Place]:
    """Everything started, and gone afterwards."""
    with contextlib.ExitStack() as stack:
        # A short path: the sockets of the servers live in it.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)))
        socket = folder / "redis.sock"
        server = stack.enter_context(RedisServer(folder / "redis", args=("--unixsocket", str(socket))))
        bucket = None
        if s3:
            store = stack.enter_context(S3Server(folder / "s3"))
            bucket = {
                "Storage": "s3",
                "Bucket": store.create_bucket("bench"),
                "Endpoint": store.endpoint,
                "AccessKey": store.access_key,
                "SecretKey": store.secret_key,
            }
        yield Place(folder, server.url, f"unix://{socket}", bucket, quick, profile)
