"""Documents as columns: each top-level field as the type that a schema gives it. Runs without a Spark session.

Values are taken as `from_json` takes them, except that nothing is changed to make it fit: a number beyond its
column's type is a misfit.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import math
import re
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
from pyspark.sql import types as t

from lake_spark.errors import ConfigError, InvalidBody
from lake_spark.merge import Number, dumps, loads
from lake_spark.spark.variant import encode

Convert = Callable[[Any], Any]

_BITS: dict[type[t.DataType], int] = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}
_LARGEST_FLOAT = 3.4028235677973366e38
_CONTEXT = Context(prec=76, rounding=ROUND_HALF_UP)
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_INTEGER = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_NOT_FINITE = {
    **dict.fromkeys(("Infinity", "+Infinity", "INF", "+INF"), math.inf),
    **dict.fromkeys(("-Infinity", "-INF"), -math.inf),
    "NaN": math.nan,
}
_DATE = r"([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
_DATE_ONLY = re.compile(_DATE + r"(?:[ T].*)?)?)?", re.ASCII)
_MOMENT = re.compile(
    _DATE + r"(?:[ T]([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{1,9}))?)? ?(Z|[A-Za-z+\-].*)?)?)?)?", re.ASCII
)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{2}))?", re.ASCII)
_EPOCH = datetime.datetime(1970, 1, 1)


class Misfit(Exception):
    """A value that is not of its column's type."""

    def __init__(self, value: Any, kind: str) -> None:
        super().__init__()
        self.value, self.kind = value, kind
        self.path: list[str] = []

    def __str__(self) -> str:
        text = dumps(self.value).decode()
        shown = text if len(text) < 80 else text[:60] + "…"
        return f"{'.'.join(reversed(self.path))} is {shown}, which is no {self.kind}"


class Fields:
    """The fields that a schema names, taken out of documents, many at a time."""

    def __init__(self, fields: Sequence[t.StructField], arrow: Sequence[pa.DataType]) -> None:
        self._names = [field.name for field in fields]
        self._arrow = arrow
        self._columns = [_Column(field) for field in fields]
        # Skips what nobody asked for instead of building it.
        named = {f"f{place}": name for place, name in enumerate(self._names)}
        kind: Any = msgspec.defstruct("Wanted", [(key, Any, None) for key in named], rename=named)
        self._decode = msgspec.json.Decoder(kind, float_hook=_float).decode

    def fit(self, documents: Sequence[str | None], reasons: dict[int, str]) -> list[Any]:
        """A column of each field; the rows of documents that do not fit are null, with the reason in `reasons`."""
        empty = (None,) * len(self._names)
        rows: list[Sequence[Any]] = []
        for row, document in enumerate(documents):
            found: Sequence[Any] = empty
            if document is not None and row not in reasons:
                try:
                    found = self._values(document)
                except InvalidBody as error:
                    reasons[row] = str(error)
            rows.append(found)
        columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in self._names]
        fitted = [column.fit(values, reasons) for column, values in zip(self._columns, columns, strict=True)]
        for values in fitted if reasons else ():
            for row in reasons:
                values[row] = None
        return [pa.array(values, kind) for values, kind in zip(fitted, self._arrow, strict=True)]

    def _values(self, document: str) -> Sequence[Any]:
        # The fast way would make 0 of -0, and does not take integers of any length.
        if "-0" not in document:
            try:
                return msgspec.structs.astuple(self._decode(document))
            except msgspec.MsgspecError:
                pass
        value = loads(document.encode())
        if type(value) is not dict:
            raise InvalidBody(f"the document is no object but {_shown(value)}")
        return [value.get(name) for name in self._names]


def _shown(value: Any) -> str:
    text = dumps(value).decode()
    return text if len(text) < 80 else text[:60] + "…"


def _float(text: str) -> float:
    value = float(text)
    return value if repr(value) == text and "e" not in text else Number(text)


