"""What the codec writes it reads back, and what was changed on the way is never taken for data."""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
import traceback

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_spark.errors import ConfigError, CorruptObject
from lake_spark.storage import Codec
from lake_spark.storage.codec import COMPRESSIONS

KEY = "9bc6/(users/delta/1700000000_1_1.json"
OTHER_KEY = "9bc6/(users/delta/1700000000_2_1.json"
PASSWORD = "correct horse battery staple"
JSON = b'{"name": "Ada", "tags": ["a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a"], "n": 12345678901234567890}'
BINARY = b"LAKE\x00\xff\n \t" * 9

FORMS = [
    pytest.param(Codec(compression, password, "my-lake"), raw, id=f"{compression}-{cipher}{'-raw' if raw else ''}")
    for compression in COMPRESSIONS
    for cipher, password in (("plain", None), ("encrypted", PASSWORD))
    for raw in (False, True)
]


@pytest.mark.parametrize(("codec", "raw"), FORMS)
@pytest.mark.parametrize("body", [JSON, b"[]", b"12", b'"x"', b"{}", b'{"a":"' + b"z" * 100_000 + b'"}'])
def test_a_body_comes_back(codec: Codec, raw: bool, body: bytes) -> None:
    assert codec.decode(KEY, codec.encode(KEY, body, raw=raw)) == body


@pytest.mark.parametrize(("codec", "raw"), [form for form in FORMS if form.values[1]])
@pytest.mark.parametrize("body", [BINARY, b"", b"LAKE", b"\x00", b" \n ", b"\xff" * 70_000])
def test_a_binary_body_comes_back(codec: Codec, raw: bool, body: bytes) -> None:
    assert codec.decode(KEY, codec.encode(KEY, body, raw=raw)) == body


@given(st.binary(), st.sampled_from(COMPRESSIONS), st.booleans())
def test_any_binary_body_comes_back(body: bytes, compression: str, encrypted: bool) -> None:
    codec = Codec(compression, PASSWORD if encrypted else None, "my-lake")
    assert codec.decode(KEY, codec.encode(KEY, body, raw=True)) == body


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values)
def test_a_bare_object_is_json_for_any_tool(value: object) -> None:
    stored = Codec().encode(KEY, json.dumps(value).encode())
    assert json.loads(stored) == value
    assert json.loads(Codec().decode(KEY, stored)) == value


def test_white_space_around_a_bare_body_is_not_kept() -> None:
    assert Codec().decode(KEY, Codec().encode(KEY, b" \n{}\t ")) == b"{}"


def test_a_bare_checksum_is_that_of_key_and_body() -> None:
    stored = Codec().encode(KEY, b"{}")
    assert stored[:3] == b"{}\n"
    pairs = ["{:02b}".format(b" \t\n\r".index(char)) for char in stored[3:]]
    assert int("".join(pairs), 2) == google_crc32c.value(KEY.encode() + b"\0{}")


@pytest.mark.parametrize(("codec", "raw"), FORMS)
@pytest.mark.parametrize("body", [JSON, b"100", b'"a"', b"true", b"[0]"])
def test_every_flipped_bit_is_found(codec: Codec, raw: bool, body: bytes) -> None:
    stored = codec.encode(KEY, body, raw=raw)
    for place in range(len(stored)):
        for bit in range(8):
            damaged = bytearray(stored)
            damaged[place] ^= 1 << bit
            with pytest.raises(CorruptObject, match=r"9bc6/\(users/delta/1700000000_1_1\.json"):
                codec.decode(KEY, bytes(damaged))


@pytest.mark.parametrize(("codec", "raw"), FORMS)
@pytest.mark.parametrize("body", [JSON, b"100", b'"a"', b"true", b"[0]", b'"12\\n     "'])
def test_a_truncated_object_is_an_error_or_whole(codec: Codec, raw: bool, body: bytes) -> None:
    stored = codec.encode(KEY, body, raw=raw)
    bare = stored.startswith(body)
    # Only a bare object may lose all of its checksum: what is left shows by itself that it is whole.
    # A number does not.
    whole = range(len(body), len(body) + 3) if bare and body != b"100" else range(0)
    for length in range(len(stored)):
        if length in whole:
            assert codec.decode(KEY, stored[:length]) == body
        else:
            with pytest.raises(CorruptObject, match="1700000000_1_1"):
                codec.decode(KEY, stored[:length])


@pytest.mark.parametrize(("codec", "raw"), FORMS)
def test_bytes_added_to_an_object_are_found(codec: Codec, raw: bool) -> None:
    stored = codec.encode(KEY, JSON, raw=raw)
    for added in (b"\0", b"x", b"{}"):
        with pytest.raises(CorruptObject):
            codec.decode(KEY, stored + added)


@pytest.mark.parametrize(("codec", "raw"), FORMS)
def test_an_object_under_another_key_is_found(codec: Codec, raw: bool) -> None:
    stored = codec.encode(KEY, JSON, raw=raw)
    with pytest.raises(CorruptObject, match="another key"):
        codec.decode(OTHER_KEY, stored)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize(("password", "salt"), [("another", "my-lake"), (PASSWORD, "another-lake")])
def test_another_password_or_lake_does_not_decrypt(compression: str, password: str, salt: str) -> None:
    stored = Codec(compression, PASSWORD, "my-lake").encode(KEY, JSON)
    with pytest.raises(CorruptObject, match="password") as caught:
        Codec(compression, password, salt).decode(KEY, stored)
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


