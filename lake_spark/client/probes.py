"""Probes: a small object, and a small catalog, through every step that the lake takes; nothing of them stays."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from functools import partial
from itertools import islice

from lake_spark.client import history, reading
from lake_spark.client.findings import Finding
from lake_spark.client.segments import segment_reader
from lake_spark.client.session import Session
from lake_spark.client.transaction import publish, stage
from lake_spark.client.writing import check_change, write
from lake_spark.errors import CorruptObject, IndexFailure, LakeError, ObjectExists, ObjectMissing, StorageFailure
from lake_spark.index import Index, TransactionIndex
from lake_spark.index.health import expire, forget, probe_keys
from lake_spark.model import Delta, Listing, MergeType, Run
from lake_spark.names import Keys, catalog_folder, segment_key, segment_name
from lake_spark.storage import S3Storage, Storage

_FOLDER = "_doctor"
# What a probe that is killed leaves in Redis is gone after so many seconds.
_FORGOTTEN = 3600
# Catalogs that are looked at for an object to decrypt.
_LOOKED_AT = 100
_LEASE = 60.0


def storage(store: Storage) -> Iterator[Finding]:
    """Whether the storage is there and does what the lake asks of it, tried with an object of our own."""
    if isinstance(store, S3Storage):
        try:
            store.check_bucket()
        except LakeError as error:
            yield _failed("storage.connection", "listed", error)
            return
    yield Finding("storage.connection", "ok", repr(store))
    yield from _object(store, f"{_FOLDER}/{secrets.token_hex(8)}")


def _object(store: Storage, key: str) -> Iterator[Finding]:
    step = "storage.write"
    try:
        store.put(key, b"probe", if_absent=True)
        yield Finding(step, "ok", "an object can be written")
        step = "storage.read"
        if store.get(key) != b"probe":
            raise CorruptObject(f"object {key} came back with other bytes than it was written with")
        yield Finding(step, "ok", "it can be read back")
        step = "storage.list"
        if key not in store.list(f"{_FOLDER}/"):
            raise StorageFailure(f"object {key} was written and is not listed")
        yield Finding(step, "ok", "it is listed")
        step = "storage.put_if_absent"
        yield _put_if_absent(store, key)
        step = "storage.delete"
        store.delete(key)
        if store.exists(key):
            raise StorageFailure(f"object {key} was deleted and is still there")
        yield Finding(step, "ok", "it can be deleted")
    except LakeError as error:
        yield _failed(step, step.rpartition(".")[2], error)
        with contextlib.suppress(LakeError):
            store.delete(key)


def _put_if_absent(store: Storage, key: str) -> Finding:
    name = "storage.put_if_absent"
    try:
        store.put(key, b"other", if_absent=True)
    except ObjectExists:
        if getattr(store, "conditional_put", True):
            return Finding(name, "ok", "a second put of the same key is refused")
        return Finding(
            name,
            "warning",
            "a put looks whether the key is free, and writes then",
            "this store has no conditional put: after Redis has lost its memory, two writers of one key can get past "
            "each other",
            "keep the index Redis persistent (AOF), so that no TsSeq is given twice",
        )
    return Finding(
        name,
        "error",
        "a second put of the same key was taken",
        "the store ignores If-None-Match: after Redis has lost its memory, a new write could replace an old body",
        "use a store, or a version of it, with conditional puts",
    )


def _failed(name: str, done: str, error: LakeError) -> Finding:
    """The finding for a storage that refuses."""
    rights = {
        "write": "writes fail, single ones and jobs; reads go on",
        "read": "no document can be read",
        "listed": "bodies cannot be found, or the bucket is not there",
        "list": "fsck and vacuum cannot look for what nobody needs; reads and writes go on",
        "delete": "clearing history leaves its objects behind",
        "put_if_absent": "writes fail, single ones and jobs",
    }
    message = str(error)
    if "does not exist" in message:
        action = "create the bucket (lake init --create-bucket), or correct Bucket and Endpoint with lake init"
    elif "access denied" in message or "right" in message:
        action = "allow these credentials to read, write, delete and list objects there, or give others with lake init"
    elif "key" in message and "access" in message:
        action = "correct the access key and the secret key with lake init"
    else:
        action = "see the reason; the setting is changed with lake init"
    return Finding(name, "error", message, rights.get(done, ""), action)


def protocol(session: Session) -> Finding:
    """A catalog through a write, a job, a read, a snapshot and clearing, in an index of its own that is deleted."""
    name = "protocol"
    try:
        _catalog(session)
    except LakeError as error:
        return Finding(
            name,
            "error",
            str(error),
            "a write, a job, a read or a snapshot did not do what it must",
            "see the reason; lake trace shows the steps of a call",
        )
    return Finding(name, "ok", "a probe catalog was written, read, snapshotted, cleared and removed")


def _catalog(session: Session) -> None:
    token = secrets.token_hex(8)
    catalog = f"lake-doctor-{token}"
    # Keys of its own: nothing of the lake's registries, sequences and open writes is touched.
    probe = session.with_index(
        Index(
            session.index.connection, Keys(f"{session.index.keys.prefix}:doctor-{token}"), session.index.pending_timeout
        )
    )
    index = probe.index
    txns: list[str] = []
    change = partial(check_change, session.options.max_body_bytes, catalog)
    try:
        write(probe, change(b'{"probe":1.50}'))
        txn = TransactionIndex.begin(index, _LEASE)
        txns.append(txn.txn)
        expire(index, probe_keys(index, catalog, txns), _FORGOTTEN)
        blocks = stage(probe, txn, 0, 0, [change({"job": True}, merge=MergeType.RFC7396)])
        txn.intend()
        for _ in publish(probe, txn, blocks):
            pass
        txn.commit()
        write(probe, change([{"op": "remove", "path": "/job"}], merge=MergeType.RFC6902))
        expire(index, probe_keys(index, catalog, txns), _FORGOTTEN)
        _expect(probe, catalog, b'{"probe":1.50}')
        history.clear_history(probe, catalog, 0, dry_run=False)
        _expect(probe, catalog, b'{"probe":1.50}')
    finally:
        with contextlib.suppress(StorageFailure):
            for key in list(session.storage.list(f"{catalog_folder(catalog)}/")):
                session.storage.delete(key)
            for each in txns:
                session.storage.delete(segment_key(segment_name(each, 0, 0)))
        with contextlib.suppress(IndexFailure):
            forget(index, probe_keys(index, catalog, txns))


def _expect(probe: Session, catalog: str, body: bytes) -> None:
    found = reading.dump(reading.read(probe, reading.list_catalog(probe, catalog), "error"))
    if found != body:
        raise CorruptObject(f"a probe catalog was read as {found!r} in place of {body!r}")


def encryption(session: Session) -> Finding:
    """Whether what is stored can be read with the password that is configured, or without one."""
    name = "encryption"
    listing = _readable(session)
    how = "encrypted" if session.codec.encrypts else "not encrypted"
    if listing is None:
        return Finding(name, "ok", f"{how}; there is no document yet to try it with")
    try:
        _load(session, listing)
    except CorruptObject as error:
        return Finding(
            name,
            "error",
            str(error),
            "AESPwd is not the password that the bodies were written with, or the object is damaged",
            "set the right AESPwd with lake init; lake fsck --deep tells damaged objects from a wrong password",
        )
    except ObjectMissing as error:
        return Finding(
            name,
            "error",
            str(error),
            "the index names an object that is not stored: the storage may be another one than the lake was written to",
            "see that the setting names the right bucket and folder; lake fsck says what else is missing",
        )
    return Finding(name, "ok", f"{how}; the newest change of catalog {listing.catalog!r} can be read")


def _readable(session: Session) -> Listing | None:
    names = list(islice(session.index.catalogs(), _LOOKED_AT))
    for listing in session.index.listings(names):
        if listing.exists:
            return listing
    return None


def _load(session: Session, listing: Listing) -> None:
    """Load one body of the listing."""
    catalog = listing.catalog
    entry: Delta | Run | None = listing.entries[-1] if listing.entries else None
    if isinstance(entry, Run):
        segment_reader(session, entry.segment).read(entry.row, 1, catalog)
    elif entry is not None:
        reading.load_delta(session, catalog, entry)
    elif listing.snapshot is not None:
        reading.load_snapshot(session, catalog, listing.snapshot)
