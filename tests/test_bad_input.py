"""Bad input and bad surroundings: a clear error of the right kind, and nothing stored."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from servers import RedisServer, S3Server, TcpProxy, free_ports

from lake_spark import Lake, MergeType
from lake_spark.errors import (
    BodyTooLarge,
    CatalogNotFound,
    ConfigError,
    DeltaNotFound,
    IndexDenied,
    IndexFailure,
    IndexUnavailable,
    InvalidBody,
    InvalidCatalog,
    InvalidInput,
    InvalidPath,
    InvalidTsSeq,
    LakeError,
    LakeFileNotFound,
    MergeError,
    StorageDenied,
    StorageFailure,
    StorageUnavailable,
)
from lake_spark.storage import S3Storage

Refuses = Callable[..., LakeError]


def stored(url: str, folder: Path) -> tuple[list[bytes], list[Path]]:
    """Every key in Redis and every file in a folder."""
    with redis.Redis.from_url(url) as client:
        keys = sorted(client.keys())
    return keys, sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def refuses(redis_url: str, tmp_path: Path) -> Refuses:
    """A call that must fail with exactly this kind of error, name these words, and leave no trace."""

    def check(kind: type[LakeError], call: Callable[[], object], *words: str) -> LakeError:
        before = stored(redis_url, tmp_path)
        with pytest.raises(LakeError) as caught:
            call()
        assert type(caught.value) is kind, caught.value
        for word in words:
            assert word in str(caught.value)
        assert stored(redis_url, tmp_path) == before
        assert not caught.value.retryable
        return caught.value

    return check


# Bodies

NOT_JSON = {
    "empty": b"",
    "white space": b" \n\t",
    "truncated object": b'{"a":1',
    "truncated array": b"[1,2",
    "truncated text": b'"abc',
    "truncated word": b"tru",
    "truncated number": b"1e",
    "garbage behind": b'{"a":1} x',
    "two values": b"{}{}",
    "nothing but a zero byte": b"\x00",
    "NaN": b"NaN",
    "NaN within": b'{"a":[NaN]}',
    "Infinity": b"Infinity",
    "-Infinity": b"[-Infinity]",
    "byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "invalid UTF-8": b'"\xff"',
    "overlong UTF-8": b'"\xc0\x80"',
    "surrogate in UTF-8": b'"\xed\xa0\x80"',
    "lone high surrogate": b'"\\ud800"',
    "lone low surrogate": b'{"a":"\\udc00"}',
    "lone surrogate as a key": b'{"\\ud800":1}',
    "line feed in text": b'"a\nb"',
    "zero byte in text": b'"a\x00b"',
    "tab in text": b'"a\tb"',
    "form feed before": b"\x0c1",
    "single quotes": b"{'a':1}",
    "bare key": b"{a:1}",
    "trailing comma in array": b"[1,]",
    "trailing comma in object": b'{"a":1,}',
    "no colon": b'{"a"}',
    "leading zero": b"01",
    "plus": b"+1",
    "no digits before the point": b".5",
    "no digits behind the point": b"1.",
    "hexadecimal": b"0x10",
    "two signs": b"--1",
    "bad escape": b'"\\x41"',
    "comment": b"// one\n1",
    "undefined": b"undefined",
    "Python": b"None",
    "long number and more": b"123456789012345678901234567890NaN",
    "injection": b'1,"evil":2',
}


@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON.keys())
def test_a_body_that_is_not_json_is_refused(lake: Lake, refuses: Refuses, body: bytes) -> None:
    for merge in MergeType:
        for given in (body, bytearray(body), memoryview(body)):
            refuses(InvalidBody, lambda: lake.write("users", given, path="/a", merge=merge), "'users'", "/a", "refused")  # noqa: B023, called at once
    refuses(InvalidBody, lambda: lake.write_many([("users", body)]), "row 0", "'users'")


class Opaque:
    pass


def itself() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


def itself_by_key() -> dict[str, Any]:
    inner: dict[str, Any] = {}
    inner["a"] = {"b": inner}
    return inner


NO_JSON_VALUES: dict[str, tuple[Callable[[], Any], str]] = {
    "nan": (lambda: float("nan"), "nan"),
    "inf in a list": (lambda: [1, float("inf")], "inf"),
    "-inf in a dict": (lambda: {"a": {"b": -float("inf")}}, "-inf"),
    "decimal nan": (lambda: decimal.Decimal("NaN"), "not JSON"),
    "decimal infinity": (lambda: {"a": decimal.Decimal("-Infinity")}, "not JSON"),
    "object": (Opaque, "Opaque"),
    "set of objects": (lambda: {Opaque()}, "Opaque"),
    "object in a dict": (lambda: {"a": [Opaque()]}, "Opaque"),
    "function": (lambda: print, "builtin_function_or_method"),
    "class": (lambda: int, "type"),
    "complex": (lambda: 1j, "complex"),
    "range": (lambda: range(3), "range"),
    "iterator": (lambda: iter([1]), "list_iterator"),
    "tuple as a key": (lambda: {(1, 2): 3}, "tuple"),
    "None as a key": (lambda: {None: 1}, "NoneType"),
    "object as a key": (lambda: {Opaque(): 1}, "Opaque"),
    "lone surrogate": (lambda: "\ud800", "surrogate"),
    "lone surrogate as a key": (lambda: {"a": {"\udfff": 1}}, "surrogate"),
    "list that contains itself": (itself, "contains itself"),
    "dict that contains itself": (itself_by_key, "contains itself"),
    "more digits than the interpreter writes": (lambda: 10**5000, "digits"),
}


@pytest.mark.parametrize("name", NO_JSON_VALUES)
def test_a_value_that_json_cannot_hold_is_refused(lake: Lake, refuses: Refuses, name: str) -> None:
    value, word = NO_JSON_VALUES[name]
    refuses(InvalidBody, lambda: lake.write("users", value()), "'users'", "refused", word)
    refuses(InvalidBody, lambda: lake.write_many([("a", 1), ("users", value())]), "row 1", "'users'", word)


def test_keys_that_are_no_text_are_written_as_text(lake: Lake) -> None:
    lake.write("users", {1: "int", 1.5: "float", dt.date(2024, 1, 31): "date", b"x": "bytes"})
    assert lake.read_map("users") == {"1": "int", "1.5": "float", "2024-01-31": "date", "eA==": "bytes"}


NO_PATCHES = {
    "object": (b"{}", "array of operations"),
    "number": (b"1", "array of operations"),
    "text": (b'"add"', "array of operations"),
    "null": (b"null", "array of operations"),
    "operation that is none": (b"[1]", "operation 0"),
    "no op": (b"[{}]", "has no op"),
    "unknown op": (b'[{"op":"merge","path":"/a"}]', '"merge"'),
    "op that is no text": (b'[{"op":1,"path":"/a"}]', "op is 1"),
    "op in capitals": (b'[{"op":"ADD","path":"/a","value":1}]', '"ADD"'),
    "no path": (b'[{"op":"add","value":1}]', "has no path"),
    "path that is no text": (b'[{"op":"add","path":1,"value":1}]', "path is 1"),
    "path without a slash": (b'[{"op":"add","path":"a","value":1}]', 'path "a" does not start with /'),
    "bad escape": (b'[{"op":"add","path":"/a~2b","value":1}]', "~"),
    "escape at the end": (b'[{"op":"add","path":"/a~","value":1}]', "~"),
    "add without value": (b'[{"op":"add","path":"/a"}]', "add has no value"),
    "replace without value": (b'[{"op":"replace","path":"/a"}]', "replace has no value"),
    "test without value": (b'[{"op":"test","path":"/a"}]', "test has no value"),
    "move without from": (b'[{"op":"move","path":"/a"}]', "has no from"),
    "copy without from": (b'[{"op":"copy","path":"/a"}]', "has no from"),
    "from without a slash": (b'[{"op":"copy","from":"b","path":"/a"}]', 'from "b" does not start with /'),
    "move into itself": (b'[{"op":"move","from":"/a","path":"/a/b"}]', "into itself"),
    "remove of everything": (b'[{"op":"remove","path":""}]', "whole document"),
    "second operation": (b'[{"op":"add","path":"/a","value":1},{"op":"add"}]', "operation 1"),
}


@pytest.mark.parametrize("name", NO_PATCHES)
def test_what_is_no_json_patch_is_refused(lake: Lake, refuses: Refuses, name: str) -> None:
    body, word = NO_PATCHES[name]
    refuses(InvalidBody, lambda: lake.write("users", body, merge=MergeType.RFC6902), "'users'", word)
    lake.write("users", body, merge=MergeType.REPLACE)


@pytest.mark.parametrize("depth", [513, 600, 5_000, 200_000])
def test_a_body_that_nests_too_deep_is_refused(lake: Lake, refuses: Refuses, depth: int) -> None:
    body = b"[" * depth + b"]" * depth
    refuses(InvalidBody, lambda: lake.write("users", body), "'users'", "nested more than 512 deep")
    inner = b'{"a":' * depth + b"1" + b"}" * depth
    refuses(InvalidBody, lambda: lake.write("users", inner, merge=MergeType.RFC7396), "'users'", "512")
    limit = "512" if len(inner) <= 1 << 20 else "1048576"
    refuses(InvalidBody, lambda: lake.write("users", 1, meta=inner), "'users'", "meta", limit)
    refuses(InvalidBody, lambda: lake.write_file("users", "/a", b"", meta=inner), "'users'", "meta", limit)


def test_a_body_that_nests_just_deep_enough_is_read_again(lake: Lake) -> None:
    body = b"[" * 512 + b"]" * 512
    lake.write("users", body)
    assert lake.read_bytes("users") == body
    inner = b'{"a":' * 512 + b"1" + b"}" * 512
    lake.write("users", 1, meta=inner)
    assert list(lake.meta("users")) == ["a"]


def test_a_body_over_the_limit_is_refused(redis_url: str, file_config: dict[str, str], refuses: Refuses) -> None:
    with Lake(redis_url, config=file_config, max_body_bytes=100) as lake:
        words = ("'users'", "101 bytes", "at most 100", "max_body_bytes")
        refuses(BodyTooLarge, lambda: lake.write("users", "x" * 99), *words)
        refuses(BodyTooLarge, lambda: lake.write("users", b'"' + b"x" * 99 + b'"'), *words)
        refuses(BodyTooLarge, lambda: lake.write("users", "é" * 50, path="/a"), "102 bytes")
        refuses(BodyTooLarge, lambda: lake.write_many([("a", 1), ("users", "x" * 99)]), "row 1", *words)
        refuses(BodyTooLarge, lambda: lake.write_file("users", "/a/b.txt", b"x" * 101), "/a/b.txt", *words)
        refuses(BodyTooLarge, lambda: lake.write_file("users", "/a", memoryview(b"x" * 104).cast("Q")), "104 bytes")
        lake.write("users", "x" * 98)
        lake.write("users", b"  " + b'"' + b"x" * 98 + b'"' + b"\n" * 10)
        lake.write_file("users", "/a/b.txt", b"x" * 100)
        assert lake.read_file("users", "/a/b.txt") == b"x" * 100


# Names, paths, and everything else that is an argument

CALLS: dict[str, Callable[[Lake, Any], object]] = {
    "write": lambda lake, name: lake.write(name, 1),
    "write_many": lambda lake, name: lake.write_many([(name, 1)]),
    "list": lambda lake, name: lake.list(name),
    "read_bytes": lambda lake, name: lake.read_bytes(name),
    "read_string": lambda lake, name: lake.read_string(name),
    "read_map": lambda lake, name: lake.read_map(name),
    "read": lambda lake, name: lake.read(name, dict),
    "meta": lambda lake, name: lake.meta(name),
    "batch_meta": lambda lake, name: lake.batch_meta(["a", name]),
    "write_file": lambda lake, name: lake.write_file(name, "/a", b""),
    "read_file": lambda lake, name: lake.read_file(name, "/a"),
    "file_exists": lambda lake, name: lake.file_exists(name, "/a"),
    "files_and_meta": lambda lake, name: lake.files_and_meta(name),
    "motion_sample": lambda lake, name: lake.motion_sample(name, "daily", ["a"], None, print),
    "motion_sample of": lambda lake, name: lake.motion_sample("a", "daily", [name], None, print),
    "clear_history": lambda lake, name: lake.clear_history(name),
    "remove_delta": lambda lake, name: lake.remove_delta(name, "1700000000_1"),
}
NO_CATALOGS: dict[str, tuple[Any, str]] = {
    "empty": ("", "0 bytes"),
    "257 letters": ("a" * 257, "257 bytes"),
    "258 bytes in 129 letters": ("é" * 129, "258 bytes"),
    "260 bytes in 65 signs": ("😀" * 65, "260 bytes"),
    "line feed": ("a\nb", r"'a\nb'"),
    "zero byte": ("\x00", "control character"),
    "delete": ("a\x7f", "control character"),
    "next line": ("a\x85b", "control character"),
    "lone surrogate": ("a\ud800", "not valid Unicode"),
    "None": (None, "NoneType"),
    "number": (5, "int"),
    "bytes": (b"users", "bytes"),
    "list": (["users"], "list"),
    "True": (True, "bool"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_bad_catalog_is_refused_by_every_call(lake: Lake, refuses: Refuses, call: str) -> None:
    for name, word in NO_CATALOGS.values():
        refuses(InvalidCatalog, lambda: CALLS[call](lake, name), "catalog", word)  # noqa: B023, called at once


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            "a",
            "a/b",
            "//",
            "/a/",
            "/a//b",
            "/1",
            "/a/1b",
            "/-",
            "/a-b",
            "/a b",
            "/a|b",
            "/a:b",
            "/ä",
            "/a\n",
            "/a\x00",
        ),
        *("/.", "/..", "/a/..", "/a/[0]", "/~0", "/a\\b", "/" + "a" * 1024, None, 1, b"/a", ["a"], "/\ud800"),
    ],
    ids=lambda path: repr(path)[:20],
)
def test_a_bad_field_path_is_refused(lake: Lake, refuses: Refuses, path: Any) -> None:
    refuses(InvalidPath, lambda: lake.write("users", 1, path=path), repr(path), "expected / or /name/name")
    refuses(InvalidPath, lambda: lake.write_many([("users", 1, path)]), "row 0", repr(path))


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "a", "a/b", "//", "/a/", "/a//b", "//a", "/a-b", "/a b", "/a|b", "/ä", "/a\n", "/a\x00", "/a\\b"),
        *("/.", "/..", "/../a", "/a/..", "/a/../b", "/a/./b", "/a/../../b", "..", "../a", "./a", "~/a", "C:/a"),
        *("/%2e%2e/a", "file:///a", "/a?b", "/a#b", "/a+b", "/" + "a" * 1024, None, 1, b"/a", ["a"], "/\ud800"),
    ],
    ids=lambda path: repr(path)[:20],
)
def test_a_bad_file_path_is_refused(lake: Lake, refuses: Refuses, path: Any) -> None:
    words = (repr(path), "never . or .. as a name")
    refuses(InvalidPath, lambda: lake.write_file("users", path, b"x"), *words)
    refuses(InvalidPath, lambda: lake.read_file("users", path), *words)
    refuses(InvalidPath, lambda: lake.file_exists("users", path), *words)


@pytest.mark.parametrize("data", ["text", None, 5, ["a"], {}])
def test_a_file_is_bytes(lake: Lake, refuses: Refuses, data: Any) -> None:
    kind = type(data).__name__
    refuses(InvalidInput, lambda: lake.write_file("users", "/a", data), "/a", "'users'", f"bytes, not {kind}")


@pytest.mark.parametrize("merge", [0, 4, -1, 1.0, True, None, [], b"1", "", "4", "01", "٣", "REPLACES", "RFC 7396"])
def test_an_unknown_merge_type_is_refused(lake: Lake, refuses: Refuses, merge: Any) -> None:
    words = (repr(merge), "REPLACE (1), RFC7396 (2), RFC6902 (3)")
    refuses(InvalidInput, lambda: lake.write("users", [], merge=merge), *words)
    refuses(InvalidInput, lambda: lake.write_many([{"catalog": "a", "body": 1, "merge": merge}]), "row 0", *words)


@pytest.mark.parametrize("merge", [MergeType.RFC7396, 2, "2", "RFC7396", "rfc7396"])
def test_a_merge_type_by_value_number_or_name(lake: Lake, merge: Any) -> None:
    lake.write("users", {"a": 1})
    lake.write("users", {"b": 2}, merge=merge)
    assert lake.read_map("users") == {"a": 1, "b": 2}


NO_META: dict[str, tuple[Any, str]] = {
    "number": (1, "JSON object"),
    "text": ('{"a":1}', "JSON object"),
    "list": ([("a", 1)], "JSON object"),
    "True": (True, "JSON object"),
    "nan": (float("nan"), "nan"),
    "object": (Opaque(), "Opaque"),
    "set": ({"a"}, "JSON object"),
    "nan within": ({"a": float("nan")}, "nan"),
    "inf deep within": ({"a": [{"b": float("inf")}]}, "inf"),
    "object within": ({"a": Opaque()}, "Opaque"),
    "itself": ({"a": itself()}, "contains itself"),
    "lone surrogate": ({"a": "\ud800"}, "surrogate"),
    "lone surrogate as a key": ({"\ud800": 1}, "surrogate"),
    "bytes that are no object": (b"[]", "JSON object"),
    "bytes that are a number": (b"1", "JSON object"),
    "bytes that are null": (b"null", "JSON object"),
    "bytes that are not JSON": (b"{", "not JSON"),
    "bytes with NaN": (b'{"a":NaN}', "not JSON"),
    "no bytes": (b"", "not JSON"),
}


@pytest.mark.parametrize("name", NO_META)
def test_bad_meta_is_refused(lake: Lake, refuses: Refuses, name: str) -> None:
    meta, word = NO_META[name]
    refuses(InvalidBody, lambda: lake.write("users", 1, meta=meta), "the meta for catalog 'users'", word)
    refuses(InvalidBody, lambda: lake.write("users", [], merge=3, meta=meta), "the meta for catalog 'users'", word)
    refuses(InvalidBody, lambda: lake.write_file("users", "/a", b"", meta=meta), "the meta for catalog 'users'", word)
    refuses(InvalidBody, lambda: lake.write_many([("a", 1), ("users", 1, "/", 1, meta)]), "row 1", "'users'", word)


@pytest.mark.parametrize("pending", ["", "ERROR", "skip", 1, [], True])
def test_a_bad_way_with_open_writes_is_refused(lake: Lake, refuses: Refuses, pending: Any) -> None:
    for call in (lake.read_bytes, lake.read_string, lake.read_map):
        refuses(InvalidInput, lambda: call("users", pending=pending), "error, wait, prefix", repr(pending))  # noqa: B023
    refuses(ConfigError, lambda: Lake("localhost", pending=pending), "pending", repr(pending))


@pytest.mark.parametrize(
    "moment",
    [
        *("", "yesterday", "2024-13-01", "1700000000", "1_0", "0_1", "1700000000_1000000", "1960-01-01", "9999-12-31"),
        *(0, -1, 32_503_680_001, 10**30, -1e300, 1e300, float("nan"), float("inf"), True, [], (1, 2), b"1_1", {}),
        *(dt.date(2024, 1, 1), dt.datetime(1, 1, 1), dt.datetime(1, 1, 1, tzinfo=dt.timezone.utc), dt.datetime.max),
    ],
    ids=repr,
)
def test_a_bad_as_of_is_refused(lake: Lake, refuses: Refuses, moment: Any) -> None:
    refuses(InvalidTsSeq, lambda: lake.list("users", as_of=moment), repr(moment))


@pytest.mark.parametrize(
    "ts_seq", ["", "x", "1700000000", "1_0", None, 1, -1.0, float("nan"), 1e300, b"1_1", (1, 2), []]
)
def test_a_bad_sequence_is_refused(lake: Lake, refuses: Refuses, ts_seq: Any) -> None:
    lake.write("users", 1)
    refuses(InvalidTsSeq, lambda: lake.remove_delta("users", ts_seq), repr(ts_seq))


def test_a_delta_that_is_not_there_cannot_be_removed(lake: Lake, refuses: Refuses) -> None:
    lake.write("users", 1)
    for ts_seq in ("1700000000_1", 1700000000.000001, "32503680000_1", "0_0"):
        refuses(DeltaNotFound, lambda: lake.remove_delta("users", ts_seq), "'users'", "no delta")  # noqa: B023
    assert lake.read_string("users") == "1"


@pytest.mark.parametrize("keep", [-1, -(10**9), "1", None, 1.5, True, [], float("nan")])
def test_a_bad_number_of_snapshots_is_refused(lake: Lake, refuses: Refuses, keep: Any) -> None:
    lake.write("users", 1)
    refuses(InvalidInput, lambda: lake.clear_history("users", keep), "keep_snaps", "0 or more", repr(keep))
    refuses(InvalidInput, lambda: lake.clear_history("users", keep_snaps=keep, dry_run=True), repr(keep))


def test_other_bad_arguments_are_refused(lake: Lake, refuses: Refuses) -> None:
    for indicator in (None, 5, b"daily", "\ud800"):
        refuses(InvalidInput, lambda: lake.motion_sample("a", indicator, ["b"], None, print), "indicator")  # type: ignore[arg-type] # noqa: B023
    refuses(InvalidInput, lambda: lake.motion_sample("a", "daily", "bc", None, print), "several catalogs", "'bc'")
    refuses(InvalidInput, lambda: lake.batch_meta("users"), "several catalogs", "'users'")
    for prefix in (None, 5, b"a", "\ud800"):
        refuses(InvalidInput, lambda: list(lake.catalogs(prefix)), "prefix")  # type: ignore[arg-type] # noqa: B023


# Many writes at once

BAD_ROWS: dict[str, tuple[Any, type[LakeError], str]] = {
    "bad body": (("b", b"{"), InvalidBody, "'b'"),
    "bad catalog": (("", 1), InvalidCatalog, "0 bytes"),
    "bad path": (("b", 1, "x"), InvalidPath, "'x'"),
    "bad merge type": (("b", 1, "/", 9), InvalidInput, "9"),
    "bad patch": ({"catalog": "b", "body": {}, "merge": "rfc6902"}, InvalidBody, "array of operations"),
    "bad meta": (("b", 1, "/", 1, []), InvalidBody, "meta"),
    "no body": (("b",), InvalidInput, "catalog and body"),
    "no field": ((), InvalidInput, "catalog and body"),
    "no catalog": ({"body": 1}, InvalidInput, "catalog and body"),
    "unknown field": ({"catalog": "b", "body": 1, "Path": "/"}, InvalidInput, "Path"),
    "field that is no text": ({"catalog": "b", 1: 2}, InvalidInput, "catalog, 1"),
    "too many fields": (("b", 1, "/", 1, None, 9), InvalidInput, "6 values"),
    "text": ("bc", InvalidInput, "str"),
    "bytes": (b"bc", InvalidInput, "bytes"),
    "None": (None, InvalidInput, "NoneType"),
    "number": (5, InvalidInput, "int"),
    "set": ({"b", "c"}, InvalidInput, "set"),
    "iterator": (iter(["b", 1]), InvalidInput, "iterator"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_one_bad_row_among_many_is_named_and_nothing_is_stored(lake: Lake, refuses: Refuses, name: str) -> None:
    row, kind, word = BAD_ROWS[name]
    rows = [*(("a", n) for n in range(7)), row, ("c", 1)]
    refuses(kind, lambda: lake.write_many(rows), "row 7: ", word)
    assert not lake.list("a").exists


def test_a_bad_row_after_staged_ones_leaves_nothing_visible(redis_url: str, file_config: dict[str, str]) -> None:
    with Lake(redis_url, config=file_config, segment_rows=2) as lake:
        lake.write("a", "before")
        with pytest.raises(InvalidBody, match="row 5: "):
            lake.write_many([*(("a", n, "/", 1, {"by": n}) for n in range(5)), ("b", b"{")])
        assert lake.read_string("a") == '"before"'
        assert lake.meta("a") == {}
        assert sorted(lake.catalogs()) == ["a"]
        listing = lake.list("a", strict_pending=True)
        assert (len(listing.deltas), listing.has_pending) == (1, False)
        lake.write_many([("a", "after"), ("b", 1)])
        assert lake.read_string("a") == '"after"'


def test_rows_that_fail_by_themselves_leave_nothing_visible(redis_url: str, file_config: dict[str, str]) -> None:
    def rows() -> Iterator[tuple[str, int]]:
        yield from (("a", n) for n in range(5))
        raise ZeroDivisionError

    with Lake(redis_url, config=file_config, segment_rows=2) as lake:
        with pytest.raises(ZeroDivisionError):
            lake.write_many(rows())
        assert not lake.list("a", strict_pending=True).exists
        assert list(lake.catalogs()) == []


# What is not there


def test_a_catalog_that_does_not_exist(lake: Lake, refuses: Refuses) -> None:
    for call in (lake.read_bytes, lake.read_string, lake.read_map, lambda name: lake.read(name, dict)):
        refuses(CatalogNotFound, lambda: call("nobody"), "'nobody'")  # noqa: B023, called at once
    assert issubclass(CatalogNotFound, LookupError)
    assert not lake.list("nobody").exists
    assert lake.meta("nobody") == {}
    assert lake.files_and_meta("nobody") == {}
    assert not lake.file_exists("nobody", "/a")
    assert lake.clear_history("nobody").objects == ()
    refuses(LakeFileNotFound, lambda: lake.read_file("nobody", "/a/b.txt"), "'nobody'", "/a/b.txt")


def test_a_document_that_is_no_object_has_no_map(lake: Lake, refuses: Refuses) -> None:
    lake.write("users", [1, 2])
    refuses(InvalidInput, lambda: lake.read_map("users"), "'users'", "read_bytes")


@pytest.mark.parametrize("way", ["write", "write_many"])
def test_a_delta_that_cannot_be_applied_is_named_and_can_be_removed(lake: Lake, way: str) -> None:
    lake.write("users", {"a": 1})
    lake.write("other", {"b": 2})
    patch = b'[{"op":"remove","path":"/missing"}]'
    if way == "write":
        bad = lake.write("users", patch, merge=MergeType.RFC6902)
        lake.write("users", {"c": 3}, merge=MergeType.RFC7396)
    else:
        _, bad, _ = lake.write_many([("users", 0, "/z"), ("users", patch, "/", 3), ("users", {"c": 3}, "/", 2)])
    for call in (lake.read_bytes, lake.read_string, lake.read_map, lake.clear_history):
        with pytest.raises(MergeError) as caught:
            call("users")  # type: ignore[operator] # mypy joins the kinds of the four
        for word in ("'users'", str(bad), "missing", "remove_delta"):
            assert word in str(caught.value)
        assert not caught.value.retryable
    assert lake.read_map("other") == {"b": 2}
    assert len(lake.list("users").deltas) == (3 if way == "write" else 4), "nothing was cleared"
    assert lake.read_map(lake.list("users", as_of=lake.list("users").deltas[0].ts_seq)) == {"a": 1}
    lake.remove_delta("users", str(bad))
    assert lake.read_map("users") == {"a": 1, "c": 3} | ({"z": 0} if way == "write_many" else {})
    lake.remove_delta("users", bad)
    lake.clear_history("users")
    assert lake.read_map("users")["c"] == 3


# Redis


def failure(call: Callable[[], object], kind: type[LakeError], *words: str, within: float = 30.0) -> LakeError:
    """The error of a call that must fail with exactly this kind, within this time, naming these words."""
    began = time.monotonic()
    with pytest.raises(LakeError) as caught:
        call()
    assert time.monotonic() - began < within
    assert type(caught.value) is kind, caught.value
    for word in words:
        assert word in str(caught.value)
    return caught.value


def test_a_redis_that_is_not_there_is_named_in_time(file_config: dict[str, str]) -> None:
    port = free_ports(1)[0]
    for url in (f"redis://127.0.0.1:{port}/0", f"127.0.0.1:{port}"):
        with Lake(url, config=file_config, redis_connect_timeout=0.5, redis_retries=1) as lake:
            for call in (lambda: lake.write("users", 1), lambda: lake.list("users"), lambda: [*lake.catalogs()]):
                error = failure(call, IndexUnavailable, f"127.0.0.1:{port}", within=5)
                assert error.retryable
                assert isinstance(error, ConnectionError)
    assert not Path(file_config["BasePath"]).exists(), "nothing is put before Redis has answered"


def test_a_redis_that_does_not_answer_is_given_up_in_time(
    redis_url: str, redis_server: RedisServer, file_config: dict[str, str]
) -> None:
    with TcpProxy("127.0.0.1", redis_server.port) as proxy:
        proxy.hold()
        url = f"redis://127.0.0.1:{proxy.port}/0"
        with Lake(url, config=file_config, redis_timeout=0.2, redis_retries=1) as lake:
            for call in (lambda: lake.write("users", 1), lambda: lake.write_many([("users", 1)])):
                error = failure(call, IndexUnavailable, f"127.0.0.1:{proxy.port}", within=4)
                assert error.retryable
            proxy.release()
            lake.write("users", 2)
            assert lake.read_string("users") == "2", "it goes on when Redis does"


@pytest.fixture
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), args=("--requirepass", "open sesame")) as server:
        yield server


def test_a_wrong_password_is_denied(own_redis: RedisServer, file_config: dict[str, str]) -> None:
    place = f"127.0.0.1:{own_redis.port}"
    for user in ("", ":wrong@", "nobody:open%20sesame@"):
        with Lake(f"redis://{user}{place}/0", config=file_config) as lake:
            for call in (lambda: lake.write("users", 1), lambda: lake.list("users")):
                error = failure(call, IndexDenied, place, within=5)
                assert not error.retryable
                assert isinstance(error, PermissionError)
    with Lake(f"redis://:open%20sesame@{place}/0", config=file_config) as lake:
        lake.write("users", 1)
        assert lake.read_string("users") == "1"


def test_a_redis_that_may_only_be_read_is_denied(own_redis: RedisServer, file_config: dict[str, str]) -> None:
    url = f"redis://:open%20sesame@127.0.0.1:{own_redis.port}/0"
    with Lake(url, config=file_config, redis_retries=1) as lake:
        lake.write("users", {"a": 1})
        with redis.Redis.from_url(url) as client:
            client.execute_command("REPLICAOF", "127.0.0.1", free_ports(1)[0])
            for call in (
                lambda: lake.write("users", 2),
                lambda: lake.write_many([("users", 2)]),
                lambda: lake.update_config(file_config),
            ):
                error = failure(call, IndexDenied, f"127.0.0.1:{own_redis.port}", "read only")
                assert not error.retryable
            assert lake.read_map("users") == {"a": 1}, "reading goes on"
            client.execute_command("REPLICAOF", "NO", "ONE")
        lake.write("users", {"a": 2})
        assert lake.read_map("users") == {"a": 2}


def test_a_redis_without_memory_is_denied(own_redis: RedisServer, file_config: dict[str, str]) -> None:
    url = f"redis://:open%20sesame@127.0.0.1:{own_redis.port}/0"
    with Lake(url, config=file_config) as lake, redis.Redis.from_url(url) as client:
        lake.write("users", {"a": 1})
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1mb")
        with contextlib.suppress(redis.RedisError):
            for n in range(100):
                client.set(f"filler:{n}", b"x" * 100_000)
        for call in (lambda: lake.write("users", 2), lambda: lake.write_many([("users", 2)])):
            error = failure(call, IndexDenied, f"127.0.0.1:{own_redis.port}", "memory")
            assert not error.retryable
        client.config_set("maxmemory", "0")
        assert lake.read_map("users") == {"a": 1}
        lake.write("users", {"a": 2})
        assert lake.read_map("users") == {"a": 2}


def test_a_key_of_another_type_is_a_failure_that_names_redis(redis_url: str, lake: Lake) -> None:
    lake.write("users", 1)
    index = lake._session.index
    index.connection.client.delete(index.keys.delta("users"))
    index.connection.client.set(index.keys.delta("users"), "x")
    error = failure(lambda: lake.list("users"), IndexFailure, lake._connection.place, "WRONGTYPE")
    assert not error.retryable


# Object storage


def nothing_pending(lake: Lake, catalog: str) -> bool:
    listing = lake.list(catalog, strict_pending=True)
    return not listing.exists and not listing.has_pending and catalog not in set(lake.catalogs())


IMPATIENT: dict[str, Any] = {"storage_timeout": 1.0, "storage_connect_timeout": 0.5, "storage_retries": 1}


def bucket_config(server: S3Server, bucket: str, **changes: str) -> dict[str, str]:
    return {
        "Name": "test",
        "Storage": "s3",
        "Bucket": bucket,
        "Endpoint": server.endpoint,
        "AccessKey": server.access_key,
        "SecretKey": server.secret_key,
        **changes,
    }


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ("endpoint", StorageUnavailable, ["check the endpoint"]),
        ("bucket", StorageDenied, ["lake-that-is-not-there", "does not exist"]),
        ("access key", StorageDenied, ["access key"]),
        ("secret key", StorageDenied, ["secret key"]),
        ("rights", StorageDenied, ["access denied"]),
    ],
)
def test_a_bucket_that_takes_nothing_leaves_nothing_pending(
    redis_url: str, s3_server: S3Server, s3_bucket: str, wrong: str, kind: type[LakeError], words: list[str]
) -> None:
    port = free_ports(1)[0]
    changes = {
        "endpoint": {"Endpoint": f"http://127.0.0.1:{port}"},
        "bucket": {"Bucket": "lake-that-is-not-there"},
        "access key": {"AccessKey": "somebody-else"},
        "secret key": {"SecretKey": "something-else"},
        "rights": {"AccessKey": s3_server.read_only_access_key, "SecretKey": s3_server.read_only_secret_key},
    }[wrong]
    place = f"127.0.0.1:{port if wrong == 'endpoint' else s3_server.port}"
    with Lake(redis_url, config=bucket_config(s3_server, s3_bucket, **changes), **IMPATIENT) as lake:
        for call in (
            lambda: lake.write("users", {"a": 1}, meta={"by": "alice"}),
            lambda: lake.write_many([("users", 1), ("others", 1)]),
            lambda: lake.write_file("users", "/a.txt", b"x"),
        ):
            error = failure(call, kind, place, *words, within=20)
            assert error.retryable is (kind is StorageUnavailable)
            assert nothing_pending(lake, "users")
        assert lake.meta("users") == {}
        assert lake.files_and_meta("users") == {}
    with Lake(redis_url, config=bucket_config(s3_server, s3_bucket)) as good:
        assert nothing_pending(good, "users")
        good.write("users", {"a": 2})
        assert good.read_map("users") == {"a": 2}


def test_a_store_that_does_not_answer_is_given_up_in_time(redis_url: str, s3_server: S3Server, s3_bucket: str) -> None:
    with TcpProxy("127.0.0.1", s3_server.port) as proxy:
        proxy.hold()
        config = bucket_config(s3_server, s3_bucket, Endpoint=f"http://127.0.0.1:{proxy.port}")
        with Lake(redis_url, config=config, **{**IMPATIENT, "storage_timeout": 0.5}) as lake:
            error = failure(lambda: lake.write("users", 1), StorageUnavailable, f"127.0.0.1:{proxy.port}", within=10)
            assert error.retryable
            assert nothing_pending(lake, "users")
        proxy.release()
        with Lake(redis_url, config=config) as lake:
            lake.write("users", 2)
            assert lake.read_string("users") == "2"


def test_who_may_only_read_reads_and_snapshots_are_nobodys_trouble(
    redis_url: str, s3_server: S3Server, s3_bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Lake(redis_url, config=bucket_config(s3_server, s3_bucket)) as lake:
        lake.write("users", {"a": 1})
        lake.write_file("users", "/a.txt", b"x")
    reader = {"AccessKey": s3_server.read_only_access_key, "SecretKey": s3_server.read_only_secret_key}
    with Lake(redis_url, config=bucket_config(s3_server, s3_bucket, **reader), snapshot="always") as lake:
        assert lake.read_map("users") == {"a": 1}
        assert lake.read_file("users", "/a.txt") == b"x"
        lake.flush()
        assert lake.list("users").snapshot is None
        assert "a snapshot of 'users' was not saved" in caplog.text
        failure(lambda: lake.clear_history("users"), StorageDenied)
        assert lake.read_map("users") == {"a": 1}


def test_a_folder_that_cannot_be_written_leaves_nothing_pending(redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    config = {"Name": "test", "Storage": "file", "BasePath": str(tmp_path / "file" / "lake")}
    with Lake(redis_url, config=config) as lake:
        for call in (
            lambda: lake.write("users", 1),
            lambda: lake.write_many([("users", 1)]),
            lambda: lake.write_file("users", "/a.txt", b"x"),
        ):
            failure(call, StorageFailure, str(tmp_path / "file" / "lake"), "cannot store")
            assert nothing_pending(lake, "users")
        (tmp_path / "file").unlink()
        lake.write("users", 2)
        assert lake.read_string("users") == "2"


# Names that are allowed, however odd

ODD_CATALOGS = [
    "a" * 256,
    "A" * 256,
    "aB" * 128,
    "😀" * 64,
    "é" * 128,
    "a/b/c",
    "a/" * 127 + "a",
    "/",
    "//",
    ".",
    "..",
    "../..",
    "../outside",
    "a/../../outside",
    "/etc/passwd",
    "a/./b",
    "a//b",
    "/a",
    "a/",
    "a",
    "A",
    "a b",
    " ",
    "a|b",
    "a:b",
    "{a}",
    "a*",
    "a?",
    "[ab]",
    "a\\b",
    "a%2fb",
    "a+b",
    "a~b",
    "'a'",
    '"a"',
    "delta",
    "a/delta",
    "a/snap",
    "a.json",
    "(a",
    ")A",
    "_tmp",
    "_segments",
    "CON",
    "${HOME}",
    "a\u202eb",
    "\u00e9",
    "e\u0301",
]


def test_odd_names_work_from_end_to_end_and_stay_in_the_lakes_folder(
    redis_url: str, config: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if config["Storage"] == "s3":
        config = {**config, "BasePath": "in/side"}
    with Lake(redis_url, config=config, snapshot="always", fsync="never") as lake:
        for n, name in enumerate(ODD_CATALOGS):
            lake.write(name, {"n": n, "name": name}, meta={"n": n})
            lake.write_file(name, "/docs/A.b.txt", name.encode())
        lake.write_many([(name, {"more": n}, "/", MergeType.RFC7396) for n, name in enumerate(ODD_CATALOGS)])
        for name in ODD_CATALOGS:
            lake.read_bytes(name)
        lake.flush()
        assert set(lake.catalogs()) == set(ODD_CATALOGS)
        for n, name in enumerate(ODD_CATALOGS):
            wanted = {"n": n, "name": name, "more": n}
            assert lake.list(name).snapshot is not None
            assert lake.read_map(name) == wanted
            done = lake.clear_history(name)
            assert done.deltas == 2
            lake._session.snapshots.clear()
            assert lake.read_map(name) == wanted
            assert lake.read_file(name, "/docs/A.b.txt") == name.encode()
            assert lake.meta(name) == {"n": n}
        for prefix in ("a*", "a?", "[ab]", "a\\", "😀", ".."):
            wanted_names = {name for name in ODD_CATALOGS if name.startswith(prefix)}
            assert set(lake.catalogs(prefix)) == wanted_names, "a prefix is taken as it is"
        objects = list(lake._session.storage.list(""))
        assert len([key for key in objects if "/snap/" in key and key.endswith(".snap")]) == len(ODD_CATALOGS)
    if config["Storage"] == "file":
        assert [path.name for path in tmp_path.iterdir()] == ["lake"]
        assert not (tmp_path / "lake" / ".." / "outside").exists()
    else:
        server: S3Server = request.getfixturevalue("s3_server")
        bucket = S3Storage(
            config["Bucket"], endpoint=server.endpoint, access_key=server.access_key, secret_key=server.secret_key
        )
        everything = list(bucket.list(""))
        assert len(everything) == len(objects)
        assert all(key.startswith("in/side/") for key in everything)
        bucket.close()
