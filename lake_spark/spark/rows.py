"""Rows of a DataFrame as checked rows of a segment: column by column, and one by one where something is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, DataType, StringType, StructType

from lake_spark.client.transaction import meta_text
from lake_spark.client.writing import Change, Fields, check_change, check_merge_type
from lake_spark.errors import InvalidBody, InvalidInput
from lake_spark.merge import are_json
from lake_spark.model import MergeType, TsSeq
from lake_spark.names import check_catalog, check_field_path
from lake_spark.options import BatchOptions
from lake_spark.spark.bodies import RowBodies, json_bodies

COLUMNS = ("catalog", "body", "path", "merge_type", "meta", "expected_version")
_BLANK = " \t\r\n"
# Only a body longer than this can nest too deep.
_SHALLOW = 512
# Bad rows that an error names.
SHOWN = 10

# pyarrow's stubs know these for fewer types than there are.
_trim: Any = pc.ascii_trim
_length: Any = pc.binary_length
_count: Any = pc.count_substring


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is refused, and the kind of error that it is."""

    kind: type[InvalidInput]
    number: int
    catalog: str | None
    reason: str
    body: str | None


@dataclass(slots=True)
class Rows:
    """Checked rows, as columns of a segment; meta and expected versions of their catalogs; and what was refused."""

    table: pa.Table
    meta: list[tuple[str, Fields]] = field(default_factory=list)
    expected: dict[str, TsSeq] = field(default_factory=dict)
    bad: list[BadRow] = field(default_factory=list)


class RowChecker:
    """Checks the batches of a task, in the order in which they come."""

    def __init__(self, schema: StructType, options: BatchOptions) -> None:
        self._options = options
        self._kinds: dict[str, DataType] = {each.name: each.dataType for each in schema.fields}
        self._whole: RowBodies | None = None
        if options.catalog_column:
            ordering = [name for name in sort_keys(options.order_by) if name not in schema.names]
            assert not ordering, "the driver has checked the columns"
            self._whole = RowBodies(schema, options.catalog_column, omit_nulls=omits_nulls(options))
        self._number = 0

    def check(self, batch: pa.RecordBatch) -> Rows:
        """The rows of a batch that are good, and why the others are not."""
        first = self._number
        self._number += batch.num_rows
        columns, refused = self._columns(batch)
        rows = None if refused else self._together(columns)
        return rows or self._one_by_one(columns, refused, first)

    def _columns(self, batch: pa.RecordBatch) -> tuple[dict[str, Any], dict[int, str]]:
        """The lake's columns of a batch, bodies as JSON; and the places of bodies that cannot be JSON."""
        options, count = self._options, batch.num_rows
        if self._whole:
            bodies, refused = self._whole.bodies(batch)
            columns: dict[str, Any] = {"catalog": pa.array(self._whole.catalogs(batch), pa.string())}
            columns["body"] = pa.array(bodies, pa.binary())
        else:
            columns = {name: batch.column(name) for name in COLUMNS if name in batch.schema.names}
            refused = {}
            kind = self._kinds["body"]
            if not isinstance(kind, (StringType, BinaryType)):
                bodies, refused = json_bodies(columns["body"], kind)
                columns["body"] = pa.array(bodies, pa.binary())
        defaults = {"catalog": options.catalog, "path": options.path or "/", "merge_type": options.merge_type}
        for name, default in defaults.items():
            if name not in columns:
                columns[name] = pa.repeat(pa.scalar(default, pa.string()), count)
            elif name != "catalog" and columns[name].null_count and pa.types.is_string(columns[name].type):
                columns[name] = columns[name].fill_null(default)
        return columns, refused

    def _together(self, columns: dict[str, Any]) -> Rows | None:
        """All rows at once; None if one of them is not plainly good."""
        try:
            kinds = _mapped(columns["merge_type"], lambda value: int(check_merge_type(value)))
            _mapped(columns["catalog"], check_catalog)
            _mapped(columns["path"], check_field_path)
            body = _trim(columns["body"].cast(pa.string()), _BLANK)
        except (InvalidInput, pa.ArrowInvalid):
            return None
        lengths = _length(body)
        longest = pc.max(lengths).as_py() or 0
        if body.null_count or (len(body) and not pc.min(lengths).as_py()) or longest > self._options.max_body_bytes:
            return None
        # Where there are so many brackets, the depth has to be counted.
        if longest > _SHALLOW and pc.max(pc.add(_count(body, "["), _count(body, "{"))).as_py() > _SHALLOW:
            return None
        if not are_json(body):
            return None
        merge_type = kinds.cast(pa.int8())
        slow = pc.equal(merge_type, pa.scalar(int(MergeType.RFC6902), pa.int8()))
        for name in ("meta", "expected_version"):
            if name in columns and columns[name].null_count < len(body):
                slow = pc.or_(slow, pc.is_valid(columns[name]))
        table = _table(columns["catalog"], merge_type, columns["path"], body)
        if not pc.any(slow).as_py():
            return Rows(table)
        return self._with_slow(columns, table, slow)

    def _with_slow(self, columns: dict[str, Any], table: pa.Table, slow: Any) -> Rows | None:
        """The rows whose patch, meta or expected version has to be looked at, each by itself."""
        rows = Rows(table)
        places = [place for place, each in enumerate(slow.to_pylist()) if each]
        keep = [True] * table.num_rows
        metas: list[str | None] = [None] * table.num_rows
        few = {name: column.take(pa.array(places)) for name, column in columns.items()}
        for place, values in zip(places, _values(few), strict=True):
            try:
                change = self._change(values)
                _note(rows, change, values)
            except InvalidInput:
                return None
            keep[place] = not change.only_meta
            metas[place] = meta_text(change.meta)
        rows.table = table.set_column(4, "meta", pa.array(metas, pa.string())).filter(pa.array(keep, pa.bool_()))
        return rows

    def _one_by_one(self, columns: dict[str, Any], refused: dict[int, str], first: int) -> Rows:
        rows = Rows(_table([], [], [], []))
        changes: list[Change] = []
        for place, values in enumerate(_values(columns)):
            try:
                if place in refused:
                    raise InvalidBody(f"the body is refused: {refused[place]}")
                change = self._change(values)
                _note(rows, change, values)
            except InvalidInput as error:
                catalog, body = values["catalog"], values["body"]
                text = body.decode(errors="replace") if isinstance(body, bytes) else body
                rows.bad.append(BadRow(type(error), first + place, catalog, str(error), text))
            else:
                if not change.only_meta:
                    changes.append(change)
        rows.table = _table(
            [change.catalog for change in changes],
            [int(change.merge_type) for change in changes],
            [change.path for change in changes],
            [change.body for change in changes],
            [meta_text(change.meta) for change in changes],
        )
        return rows

    def _change(self, values: dict[str, Any]) -> Change:
        body, meta, options = values["body"], values.get("meta"), self._options
        if body is None:
            raise InvalidBody(f"catalog {values['catalog']!r} has a row without a body: the JSON for nothing is null")
        path = options.path or "/" if values["path"] is None else values["path"]
        kind = options.merge_type if values["merge_type"] is None else values["merge_type"]
        return check_change(options.max_body_bytes, values["catalog"], _bytes(body), path, kind, _bytes(meta))


