"""How a body becomes an object's bytes: checksum, compression, encryption.

Without compression and password an object is its JSON, followed by a line of 16 white space
characters that carry a checksum: any tool reads it, and a flipped bit is still found. Everything
else is an envelope (all numbers big-endian):

    LAKE  version  compression  cipher  0                       8 bytes, the header
    plain:      CRC32C of all other bytes and the object key 4, length 8, CRC32C of the body 4, payload
    encrypted:  nonce 12, AES-256-GCM of (length 8, payload)

The checksum of the stored bytes is checked before they reach a decompressor, that of the body after
it. Encrypted objects have neither: GCM proves more, and a checksum in the clear would tell
something about the body. Checksums and ciphers cover the object key, so an object that was moved to
another key is found out.

A body is compressed first and encrypted then. Each object is encrypted under a key of its own,
made from the lake's key and the object key, so the number of objects under one AES key stays small
however big the lake is (random nonces are safe for about four billion).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import Any

import google_crc32c
import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from lake_spark.errors import ConfigError, CorruptObject
from lake_spark.options import COMPRESSIONS
from lake_spark.storage.base import ForkSafeLock

DEFAULT_LIMIT = 1 << 30

_MAGIC = b"LAKE"
_VERSION = 1
_HEADER = 8
_NONCE = 12
_TAG = 16
_LENGTH = 8
_CRC = 4

_WHITE = b" \t\n\r"
_WHITE_OF = [bytes(_WHITE[byte >> shift & 3] for shift in (6, 4, 2, 0)) for byte in range(256)]
_TRAILER = 17  # the line feed and sixteen pairs of bits


class Codec:
    """Encodes bodies into objects and back; `decode` returns what was encoded or raises `CorruptObject`.

    `salt` is the lake's name. `limit` bounds what one object may decompress to.
    """

    def __init__(
        self,
        compression: str = "none",
        password: str | None = None,
        salt: str = "",
        *,
        limit: int = DEFAULT_LIMIT,
    ) -> None:
        if compression not in COMPRESSIONS:
            raise ConfigError(f"compression is one of {', '.join(COMPRESSIONS)}, not {compression!r}")
        if password == "":
            raise ConfigError("the password is empty: leave it out for a lake without encryption")
        self.compression = compression
        self.limit = limit
        self._password = password
        self._salt = salt

    @property
    def encrypts(self) -> bool:
        return self._password is not None

    def encode(self, key: str, plain: bytes, *, raw: bool = False) -> bytes:
        """The bytes to store under `key`. `raw` is for bodies that are not JSON."""
        if not raw and not self.encrypts and self.compression == "none":
            body = plain.strip(_WHITE)
            if not body.startswith(_MAGIC):
                return body + _trailer(_checksum(key, body))
        payload, compression = _compress(plain, self.compression)
        header = _MAGIC + bytes((_VERSION, compression, int(self.encrypts), 0))
        length = len(plain).to_bytes(_LENGTH, "big")
        if self.encrypts:
            nonce = os.urandom(_NONCE)
            return header + nonce + self._cipher(key).encrypt(nonce, length + payload, header + key.encode())
        rest = length + _crc(plain).to_bytes(_CRC, "big") + payload
        return header + _checksum(key, header + rest).to_bytes(_CRC, "big") + rest

    def decode(self, key: str, data: bytes) -> bytes:
        """The body of the object stored under `key`."""
        if not data.startswith(_MAGIC):
            if self.encrypts:
                raise _corrupt(key, "it is not encrypted, but this lake is: it was put there or replaced by someone")
            return _decode_bare(key, data)
        if len(data) < _HEADER:
            raise _corrupt(key, "it is truncated within its header")
        header, rest = data[:_HEADER], data[_HEADER:]
        version, compression, cipher, reserved = header[len(_MAGIC) :]
        if version != _VERSION or reserved or compression >= len(COMPRESSIONS) or cipher > 1:
            raise _corrupt(key, "its header is damaged, or a newer version wrote it")
        if cipher:
            length, payload = self._decrypt(key, header, rest)
            return self._expand(key, compression, length, payload)
        if self.encrypts:
            raise _corrupt(key, "it is not encrypted, but this lake is: it was put there or replaced by someone")
        return self._check(key, header, rest, compression)

    def _check(self, key: str, header: bytes, rest: bytes, compression: int) -> bytes:
        stored, rest = rest[:_CRC], rest[_CRC:]
        if len(rest) < _LENGTH + _CRC:
            raise _corrupt(key, "it is truncated within its header")
        if int.from_bytes(stored, "big") != _checksum(key, header + rest):
            raise _corrupt(key, "its checksum does not fit: it is damaged, truncated, or stored under another key")
        length = int.from_bytes(rest[:_LENGTH], "big")
        plain = self._expand(key, compression, length, rest[_LENGTH + _CRC :])
        if _crc(plain) != int.from_bytes(rest[_LENGTH : _LENGTH + _CRC], "big"):
            raise _corrupt(key, "its body's checksum does not fit")
        return plain

    def _decrypt(self, key: str, header: bytes, rest: bytes) -> tuple[int, bytes]:
        if not self.encrypts:
            raise _corrupt(key, "it is encrypted, and no password is configured: set AESPwd")
        if len(rest) < _NONCE + _LENGTH + _TAG:
            raise _corrupt(key, "it is truncated within its header")
        try:
            opened = self._cipher(key).decrypt(rest[:_NONCE], rest[_NONCE:], header + key.encode())
        except InvalidTag:
            raise _corrupt(
                key, "it does not decrypt: altered, truncated, stored under another key, or the password is another"
            ) from None
        return int.from_bytes(opened[:_LENGTH], "big"), opened[_LENGTH:]

    def _expand(self, key: str, compression: int, length: int, payload: bytes) -> bytes:
        if length > self.limit:
            raise _corrupt(key, f"it says it holds {length} bytes, over the limit of {self.limit}")
        if not compression:
            if length != len(payload):
                raise _corrupt(key, f"it holds {len(payload)} bytes instead of {length}")
            return payload
        try:
            plain: bytes = _arrow_codec(COMPRESSIONS[compression]).decompress(payload, length, asbytes=True)
        except (OSError, ValueError) as error:
            raise _corrupt(key, f"it does not decompress ({COMPRESSIONS[compression]}: {error})") from None
        return plain

    def _cipher(self, key: str) -> AESGCM:
        assert self._password is not None
        return AESGCM(hmac.digest(_lake_key(self._password, self._salt), key.encode(), "sha256"))

    def __repr__(self) -> str:
        hidden = ", password=***" if self.encrypts else ""
        return f"Codec({self.compression!r}{hidden})"


def _corrupt(key: str, reason: str) -> CorruptObject:
    return CorruptObject(f"object {key} cannot be used: {reason}")


def _crc(data: bytes, after: int = 0) -> int:
    value: int = google_crc32c.extend(after, data)
    return value


def _checksum(key: str, data: bytes) -> int:
    return _crc(data, _crc(key.encode() + b"\0"))


def _arrow_codec(compression: str) -> Any:
    # Imported late: lakes without compression need not load it.
    import pyarrow as pa

    codec: Any = pa.Codec
    return codec(compression)


def _compress(plain: bytes, compression: str) -> tuple[bytes, int]:
    """The payload, and what was done to it: nothing when that would not make it smaller."""
    if compression == "none" or not plain:
        return plain, 0
    packed: bytes = _arrow_codec(compression).compress(plain, asbytes=True)
    return (packed, COMPRESSIONS.index(compression)) if len(packed) < len(plain) else (plain, 0)


def _trailer(checksum: int) -> bytes:
    return b"\n" + b"".join(_WHITE_OF[byte] for byte in checksum.to_bytes(_CRC, "big"))


def _decode_bare(key: str, data: bytes) -> bytes:
    body = data.rstrip(_WHITE)
    tail = data[len(body) :]
    if len(tail) == _TRAILER and tail.startswith(b"\n"):
        if tail != _trailer(_checksum(key, body)):
            raise _corrupt(key, "its checksum does not fit: it is damaged, or stored under another key")
        return body
    if len(tail) > len(b"\r\n"):
        raise _corrupt(key, "its end is no checksum: it is truncated or was altered")
    # No checksum: another tool wrote it. Every JSON value but a number shows by itself whether it is whole.
    body = body.lstrip(_WHITE)
    try:
        body.decode()
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _corrupt(key, f"it is damaged or truncated, or was never JSON ({error})") from None
    if body[:1] in b"-0123456789":
        raise _corrupt(key, "a number without a checksum could be the beginning of a longer one")
    return body


_lake_keys: dict[bytes, bytes] = {}
_lake_keys_lock = ForkSafeLock()


def _lake_key(password: str, salt: str) -> bytes:
    """The lake's key. Deriving it is slow on purpose, so it is done once in a process."""
    known = hashlib.sha256(f"{len(salt)}:{salt}{password}".encode()).digest()
    derived = _lake_keys.get(known)
    if derived is None:
        with _lake_keys_lock:
            derived = _lake_keys.get(known)
            if derived is None:
                scrypt = Scrypt(salt=salt.encode(), length=32, n=2**15, r=8, p=1)
                derived = _lake_keys[known] = scrypt.derive(password.encode())
    return derived
