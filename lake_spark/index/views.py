"""The reply of `lua/list.lua` as a listing: what is visible, and what stands in its way."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from lake_spark.errors import HistoryGone, PendingError
from lake_spark.index.members import parse_entry, parse_pending, parse_snapshot
from lake_spark.model import Delta, Listing, Pending, Run, TsSeq


def listing_of(catalog: str, reply: Sequence[Any], *, strict_pending: bool, as_of: TsSeq | None) -> Listing:
    """A listing from the script's reply for one catalog."""
    # A view as of a version must read the same tomorrow: nothing below it may be open.
    strict = strict_pending or as_of is not None
    snapshot_bytes, floor, visible, open_writes, followed = reply
    snapshot = parse_snapshot(snapshot_bytes) if snapshot_bytes else None
    entries = [parse_entry(member) for member in visible]
    if as_of and entries:
        entries[-1] = _cut(entries[-1], as_of)
    pendings: tuple[Pending, ...] = ()
    if strict or followed:
        pendings = tuple(_pending(member, age) for member, age in open_writes)
    listing = Listing(catalog, snapshot, tuple(entries), pendings, None, as_of, strict, tuple(visible))
    error = _history_gone(listing, floor.decode()) or _pending_error(listing)
    return dataclasses.replace(listing, error=error) if error else listing


def _cut(entry: Delta | Run, as_of: TsSeq) -> Delta | Run:
    """A run as far as `as_of`: the version asked for may lie within it."""
    if isinstance(entry, Run) and entry.last > as_of:
        return dataclasses.replace(entry, count=as_of.seq - entry.first.seq + 1)
    return entry


def _pending(member: bytes, age: int) -> Pending:
    ts_seq = parse_pending(member)
    entry = parse_entry(member) if member.startswith(b"run|") else None
    return Pending(ts_seq, max(age, 0) / 1e6, entry.txn if isinstance(entry, Run) else None)


def _pending_error(listing: Listing) -> PendingError | None:
    if not listing.pendings:
        return None
    first = listing.pendings[0]
    owner = f"transaction {first.txn} is being published" if first.txn else f"open for {first.age:.1f} s"
    more = f" and {len(listing.pendings) - 1} more" if len(listing.pendings) > 1 else ""
    return PendingError(
        f"catalog {listing.catalog!r} has an open write at {first.ts_seq} ({owner}){more}: try again, or read with "
        'pending="wait" or pending="prefix"'
    )


def _history_gone(listing: Listing, floor: str) -> HistoryGone | None:
    if not floor or listing.as_of is None or listing.as_of >= TsSeq.parse(floor):
        return None
    return HistoryGone(
        f"history of catalog {listing.catalog!r} was cleared up to {floor}: there is no version as of {listing.as_of}"
    )
