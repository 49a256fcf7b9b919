"""A few random histories in every test run; `make soak` runs many."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak import lakes_at, run


@pytest.mark.parametrize("config", [{}, {"AESPwd": "a password"}], ids=["clear", "encrypted"])
def test_random_histories_read_as_their_fold(config: dict[str, str], redis_url: str, tmp_path: Path) -> None:
    lakes = lakes_at(redis_url, tmp_path, **config)
    for seed in range(12):
        run(lakes, seed)
    for lake in lakes:
        lake.close()
