"""Snapshots of many catalogs, packed into segments and registered shard by shard."""

from __future__ import annotations

import logging
from typing import Any

from lake_spark.client.bulk import Merged
from lake_spark.client.reading import snapshot_of, wants_snapshot
from lake_spark.client.segments import store_segment
from lake_spark.client.session import Session
from lake_spark.errors import LakeError
from lake_spark.index import SnapshotClaim, TransactionIndex
from lake_spark.model import Listing
from lake_spark.names import segment_name

log = logging.getLogger("lake_spark")


class SnapshotPacker:
    """Takes documents as they are read, and saves snapshots of those that want one, `budget` bytes at a time.

    That one fails is nobody's trouble: the next reader replays what this one did.
    """

    def __init__(self, session: Session, budget: int) -> None:
        self._session = session
        self._budget = budget
        self._listings: list[Listing] = []
        self._bodies: list[bytes] = []
        self._size = 0
        self._segments = 0
        self._txn: TransactionIndex | None = None

    def add(self, merged: Merged) -> None:
        """Take the document, if a snapshot of it is wanted."""
        listing, body, replayed, replayed_bytes, _ = merged
        if body is not None and wants_snapshot(self._session, listing, replayed, replayed_bytes, len(body)):
            self._listings.append(listing)
            self._bodies.append(body)
            self._size += len(body)

    @property
    def full(self) -> bool:
        return self._size >= self._budget

    def save(self) -> None:
        """Store and register what was taken since the last time."""
        try:
            if self._listings:
                self._save()
        except LakeError as error:
            log.warning("snapshots of %d catalogs were not saved: %s", len(self._listings), error)
        self._listings, self._bodies, self._size = [], [], 0

    def _save(self) -> None:
        session = self._session
        # A transaction that never publishes: it lends its id, and tells vacuum that the segment is being worked on.
        self._txn = self._txn or TransactionIndex.begin(session.index, session.options.lease)
        name = segment_name(self._txn.txn, 0, self._segments)
        self._segments += 1
        listings = {listing.catalog: listing for listing in self._listings}
        columns: dict[str, list[Any]] = {
            "catalog": [listing.catalog for listing in self._listings],
            "body": self._bodies,
        }
        # Known to the transaction before it is there: vacuum leaves it alone while the lease runs.
        self._txn.stage({name: f"{len(listings)} snapshots"})
        segment = store_segment(session, name, columns, kind="snapshots")
        claims = []
        for span in segment.spans():
            snapshot, digest = snapshot_of(listings[span.catalog], segment=name, row=span.row)
            claims.append(SnapshotClaim(span.catalog, snapshot, digest))
        replies = session.index.snapshot(claims)
        log.debug("segment %s: %d of %d snapshots registered", name, replies.count("added"), len(claims))
