"""What writer and reader of a segment agree on.

A segment is an ordinary Parquet file. Parquet has checksums for pages and none for page headers or for the
footer, so a block of our own stands between the last page and the footer, where other readers never look:

    pages … | page index, bloom filters | ranges | check | footer | footer length | PAR1

`ranges` holds offset, length and CRC32C of each row group's bytes. `check` holds a CRC32C of the ranges and
of everything behind itself, the place of the ranges in the file, and how many they are. Both are verified
before pyarrow sees a byte.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import google_crc32c
import pyarrow as pa

Kind = Literal["deltas", "snapshots"]
# Encrypts, or decrypts, the body at a place: see `place_of`.
Seal = Callable[[str, bytes], bytes]

COLUMNS = ("catalog", "merge_type", "path", "body", "meta")
VERSION = b"1"
VERSION_KEY, NAME_KEY, KIND_KEY = b"lake.version", b"lake.segment", b"lake.kind"

PARQUET_MAGIC = b"PAR1"
PARQUET_END = 8
RANGE = struct.Struct("<QII")
CHECK = struct.Struct("<IQI4s")
CHECK_MAGIC = b"LKSG"


class ByteRange(NamedTuple):
    """The bytes of a row group in the file, and their CRC32C."""

    offset: int
    length: int
    crc: int

    @property
    def end(self) -> int:
        return self.offset + self.length


def schema(*, sealed: bool) -> pa.Schema:
    """The columns of a segment. A body is text that any tool can read, unless it is encrypted."""
    fields: list[pa.Field[Any]] = [
        pa.field("catalog", pa.string(), nullable=False),
        pa.field("merge_type", pa.int8(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("body", pa.binary() if sealed else pa.string(), nullable=False),
        pa.field("meta", pa.string()),
    ]
    return pa.schema(fields)


def place_of(row: int, merge_type: int, path: str) -> str:
    """What the encryption of a body vouches for: where it is, and what is to be done with it."""
    return f"{row}#{merge_type}{path}"


def pack_check(ranges: Sequence[ByteRange], offset: int, footer: bytes) -> bytes:
    """The block for a file whose ranges begin at `offset`; `footer` is all that follows it."""
    packed = b"".join(RANGE.pack(*each) for each in ranges)
    head = CHECK.pack(0, offset, len(ranges), CHECK_MAGIC)[4:]
    return packed + struct.pack("<I", checksum(packed, head + footer)) + head


def checksum(ranges: bytes, rest: bytes) -> int:
    """The CRC32C of the ranges and of what follows the check's own first field."""
    return int(google_crc32c.extend(google_crc32c.value(ranges), rest))