class _Column:
    """One field: fast where all values are what they should be, value by value where they are not."""

    def __init__(self, field: t.StructField) -> None:
        self._name = field.name
        self._convert = converter(field.dataType, field.name)
        self._plain: type | None = None
        self._bits = _BITS.get(type(field.dataType))
        for kind, plain in ((t.StringType, str), (t.BooleanType, bool), (t.DoubleType, float)):
            if type(field.dataType) is kind:
                self._plain = plain
        if self._bits:
            self._plain = int

    def fit(self, values: list[Any], reasons: dict[int, str]) -> list[Any]:
        kinds = set(map(type, values))
        kinds.discard(type(None))
        if not kinds or (kinds == {self._plain} and self._in_range(values)):
            return values
        for row, value in enumerate(values):
            if value is not None and row not in reasons:
                try:
                    values[row] = self._convert(value)
                except Misfit as misfit:
                    misfit.path.append(self._name)
                    reasons[row] = str(misfit)
                except InvalidBody as error:
                    reasons[row] = f"{self._name}: {error}"
        return values

    def _in_range(self, values: list[Any]) -> bool:
        if not self._bits:
            return True
        numbers: list[int] = [value for value in values if value is not None]
        return -(1 << (self._bits - 1)) <= min(numbers) and max(numbers) < 1 << (self._bits - 1)


def converter(kind: t.DataType, name: str) -> Convert:
    """What makes a parsed value one of this type, or a ConfigError that no JSON value ever is."""
    made = _simple(kind)
    if made is not None:
        return made
    if isinstance(kind, t.DecimalType):
        return _decimal(kind)
    if isinstance(kind, t.ArrayType):
        _nullable(kind.containsNull, f"elements of {name}")
        return _array(converter(kind.elementType, f"{name}.element"))
    if isinstance(kind, t.MapType):
        _nullable(kind.valueContainsNull, f"values of {name}")
        if not isinstance(kind.keyType, t.StringType):
            raise ConfigError(f"column {name} is a map by {kind.keyType.simpleString()}: keys of JSON are strings")
        return _map(converter(kind.valueType, f"{name}.value"))
    if isinstance(kind, t.StructType):
        for field in kind:
            _nullable(field.nullable, f"{name}.{field.name}")
        if len(set(kind.names)) < len(kind.names):
            raise ConfigError(f"column {name} has two fields of one name")
        return _struct([(field.name, converter(field.dataType, f"{name}.{field.name}")) for field in kind])
    raise ConfigError(
        f"column {name} is {kind.simpleString()}, which is nothing in JSON: make it a string, and cast that"
    )


def _nullable(nullable: bool, what: str) -> None:
    if not nullable:
        raise ConfigError(f"{what} cannot be NOT NULL: a document may lack any field; leave NOT NULL out")


def _simple(kind: t.DataType) -> Convert | None:
    bits = _BITS.get(type(kind))
    if bits:
        return _integer(bits, kind.simpleString().upper())
    makers: dict[type[t.DataType], Convert] = {
        t.StringType: _string,
        t.BooleanType: _boolean,
        t.DoubleType: _double,
        t.FloatType: _single,
        t.BinaryType: _binary,
        t.DateType: _date,
        t.TimestampType: _timestamp,
        t.TimestampNTZType: _timestamp_ntz,
        t.VariantType: _variant,
    }
    return makers.get(type(kind))


def _string(value: Any) -> str:
    """Text, or the JSON of whatever it is."""
    return value if type(value) is str else dumps(value).decode()


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise Misfit(value, "BOOLEAN")
    return value


def _integer(bits: int, name: str) -> Convert:
    least, beyond = -(1 << (bits - 1)), 1 << (bits - 1)

    def convert(value: Any) -> int:
        if type(value) is Number and _INTEGER.fullmatch(value.text):
            value = int(value.text)
        if type(value) is not int or not least <= value < beyond:
            raise Misfit(value, name)
        return value

    return convert


def _double(value: Any) -> float:
    return _floating(value, "DOUBLE", math.inf)


def _single(value: Any) -> float:
    return _floating(value, "FLOAT", _LARGEST_FLOAT)


def _floating(value: Any, name: str, beyond: float) -> float:
    if type(value) is str and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    try:
        if type(value) in (int, float, Number):
            found = float(value)
            if abs(found) < beyond:
                return found
    except OverflowError:
        pass
    raise Misfit(value, name)


