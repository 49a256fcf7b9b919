"""Columns of a DataFrame as JSON bodies: structs, maps, arrays and variants, and whole rows of ordinary tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import Formatter
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType, VariantVal

from lake_spark.errors import ConfigError, InvalidBody
from lake_spark.merge import dumps, encode, loads

_Bodies = tuple[list[bytes | None], dict[int, str]]


def json_bodies(column: Any, kind: DataType, *, omit_nulls: bool = False) -> _Bodies:
    """Each value of an Arrow column of that type as JSON (None for null), and by place why one cannot be.

    Decimals keep their digits, times are ISO 8601, binary is base64. With `omit_nulls` the fields of structs that
    are null are left out.
    """
    change = _change(kind, omit_nulls)
    bodies: list[bytes | None] = []
    refused: dict[int, str] = {}
    for place, value in enumerate(column.to_pylist(maps_as_pydicts="strict")):
        try:
            bodies.append(None if value is None else _body(change(value) if change else value))
        except (InvalidBody, TypeError) as error:
            refused[place] = str(error)
            bodies.append(None)
    return bodies, refused


def _body(value: Any) -> bytes:
    body = dumps(value)
    # Where NaN and Infinity would be written as null, they are refused.
    return encode(value) if b"null" in body else body


def _change(kind: DataType, omit_nulls: bool) -> Callable[[Any], Any] | None:
    """What a value of this type needs before it is encoded; None if nothing."""
    if isinstance(kind, VariantType):
        return _variant
    if isinstance(kind, StructType):
        changes = {field.name: _change(field.dataType, omit_nulls) for field in kind.fields}
        if not omit_nulls and not any(changes.values()):
            return None
        return lambda value: {
            name: change(value[name]) if change and value[name] is not None else value[name]
            for name, change in changes.items()
            if not (omit_nulls and value[name] is None)
        }
    inner = (
        _change(kind.elementType if isinstance(kind, ArrayType) else kind.valueType, omit_nulls)
        if isinstance(kind, (ArrayType, MapType))
        else None
    )
    if inner is None:
        return None
    if isinstance(kind, ArrayType):
        return lambda value: [None if each is None else inner(each) for each in value]
    return lambda value: {key: None if each is None else inner(each) for key, each in value.items()}


def _variant(value: dict[str, bytes]) -> Any:
    """A variant comes as its two binaries."""
    return loads(VariantVal(value["value"], value["metadata"]).toJson().encode())


class RowBodies:
    """Ordinary tables: one column, or a template over several, names the catalog; the others are the body."""

    def __init__(self, schema: StructType, catalog_column: str, *, omit_nulls: bool) -> None:
        self._template = catalog_column
        self._parts = template_parts(schema, catalog_column)
        used = {name for _, name in self._parts}
        self._fields = [field for field in schema.fields if field.name not in used]
        self._kind = StructType(self._fields)
        self._omit_nulls = omit_nulls
        if not self._fields:
            raise ConfigError(f"catalogColumn {catalog_column!r} leaves no column for the body")

    def catalogs(self, batch: pa.RecordBatch) -> list[str | None]:
        """The catalog of each row; None where a part of its name is null."""
        texts = [[_text(value) for value in batch.column(name).to_pylist()] for _, name in self._parts if name]
        found: list[str | None] = []
        for values in zip(*texts, strict=True):
            given = iter(values)
            found.append(
                None
                if None in values
                else "".join(literal + (str(next(given)) if name else "") for literal, name in self._parts)
            )
        return found

    def bodies(self, batch: pa.RecordBatch) -> _Bodies:
        """The other columns of each row as a JSON object."""
        names = self._kind.names
        rows = pa.StructArray.from_arrays([batch.column(name) for name in names], names=names)
        return json_bodies(rows, self._kind, omit_nulls=self._omit_nulls)


def template_parts(schema: StructType, template: str) -> list[tuple[str, str]]:
    """A catalog's name as literals, each followed by the column whose value comes next ('' for none).

    A plain name is that column.
    """
    if template in schema.names:
        return [("", template)]
    known = ", ".join(schema.names)
    try:
        parts = [(literal, name, spec or conversion) for literal, name, spec, conversion in Formatter().parse(template)]
    except ValueError as error:
        raise ConfigError(f"catalogColumn {template!r} is no template: {error}") from None
    columns: Sequence[str] = [name for _, name, _ in parts if name is not None]
    if not columns:
        raise ConfigError(
            f"catalogColumn {template!r} is neither a column nor a template such as user-{{id}}; columns are {known}"
        )
    for name in columns:
        if name not in schema.names:
            raise ConfigError(
                f"catalogColumn {template!r} names a column {name!r} that is not there; there are {known}"
            )
    if any(extra for _, _, extra in parts):
        raise ConfigError(f"catalogColumn {template!r} has a format after a name: prepare such a column before")
    return [(literal, name or "") for literal, name, _ in parts]


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    text = dumps(value).decode()
    return text[1:-1] if text.startswith('"') else text
