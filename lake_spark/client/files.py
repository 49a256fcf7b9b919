"""Files of a catalog: binary objects beside the document, each with meta of its own."""

from __future__ import annotations

from typing import Any

from lake_spark.client.session import Session
from lake_spark.client.writing import parse_meta
from lake_spark.errors import BodyTooLarge, InvalidInput, LakeFileNotFound, ObjectMissing
from lake_spark.merge import dumps, loads
from lake_spark.names import check_catalog, check_file_path, file_key
from lake_spark.trace import span


def write_file(session: Session, catalog: str, path: str, data: bytes, meta: object) -> None:
    """Store a file whole, then its meta; a file that was there is replaced."""
    check_catalog(catalog)
    check_file_path(path)
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise InvalidInput(f"file {path} of catalog {catalog!r} is bytes, not {type(data).__name__}")
    data = bytes(data)
    if len(data) > session.options.max_body_bytes:
        raise BodyTooLarge(
            f"file {path} of catalog {catalog!r} has {len(data)} bytes, at most {session.options.max_body_bytes} "
            "are accepted (max_body_bytes)"
        )
    text = dumps(parse_meta(catalog, meta))
    key = file_key(catalog, path)
    with span("StoragePut", key=key, size=len(data)):
        session.storage.put(key, session.codec.encode(key, data, raw=True))
    with span("Commit"):
        session.index.add_file(catalog, path, text)


def read_file(session: Session, catalog: str, path: str) -> bytes:
    """A file's bytes."""
    check_catalog(catalog)
    key = file_key(catalog, check_file_path(path))
    try:
        return session.codec.decode(key, session.storage.get(key))
    except ObjectMissing:
        raise LakeFileNotFound(f"catalog {catalog!r} has no file {path}") from None


def files_and_meta(session: Session, catalog: str) -> dict[str, Any]:
    """Every file's path, with its meta."""
    [fields] = session.index.fields([session.index.keys.files(check_catalog(catalog))])
    return {path: loads(text) for path, text in sorted(fields.items())}
