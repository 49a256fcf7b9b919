"""What a catalog weighs and what a read of it costs; and how full a lake is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lake_spark.cache import CacheStats
from lake_spark.client.reading import dump, list_catalog, load_snapshot, read
from lake_spark.client.session import Session
from lake_spark.index.inspect import memory_used, open_writes, whole_log
from lake_spark.model import Snapshot, TsSeq
from lake_spark.names import SHARDS, shard_of


@dataclass(frozen=True, slots=True)
class CatalogFigures:
    """Sizes of one catalog in bytes of plain JSON, and how many deltas a read of it replays."""

    catalog: str
    shard: str
    version: TsSeq
    document_bytes: int
    deltas: int
    replayed: int
    replayed_bytes: int
    snapshots: int
    snapshot: Snapshot | None
    snapshot_bytes: int | None
    open_writes: int
    files: int
    meta: int
    caches: Mapping[str, CacheStats]


@dataclass(frozen=True, slots=True)
class LakeFigures:
    """How many catalogs and open writes a lake has, and the memory of its whole Redis in bytes, if it is told."""

    catalogs: int
    shards: int
    largest_shard: int
    open_writes: int
    oldest_open: float | None
    transactions: int
    redis_memory: int | None
    caches: Mapping[str, CacheStats]


def catalog_figures(session: Session, catalog: str) -> CatalogFigures:
    """The figures of one catalog, which is read for them: everything before its first open write."""
    document = read(session, list_catalog(session, catalog), "prefix")
    # Before the snapshot is weighed, which finds it in the cache.
    caches = session.cache_stats()
    listing, index = document.listing, session.index
    log = whole_log(index, catalog)
    files, meta = index.fields([index.keys.files(catalog), index.keys.meta(catalog)])
    snapshot = listing.snapshot
    return CatalogFigures(
        catalog=catalog,
        shard=shard_of(catalog),
        version=listing.version,
        document_bytes=len(dump(document)),
        deltas=sum(entry.count for entry in log.entries),
        replayed=document.replayed,
        replayed_bytes=document.replayed_bytes,
        snapshots=len(log.snapshots),
        snapshot=snapshot,
        snapshot_bytes=len(load_snapshot(session, catalog, snapshot)) if snapshot else None,
        open_writes=len(log.opened),
        files=len(files),
        meta=len(meta),
        caches=caches,
    )


def lake_figures(session: Session) -> LakeFigures:
    """The figures of a lake, from its index alone: what they cost does not grow with the lake."""
    sizes = session.index.registry_sizes(SHARDS)
    members = [member for found in open_writes(session.index, SHARDS) for member in found]
    return LakeFigures(
        catalogs=sum(sizes),
        shards=sum(size > 0 for size in sizes),
        largest_shard=max(sizes),
        open_writes=sum(member.txn is None for member in members),
        oldest_open=max((member.age for member in members if member.age is not None), default=None),
        transactions=len(session.index.inflight()),
        redis_memory=memory_used(session.index),
        caches=session.cache_stats(),
    )
