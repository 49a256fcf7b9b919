"""Merging: numbers, order and limits; and our patches against independent implementations."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import json
import math
import pickle
import tracemalloc
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import json_merge_patch
import jsonpatch
import msgspec
import pydantic
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from lake_spark.errors import InvalidBody, MergeError
from lake_spark.merge import Fold, Number, check_body, diff, dumps, encode, loads
from lake_spark.merge.jsontext import MAX_DEPTH, canonical
from lake_spark.merge.rfc6902 import apply_patch, check_patch, equal
from lake_spark.merge.rfc7396 import merge_patch

REPLACE, MERGE, PATCH = 1, 2, 3
LONG = "7" * 5000
ODD_NUMBERS = [
    str(2**70),
    "-" + str(2**70),
    "9" * 4300,
    "-" + "9" * 4300,
    LONG,
    "-" + LONG,
    "0.1000000000000000055",
    "1E400",
    "-1e-400",
    "-0",
    "-0.0",
    "0e0",
    "1.50",
    "1e2",
    "1e22",
    "1e+22",
    "9007199254740993.0",
    "123456789012345678901234567890.5",
    "1e99999999999999999999",
]


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def merged(*deltas: tuple[int, str, str], base: str | None = None) -> str:
    fold = Fold(None if base is None else base.encode())
    for merge_type, path, body in deltas:
        fold.apply(merge_type, path, body.encode())
    return fold.dump().decode()


# Numbers and text


@pytest.mark.parametrize("text", ODD_NUMBERS, ids=lambda text: text[:25])
def test_numbers_survive_every_kind_of_delta(text: str) -> None:
    assert dumps(loads(text.encode())).decode() == text
    patch = f'[{{"op":"add","path":"/d","value":{text}}},{{"op":"copy","from":"/b","path":"/e"}}]'
    got = merged(
        (REPLACE, "/", f'{{"a":{text},"n":{{}}}}'),
        (MERGE, "/", f'{{"b":{text}}}'),
        (REPLACE, "/n/c", text),
        (PATCH, "/", patch),
    )
    assert got == f'{{"a":{text},"n":{{"c":{text}}},"b":{text},"d":{text},"e":{text}}}'


def test_ordinary_numbers_stay_ordinary() -> None:
    assert [type(value) for value in loads(b"[1, 0, -5, 1.5, 0.1, 100.0, 123456789012345678901234567890]")] == [
        int, int, int, float, float, float, int,
    ]  # fmt: skip


def test_number_behaves_as_the_float_and_shows_its_text() -> None:
    number = Number("1.50")
    assert number == 1.5
    assert hash(number) == hash(1.5)
    assert number + 1 == 2.5
    assert repr(number) == str(number) == "1.50"
    for again in (pickle.loads(pickle.dumps(number)), copy.copy(number), copy.deepcopy([number])[0]):
        assert type(again) is Number
        assert again.text == "1.50"


@pytest.mark.parametrize("text", ["nan", "inf", "1_0", "+1", "01", "1.", ".5", "", "1e", "٣"])
def test_number_refuses_what_is_not_json(text: str) -> None:
    with pytest.raises(ValueError, match="not a JSON number"):
        Number(text)


@given(strategies.number_texts)
def test_any_number_text_survives(text: str) -> None:
    assert dumps(loads(f"[{text}]".encode())) == f"[{text}]".encode()


@given(strategies.json_values)
def test_values_survive_writing_and_reading(value: Any) -> None:
    text = dumps(value)
    again = loads(text)
    assert equal(again, value)
    assert dumps(again) == text


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"NaN", b"[NaN]", b"Infinity", b"-Infinity", b"\xef\xbb\xbf{}", b"{} {}", b'{"a":1},"evil":2',
        b'"\\ud800"', b'"\\udc00x"', b'"\xff"', b'"\xed\xa0\x80"', b'"\n"', b"[1,]", b"{'a':1}", b"01", b"1.", b"+1",
        b"nul", "\u00a01".encode(), b"\x00", b"{} \x00",
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("slow", [False, True])
def test_what_is_not_json_is_refused(body: bytes, slow: bool) -> None:
    # A long integer in front takes the body through the other decoder.
    text = b"[" + LONG.encode() + b"," + body + b"]" if slow else body
    with pytest.raises(InvalidBody, match="not JSON"):
        loads(text)


def test_negative_zero_in_text_is_no_number() -> None:
    body = '{"a":"-0, [-0]","d":"2024-01-02","n":[-0,-0.0,-0e1,0]}'
    assert dumps(loads(body.encode())).decode() == body


def test_key_order_is_kept_and_the_last_duplicate_wins() -> None:
    assert merged((MERGE, "/", '{"y":2,"b":3,"x":1}'), base='{"c":1,"b":2,"a":3}') == (
        '{"c":1,"b":3,"a":3,"y":2,"x":1}'
    )
    assert merged((REPLACE, "/", '{"a":1,"b":2,"a":3}')) == '{"a":3,"b":2}'


# Python values as bodies


class Point(pydantic.BaseModel):
    at: float = pydantic.Field(alias="when")
    price: Decimal


class Struct(msgspec.Struct):
    a: int
    b: float | None


@dataclasses.dataclass
class Record:
    id: uuid.UUID
    day: datetime.date
    inner: dict[str, Any]


class Text(str):
    __slots__ = ()


def test_python_values_become_bodies() -> None:
    value = {
        "model": Point(when=1.5, price=Decimal("1.50")),
        "struct": Struct(1, None),
        "record": Record(uuid.UUID(int=7), datetime.date(2024, 1, 2), {"n": None}),
        "at": datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc),
        "decimal": Decimal("1E+400"),
        "number": Number("1E400"),
        "none": None,
        "big": 2**70,
        "text": Text("null"),
        "tuple": (1, 2.0, "NaN"),
    }
    assert json.loads(encode(value), parse_float=str) == {
        "model": {"when": "1.5", "price": "1.50"},
        "struct": {"a": 1, "b": None},
        "record": {"id": str(uuid.UUID(int=7)), "day": "2024-01-02", "inner": {"n": None}},
        "at": "2024-01-02T03:04:05Z",
        "decimal": "1E+400",
        "number": "1E400",
        "none": None,
        "big": 2**70,
        "text": "null",
        "tuple": [1, "2.0", "NaN"],
    }


@pytest.mark.parametrize(
    "value",
    [
        math.nan, [1, {"a": math.inf}], {"a": -math.inf}, Struct(1, math.nan), Point(when=math.inf, price=Decimal(1)),
        Decimal("NaN"), [Decimal("Infinity")], {Decimal("1.5"): 1}, {"a": "\ud800"}, {"\ud800": 1}, 10**5000,
    ],
    ids=range(11),
)  # fmt: skip
def test_values_that_are_not_json_are_refused(value: Any) -> None:
    with pytest.raises(InvalidBody):
        encode(value)


def test_an_unsupported_type_is_named() -> None:
    with pytest.raises(InvalidBody, match="complex"):
        encode({"a": [1 + 2j]})


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidBody, match="contains itself"):
        encode(value)


# Checks at the write


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        ("{}", "array of operations"),
        ("null", "array of operations"),
        ("[1]", "operation 0 of the JSON patch: not an object"),
        ('[{"path":"/a"}]', "operation 0 .* has no op"),
        ('[{"op":"ad","path":"/a"}]', 'operation 0 .* op is "ad"'),
        ('[{"op":["add"],"path":"/a"}]', "operation 0 .* op is"),
        ('[{"op":"remove","path":"/a"},{"op":"add","path":"/a"}]', "operation 1 .* add has no value"),
        ('[{"op":"test","path":"/a"}]', "test has no value"),
        ('[{"op":"remove"}]', "has no path"),
        ('[{"op":"remove","path":7}]', "path is 7"),
        ('[{"op":"remove","path":"a"}]', "does not start with /"),
        ('[{"op":"remove","path":"/a~"}]', "neither ~0 nor ~1"),
        ('[{"op":"remove","path":"/a~2"}]', "neither ~0 nor ~1"),
        ('[{"op":"remove","path":""}]', "whole document"),
        ('[{"op":"move","path":"/a"}]', "has no from"),
        ('[{"op":"copy","path":"/a","from":null}]', "from is null"),
        ('[{"op":"move","from":"/a","path":"/a/b"}]', "into itself"),
        ('[{"op":"move","from":"","path":"/b"}]', "into itself"),
    ],
)
def test_a_bad_patch_is_refused_with_the_operation_and_the_reason(patch: str, reason: str) -> None:
    with pytest.raises(InvalidBody, match=reason):
        check_body(PATCH, patch.encode())


def test_moving_beside_a_longer_name_is_no_move_into_itself() -> None:
    assert merged((PATCH, "/", '[{"op":"move","from":"/a","path":"/ab"}]'), base='{"a":1}') == '{"ab":1}'


@pytest.mark.parametrize("merge_type", [0, 4, 99])
def test_an_unknown_merge_type_is_refused(merge_type: int) -> None:
    with pytest.raises(InvalidBody, match="merge type"):
        check_body(merge_type, b"{}")
    with pytest.raises(MergeError, match="merge type"):
        Fold().apply(merge_type, "/", b"{}")


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 5000, 200_000])
def test_a_body_nested_too_deep_is_refused(depth: int) -> None:
    assert check_body(REPLACE, nested(MAX_DEPTH)) is not None
    with pytest.raises(InvalidBody, match="512"):
        check_body(REPLACE, nested(depth))


def test_many_brackets_that_are_not_deep_are_fine() -> None:
    body = b"[" + b",".join([b'{"[[[":[]}'] * 2000) + b"]"
    assert len(check_body(REPLACE, body)) == 2000


# The fold


def test_no_base_is_an_empty_object() -> None:
    assert merged() == "{}"
    assert merged((MERGE, "/", '{"a":1}')) == '{"a":1}'


def test_an_untouched_base_comes_back_byte_for_byte() -> None:
    fold = Fold(b' {"a": 1.0} ')
    assert fold.dump() == b' {"a": 1.0} '
    fold.apply(PATCH, "/x/y", b" [ ] ")
    assert fold.dump() == b' {"a": 1.0} '
    fold.apply(MERGE, "/x", b"{}")
    assert fold.dump() == b'{"a":1.0,"x":{}}'


def test_a_root_replace_drops_what_came_before_unread() -> None:
    fold = Fold(b"not JSON")
    fold.apply(REPLACE, "/", b"neither is this")
    fold.apply(REPLACE, "/", b' {"a" : 1} ')
    assert fold.dump() == b'{"a":1}'


def test_parents_are_created_and_anything_else_on_the_way_becomes_an_object() -> None:
    assert merged((REPLACE, "/a.b/c/d", "1")) == '{"a.b":{"c":{"d":1}}}'
    assert merged((REPLACE, "/a/b", "1"), base='{"a":[1,2],"z":0}') == '{"a":{"b":1},"z":0}'
    assert merged((MERGE, "/a/b", '{"c":1}'), base='{"a":"text"}') == '{"a":{"b":{"c":1}}}'
    assert merged((PATCH, "/a/b", '[{"op":"add","path":"/c/d","value":1}]'), base="[]") == ('{"a":{"b":{"c":{"d":1}}}}')


def test_a_merge_patch_at_a_path_sets_what_it_yields() -> None:
    assert merged((MERGE, "/a", "null"), base='{"a":1}') == '{"a":null}'
    assert merged((MERGE, "/a", "[1,null]"), base='{"a":1}') == '{"a":[1,null]}'
    assert merged((MERGE, "/a", '{"x":null,"y":{"z":null}}')) == '{"a":{"y":{}}}'


@pytest.mark.parametrize(
    "read",
    [
        Fold.dump,
        lambda fold: fold.value,
        lambda fold: fold.apply(MERGE, "/", b"{}", origin="1700000000_2"),
        lambda fold: fold.apply(REPLACE, "/a", b"1", origin="1700000000_2"),
    ],
)
def test_an_error_names_the_delta_that_is_wrong(read: Callable[[Fold], Any]) -> None:
    fold = Fold()
    fold.apply(REPLACE, "/", b"oops", origin="1700000000_1")
    with pytest.raises(MergeError, match=r"^1700000000_1: not JSON"):
        read(fold)


def test_nothing_of_a_failed_patch_can_be_read() -> None:
    fold = Fold(b'{"a":1}')
    with pytest.raises(MergeError, match=r'^7: operation 1 \(remove "/x"\): there is no "x"'):
        fold.apply(PATCH, "/", b'[{"op":"add","path":"/b","value":2},{"op":"remove","path":"/x"}]', 7)
    for read in (fold.dump, lambda: fold.value, lambda: fold.apply(MERGE, "/", b"{}")):
        with pytest.raises(MergeError):
            read()


def test_a_failed_body_on_an_unread_base_does_not_bring_the_base_back() -> None:
    fold = Fold(b'{"a":1}')
    with pytest.raises(MergeError, match="not JSON"):
        fold.apply(MERGE, "/", b"oops")
    with pytest.raises(MergeError):
        fold.dump()


@pytest.mark.parametrize(
    "patch",
    [
        '[{"op":"add","path":"/l/3","value":0}]',
        '[{"op":"add","path":"/l/-1","value":0}]',
        '[{"op":"add","path":"/l/+1","value":0}]',
        '[{"op":"add","path":"/l/01","value":0}]',
        '[{"op":"add","path":"/l/1e0","value":0}]',
        '[{"op":"add","path":"/l/١","value":0}]',
        '[{"op":"add","path":"/l/x","value":0}]',
        '[{"op":"add","path":"/l/","value":0}]',
        '[{"op":"add","path":"/l/-/x","value":0}]',
        '[{"op":"add","path":"/l/2/x","value":0}]',
        '[{"op":"add","path":"/l/%s","value":0}]' % ("9" * 5000),
        '[{"op":"add","path":"/s/x","value":0}]',
        '[{"op":"add","path":"/n/x","value":0}]',
        '[{"op":"remove","path":"/l/-"}]',
        '[{"op":"remove","path":"/l/2"}]',
        '[{"op":"remove","path":"/x"}]',
        '[{"op":"replace","path":"/l/-","value":0}]',
        '[{"op":"replace","path":"/x","value":0}]',
        '[{"op":"replace","path":"/x/y","value":0}]',
        '[{"op":"test","path":"/x","value":null}]',
        '[{"op":"test","path":"/l/-","value":null}]',
        '[{"op":"move","from":"/x","path":"/y"}]',
        '[{"op":"move","from":"/x","path":"/x"}]',
        '[{"op":"copy","from":"/l/-","path":"/y"}]',
    ],
    ids=lambda patch: patch[:60],
)
def test_strict_pointers(patch: str) -> None:
    check_body(PATCH, patch.encode())
    with pytest.raises(MergeError, match="operation 0"):
        merged((PATCH, "/", patch), base='{"l":[1,2],"s":"text","n":null}')


def test_parents_are_created_as_objects_for_add_move_and_copy() -> None:
    patch = (
        '[{"op":"add","path":"/x/0/-","value":1},{"op":"move","from":"/a","path":"/m/n"},'
        '{"op":"copy","from":"/m","path":"/c~1d/e"}]'
    )
    assert merged((PATCH, "/", patch), base='{"a":1}') == '{"x":{"0":{"-":1}},"m":{"n":1},"c/d":{"e":{"n":1}}}'


def test_the_whole_document_can_be_added_replaced_moved_to_and_copied_from() -> None:
    assert merged((PATCH, "/", '[{"op":"replace","path":"","value":[1]}]')) == "[1]"
    assert merged((PATCH, "/", '[{"op":"add","path":"","value":5}]')) == "5"
    assert merged((PATCH, "/", '[{"op":"move","from":"/a","path":""}]'), base='{"a":[2]}') == "[2]"
    assert merged((PATCH, "/", '[{"op":"copy","from":"","path":"/b"}]'), base='{"a":1}') == '{"a":1,"b":{"a":1}}'


def test_a_copy_shares_nothing() -> None:
    patch = '[{"op":"copy","from":"/a","path":"/b"},{"op":"add","path":"/b/x","value":1}]'
    assert merged((PATCH, "/", patch), base='{"a":{}}') == '{"a":{},"b":{"x":1}}'


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("1", "1.0", True), ("1", "1e0", True), ("100", "1E2", True), ("1.50", "1.5", True), ("0", "-0", True),
        ("true", "1", False), ("false", "0", False), ("null", "0", False), ("null", "false", False),
        ('"1"', "1", False),
        ("9007199254740993", "9007199254740992", False), ("9007199254740993", "9007199254740993.0", True),
        ("0.1", "0.1000000000000000055", False), ("1E400", "1E401", False), ("1E400", "10E399", True),
        (LONG, LONG, True), (LONG, LONG[:-1] + "6", False), ("1e999999999", "1", False), (str(10**30), "1e30", True),
        ("1e99999999999999999999", "1E99999999999999999999", True), ("1e99999999999999999999", "1", False),
        ('{"a":1,"b":[true]}', '{"b":[true],"a":1.0}', True), ('{"a":1}', '{"a":1,"b":null}', False),
        ("[1,2]", "[2,1]", False), ("[]", "{}", False), ("[1]", "[true]", False), ('{"a":null}', '{"b":null}', False),
    ],
)  # fmt: skip
def test_equality_is_exact(left: str, right: str, same: bool) -> None:
    for a, b in ((left, right), (right, left)):
        assert equal(loads(a.encode()), loads(b.encode())) is same


# Hostile deltas


def test_doubling_by_copies_ends_before_it_takes_memory() -> None:
    double = '{"op":"copy","from":"","path":"/%d"}'
    patch = "[" + ",".join(double % n for n in range(60)) + "]"
    tracemalloc.start()
    with pytest.raises(MergeError, match="copies more than"):
        merged((PATCH, "/", patch), base='{"a":[1,2,3]}')
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**28


def test_copies_of_one_long_string_are_bounded_too() -> None:
    patch = "[" + ",".join(f'{{"op":"copy","from":"/s","path":"/{n}"}}' for n in range(40)) + "]"
    with pytest.raises(MergeError, match="copies more than"):
        merged((PATCH, "/", patch), base='{"s":"%s"}' % ("x" * 2**20))


def test_copies_of_many_small_values_are_bounded_too() -> None:
    patch = '[{"op":"copy","from":"/s","path":"/a"},{"op":"copy","from":"/s","path":"/b"}]'
    assert merged((PATCH, "/", patch), base='{{"s":[{}]}}'.format(",".join(["0"] * 1000))).count("0") == 3000
    with pytest.raises(MergeError, match=r"operation 1 .* copies more than"):
        merged((PATCH, "/", patch), base='{{"s":[{}]}}'.format(",".join(["[]"] * 300_000)))


MOVE_DOWN = '[{"op":"%s","from":"/a","path":"/b/b/b/b/b/b/b/b/b/b/b/b/b/b/b"}]'


@pytest.mark.parametrize(
    "deltas",
    [
        [(PATCH, "/", '[{"op":"add","path":"%s","value":1}]' % ("/a" * 600))],
        [(PATCH, "/", '[{"op":"add","path":"%s","value":1}]' % ("/a" * 100_000))],
        [(PATCH, "/", '[{"op":"add","path":"%s","value":1}]' % ("/" * 600))],
        [(REPLACE, "/a" * 300, nested(300).decode())],
        [(REPLACE, "/a" * 300, nested(500).decode()), (MERGE, "/" + "b" * 20, "{}")],
        [(REPLACE, "/", f'{{"a":{nested(500).decode()}}}'), (PATCH, "/", MOVE_DOWN % "move")],
        [(REPLACE, "/", f'{{"a":{nested(500).decode()}}}'), (PATCH, "/", MOVE_DOWN % "copy")],
    ],
    ids=range(7),
)  # fmt: skip
def test_a_document_that_grows_too_deep_is_a_merge_error(deltas: list[tuple[int, str, str]]) -> None:
    with pytest.raises(MergeError, match="512 deep"):
        merged(*deltas)


def test_a_document_of_just_the_depth_allowed_is_written() -> None:
    text = merged((REPLACE, "/" + "a/" * 11 + "a", nested(500).decode()))
    assert loads(text.encode())
    assert text.count("{") + text.count("[") == MAX_DEPTH


def test_values_of_the_depth_allowed_can_be_compared() -> None:
    fold = Fold(nested(MAX_DEPTH - 2))
    fold.apply(PATCH, "/", b'[{"op":"test","path":"","value":' + nested(MAX_DEPTH - 2) + b"}]")
    assert fold.dump() == nested(MAX_DEPTH - 2)


# Independent implementations


@given(strategies.json_values, strategies.merge_patches)
def test_merge_patches_equal_the_package(document: Any, patch: Any) -> None:
    expected = json_merge_patch.merge(copy.deepcopy(document), copy.deepcopy(patch))
    assert canonical(merge_patch(copy.deepcopy(document), copy.deepcopy(patch))) == canonical(expected)


@given(st.data())
def test_json_patches_equal_the_package(data: st.DataObject) -> None:
    document = data.draw(strategies.documents)
    current, patch = copy.deepcopy(document), []
    for _ in range(data.draw(st.integers(1, 5))):
        operation = data.draw(strategies.json_patch_operations(current))
        patch.append(operation)
        current = jsonpatch.apply_patch(current, [copy.deepcopy(operation)])
    got = apply_patch(copy.deepcopy(document), check_patch(copy.deepcopy(patch)))
    assert canonical(got) == canonical(current)


@given(strategies.documents, st.lists(st.tuples(strategies.field_paths, strategies.merge_patches), max_size=4))
def test_a_fold_can_stop_and_go_on_anywhere(document: Any, changes: list[tuple[str, Any]]) -> None:
    whole = Fold(dumps(document))
    stepwise = dumps(document)
    for path, patch in changes:
        whole.apply(MERGE, path, dumps(patch))
        step = Fold(stepwise)
        step.apply(MERGE, path, dumps(patch))
        stepwise = step.dump()
    assert whole.dump() == stepwise


# Differences


@given(strategies.json_values, strategies.json_values)
def test_a_json_patch_diff_turns_one_document_into_the_other(before: Any, after: Any) -> None:
    fold = Fold(dumps(before))
    fold.apply(PATCH, "/", dumps(diff(before, after, PATCH)))
    assert canonical(fold.value) == canonical(after)


@given(strategies.json_values, strategies.json_values)
def test_a_merge_patch_diff_does_so_or_says_that_it_cannot(before: Any, after: Any) -> None:
    try:
        patch = diff(before, after, MERGE)
    except InvalidBody:
        assert b"null" in dumps(after)
        return
    fold = Fold(dumps(before))
    fold.apply(MERGE, "/", dumps(patch))
    assert canonical(fold.value) == canonical(after)


def test_diffs_tell_apart_what_python_does_not() -> None:
    before, after = {"a": 1, "b": [1], "c": 1.5}, {"a": True, "b": [1.0], "c": Number("1.50")}
    assert canonical(diff(before, after, MERGE)) == canonical(after)
    fold = Fold(dumps(before))
    fold.apply(PATCH, "/", dumps(diff(before, after, PATCH)))
    assert canonical(fold.value) == canonical(after)


def test_a_merge_patch_diff_is_minimal_and_ordered() -> None:
    before = {"gone": 1, "lost": 2, "same": {"x": None}, "in": {"a": 1, "b": 2}}
    after = {"same": {"x": None}, "in": {"a": 1, "b": 3}, "list": [None, {"n": None}]}
    assert dumps(diff(before, after, MERGE)) == (b'{"gone":null,"lost":null,"in":{"b":3},"list":[null,{"n":null}]}')
    with pytest.raises(InvalidBody, match="the null at /in/c"):
        diff(before, {"in": {"c": None}}, MERGE)


def test_a_diff_never_changes_its_arguments() -> None:
    before, after = {"a": [1, {"b": 2}]}, {"a": [{"b": 3}, 1], "c": {"d": {}}}
    kept = copy.deepcopy((before, after))
    for merge_type in (REPLACE, MERGE, PATCH):
        diff(before, after, merge_type)
    assert (before, after) == kept


@pytest.mark.parametrize("merge_type", [MERGE, PATCH])
def test_documents_of_the_depth_allowed_have_a_diff(merge_type: int) -> None:
    depth = MAX_DEPTH - 5
    before, after = (b'{"a":' * depth + leaf + b"}" * depth for leaf in (b"1", b"2"))
    fold = Fold(before)
    fold.apply(merge_type, "/", dumps(diff(loads(before), loads(after), merge_type)))
    assert fold.dump() == after
