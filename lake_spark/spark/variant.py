"""JSON as Spark's VARIANT: the binary form that its tasks exchange, built in Python.

By hand, because the encoder in pyspark takes five times as long, and takes numbers that a double cannot hold for
infinity.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from lake_spark.errors import InvalidBody
from lake_spark.merge import Number, loads

# What every Spark that knows VARIANT takes.
MAX_BYTES = (1 << 24) - 1

_VERSION = 1
_NULL, _TRUE, _FALSE = b"\x00", b"\x04", b"\x08"
_INTEGERS = ((1, 3), (2, 4), (4, 5), (8, 6))
_DECIMALS = ((9, 4, 8), (18, 8, 9), (38, 16, 10))
_DOUBLE, _LONG_STRING = bytes([7 << 2]), bytes([16 << 2])
_SHORT_STRING = 63
_OBJECT, _ARRAY = 2, 3
_pack_double = struct.Struct("<d").pack
_SMALL = {n: bytes([3 << 2]) + n.to_bytes(1, "little", signed=True) for n in range(-128, 128)}


def variant_of(document: bytes | str) -> tuple[bytes, bytes]:
    """Value and metadata of a JSON text, numbers as `parse_json` has them; what they could not hold is refused."""
    return encode(loads(document.encode() if isinstance(document, str) else document))


def encode(value: Any) -> tuple[bytes, bytes]:
    """Value and metadata of a value that `loads` made."""
    keys: dict[str, int] = {}
    body = _value(value, keys)
    names = [key.encode() for key in keys]
    metadata = _metadata(names)
    if len(body) > MAX_BYTES or len(metadata) > MAX_BYTES:
        raise InvalidBody(f"it is too big for VARIANT, which ends at {MAX_BYTES} bytes: read it as a string")
    return body, metadata


def _metadata(names: list[bytes]) -> bytes:
    text = b"".join(names)
    width = _width(max(len(text), len(names)))
    offsets, at = [0], 0
    for name in names:
        at += len(name)
        offsets.append(at)
    return bytes([_VERSION | (width - 1) << 6]) + _numbers([len(names), *offsets], width) + text


def _value(value: Any, keys: dict[str, int]) -> bytes:
    kind = type(value)
    if kind is str:
        text: bytes = value.encode()
        if len(text) <= _SHORT_STRING:
            return bytes([len(text) << 2 | 1]) + text
        return _LONG_STRING + len(text).to_bytes(4, "little") + text
    if kind is int:
        return _SMALL.get(value) or _integer(value)
    if kind is dict:
        return _object(value, keys)
    if kind is list:
        items = [_value(item, keys) for item in value]
        return _container(_ARRAY, items, [])
    if value is None:
        return _NULL
    if kind is bool:
        return _TRUE if value else _FALSE
    return _decimal(value.text if kind is Number else repr(value), value)


def _object(value: dict[str, Any], keys: dict[str, int]) -> bytes:
    # The JVM looks fields up by halving, in its order of strings.
    names = sorted(value) if all(map(str.isascii, value)) else sorted(value, key=lambda key: key.encode("utf-16-be"))
    ids = [keys.setdefault(name, len(keys)) for name in names]
    return _container(_OBJECT, [_value(value[name], keys) for name in names], ids)


def _container(kind: int, items: list[bytes], ids: list[int]) -> bytes:
    offsets, at = [0], 0
    for item in items:
        at += len(item)
        offsets.append(at)
    if at > MAX_BYTES:
        raise InvalidBody(f"it is too big for VARIANT, which ends at {MAX_BYTES} bytes: read it as a string")
    large = len(items) > 255
    offset_width, id_width = _width(at), _width(max(ids, default=0))
    if kind == _OBJECT:
        header = large << 6 | (id_width - 1) << 4 | (offset_width - 1) << 2 | kind
    else:
        header = large << 4 | (offset_width - 1) << 2 | kind
    count = len(items).to_bytes(4 if large else 1, "little")
    return b"".join((bytes([header]), count, _numbers(ids, id_width), _numbers(offsets, offset_width), *items))


def _width(value: int) -> int:
    return 1 if value < 1 << 8 else 2 if value < 1 << 16 else 3


def _numbers(values: list[int], width: int) -> bytes:
    if width == 1:
        return bytes(values)
    return b"".join([value.to_bytes(width, "little") for value in values])


def _integer(value: int) -> bytes:
    for width, kind in _INTEGERS:
        if -(1 << (8 * width - 1)) <= value < 1 << (8 * width - 1):
            return bytes([kind << 2]) + value.to_bytes(width, "little", signed=True)
    if abs(value) < 10**38:
        return _unscaled(value, len(str(abs(value))), 0)
    raise InvalidBody("a whole number of more than 38 digits is none of VARIANT's: read it as a string")


def _decimal(text: str, value: float) -> bytes:
    """A number with a point is a decimal while its digits fit; with an exponent it is a double, as in Spark."""
    whole, _, fraction = text.partition(".")
    if "e" not in text and "E" not in text:
        digits = (whole + fraction).lstrip("-").lstrip("0")
        if len(digits) <= 38 and len(fraction) <= 38:
            return _unscaled(int(whole + fraction), len(digits), len(fraction))
        if not fraction:
            raise InvalidBody("a whole number of more than 38 digits is none of VARIANT's: read it as a string")
    if math.isinf(value):
        raise InvalidBody(f"{text[:40]} is beyond VARIANT's numbers: read it as a string")
    return _DOUBLE + _pack_double(value)


def _unscaled(value: int, digits: int, scale: int) -> bytes:
    for most, width, kind in _DECIMALS:
        if digits <= most and scale <= most:
            return bytes([kind << 2, scale]) + value.to_bytes(width, "little", signed=True)
    raise AssertionError("unreachable")
