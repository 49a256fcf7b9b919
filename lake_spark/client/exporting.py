"""An export: the documents of a lake, or its logs, as rows of a file, all as of one cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from lake_spark.client.bulk import BulkReader
from lake_spark.client.cut import take_cut
from lake_spark.client.reading import load_snapshot
from lake_spark.client.retained import retained
from lake_spark.client.rowfiles import RowFile, Value
from lake_spark.client.session import Session
from lake_spark.client.transaction import meta_text
from lake_spark.errors import CorruptObject, ObjectMissing
from lake_spark.model import ZERO, Listing, MergeType, TsSeq
from lake_spark.names import SHARDS

DOCUMENTS = ("catalog", "version", "document", "meta")
DELTAS = ("catalog", "ts_seq", "merge_type", "path", "body", "meta")

# Catalogs that are listed together, and bytes of bodies in memory, about.
_CATALOGS = 1024
_BUDGET = 16 << 20

Rows = Iterator[tuple[Value, ...]]


def export_file(
    session: Session,
    file: RowFile,
    *,
    prefix: str = "",
    deltas: bool = False,
    as_of: TsSeq | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> int:
    """Write the documents, or with `deltas` the logs, of all catalogs with that prefix to a file; how many rows.

    All is as of one cut: a job is in the file whole or not at all. `advance` hears of each catalog.
    """
    wait = session.options.pending_wait
    cuts = take_cut(session.index, SHARDS, "prefix" if session.options.pending == "prefix" else "wait", wait, as_of)
    count = 0
    last: Value = None
    with file.written(DELTAS if deltas else DOCUMENTS) as writer:
        for shard, cut in zip(SHARDS, cuts, strict=True):
            if cut == ZERO:
                continue
            # Sorted as the rows of segments are, so that each row group is read once.
            names = sorted(session.index.catalogs(prefix, [shard]))
            rows = _deltas if deltas else _documents
            for row in rows(session, shard, cut, names, with_meta=as_of is None):
                writer.add(row)
                count += 1
                if row[0] != last:
                    last = row[0]
                    advance(1)
    return count


def _documents(session: Session, shard: str, cut: TsSeq, names: Sequence[str], *, with_meta: bool) -> Rows:
    meta: dict[str, str | None] = {}

    def listings() -> Iterator[Listing]:
        for some in _some(names):
            found = list(session.index.listings(some, cuts={shard: cut}))
            for listing in found:
                if listing.error:
                    raise listing.error
            there = [listing for listing in found if listing.exists]
            meta.update(_meta(session, [listing.catalog for listing in there], with_meta))
            yield from there

    for merged in BulkReader(session, _BUDGET).documents(listings()):
        if merged.error:
            raise merged.error
        catalog = merged.listing.catalog
        yield catalog, str(merged.listing.version), merged.body, meta.pop(catalog, None)


def _deltas(session: Session, shard: str, cut: TsSeq, names: Sequence[str], *, with_meta: bool) -> Rows:
    """Every delta that is left; a history that was cleared begins with a Replace by its oldest snapshot."""
    reader = BulkReader(session, _BUDGET)
    for some in _some(names):
        bases = retained(session, some, {shard: cut})
        there = [listing for listing, base in bases.values() if base or listing.exists]
        meta = _meta(session, [listing.catalog for listing in there], with_meta)
        try:
            for listing, bodies in reader.deltas(there):
                catalog, base = listing.catalog, bases[listing.catalog][1]
                held: tuple[Value, ...] | None = None
                if base:
                    held = catalog, str(base.stop), MergeType.REPLACE.name, "/", load_snapshot(session, catalog, base)
                for ts_seq, merge_type, path, body in bodies:
                    if held:
                        yield (*held, None)
                    held = catalog, str(ts_seq), MergeType(merge_type).name, path, body
                # What the catalog's meta is now belongs to all of its log: it comes with the last delta.
                if held:
                    yield (*held, meta.get(catalog))
        except ObjectMissing as error:
            raise CorruptObject(
                f"a body that the index names is not stored: {error}; if history is being cleared, export again, else "
                "lake fsck says what is missing"
            ) from None


def _meta(session: Session, names: Sequence[str], wanted: bool) -> dict[str, str | None]:
    """The catalogs' meta as JSON. Meta has no versions: none goes with a state of the past."""
    if not wanted or not names:
        return {}
    keys = session.index.keys
    found = session.index.fields([keys.meta(name) for name in names])
    return {name: meta_text(dict(fields)) for name, fields in zip(names, found, strict=True)}


def _some(names: Sequence[str]) -> Iterator[list[str]]:
    rest = iter(names)
    while some := list(islice(rest, _CATALOGS)):
        yield some
