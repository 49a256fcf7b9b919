"""What is left of the logs of many catalogs, each with the snapshot that it stands on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lake_spark.client.session import Session
from lake_spark.errors import CorruptObject
from lake_spark.index.inspect import oldest_snapshots
from lake_spark.model import Listing, Snapshot, TsSeq
from lake_spark.names import shard_of

_RELISTINGS = 5


def retained(
    session: Session, names: Sequence[str], cuts: Mapping[str, TsSeq]
) -> dict[str, tuple[Listing, Snapshot | None]]:
    """The whole log of each catalog up to its shard's cut, and the snapshot it stands on if history was cleared.

    The two are asked for apart: where the oldest snapshot was another one before than after, somebody has cleared
    history in between, and it is asked again.
    """
    found: dict[str, tuple[Listing, Snapshot | None]] = {}
    todo: Sequence[str] = names
    for _ in range(_RELISTINGS):
        before = dict(zip(todo, oldest_snapshots(session.index, todo), strict=True))
        listings = {each.catalog: each for each in session.index.listings(todo, cuts=cuts, whole_log=True)}
        after = dict(zip(todo, oldest_snapshots(session.index, todo), strict=True))
        for name, listing in listings.items():
            if listing.error:
                raise listing.error
            if before[name] == after[name]:
                found[name] = listing, _base(listing, after[name], cuts[shard_of(name)])
        todo = [name for name in todo if name not in found]
        if not todo:
            break
    else:
        raise CorruptObject(f"history of catalog {todo[0]!r} is cleared again and again while it is read: try later")
    return {name: found[name] for name in names}


def _base(listing: Listing, oldest: Snapshot | None, cut: TsSeq) -> Snapshot | None:
    """The oldest snapshot, if nothing is left of what it merged."""
    if oldest is None or oldest.stop > cut:
        return None
    return oldest if not listing.entries or listing.entries[0].first > oldest.stop else None
