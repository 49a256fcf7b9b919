"""Every encoding of a name: catalogs, paths, shards, Redis keys and object keys."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from lake_spark.errors import InvalidCatalog, InvalidPath
from lake_spark.model import MergeType, Snapshot, TsSeq

SHARDS = tuple(f"{n:02x}" for n in range(256))
MAX_CATALOG_BYTES = 256
MAX_PATH_BYTES = 1024
SETTING_KEY = "lake.setting"

_FIELD_PATH = re.compile(r"/|(/[A-Za-z_$][A-Za-z0-9_$.]*)+", re.ASCII)
_FILE_PATH = re.compile(r"(/(?!\.{1,2}(?:/|$))[A-Za-z0-9_$.]+)+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LOWER = re.compile(r"[a-z0-9\-_/.]+", re.ASCII)
_UPPER = re.compile(r"[A-Z0-9\-_/.]+", re.ASCII)
_TXN_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"

# One call asks for the encodings of its catalog many times, and programs come back to the same catalogs.
_remembered = lru_cache(maxsize=4096)


def check_catalog(catalog: str) -> str:
    """The catalog's name, or an error that says what is wrong with it."""
    if not isinstance(catalog, str):
        raise InvalidCatalog(f"a catalog is a string, not {type(catalog).__name__}: {catalog!r}")
    try:
        size = len(catalog.encode())
    except UnicodeEncodeError:
        raise InvalidCatalog(f"catalog {catalog!r} is not valid Unicode") from None
    if not 1 <= size <= MAX_CATALOG_BYTES:
        shown = repr(catalog if size < 80 else catalog[:60] + "…")
        raise InvalidCatalog(f"catalog {shown} has {size} bytes of UTF-8: 1 to {MAX_CATALOG_BYTES} are allowed")
    if _CONTROL.search(catalog):
        raise InvalidCatalog(f"catalog {catalog!r} has a control character")
    return catalog


def check_field_path(path: str) -> str:
    """The field path, or an error that says how one looks."""
    if not isinstance(path, str) or not _FIELD_PATH.fullmatch(path) or len(path) > MAX_PATH_BYTES:
        raise InvalidPath(
            f"not a field path: {path!r} (expected / or /name/name, at most {MAX_PATH_BYTES} bytes; "
            "a name starts with a letter, _ or $ and goes on with those, digits and dots)"
        )
    return path


def check_file_path(path: str) -> str:
    """The file path, or an error that says how one looks."""
    if not isinstance(path, str) or not _FILE_PATH.fullmatch(path) or len(path) > MAX_PATH_BYTES:
        raise InvalidPath(
            f"not a file path: {path!r} (expected /name/name with letters, digits, _, $ and dots; "
            f"never . or .. as a name, at most {MAX_PATH_BYTES} bytes)"
        )
    return path


@_remembered
def _md5(catalog: str) -> str:
    return hashlib.md5(catalog.encode(), usedforsecurity=False).hexdigest()


def shard_of(catalog: str) -> str:
    """The catalog's shard: two hex digits."""
    return _md5(catalog)[:2]


def encode_name(name: str) -> str:
    """A name as part of an object key: no two names share one, whatever the case of the store."""
    plain = all(segment not in ("", ".", "..") for segment in name.split("/"))
    if plain and _LOWER.fullmatch(name):
        return "(" + name
    if plain and _UPPER.fullmatch(name):
        return ")" + name
    return base64.b32encode(name.encode()).decode().rstrip("=").lower()


def decode_name(text: str) -> str:
    """The name behind `encode_name`, or a ValueError."""
    plain = text[:1] in ("(", ")")
    name = text[1:] if plain else base64.b32decode(text.upper() + "=" * (-len(text) % 8)).decode()
    if encode_name(name) != text:
        raise ValueError(f"not an encoded name: {text!r}")
    return name


def _b64(catalog: str) -> str:
    return base64.urlsafe_b64encode(catalog.encode()).decode().rstrip("=")


@_remembered
def b64(catalog: str) -> str:
    """A catalog as part of a Redis key."""
    return _b64(catalog)


def unb64(text: str) -> str:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()


def new_txn() -> str:
    """A transaction id: 12 characters, claimed with SET NX semantics before it is used."""
    return "".join(secrets.choice(_TXN_ALPHABET) for _ in range(12))


# Object keys


@_remembered
def catalog_folder(catalog: str) -> str:
    """Where the objects of a catalog are."""
    return f"{_md5(catalog)[:4]}/{encode_name(catalog)}"