def _decimal(kind: t.DecimalType) -> Convert:
    name = kind.simpleString().upper()
    step, beyond = Decimal(1).scaleb(-kind.scale), Decimal(10) ** (kind.precision - kind.scale)

    def convert(value: Any) -> Decimal:
        try:
            found = _exact(value)
            if found is not None:
                rounded = found.quantize(step, context=_CONTEXT)
                if abs(rounded) < beyond:
                    return rounded
        except InvalidOperation:  # more digits than any decimal type has
            pass
        raise Misfit(value, name)

    return convert


def _exact(value: Any) -> Decimal | None:
    if type(value) is int:
        return Decimal(value)
    if type(value) is Number:
        return Decimal(value.text)
    if type(value) is float:
        return Decimal(repr(value))
    if type(value) is str and _DECIMAL.fullmatch(value.replace(",", "")):
        return Decimal(value.replace(",", ""))
    return None


def _binary(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise Misfit(value, "BINARY in base64") from None


def _date(value: Any) -> datetime.date:
    match = _DATE_ONLY.fullmatch(value.strip()) if type(value) is str else None
    try:
        if match:
            return datetime.date(*(int(part or 1) for part in match.groups()))
    except ValueError:
        pass
    raise Misfit(value, "DATE")


def _timestamp(value: Any) -> int:
    """Microseconds since 1970: of seconds, or of a text, which is in UTC where it names no zone."""
    if type(value) is int and abs(value) < 1 << 43:
        return value * 1_000_000
    return _moment(value, "TIMESTAMP", zoned=True)


def _timestamp_ntz(value: Any) -> int:
    return _moment(value, "TIMESTAMP_NTZ", zoned=False)


def _moment(value: Any, name: str, *, zoned: bool) -> int:
    match = _MOMENT.fullmatch(value.strip()) if type(value) is str else None
    try:
        if match and (zoned or not match[8]):
            year, month, day = (int(part or 1) for part in match.groups()[:3])
            hour, minute, second = (int(part or 0) for part in match.groups()[3:6])
            micros = int((match[7] or "").ljust(6, "0")[:6])
            moment = datetime.datetime(year, month, day, hour, minute, second, micros)
            if match[8]:
                moment = moment.replace(tzinfo=_zone(match[8].strip())).astimezone(datetime.timezone.utc)
            return (moment.replace(tzinfo=None) - _EPOCH) // datetime.timedelta(microseconds=1)
    except (ValueError, OverflowError, LookupError):
        pass
    raise Misfit(value, name)


def _zone(text: str) -> datetime.tzinfo:
    if text in ("Z", "UTC", "GMT", "UT"):
        return datetime.timezone.utc
    match = _OFFSET.fullmatch(text)
    if match is None:
        return ZoneInfo(text)
    size = datetime.timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
    if size > datetime.timedelta(hours=18):
        raise ValueError
    return datetime.timezone(size if match[1] == "+" else -size)


def _variant(value: Any) -> dict[str, bytes]:
    body, metadata = encode(value)
    return {"value": body, "metadata": metadata}


def _array(item: Convert) -> Convert:
    def convert(value: Any) -> list[Any]:
        if type(value) is not list:
            raise Misfit(value, "ARRAY")
        found = []
        for place, each in enumerate(value):
            try:
                found.append(None if each is None else item(each))
            except Misfit as misfit:
                misfit.path.append(str(place))
                raise
        return found

    return convert


def _map(item: Convert) -> Convert:
    def convert(value: Any) -> list[tuple[str, Any]]:
        return list(_entries(value, "MAP", ((key, item) for key in value) if type(value) is dict else ()))

    return convert


def _struct(fields: Sequence[tuple[str, Convert]]) -> Convert:
    def convert(value: Any) -> dict[str, Any]:
        return dict(_entries(value, "STRUCT", fields))

    return convert


def _entries(value: Any, name: str, wanted: Any) -> list[tuple[str, Any]]:
    if type(value) is not dict:
        raise Misfit(value, name)
    found = []
    for key, item in wanted:
        each = value.get(key)
        try:
            found.append((key, None if each is None else item(each)))
        except Misfit as misfit:
            misfit.path.append(key)
            raise
    return found
