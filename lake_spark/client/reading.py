"""The read: list, load, merge, and save a snapshot for those who come after."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from lake_spark.client.segments import segment_reader
from lake_spark.client.session import Session
from lake_spark.errors import CatalogNotFound, CorruptObject, LakeError, MergeError, ObjectExists, ObjectMissing
from lake_spark.index import SnapshotClaim, abort_if_expired, digest_of
from lake_spark.merge import Fold
from lake_spark.model import ZERO, Delta, Listing, Run, Snapshot, TsSeq
from lake_spark.names import SHARDS, delta_key, snapshot_key
from lake_spark.tally import count
from lake_spark.trace import span

log = logging.getLogger("lake_spark")

# Single bodies that are loaded together, and rows of a run: memory is bounded by these many.
_WINDOW = 256
_ROWS = 4096
_CATALOGS = 1024
_MANY_NAMES = 1_000_000
_AUTO_DELTAS = 16
_RELISTINGS = 5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5


@dataclass(frozen=True, slots=True)
class Document:
    """A merged document, and what it took to merge it."""

    listing: Listing
    fold: Fold
    replayed: int
    replayed_bytes: int


def list_catalog(
    session: Session, catalog: str, *, strict_pending: bool = False, as_of: TsSeq | None = None
) -> Listing:
    """A view of the catalog's log. A transaction in its way whose writer is gone is given up first."""
    with span("List", catalog=catalog) as step:
        listing = session.index.listing(catalog, strict_pending=strict_pending, as_of=as_of)
        abandoned = [abort_if_expired(session.index, txn) == 0.0 for txn in {p.txn for p in listing.pendings if p.txn}]
        if any(abandoned):
            listing = session.index.listing(catalog, strict_pending=strict_pending, as_of=as_of)
        step.set(version=listing.version, entries=len(listing.entries))
    return listing


def existing(session: Session, prefix: str = "") -> Iterator[Listing]:
    """A view of every catalog that exists, in no order."""
    index = session.index
    # A scan remembers the names that it has seen: where there are very many, one shard at a time.
    many = sum(index.registry_sizes(SHARDS)) > _MANY_NAMES
    for shards in [[shard] for shard in SHARDS] if many else [SHARDS]:
        names = index.catalogs(prefix, shards)
        while batch := [*islice(names, _CATALOGS)]:
            yield from (listing for listing in index.listings(batch) if listing.exists)