def delta_key(catalog: str, ts_seq: TsSeq, merge_type: MergeType) -> str:
    return f"{catalog_folder(catalog)}/delta/{ts_seq}_{merge_type:d}.json"


def snapshot_key(catalog: str, snapshot: Snapshot) -> str:
    """The object of a snapshot; names without a digest are those of Lake V2."""
    digest = f"~{snapshot.digest}" if snapshot.digest else ""
    return f"{catalog_folder(catalog)}/snap/{snapshot.start}~{snapshot.stop}{digest}.snap"


def file_key(catalog: str, path: str) -> str:
    return f"{catalog_folder(catalog)}/files/{encode_name(path.removeprefix('/'))}"


class ObjectName(NamedTuple):
    """What an object of a catalog is, by its key: `delta`, `snap` or `files`, and its name there."""

    catalog: str
    kind: str
    name: str


# A file's path may have slashes; then it begins with a bracket, which is in no plain name before it.
_FILE = re.compile(r"([0-9a-f]{4})/(.+?)/(files/[()].+)", re.ASCII)
_OBJECT = re.compile(r"([0-9a-f]{4})/(.+)/(delta/[^/]+\.json|snap/[^/]+\.snap|files/[^/]+)", re.ASCII)


def parse_object_key(key: str) -> ObjectName | None:
    """What an object is; None if it is none of a catalog."""
    found = _FILE.fullmatch(key) or _OBJECT.fullmatch(key)
    if found is None:
        return None
    kind, _, name = found[3].partition("/")
    try:
        catalog = decode_name(found[2])
    except ValueError:
        return None
    return ObjectName(catalog, kind, name) if _md5(catalog)[:4] == found[1] else None


def segment_key(segment: str) -> str:
    return f"_segments/{segment[:4]}/{segment}.parquet"


def segment_name(txn: str, partition: int, chunk: int) -> str:
    return f"{txn}.{partition}.{chunk}"


# Redis keys


@dataclass(frozen=True, slots=True)
class Keys:
    """The Redis keys of one lake."""

    prefix: str

    def delta(self, catalog: str) -> str:
        return f"{self.prefix}:delta:{b64(catalog)}"

    def snap(self, catalog: str) -> str:
        return f"{self.prefix}:snap:{b64(catalog)}"

    def logs(self, catalogs: Iterable[str]) -> list[str]:
        """The keys `delta` and `snap` of each of many catalogs, in turn."""
        delta, snap = f"{self.prefix}:delta:", f"{self.prefix}:snap:"
        return [prefix + name for name in map(_b64, catalogs) for prefix in (delta, snap)]

    def meta(self, catalog: str) -> str:
        return f"{self.prefix}:meta:{b64(catalog)}"

    def files(self, catalog: str) -> str:
        return f"{self.prefix}:files:{b64(catalog)}"

    def sample(self, catalog: str) -> str:
        return f"{self.prefix}:sample:{b64(catalog)}"

    def seq(self, shard: str) -> str:
        return f"{self.prefix}:seq:{shard}"

    def catalogs(self, shard: str) -> str:
        return f"{self.prefix}:catalogs:{shard}"

    def pending(self, shard: str) -> str:
        return f"{self.prefix}:pending:{shard}"

    def opened(self, shard: str) -> str:
        """Hash: open write → Redis time of its pre-commit."""
        return f"{self.prefix}:opened:{shard}"

    def fenced(self, shard: str) -> str:
        """Sorted set: writes that can never commit, by the time they were fenced; vacuum's work list."""
        return f"{self.prefix}:fenced:{shard}"

    def floor(self, shard: str) -> str:
        """Hash: catalog → TsSeq up to which its history was cleared."""
        return f"{self.prefix}:floor:{shard}"

    def once(self, shard: str, token: str) -> str:
        """String: a call that was made, so that its repeat does nothing; expires."""
        return f"{self.prefix}:once:{shard}:{token}"

    def txn(self, txn: str) -> str:
        return f"{self.prefix}:txn:{txn}"

    @property
    def nothing(self) -> str:
        """A key that is never set."""
        return f"{self.prefix}:nothing"

    @property
    def inflight(self) -> str:
        return f"{self.prefix}:inflight"

    @property
    def aborted(self) -> str:
        return f"{self.prefix}:aborted"

    def app(self, app_id: str) -> str:
        return f"{self.prefix}:app:{app_id}"
