"""The columns of a read: those of its view, or what a schema or a sample makes of the documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from lake_spark.client.session import Session
from lake_spark.errors import ConfigError, InvalidBody, InvalidInput
from lake_spark.merge import loads
from lake_spark.options import BatchOptions
from lake_spark.spark.fitting import Fields, converter
from lake_spark.spark.planning import first_names_of, plan
from lake_spark.spark.variant import variant_of
from lake_spark.spark.views import VIEWS, view_batches

# Views with a column that holds documents.
_WITH_DOCUMENTS = ("documents", "history")


def view_schema(options: BatchOptions) -> t.StructType:
    """The columns of the view, or those of them that the options ask for."""
    view = VIEWS[options.view]
    names = [name.strip() for name in options.columns.split(",")] if options.columns else view.names
    for name in names:
        if name not in view.names:
            raise ConfigError(
                f"option columns has {name!r}: view {options.view} has the columns {', '.join(view.names)}"
            )
    if len(set(names)) < len(names):
        raise ConfigError(f"option columns has a column twice: {options.columns}")
    if options.document_type == "variant" and options.view not in _WITH_DOCUMENTS:
        raise ConfigError(f"documentType=variant: view {options.view} has no column document")
    schema = from_arrow_schema(pa.schema([view.field(name) for name in names]))
    if options.document_type == "variant":
        schema = t.StructType(
            [t.StructField(f.name, t.VariantType(), f.nullable) if f.name == "document" else f for f in schema]
        )
    return schema


def inferred_schema(session: Session, options: BatchOptions) -> t.StructType:
    """The catalog, and the fields of a sample of documents, by name.

    A field that is an int here and a decimal there is a double; one that is anything else is a string, which takes
    all. Fields that have the name of a column of the view are left out.
    """
    if options.view != "documents":
        raise ConfigError(f"inferSchema looks at documents, and view {options.view} has other rows")
    if options.columns or options.document_type != "string":
        raise ConfigError("inferSchema makes columns of the documents: leave columns and documentType out")
    corrupt = options.column_name_of_corrupt_record
    fields: dict[str, Any] = {}
    documents = failures = 0
    for document in _sample(session, options):
        documents += 1
        value = None if document is None else loads(document.encode())
        if type(value) is dict:
            _merge_fields(fields, value)
        else:
            failures += 1
    if not documents:
        raise ConfigError("inferSchema found no document to look at: select others, or give .schema(…)")
    own = set(VIEWS["documents"].names) | {corrupt}
    columns = [t.StructField("catalog", t.StringType(), False)]
    columns += [t.StructField(name, _spark_type(fields[name])) for name in sorted(fields) if name not in own]
    if failures and options.mode == "PERMISSIVE":
        columns.append(t.StructField(corrupt, t.StringType()))
    return t.StructType(columns)


def _sample(session: Session, options: BatchOptions) -> Iterator[str | None]:
    """So many documents: names are spread over shards by their hash, so those of a few shards are a fair sample."""
    left = options.sample_size
    for part in plan(session.index, replace(options, num_partitions=1)):
        for task in part:
            names = first_names_of(session.index, task)
            while left and (found := sorted(islice(names, left))):
                some = replace(task, catalogs=tuple(found), part=0, parts=1)
                batches = view_batches(
                    session, "documents", ["catalog", "document"], [some], options.batch_bytes, snapshots=False
                )
                for batch in batches:
                    left -= batch.num_rows
                    yield from batch.column("document").to_pylist()


# A type being inferred: None for nulls only, a dict for an object, a list of one for an array, else a Spark type.


def _type(value: Any) -> Any:
    if value is None:
        return None
    kind = type(value)
    if kind is dict:
        found: dict[str, Any] = {}
        _merge_fields(found, value)
        return found
    if kind is list:
        item = None
        for each in value:
            item = _common(item, _type(each))
        return [item]
    if kind is bool:
        return t.BooleanType()
    if kind is str:
        return t.StringType()
    if kind is int:
        if -(1 << 63) <= value < 1 << 63:
            return t.LongType()
        return t.DecimalType(38, 0) if abs(value) < 10**38 else t.StringType()
    return t.DoubleType()


def _merge_fields(fields: dict[str, Any], value: Mapping[str, Any]) -> None:
    for name, each in value.items():
        fields[name] = _common(fields.get(name), _type(each))


def _common(one: Any, other: Any) -> Any:
    """The type that takes the values of both."""
    if one is None or one == other:
        return other
    if other is None:
        return one
    if type(one) is dict and type(other) is dict:
        return {**one, **{name: _common(one.get(name), kind) for name, kind in other.items()}}
    if type(one) is list and type(other) is list:
        return [_common(one[0], other[0])]
    kinds = {type(one), type(other)}
    for wider in (t.DoubleType(), t.DecimalType(38, 0)):
        if type(wider) in kinds and kinds <= {t.LongType, t.DecimalType, t.DoubleType}:
            return wider
    return t.StringType()


def _spark_type(found: Any) -> t.DataType:
    if found is None or found == {}:
        return t.StringType()
    if type(found) is dict:
        return t.StructType([t.StructField(name, _spark_type(found[name])) for name in sorted(found)])
    if type(found) is list:
        return t.ArrayType(_spark_type(found[0]))
    assert isinstance(found, t.DataType)
    return found


# A schema that was given


def check_schema(options: BatchOptions, schema: t.StructType) -> None:
    """Refuse a schema that the view cannot have, before any task runs."""
    own = from_arrow_schema(VIEWS[options.view])
    names = {name.lower(): name for name in schema.names}
    if len(names) < len(schema.names):
        raise ConfigError(f"the schema has a column twice: {', '.join(schema.names)}")
    for field in schema:
        if field.name in own.names:
            _check_own(options, field, own[field.name])
        elif options.view != "documents":
            raise ConfigError(f"view {options.view} has no column {field.name}, but {', '.join(own.names)}")
        elif field.name == options.column_name_of_corrupt_record:
            if not isinstance(field.dataType, t.StringType) or not field.nullable:
                raise ConfigError(f"column {field.name} says why a document does not fit: it is a STRING that is null")
        else:
            if not field.nullable:
                raise ConfigError(f"column {field.name} cannot be NOT NULL: a document may lack any field")
            converter(field.dataType, field.name)
    if options.columns and schema.names != view_schema(options).names:
        raise ConfigError("the schema names the columns already: leave the option columns out")


def _check_own(options: BatchOptions, field: t.StructField, own: t.StructField) -> None:
    variant = field.name == "document" and isinstance(field.dataType, t.VariantType)
    if field.dataType != own.dataType and not variant:
        kind = own.dataType.simpleString()
        raise ConfigError(
            f"column {field.name} of view {options.view} is {kind}, not {field.dataType.simpleString()}: a field of "
            "the document that has this name is read from the column document"
        )
    if own.nullable and not field.nullable:
        raise ConfigError(f"column {field.name} of view {options.view} can be null: leave NOT NULL out")


def fields_of(options: BatchOptions, schema: t.StructType) -> list[t.StructField]:
    """The columns that are fields of the document."""
    own = {*VIEWS[options.view].names, options.column_name_of_corrupt_record}
    return [field for field in schema if field.name not in own]


class Shape:
    """The rows of a view as a schema has them."""

    def __init__(self, options: BatchOptions, schema: t.StructType) -> None:
        self._options = options
        self._arrow = _arrow_schema(schema)
        self._own = [name for name in schema.names if name in VIEWS[options.view].names]
        fields = fields_of(options, schema)
        corrupt = options.column_name_of_corrupt_record
        self._tells = corrupt in schema.names and corrupt not in self._own
        # A schema without any field may still ask which documents are no objects.
        self._fits = bool(fields) or self._tells
        self._fields = Fields(fields, [self._arrow.field(field.name).type for field in fields])
        self._names = [field.name for field in fields]
        self._variant = any(isinstance(f.dataType, t.VariantType) for f in schema if f.name in self._own)

    @property
    def columns(self) -> list[str]:
        """The columns of the view that are needed."""
        wanted = set(self._own)
        if self._fits or self._variant:
            wanted |= {"catalog", "document", "error"}
        return [name for name in VIEWS[self._options.view].names if name in wanted]

    def batches(self, found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in found:
            shaped = self._batch(batch)
            if shaped.num_rows:
                yield shaped

    def _batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns: dict[str, Any] = {name: batch.column(name) for name in batch.schema.names}
        if self._variant:
            columns = {**columns, **_as_variant(columns, self._arrow.field("document").type)}
        reasons: dict[int, str] = {}
        if self._fits:
            errors = batch.column("error").to_pylist()
            reasons = {row: error for row, error in enumerate(errors) if error is not None}
            columns.update(
                zip(self._names, self._fields.fit(batch.column("document").to_pylist(), reasons), strict=True)
            )
            if reasons and self._options.mode == "FAILFAST":
                self._fail(batch, reasons)
            if self._tells:
                name = self._options.column_name_of_corrupt_record
                columns[name] = pa.array([reasons.get(row) for row in range(batch.num_rows)], pa.string())
        shaped = pa.RecordBatch.from_arrays([columns[name] for name in self._arrow.names], schema=self._arrow)
        if reasons and self._options.mode == "DROPMALFORMED":
            shaped = shaped.filter(pa.array([row not in reasons for row in range(batch.num_rows)], pa.bool_()))
        return shaped

    def _fail(self, batch: pa.RecordBatch, reasons: Mapping[int, str]) -> None:
        row = min(reasons)
        catalog = batch.column("catalog")[row].as_py()
        raise InvalidInput(
            f"the document of catalog {catalog!r} does not fit the schema: {reasons[row]}; change the schema, or read "
            "with mode PERMISSIVE or DROPMALFORMED"
        )


def _as_variant(columns: Mapping[str, Any], kind: pa.DataType) -> dict[str, Any]:
    """The documents as VARIANT; one that VARIANT cannot hold is null, and its error says why."""
    documents: Sequence[str | None] = columns["document"].to_pylist()
    errors: list[str | None] = columns["error"].to_pylist()
    values: list[dict[str, bytes] | None] = []
    for row, document in enumerate(documents):
        made = None
        if document is not None:
            try:
                value, metadata = variant_of(document)
                made = {"value": value, "metadata": metadata}
            except InvalidBody as error:
                errors[row] = str(error)
        values.append(made)
    return {"document": pa.array(values, kind), "error": pa.array(errors, pa.string())}


def _arrow_schema(schema: t.StructType) -> pa.Schema:
    """What Spark takes such rows as; its function got another parameter on the way."""
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:
        return to_arrow_schema(schema)
