"""The recorded behaviour of Lake V2, and where lake_spark departs from it on purpose."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from lake_spark.errors import InvalidPath, InvalidTsSeq, LakeError
from lake_spark.merge import Fold, check_body, dumps, loads
from lake_spark.merge.jsontext import canonical
from lake_spark.model import TsSeq
from lake_spark.names import _md5, b64, check_field_path, check_file_path, encode_name

GOLDEN = Path(__file__).parent / "data" / "golden"


def cases(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((GOLDEN / f"{name}.json").read_text())["cases"]
    return found


# A name with an empty, `.` or `..` segment could leave its folder: base32 here, plain in Lake V2.
BASE32_NAMES = {
    "..": "fyxa",
    "/leading": "f5wgkylenfxgo",
    "trailing/": "orzgc2lmnfxgoly",
    "a//b": "mexs6yq",
    "../etc": "fyxc6zlumm",
}


@pytest.mark.parametrize("case", cases("encoding"), ids=lambda case: repr(case["catalog"])[:40])
def test_encoded_names(case: dict[str, Any]) -> None:
    catalog = case["catalog"]
    expected = BASE32_NAMES.get(catalog, case["encodeOssCatalogName"])
    assert encode_name(catalog) == expected
    if catalog in BASE32_NAMES:
        assert expected != case["encodeOssCatalogName"]
        assert base64.b32decode(expected.upper() + "=" * (-len(expected) % 8)).decode() == catalog
    else:
        assert f"{_md5(catalog)[:4]}/{encode_name(catalog)}" == case["encodeOssCatalogPath4"]


# Lake V2 reads these with scanf: it stops at the first character that is no digit, and skips white space.
LAX_TSSEQS = ["+1_1", "1 _1", "1_ 1", "1x_1", "1_1x", "1700000000_123\n", "1,700_1"]


@pytest.mark.parametrize("case", cases("tsseq"), ids=lambda case: repr(case["in"]))
def test_time_sequences(case: dict[str, Any]) -> None:
    if not case["ok"] or case["in"] in LAX_TSSEQS:
        with pytest.raises(InvalidTsSeq):
            TsSeq.parse(case["in"])
        return
    parsed = TsSeq.parse(case["in"])
    assert parsed == (case["timestamp"], case["seq"])
    assert str(parsed) == case["string"]
    # Past 2**33 seconds a double, which Lake V2 scores with, no longer holds the sequence.
    if parsed.seconds < 2**33:
        assert parsed.score == case["score_f6"]


def test_lax_time_sequences_are_all_in_the_vectors() -> None:
    assert set(LAX_TSSEQS) <= {case["in"] for case in cases("tsseq") if case["ok"]}


# `/` names no file; `..` leaves the folder of the catalog.
REFUSED_FILE_PATHS = ["/", "/a/../b"]


@pytest.mark.parametrize("case", cases("paths"), ids=lambda case: repr(case["path"])[:40])
def test_paths(case: dict[str, Any]) -> None:
    path = case["path"]
    file_ok = case["fileOk"] and path not in REFUSED_FILE_PATHS
    for check, ok in ((check_field_path, case["fieldOk"]), (check_file_path, file_ok)):
        if ok:
            assert check(path) == path
        else:
            with pytest.raises(InvalidPath):
                check(path)


DEPARTURES: dict[str, dict[str, Any]] = {
    case: ours
    for group in json.loads((GOLDEN / "departures.json").read_text()).values()
    for case, ours in group.items()
}


def _raw(holder: dict[str, Any], name: str) -> bytes:
    return base64.b64decode(holder[f"{name}_b64"]) if f"{name}_b64" in holder else holder[name].encode()


def _merge(case: dict[str, Any]) -> bytes | dict[str, Any]:
    """The document as the client would merge it, or which delta failed and how."""
    at = -1
    try:
        fold = Fold(_raw(case, "base"))
        for at, delta in enumerate(case["deltas"]):  # noqa: B007, the handler needs it
            body = _raw(delta, "body")
            check_body(delta["mergeType"], body)
            fold.apply(delta["mergeType"], delta["path"], body)
            _ = fold.value
        return fold.dump()
    except LakeError as error:
        return {"error": type(error).__name__, "at": at}


@pytest.mark.parametrize("case", cases("merge"), ids=lambda case: case["id"])
def test_merge(case: dict[str, Any]) -> None:
    for delta in case["deltas"]:
        if delta.get("pathRejectedByWrite"):
            with pytest.raises(InvalidPath):
                check_field_path(delta["path"])
        else:
            check_field_path(delta["path"])
    got = _merge(case)
    if case["id"] in DEPARTURES:
        ours = DEPARTURES[case["id"]]
        assert got == (ours["result"].encode() if "result" in ours else ours)
    elif case["outcome"] != "result":
        assert isinstance(got, dict), f"expected an error, got {got!r}"
        assert got["at"] == case["failsAtDelta"]
    elif not case["deltas"]:
        assert got == _raw(case, "result")
    else:
        assert isinstance(got, bytes), f"expected a result, got {got}"
        theirs = loads(_raw(case, "result"))
        if case.get("unstable"):
            assert canonical(loads(got)) == canonical(theirs)
        else:
            assert got == dumps(theirs)


def test_every_departure_is_one() -> None:
    known = {case["id"]: case for case in cases("merge")}
    assert set(DEPARTURES) <= set(known)
    for name, ours in DEPARTURES.items():
        case = known[name]
        if "result" in ours and case["outcome"] == "result" and case.get("resultValidJSON"):
            assert dumps(loads(_raw(case, "result"))) != ours["result"].encode(), name
        else:
            assert ("result" in ours) != (case["outcome"] == "result") or ours["at"] != case.get("failsAtDelta"), name


def test_redis_names_of_catalogs() -> None:
    for case in cases("encoding"):
        text = b64(case["catalog"])
        assert re.fullmatch(r"[A-Za-z0-9_-]+", text)
        assert base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode() == case["catalog"]
