"""Every interleaving of small scenes keeps the promises; without a safeguard, one is found that does not."""

from __future__ import annotations

import pytest
from interleavings import SCENES, explore

from lake_spark.index import scripts
from lake_spark.index.scripts import Script


@pytest.mark.parametrize("scene", SCENES)
def test_every_schedule_keeps_the_promises(scene: str, redis_url: str) -> None:
    assert explore(redis_url, SCENES[scene]) > 20


# A safeguard, what it becomes without it, and the scene that then loses something.
SAFEGUARDS = {
    "a commit needs its pending": (
        "COMMIT",
        "if redis.call('ZREM', KEYS[1], 'pending|' .. member) == 1 then",
        "if redis.call('ZREM', KEYS[1], 'pending|' .. member) == 1 or true then",
        "a slow write, a quick one, a reader that snapshots",
    ),
    "a reader fences what it goes past": (
        "LIST",
        "for i = 1, passed do",
        "for i = 1, 0 do",
        "a slow write, a quick one, a reader that snapshots",
    ),
    "a reader stops at a run in flight": (
        "LIST",
        "if redis.call('SISMEMBER', shard.inflight, txn) == 1 then",
        "if false then",
        "a transaction, a quick write, a reader that snapshots",
    ),
}


@pytest.mark.parametrize("name", SAFEGUARDS)
def test_without_a_safeguard_a_schedule_breaks_a_promise(
    name: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_name, line, without, scene = SAFEGUARDS[name]
    script: Script = getattr(scripts, script_name)
    assert line in script.source
    # An unknown digest makes Redis take the source.
    weak = Script(script.name, script.source.replace(line, without), "0" * 40, script.retried)
    monkeypatch.setattr(scripts, script_name, weak)
    with pytest.raises(AssertionError, match=r"acknowledged|no beginning"):
        explore(redis_url, SCENES[scene])
