"""An import: the rows of a file, chunk by chunk, each chunk whole and once, however often it is interrupted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from lake_spark.client.rowfiles import JSON_COLUMNS, RawRow, RowFile
from lake_spark.client.session import Session
from lake_spark.client.transaction import chunks, given_up_on_failure, publish, stage
from lake_spark.client.writing import MAX_META_BYTES, Change, Fields, check_change
from lake_spark.errors import ConfigError, InvalidBody, InvalidInput
from lake_spark.index import TransactionIndex, application_version
from lake_spark.merge import dumps
from lake_spark.model import MergeType

CHUNK_ROWS = 50_000
# What a line holds beside its body.
_MARGIN = MAX_META_BYTES + (64 << 10)
_HASHED = 1 << 20


# JSON as it is in the file, every digit of it; empty where there is none.
_NONE = msgspec.Raw(b"")


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A row: a document, or a change. The rest is what exports and the views of Spark add for people."""

    catalog: str
    document: msgspec.Raw = _NONE
    body: msgspec.Raw = _NONE
    path: str | None = None
    merge_type: str | int | None = None
    meta: msgspec.Raw = _NONE
    error: str | None = None
    version: Any = None
    ts_seq: Any = None
    updated_at: Any = None
    committed_at: Any = None
    deltas: Any = None
    size: Any = None
    source: Any = None


_decode = msgspec.json.Decoder(_Line).decode


@dataclass(slots=True)
class Imported:
    """What an import has done so far: it is kept up to date while it runs."""

    app_id: str
    # Number of the last row of the file that is in, or was put aside.
    done: int = 0
    # That of the last row which was in before this run.
    before: int = 0
    rows: int = 0
    chunks: int = 0
    bad: int = 0


class _Chunk(NamedTuple):
    """Checked rows with their numbers; `last` is the number of the last row that was looked at."""

    rows: list[tuple[int, Change]]
    last: int


def begin_import(session: Session, file: RowFile, *, again: bool = False) -> Imported:
    """Where an import of this file stands: the same bytes are the same import, under whatever name.

    With `again` it begins anew, as the next import of these bytes.
    """
    digest = hashlib.sha256()
    with open(file.path, "rb") as data:
        while piece := data.read(_HASHED):
            digest.update(piece)
    app_ids = (f"import:{digest.hexdigest()[:32]}:{number}" for number in range(1, 1 << 30))
    latest, done = next(app_ids), 0
    done = application_version(session.index, latest)
    for app_id in app_ids if done else ():
        version = application_version(session.index, app_id)
        if not version:
            if again:
                latest, done = app_id, 0
            break
        latest, done = app_id, version
    return Imported(latest, done, done)


def rows_in(session: Session, progress: Imported) -> int:
    """The number of the last row that is in: also after an interruption that hid the answer to a commit."""
    return application_version(session.index, progress.app_id)


