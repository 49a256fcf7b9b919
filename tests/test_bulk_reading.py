"""Catalogs read together are what they are one by one; their snapshots are packed, and only if the log agrees."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from soak import change

from lake_spark import Lake
from lake_spark.client import reading
from lake_spark.client.bulk import BulkReader
from lake_spark.client.packing import SnapshotPacker
from lake_spark.errors import CorruptObject, InvalidBody, MergeError
from lake_spark.merge import loads, loads_each
from lake_spark.model import Run
from lake_spark.names import segment_key, shard_of

MIB = 1 << 20


@pytest.fixture(params=["", "a-long-password"])
def lake(request: pytest.FixtureRequest, redis_url: str, file_config: dict[str, str]) -> Iterator[Lake]:
    """A lake without snapshots and caches, in the clear and encrypted."""
    config = {**file_config, **({"AESPwd": request.param} if request.param else {})}
    with Lake(redis_url, config=config, snapshot="never", delta_cache_bytes=0, segment_rows=700) as found:
        yield found


def write_history(lake: Lake, catalogs: int, deltas: int) -> list[str]:
    """Catalogs with runs in several segments, and single deltas between them."""
    random_ = random.Random(catalogs * deltas)
    names = sorted((f"bulk/{n}" for n in range(catalogs)), key=lambda name: (shard_of(name), name))

    def rows(count: int) -> Iterator[tuple[Any, ...]]:
        for _ in range(count):
            body, path, merge, _effect = change(random_)
            yield random_.choice(names), json.dumps(body).encode(), path, merge

    lake.write_many(rows(deltas))
    for catalog, body, path, merge in rows(catalogs // 2):
        lake.write(catalog, body, path=path, merge=merge)
    lake.write_many(rows(deltas // 2))
    return names


def one_by_one(lake: Lake, names: list[str]) -> dict[str, str]:
    found = {}
    for name in names:
        if lake.list(name).exists:
            try:
                found[name] = lake.read_string(name)
            except (MergeError, CorruptObject) as error:
                found[name] = str(error)
    return found


def together(lake: Lake, names: list[str], budget: int = 16 * MIB) -> dict[str, str]:
    session = lake._session
    listings = [listing for listing in session.index.listings(names) if listing.exists]
    merged = BulkReader(session, budget).documents(listings)
    return {each.listing.catalog: each.body.decode() if each.body else str(each.error) for each in merged}


@pytest.mark.parametrize("budget", [16 * MIB, 200_000, 1])
def test_catalogs_read_together_are_what_they_are_one_by_one(lake: Lake, budget: int) -> None:
    names = write_history(lake, 60, 2000)
    assert together(lake, names, budget) == one_by_one(lake, names)


def test_deltas_read_together_are_those_of_each_catalog(lake: Lake) -> None:
    names = write_history(lake, 30, 900)
    session = lake._session
    listings = list(session.index.listings(names))
    for budget in (16 * MIB, 1):
        found = {each.catalog: list(bodies) for each, bodies in BulkReader(session, budget).deltas(listings)}
        for listing in listings:
            assert found[listing.catalog] == list(reading.deltas(session, listing.catalog, listing.entries))


def test_a_damaged_segment_is_an_error_of_its_catalogs_alone(lake: Lake, file_config: dict[str, str]) -> None:
    lake.write_many([("a", {"n": n}, "/", 2) for n in range(3)])
    lake.write_many([("b", {"n": n}, "/", 2) for n in range(3)])
    lake.write_many([("c", [{"op": "remove", "path": "/none"}], "/", 3)])
    [run] = lake.list("a").entries
    assert isinstance(run, Run)
    path = Path(file_config["BasePath"]) / segment_key(run.segment)
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    found = together(lake, ["a", "b", "c"])
    assert segment_key(run.segment) in found["a"]
    assert found["b"] == '{"n":2}'
    assert "'c' cannot be merged" in found["c"]


def pack(lake: Lake, names: list[str]) -> None:
    session = lake._session
    packer = SnapshotPacker(session, 16 * MIB)
    for merged in BulkReader(session, 16 * MIB).documents(session.index.listings(names)):
        packer.add(merged)
    packer.save()


def test_packed_snapshots_are_the_documents_and_reads_go_on_from_them(lake: Lake, redis_url: str) -> None:
    names = [name for name in write_history(lake, 60, 2000) if lake.list(name).exists]
    before = one_by_one(lake, names)
    with Lake(redis_url, config=lake.get_config(), snapshot="always") as reader:
        pack(reader, names)
    found = {each.catalog: each.snapshot for each in lake._session.index.listings(names)}
    good = [name for name in names if before[name].startswith("{")]
    assert good
    assert {name for name in names if found[name]} == set(good), "what cannot be merged has no snapshot"
    assert len({found[name].segment for name in good}) == 1, "one segment for all of them"
    assert all(not listing.entries for listing in lake._session.index.listings(good))
    assert together(lake, names) == one_by_one(lake, names) == before
    lake.write_many([(name, {"after": True}, "/", 2) for name in good])
    lake.write(good[0], {"later": 1}, merge=2)
    assert together(lake, names) == one_by_one(lake, names)
    assert json.loads(together(lake, names)[good[0]])["later"] == 1


def test_a_log_that_moved_on_below_gets_no_snapshot_of_what_it_was(lake: Lake, redis_url: str) -> None:
    written = lake.write_many([("a", {"n": 1}, "/", 2), ("a", {"m": 1}, "/", 2), ("b", {"n": 1}, "/", 2)])
    with Lake(redis_url, config=lake.get_config(), snapshot="always") as reader:
        session = reader._session
        merged = list(BulkReader(session, MIB).documents(session.index.listings(["a", "b"])))
        lake.remove_delta("a", written[0])
        packer = SnapshotPacker(session, MIB)
        for each in merged:
            packer.add(each)
        packer.save()
        found = {each.catalog: each.snapshot for each in session.index.listings(["a", "b"])}
    assert found["a"] is None
    assert found["b"] is not None
    assert lake.read_string("a") == '{"m":1}'
    assert together(lake, ["a", "b"]) == {"a": '{"m":1}', "b": '{"n":1}'}


# Parsing in bulk

texts = st.one_of(
    st.sampled_from(
        [b"-0", b"[-0]", b"1e400", b"12345678901234567890123", b'"\\ud800"', b"NaN", b"[1", b",2]", b"1 2"]
    ),
    st.sampled_from([b"", b" ", b'"a', b'b"', b"1\n2", b"1],[2", b"\xff", b"null", b'{"a":1.50,"a":2}', b" [ ] \n"]),
    st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)).map(
        lambda value: json.dumps(value).encode()
    ),
)


@given(st.lists(texts, max_size=8))
def test_many_texts_parse_as_each_of_them_does(given_: list[bytes]) -> None:
    array = pa.array(given_, pa.binary())
    try:
        expected = [loads(text) for text in given_]
    except InvalidBody:
        with pytest.raises(InvalidBody):
            loads_each(array)
    else:
        assert repr(loads_each(array)) == repr(expected)