def settled(session: Session, listing: Listing, pending: str) -> Listing:
    """The listing if it can be read, after waiting for open writes where that was asked for."""
    if pending == "prefix" and listing.has_pending:
        return listing
    if pending == "wait" and listing.has_pending:
        deadline = time.monotonic() + session.options.pending_wait
        pause = _FIRST_PAUSE
        while listing.has_pending and time.monotonic() < deadline:
            pause = min(pause, max(0.0, deadline - time.monotonic()))
            time.sleep(pause)
            count(waits=pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            listing = _again(session, listing)
    if listing.error:
        raise listing.error
    return listing


def _again(session: Session, listing: Listing) -> Listing:
    return list_catalog(session, listing.catalog, strict_pending=listing.strict_pending, as_of=listing.as_of)


def read(session: Session, listing: Listing, pending: str) -> Document:
    """The merged document of a listing."""
    listing = settled(session, listing, pending)
    for _ in range(_RELISTINGS):
        if not listing.exists:
            then = f" as of {listing.as_of}" if listing.as_of else ""
            raise CatalogNotFound(f"there is no catalog {listing.catalog!r}{then}")
        try:
            document = merge(session, listing)
        except ObjectMissing as error:
            # History may have been cleared since the listing: then a newer one does without this object.
            missing, before = error, listing
            listing = settled(session, _again(session, listing), pending)
            if listing == before:
                break
        else:
            return document
    raise CorruptObject(f"catalog {listing.catalog!r} cannot be read, the index names what is not stored: {missing}")


def merge(session: Session, listing: Listing) -> Document:
    """The fold of the listing's snapshot and entries, from the last Replace of the whole document on."""
    snapshot, entries = needed(listing)
    base = None
    if snapshot:
        with span("LoadSnapshot", stop=snapshot.stop):
            base = load_snapshot(session, listing.catalog, snapshot)
    fold = Fold(base)
    replayed = replayed_bytes = 0
    try:
        with span("LoadDeltas") as step:
            for ts_seq, merge_type, path, body in deltas(session, listing.catalog, entries):
                fold.apply(merge_type, path, body, ts_seq)
                replayed += 1
                replayed_bytes += len(body)
            step.set(deltas=replayed, bytes=replayed_bytes)
    except MergeError as error:
        raise unmergeable(listing.catalog, error) from None
    return Document(listing, fold, replayed, replayed_bytes)


def needed(listing: Listing) -> tuple[Snapshot | None, Sequence[Delta | Run]]:
    """What the document is merged of: from the last Replace of the whole document on, if one is known."""
    entries = listing.entries
    for place in range(len(entries) - 1, -1, -1):
        entry = entries[place]
        if isinstance(entry, Delta) and entry.is_root_replace:
            return None, entries[place:]
    return listing.snapshot, entries


def dump(document: Document) -> bytes:
    """The document as JSON."""
    try:
        with span("Merge"):
            return document.fold.dump()
    except MergeError as error:
        raise unmergeable(document.listing.catalog, error) from None


def unmergeable(catalog: str, error: MergeError) -> MergeError:
    """The error of a fold, for those who know the catalog only by its name."""
    return MergeError(f"catalog {catalog!r} cannot be merged at {error}; remove_delta takes a delta out of the log")


Body = tuple[TsSeq, int, str, bytes]


def deltas(session: Session, catalog: str, entries: Sequence[Delta | Run]) -> Iterator[Body]:
    """Type, path and body of every delta, in order, a window of them in memory."""
    rest = iter(entries)
    while window := list(islice(rest, _WINDOW)):
        singles = iter(session.each(partial(load_delta, session, catalog), [e for e in window if isinstance(e, Delta)]))
        for entry in window:
            if isinstance(entry, Run):
                yield from _rows(session, catalog, entry)
            else:
                yield entry.ts_seq, entry.known_type, entry.known_path, next(singles)


def load_delta(session: Session, catalog: str, delta: Delta) -> bytes:
    """The body of a delta that is an object."""
    key = delta_key(catalog, delta.ts_seq, delta.known_type)
    return session.deltas.load(key, lambda: session.codec.decode(key, session.storage.get(key)))


def _rows(session: Session, catalog: str, run: Run) -> Iterator[Body]:
    spans = [(run.row + at, min(_ROWS, run.count - at), catalog) for at in range(0, run.count, _ROWS)]
    place = 0
    for part in segment_reader(session, run.segment).read_many(spans):
        for row in part:
            yield run.sequence(place), row.merge_type, row.path, row.body
            place += 1


def load_snapshot(session: Session, catalog: str, snapshot: Snapshot) -> bytes:
    """The document at a snapshot's stop."""
    if snapshot.segment:
        return segment_reader(session, snapshot.segment).read(snapshot.row, 1, catalog)[0].body
    key = snapshot_key(catalog, snapshot)
    return session.codec.decode(key, session.snapshots.load(key, lambda: session.storage.get(key)))


def wants_snapshot(session: Session, listing: Listing, replayed: int, replayed_bytes: int, size: int) -> bool:
    """Whether the next reader would thank us for a snapshot of this many bytes."""
    if session.options.snapshot == "never" or not listing.entries:
        return False
    if session.options.snapshot == "always":
        return True
    # A snapshot of a document that is one delta would be that delta again.
    lone = replayed == 1 and listing.snapshot is None
    return replayed >= _AUTO_DELTAS or (replayed_bytes > size / 4 and not lone)


def snapshot_of(listing: Listing, *, segment: str | None = None, row: int = 0) -> tuple[Snapshot, str]:
    """The snapshot of what was read (an object of its own, or a row), and the digest of the log that it merges."""
    before = listing.snapshot
    digest = digest_of(before, listing.members)
    start = before.stop if before else ZERO
    return Snapshot(start, listing.version, "" if segment else digest, segment, row), digest


def save_snapshot(session: Session, listing: Listing, body: bytes) -> str:
    """Store and register a snapshot of what was read; `lua/snapshot.lua` says what the reply means."""
    snapshot, digest = snapshot_of(listing)
    key = snapshot_key(listing.catalog, snapshot)
    data = session.codec.encode(key, body)
    # Another reader of the same log may be faster: the digest says that it is the same document.
    with contextlib.suppress(ObjectExists):
        session.storage.put(key, data, if_absent=True)
    reply = session.index.snapshot([SnapshotClaim(listing.catalog, snapshot, digest)])[0]
    if reply in ("added", "known"):
        session.snapshots.cache.put(key, data)
    elif reply in ("stale", "changed"):
        # The log only moves on: nobody can ever register this one.
        session.storage.delete(key)
    return reply


def save_snapshot_later(session: Session, document: Document, body: bytes) -> None:
    """Save a snapshot off the read's path, if one is wanted; that it fails is nobody's trouble but the log's."""

    def work() -> None:
        try:
            reply = save_snapshot(session, document.listing, body)
            log.debug("snapshot of %r at %s: %s", document.listing.catalog, document.listing.version, reply)
        except LakeError as error:
            log.warning("a snapshot of %r was not saved: %s", document.listing.catalog, error)

    listing = document.listing
    if listing.as_of is None and wants_snapshot(
        session, listing, document.replayed, document.replayed_bytes, len(body)
    ):
        session.later(work)