def test_an_encrypted_object_needs_a_password() -> None:
    stored = Codec("zstd", PASSWORD, "my-lake").encode(KEY, JSON)
    with pytest.raises(CorruptObject, match="no password is configured"):
        Codec("zstd").decode(KEY, stored)


@pytest.mark.parametrize("planted", [Codec(), Codec("zstd")], ids=["bare", "envelope"])
def test_an_encrypted_lake_takes_no_plain_object(planted: Codec) -> None:
    stored = planted.encode(KEY, JSON)
    with pytest.raises(CorruptObject, match="not encrypted, but this lake is"):
        Codec("none", PASSWORD, "my-lake").decode(KEY, stored)


@pytest.mark.parametrize("text", [b'{"a": 1}', b"  [1, 2]\n", b'"x"', b"null", b"{}\r\n"])
def test_json_of_another_tool_is_read(text: bytes) -> None:
    assert Codec().decode(KEY, text) == text.strip()


@pytest.mark.parametrize("text", [b"12", b" -1.5\n", b"", b"   ", b"{", b'{"a":1}}', b"hello", b'"\xff"', b"[" * 10**6])
def test_what_is_not_surely_whole_json_is_refused(text: bytes) -> None:
    with pytest.raises(CorruptObject, match="1700000000_1_1"):
        Codec().decode(KEY, text)


def test_every_codec_reads_every_compression() -> None:
    for compression in COMPRESSIONS:
        assert Codec().decode(KEY, Codec(compression).encode(KEY, JSON)) == JSON


@pytest.mark.parametrize("compression", COMPRESSIONS[1:])
def test_what_does_not_shrink_is_stored_as_it_is(compression: str) -> None:
    noise = os.urandom(4096)
    stored = Codec(compression).encode(KEY, noise)
    assert stored.endswith(noise)
    assert len(stored) - len(noise) == 24
    assert len(Codec(compression).encode(KEY, b"a" * 4096)) < 500


@pytest.mark.parametrize("password", [None, PASSWORD])
@pytest.mark.parametrize("compression", COMPRESSIONS[1:])
def test_a_bomb_is_refused_before_it_is_unpacked(compression: str, password: str | None) -> None:
    stored = Codec(compression, password, "my-lake").encode(KEY, bytes(50_000_000), raw=True)
    began = time.perf_counter()
    with pytest.raises(CorruptObject, match="over the limit of 1000000"):
        Codec(compression, password, "my-lake", limit=1_000_000).decode(KEY, stored)
    assert time.perf_counter() - began < 0.2 + len(stored) / 1e6


@pytest.mark.parametrize("compression", COMPRESSIONS[1:])
@pytest.mark.parametrize("lie", [-1, 1, 1000])
def test_a_forged_length_yields_no_stray_memory(compression: str, lie: int) -> None:
    """The decompressor leaves what it does not fill as it was: only the body's checksum shows it."""
    stored = Codec(compression).encode(KEY, JSON)
    rest = (len(JSON) + lie).to_bytes(8, "big") + stored[20:]
    checksum = google_crc32c.value(KEY.encode() + b"\0" + stored[:8] + rest)
    with pytest.raises(CorruptObject):
        Codec(compression).decode(KEY, stored[:8] + checksum.to_bytes(4, "big") + rest)


def test_the_same_body_is_never_encrypted_twice_alike() -> None:
    codec = Codec("none", PASSWORD, "my-lake")
    assert len({codec.encode(KEY, JSON) for _ in range(100)}) == 100
    assert b"Ada" not in codec.encode(KEY, JSON)


def test_a_codec_travels_and_shows_no_password() -> None:
    codec = Codec("zstd", PASSWORD, "my-lake")
    stored = codec.encode(KEY, JSON)
    again = pickle.loads(pickle.dumps(codec))
    assert again.decode(KEY, stored) == JSON
    assert PASSWORD not in repr(codec) + repr(again) + str(codec)
    assert "zstd" in repr(codec)


def test_the_key_is_derived_once_and_only_when_needed() -> None:
    began = time.perf_counter()
    codecs = [Codec("none", "derived once", "my-lake") for _ in range(8)]
    made = time.perf_counter() - began
    began = time.perf_counter()
    threads = [threading.Thread(target=codec.encode, args=(KEY, JSON)) for codec in codecs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    derived = time.perf_counter() - began
    began = time.perf_counter()
    Codec("none", "derived once", "my-lake").encode(KEY, JSON)
    assert made < derived / 10
    assert time.perf_counter() - began < derived / 10


@pytest.mark.parametrize("arguments", [("brotli",), ("",), ("none", "")])
def test_a_wrong_setting_is_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        Codec(*arguments)


def test_encryption_costs_microseconds(capsys: pytest.CaptureFixture[str]) -> None:
    body = os.urandom(512).hex().encode()
    plain, secret = Codec(), Codec("none", PASSWORD, "my-lake")
    assert secret.decode(KEY, secret.encode(KEY, body)) == body

    def per_call(codec: Codec) -> float:
        began = time.perf_counter()
        for _ in range(2000):
            codec.decode(KEY, codec.encode(KEY, body))
        return (time.perf_counter() - began) / 2000 * 1e6

    with capsys.disabled():
        bare, encrypted = per_call(plain), per_call(secret)
        print(f"\n1 KiB encoded and decoded: bare {bare:.1f} µs, encrypted {encrypted:.1f} µs")
    assert encrypted < 1000
