"""Folders that nobody else can write to."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def make_private(folder: Path) -> None:
    """Make a folder that nobody else can write to: what is in it gets run, or is trusted otherwise."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{folder} can be written by others")
