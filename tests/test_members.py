"""Members of the index's sorted sets, and the time sequences in them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import field_paths

from lake_spark.errors import CorruptObject, InvalidTsSeq
from lake_spark.index import digest_of
from lake_spark.index.members import parse_entry, parse_pending, parse_snapshot, snapshot_member
from lake_spark.model import MAX_SECONDS, MAX_SEQ, ZERO, Delta, MergeType, Run, Snapshot, TsSeq

VECTORS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "data" / "golden" / "tsseq.json").read_text()
)

# What Lake V2 reads and lake_spark refuses: it scans numbers up to the first character that is none, and
# does not look at what it does not need.
DEPARTURES = {
    "delta|1x|/a|1700000000_1": "a merge type with something behind it",
    "delta| 1|/a|1700000000_1": "a merge type with something before it",
    "delta|+1|/a|1700000000_1": "a signed merge type",
    "delta|01|/a|1700000000_1": "a merge type with a leading zero",
    "delta|1|/a|0_0": "0_0 is where a first snapshot starts: no write has it",
    "pending|delta|1|/a|1700000000_1|x": "a field too many",
    "pending|x|y|z|1_1": "a pending of something that is no delta",
    "snap|1700000100_500|1700000000_1": "a snapshot that ends before it starts",
}
# Lake V2 compares a member with its score; here the score is Redis's business and never read.
BY_SCORE = "delta|1|/user/name|1700000000_1"


def refused(parse: Callable[[bytes], Any], member: str) -> None:
    with pytest.raises(CorruptObject) as caught:
        parse(member.encode())
    assert repr(member) in str(caught.value)
    assert not caught.value.retryable


@pytest.mark.parametrize("case", VECTORS["deltaMembers"], ids=lambda case: f"{case['member']}@{case['score_f6']}")
def test_delta_members(case: dict[str, Any]) -> None:
    member = case["member"]
    if (not case["ok"] and member != BY_SCORE) or member in DEPARTURES:
        refused(parse_entry, member)
        return
    parsed = parse_entry(member.encode())
    assert isinstance(parsed, Delta)
    if case["ok"]:
        assert (parsed.merge_type, parsed.path, str(parsed.ts_seq)) == (case["mergeType"], case["path"], case["tsSeq"])
        assert parsed.ts_seq.score == case["score_f6"]


@pytest.mark.parametrize("case", VECTORS["pendingMembers"], ids=lambda case: case["member"])
def test_pending_members(case: dict[str, Any]) -> None:
    member = case["member"]
    if not case["ok"] or member in DEPARTURES:
        refused(parse_pending, member)
    else:
        assert str(parse_pending(member.encode())) == case["tsSeq"]


@pytest.mark.parametrize("case", VECTORS["snapMembers"], ids=lambda case: case["member"])
def test_snapshot_members(case: dict[str, Any]) -> None:
    member = case["member"]
    if not case["ok"] or member in DEPARTURES:
        refused(parse_snapshot, member)
        return
    parsed = parse_snapshot(member.encode())
    assert (str(parsed.start), str(parsed.stop)) == (case["start"], case["stop"])
    assert (parsed.digest, parsed.segment) == ("", None)
    assert snapshot_member(parsed) == member


def test_every_departure_is_one() -> None:
    accepted = {case["member"] for kind in VECTORS for case in VECTORS[kind] if kind != "cases" and case["ok"]}
    assert set(DEPARTURES) <= accepted
    assert [case["ok"] for case in VECTORS["deltaMembers"] if case["member"] == BY_SCORE] == [True, False]


@pytest.mark.parametrize(
    "member",
    [
        "run|1700000000_1|0|abc.0.0:0",
        "run|1700000000_1|01|abc.0.0:0",
        "run|1700000000_1|-1|abc.0.0:0",
        "run|1700000000_1|1.5|abc.0.0:0",
        "run|1700000000_1||abc.0.0:0",
        "run|1700000000_1|²|abc.0.0:0",
        "run|1700000000_1|٣|abc.0.0:0",
        "run|0_0|1|abc.0.0:0",
        "run|1700000000_0|1|abc.0.0:0",
        "run|1700000000_999999|2|abc.0.0:0",
        "run|1700000000_1|1|abc.0.0",
        "run|1700000000_1|1|abc.0:0",
        "run|1700000000_1|1|ABC.0.0:0",
        "run|1700000000_1|1|../abc.0.0:0",
        "run|1700000000_1|1|abc.0.0:-1",
        "run|1700000000_1|1|abc.0.0:0|x",
        "run|1700000000_1|1",
        "RUN|1700000000_1|1|abc.0.0:0",
        "snap|0_0|1700000000_1",
    ],
)
def test_a_damaged_run_is_refused(member: str) -> None:
    refused(parse_entry, member)


@pytest.mark.parametrize(
    "member",
    [
        "snap|0_0|1_1|0123456789ABCDEF",
        "snap|0_0|1_1|0123456789abcde",
        "snap|0_0|1_1|0123456789abcdef0",
        "snap|0_0|1_1|0123456789abcdef|",
        "snap|0_0|1_1|",
        "snap|0_0|1_1|abc.0.0:",
        "snap|5_2|5_1",
    ],
)
def test_a_damaged_snapshot_is_refused(member: str) -> None:
    refused(parse_snapshot, member)


@pytest.mark.parametrize("parse", [parse_entry, parse_pending, parse_snapshot])
@pytest.mark.parametrize("member", [b"", b"|", b"\xff\xfe", b"delta", b"|||", b"pending|run|x", b"run|", b"snap|||"])
def test_garbage_is_refused_and_shown(parse: Callable[[bytes], Any], member: bytes) -> None:
    with pytest.raises(CorruptObject, match="the index has a member that cannot be read"):
        parse(member)


sequences = st.builds(TsSeq, st.integers(1, MAX_SECONDS), st.integers(1, MAX_SEQ))
exact_sequences = st.builds(TsSeq, st.integers(1, 2**33 - 1), st.integers(1, MAX_SEQ))
segments = st.from_regex(r"[0-9a-z]{12}\.(0|[1-9][0-9]{0,4})\.(0|[1-9][0-9]{0,4})", fullmatch=True)
rows = st.integers(0, 10**9)
digests = st.from_regex(r"[0-9a-f]{16}", fullmatch=True)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    stop = draw(sequences)
    start = draw(st.one_of(st.just(ZERO), sequences.filter(lambda each: each < stop)))
    kind = draw(st.sampled_from(["bare", "object", "row"]))
    if kind == "row":
        return Snapshot(start, stop, segment=draw(segments), row=draw(rows))
    return Snapshot(start, stop, draw(digests) if kind == "object" else "")


@given(snapshots())
def test_a_snapshot_survives_its_member(snapshot: Snapshot) -> None:
    assert parse_snapshot(snapshot_member(snapshot).encode()) == snapshot


@given(st.sampled_from(MergeType), field_paths, sequences)
def test_a_delta_is_read_from_its_member_and_from_its_pending(kind: MergeType, path: str, ts_seq: TsSeq) -> None:
    member = f"delta|{kind:d}|{path}|{ts_seq}".encode()
    assert parse_entry(member) == Delta(ts_seq, kind, path)
    assert parse_pending(b"pending|" + member) == ts_seq


@given(st.data(), sequences, segments, rows)
def test_a_run_is_its_deltas_in_order(data: st.DataObject, first: TsSeq, segment: str, row: int) -> None:
    count = data.draw(st.integers(1, min(50, MAX_SEQ - first.seq + 1)))
    member = f"run|{first}|{count}|{segment}:{row}".encode()
    run = parse_entry(member)
    assert run == Run(first, count, segment, row)
    assert isinstance(run, Run)
    deltas = list(run)
    assert [delta.ts_seq for delta in deltas] == [TsSeq(first.seconds, first.seq + n) for n in range(count)]
    assert [delta.row for delta in deltas] == list(range(row, row + count))
    assert run.last == deltas[-1].ts_seq
    assert run.txn == segment[:12]
    assert parse_pending(member) == first


def test_a_runs_member_stays_within_what_redis_packs() -> None:
    # 9,999 partitions of 99 chunks, a million deltas each.
    longest = Run(TsSeq(1700000000, 1), MAX_SEQ, "abcdefghijkl.9999.99", MAX_SEQ)
    assert len(f"run|{longest.first}|{longest.count}|{longest.segment}:{longest.row}") <= 64


@given(st.one_of(st.none(), snapshots()), st.lists(st.binary(max_size=20), max_size=5))
def test_a_digest_covers_the_predecessor_and_the_members_in_order(
    before: Snapshot | None, members: list[bytes]
) -> None:
    first = snapshot_member(before).encode() if before else b""
    digest = digest_of(before, members)
    assert digest == hashlib.sha1(b"\n".join([first, *members])).hexdigest()[:16]
    assert digest != digest_of(before, [*members, b"delta|1|/|1700000000_1"])
    if members[::-1] != members:
        assert digest != digest_of(before, members[::-1])


@given(exact_sequences)
def test_scores_are_exact(ts_seq: TsSeq) -> None:
    assert TsSeq.parse(float(ts_seq.score)) == ts_seq
    assert f"{float(ts_seq.score):.6f}" == ts_seq.score


@given(sequences)
def test_every_spelling_of_a_sequence_is_read(ts_seq: TsSeq) -> None:
    assert TsSeq.parse(ts_seq) is ts_seq
    assert TsSeq.parse(str(ts_seq)) == ts_seq
    assert TsSeq.parse(ts_seq.score) == ts_seq


@given(st.tuples(sequences, sequences))
def test_sequences_order_as_their_numbers_do(pair: tuple[TsSeq, TsSeq]) -> None:
    one, other = pair
    assert (one < other) == ((one.seconds, one.seq) < (other.seconds, other.seq))


@pytest.mark.parametrize(
    "value",
    [
        *("", "1700000000", "1700000000.1", "1700000000.0000001", "1700000000.000000", "01700000000.000001"),
        *(
            "-1.000001",
            "+1.000001",
            "1e9",
            "1_1 ",
            " 1_1",
            "1_1\n",
            "١_١",
            "1_٣",
            "32503680001_1",
            "99999999999.000001",
        ),
        *(0.0, -1.0, 1.0, 1700000000.0, float("nan"), float("inf"), 2.0**33, 1e300, 0.5),
        *(None, 1, True, b"1_1", (1, 1), [1, 1]),
    ],
    ids=repr,
)
def test_what_is_no_sequence_is_refused_and_shown(value: Any) -> None:
    with pytest.raises(InvalidTsSeq) as caught:
        TsSeq.parse(value)
    assert repr(value) in str(caught.value)


def test_the_bounds_of_a_sequence() -> None:
    assert TsSeq.parse("1_1") == (1, 1)
    assert TsSeq.parse(f"{MAX_SECONDS}_{MAX_SEQ}") == (MAX_SECONDS, MAX_SEQ)
    assert TsSeq.parse("0_0") == ZERO


def test_the_end_of_a_second() -> None:
    moment = datetime(2024, 1, 31, 12, 30, 15, 999_999, timezone.utc)
    wanted = TsSeq(1706704215, MAX_SEQ)
    assert TsSeq.end_of(moment) == wanted
    assert TsSeq.end_of(moment.astimezone(timezone(timedelta(hours=9)))) == wanted
    assert TsSeq.end_of(moment.astimezone().replace(tzinfo=None)) == wanted, "a naive datetime is local time"
    assert TsSeq.end_of(1706704215) == TsSeq.end_of(1706704215.5) == wanted
    for outside in (0, MAX_SECONDS + 1, 1e300):
        with pytest.raises(InvalidTsSeq, match="out of range"):
            TsSeq.end_of(outside)