def _note(rows: Rows, change: Change, values: dict[str, Any]) -> None:
    if change.meta:
        rows.meta.append((change.catalog, change.meta))
    if values.get("expected_version") is not None:
        expect(rows.expected, change.catalog, TsSeq.parse(values["expected_version"]))


def expect(known: dict[str, TsSeq], catalog: str, version: TsSeq) -> None:
    """Note the version that a catalog must be at; two different ones are an error."""
    if known.setdefault(catalog, version) != version:
        raise InvalidInput(
            f"catalog {catalog!r} is expected at {known[catalog]} by one row and at {version} by another"
        )


def refusal(bad: Sequence[BadRow], partition: int) -> InvalidInput:
    """The error that tells of bad rows: the first of them, and how many there are. It is of the kind of the first."""
    lines = []
    for row in bad[:SHOWN]:
        named = "" if repr(row.catalog) in row.reason else f", catalog {row.catalog!r}"
        lines.append(f"row {row.number} of partition {partition}{named}: {row.reason}")
    more = f"\n(and {len(bad) - SHOWN} more)" if len(bad) > SHOWN else ""
    return bad[0].kind(
        "\n".join(lines) + more + "\nnothing was written; set badRecords to a folder to write the good rows"
    )


def sort_keys(order_by: str) -> dict[str, str]:
    """The columns to sort by, each `ascending` or `descending`."""
    names = [name.strip() for name in order_by.split(",") if name.strip()]
    return {name.removeprefix("-"): "descending" if name.startswith("-") else "ascending" for name in names}


def omits_nulls(options: BatchOptions) -> bool:
    """Whether the nulls of a whole row are left out of its body."""
    merges = check_merge_type(options.merge_type) is MergeType.RFC7396
    return options.null_fields == "omit" or (not options.null_fields and merges)


def replacing(tables: Iterable[Rows]) -> Iterator[Rows]:
    """Each catalog's first change is a Replace of the whole document: what was before is gone."""
    seen: set[str] = set()
    for rows in tables:
        catalogs: list[Any] = rows.table["catalog"].to_pylist()
        kinds, paths = rows.table["merge_type"].to_pylist(), rows.table["path"].to_pylist()
        fresh: list[str] = []
        for catalog, kind, path in zip(catalogs, kinds, paths, strict=True):
            if catalog not in seen:
                seen.add(catalog)
                if kind != MergeType.REPLACE or path != "/":
                    fresh.append(catalog)
        if fresh:
            empty = _table(fresh, [int(MergeType.REPLACE)] * len(fresh), ["/"] * len(fresh), ["{}"] * len(fresh))
            rows.table = pa.concat_tables([empty, rows.table])
        yield rows


def _mapped(column: Any, work: Any) -> Any:
    """The column with each different value of it worked on once; what the work raises passes through."""
    encoded = column.dictionary_encode() if isinstance(column, pa.Array) else pc.dictionary_encode(column)
    values = [work(value) for value in encoded.dictionary.to_pylist()]
    if encoded.null_count:
        raise InvalidInput("a row has no value there")
    return pa.array(values).take(encoded.indices) if values else pa.array([], pa.int8())


def _table(catalogs: Any, kinds: Any, paths: Any, bodies: Any, metas: Any = None) -> pa.Table:
    arrays = [
        pa.array(catalogs, pa.string()) if isinstance(catalogs, list) else catalogs,
        pa.array(kinds, pa.int8()) if isinstance(kinds, list) else kinds,
        pa.array(paths, pa.string()) if isinstance(paths, list) else paths,
        pa.array(bodies, pa.string()) if isinstance(bodies, list) else bodies,
        pa.nulls(len(catalogs), pa.string()) if metas is None else pa.array(metas, pa.string()),
    ]
    return pa.Table.from_arrays(arrays, names=["catalog", "merge_type", "path", "body", "meta"])


def _values(columns: dict[str, Any]) -> Iterator[dict[str, Any]]:
    names = list(columns)
    for values in zip(*(column.to_pylist() for column in columns.values()), strict=True):
        yield dict(zip(names, values, strict=True))


def _bytes(value: Any) -> Any:
    """JSON text as JSON, not as a string to be quoted."""
    return value.encode() if isinstance(value, str) else value