def import_file(
    session: Session,
    file: RowFile,
    progress: Imported,
    *,
    chunk_rows: int = CHUNK_ROWS,
    bad_records: Path | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> None:
    """Write the rows behind those that are in, in transactions of so many rows; `progress` is kept up to date.

    Every row of a chunk is checked before anything of it is stored. One that is refused is an error with its number,
    or is added to `bad_records` as a line of JSON with the reason.
    """
    if chunk_rows < 1:
        raise ConfigError(f"a chunk has at least one row; not {chunk_rows}")
    for chunk in _chunks(session, file, progress, chunk_rows, bad_records):
        # Somebody else may import the same file, in chunks of another size: what came in meanwhile is left out.
        while progress.done < chunk.last:
            changes = [change for number, change in chunk.rows if number > progress.done]
            if _apply(session, progress.app_id, chunk.last, progress.done, changes):
                progress.done = chunk.last
                progress.rows += len(changes)
                progress.chunks += 1
            else:
                progress.done = application_version(session.index, progress.app_id)
        advance(len(chunk.rows))


def _apply(session: Session, app_id: str, version: int, after: int, changes: Sequence[Change]) -> bool:
    """Write a chunk as one transaction; False if another import of the file came first."""
    txn = TransactionIndex.begin(session.index, session.options.lease, app_id, version, after=after)
    with given_up_on_failure(txn):
        parts = enumerate(chunks(session, changes))
        blocks = [block for number, part in parts for block in stage(session, txn, 0, number, part)]
        if not txn.intend():
            txn.abort()
            return False
        for _ in publish(session, txn, blocks):
            pass
        meta: dict[str, Fields] = {}
        for change in changes:
            meta.setdefault(change.catalog, {}).update(change.meta)
        # Before the commit: after it, an import that is killed would never come back to this meta.
        session.index.merge_meta(meta)
        return txn.commit()


def _chunks(
    session: Session, file: RowFile, progress: Imported, chunk_rows: int, bad_records: Path | None
) -> Iterator[_Chunk]:
    most_bytes = session.options.segment_bytes
    max_bytes = session.options.max_body_bytes
    rows: list[tuple[int, Change]] = []
    bad: list[bytes] = []
    size = looked_at = last = 0
    for raw in file.rows(max_bytes + _MARGIN, progress.done):
        try:
            change = _change(max_bytes, raw)
            rows.append((raw.number, change))
            size += len(change.body)
        except InvalidInput as error:
            if bad_records is None:
                raise type(error)(
                    f"row {raw.number} of {file.path} is refused: {error}; the rows up to {progress.done} are in, and "
                    "nothing behind them. To go on without such rows, import the same file again with a file for bad "
                    "records (a corrected file is another file: all of its rows would be imported)"
                ) from None
            bad.append(_bad(raw, error))
        looked_at, last = looked_at + 1, raw.number
        if looked_at >= chunk_rows or size >= most_bytes:
            yield _put_aside(rows, last, bad, bad_records, progress)
            rows, bad, size, looked_at = [], [], 0, 0
    if looked_at:
        yield _put_aside(rows, last, bad, bad_records, progress)


def _put_aside(
    rows: list[tuple[int, Change]], last: int, bad: list[bytes], bad_records: Path | None, progress: Imported
) -> _Chunk:
    """The chunk, once its bad rows are in their file: an import that is killed may add them twice, never lose them."""
    if bad and bad_records is not None:
        with open(bad_records, "ab") as file:
            file.write(b"".join(bad))
        progress.bad += len(bad)
    return _Chunk(rows, last)


def _bad(raw: RawRow, error: InvalidInput) -> bytes:
    # Text, not a value: a bad row need not be JSON.
    row = raw.text.decode(errors="replace")
    return dumps({"row": raw.number, "reason": str(error), "text": row}) + b"\n"


def _change(max_bytes: int, raw: RawRow) -> Change:
    """The checked change of a row, or an error that says why it is none."""
    if raw.reason:
        raise InvalidBody(raw.reason)
    try:
        line = _decode(raw.line) if raw.record is None else msgspec.convert(_embedded(raw.record), _Line)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"it is no row of an import: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidBody(f"it is not JSON: {error}") from None
    if line.error is not None:
        raise InvalidInput(f"it has no document, but the error of the export that met it: {line.error}")
    document, body, meta = bytes(line.document), bytes(line.body), bytes(line.meta)
    if bool(document) == bool(body):
        raise InvalidInput("it has either a document, or the body of a change; not both and not neither")
    given_meta = None if meta in (b"", b"null") else meta
    if document:
        if line.path is not None or line.merge_type is not None:
            raise InvalidInput("a document replaces the whole: a path and a merge_type go with a body")
        return check_change(max_bytes, line.catalog, document, meta=given_meta)
    merge = MergeType.REPLACE if line.merge_type is None else line.merge_type
    return check_change(max_bytes, line.catalog, body, line.path or "/", merge, given_meta)


def _embedded(record: Any) -> dict[str, Any]:
    """A record of Parquet as a row: its JSON is text, and what is null is not there."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        if value is None:
            continue
        if name in JSON_COLUMNS:
            if not isinstance(value, (str, bytes)):
                raise InvalidInput(f"its {name} is not JSON text, but {type(value).__name__}")
            value = msgspec.Raw(value.encode() if isinstance(value, str) else value)
        found[name] = value
    return found
