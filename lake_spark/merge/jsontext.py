"""JSON text to Python values and back: strict, and every number keeps its digits."""

from __future__ import annotations

import json
import math
import re
import secrets
from typing import Any, NoReturn

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lake_spark.errors import InvalidBody

MAX_DEPTH = 512

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
_NEGATIVE_ZERO = re.compile(rb"-0(?:[\s,\]}]|\Z)")


class Number(float):
    """A number whose digits an int or a float would not keep, such as 1.50, 1e2, -0 or 1E400.

    It computes and compares as the nearest float; `text` is how it is written.
    """

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Number:
        if not _NUMBER.fullmatch(text):
            raise ValueError(f"not a JSON number: {text!r}")
        self = super().__new__(cls, text)
        self.text = text
        return self

    def __repr__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[type[Number], tuple[str]]:
        return Number, (self.text,)


def _decimal(text: str) -> float:
    value = float(text)
    # The encoder spells a float as repr does, except for exponents.
    return value if repr(value) == text and "e" not in text else Number(text)


def _integer(text: str) -> float:
    if text == "-0":
        return Number(text)
    try:
        return int(text)
    except ValueError:  # more digits than the interpreter converts
        return Number(text)


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _as_builtin(value: object) -> Any:
    """Called for what the encoder does not know."""
    if isinstance(value, Number):
        return msgspec.Raw(value.text.encode())
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(by_alias=True)
    raise TypeError(f"a value of type {type(value).__module__}.{type(value).__qualname__}")


def _without_numbers(value: object) -> Any:
    return None if isinstance(value, Number) else _as_builtin(value)


# pyarrow's stubs do not know it for binary.
_join: Any = pc.binary_join
_decoder = msgspec.json.Decoder(float_hook=_decimal)
_skimmer = msgspec.json.Decoder(msgspec.Raw)
_decode = _decoder.decode
_encode = msgspec.json.Encoder(enc_hook=_as_builtin, decimal_format="number").encode
_encode_sorted = msgspec.json.Encoder(enc_hook=_as_builtin, order="sorted").encode


def loads(data: bytes) -> Any:
    """The value of a JSON text. Of duplicate keys the last wins; NaN and Infinity are refused."""
    try:
        value = _decode(data)
    except msgspec.ValidationError:  # an integer too long for the decoder
        return _loads_slowly(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidBody(f"not JSON: {str(error).removeprefix('JSON is malformed: ')}") from None
    except RecursionError:
        raise InvalidBody(f"nested more than {MAX_DEPTH} deep") from None
    if b"-0" in data and _NEGATIVE_ZERO.search(data):
        return _loads_slowly(data)
    return value


def loads_each(texts: Any) -> list[Any]:
    """The values of many JSON texts (a binary Arrow array), as `loads` gives them, in less time than one by one.

    If any of them is not JSON the error does not say which.
    """
    joined, mark = _joined(texts)
    values = _separated(_decoder, joined, mark, len(texts))
    # An integer that the decoder refuses or changes; or no JSON at all.
    if values is None or _NEGATIVE_ZERO.search(joined):
        return [loads(text) for text in texts.to_pylist()]
    return values


def are_json(texts: Any) -> bool:
    """Whether each of many texts (an Arrow array, UTF-8) is JSON, without making values of them.

    A text that `loads` takes only on its slow way may count as none.
    """
    joined, mark = _joined(texts)
    return _separated(_skimmer, joined, msgspec.Raw(b"%d" % mark), len(texts)) is not None


def _joined(texts: Any) -> tuple[Any, int]:
    """The texts, with a number between each two of them that none of them can know."""
    mark = secrets.randbits(63)
    everything = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts.cast(pa.binary()))
    return _join(everything, pa.scalar(b"\n%d\n" % mark, pa.binary()))[0].as_buffer(), mark


def _separated(decoder: msgspec.json.Decoder[Any], joined: Any, mark: Any, count: int) -> list[Any] | None:
    """The values of so many texts. Where every second one is the mark, no text ended early or reached into the next."""
    try:
        values = decoder.decode_lines(joined)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    found = values[::2]
    good = len(values) == max(0, 2 * count - 1) and values[1::2].count(mark) == len(values) - len(found)
    return found if good else None


def _loads_slowly(data: bytes) -> Any:
    """As `loads`, for the integers that the fast decoder refuses or changes."""
    try:
        value = json.loads(str(data, "utf-8"), parse_int=_integer, parse_float=_decimal, parse_constant=_constant)
        _encode(value)  # refuses lone surrogates, which this decoder lets through
    except ValueError as error:
        raise InvalidBody(f"not JSON: {error}") from None
    except RecursionError:
        raise InvalidBody(f"nested more than {MAX_DEPTH} deep") from None
    return value


def dumps(value: Any) -> bytes:
    """The text of a value that `loads` made, or one like it; numbers are spelled as they were."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        raise InvalidBody("a string has a lone surrogate, which is not valid Unicode") from None
    except (TypeError, ValueError) as error:
        raise InvalidBody(f"cannot be written as JSON: {error}") from None
    except RecursionError:
        raise InvalidBody(f"nested more than {MAX_DEPTH} deep, or contains itself") from None


def pretty(data: bytes) -> bytes:
    """A JSON text, indented for people; numbers, strings and the order of keys stay as they are."""
    return msgspec.json.format(data, indent=2)


def canonical(value: Any) -> str:
    """The same text for two documents exactly when they differ in nothing but the order of keys."""
    return _encode_sorted(value).decode()


def encode(value: Any) -> bytes:
    """Any Python value as a JSON body: plain values, dataclasses, structs, models, dates, Decimals."""
    body = dumps(value)
    # The encoder writes null for NaN and for Infinity.
    if b"null" in body:
        _refuse_non_finite(value)
    # It also writes Decimals unchecked, as keys too.
    loads(body)
    return body


def _refuse_non_finite(value: Any) -> None:
    try:
        todo = [msgspec.to_builtins(value, str_keys=True, enc_hook=_without_numbers)]
    except RecursionError:
        raise InvalidBody(f"nested more than {MAX_DEPTH} deep") from None
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo.extend(value.values())
        elif isinstance(value, (list, tuple)):
            todo.extend(value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise InvalidBody(f"{value} is not a JSON number")


def check_depth(data: bytes, value: Any) -> None:
    """Refuse a body, given as text and as its value, that nests too deep to be merged safely."""
    # Counting brackets is far cheaper than walking, and nearly always enough.
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and too_deep(value):
        raise InvalidBody(f"nested more than {MAX_DEPTH} deep")


def too_deep(value: Any) -> bool:
    """Whether arrays and objects nest more than MAX_DEPTH deep; level by level, so never recursing."""
    level = [value] if type(value) in (dict, list) else []
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return False
    return True
