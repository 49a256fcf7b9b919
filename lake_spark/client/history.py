"""History: forgetting what lies behind a snapshot, and taking single deltas out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from lake_spark.client.reading import dump, list_catalog, read, save_snapshot, snapshot_of
from lake_spark.client.session import Session
from lake_spark.errors import CatalogNotFound, InvalidInput, PendingError
from lake_spark.index.members import parse_entry, parse_pending
from lake_spark.model import Delta, Snapshot, TsSeq
from lake_spark.names import delta_key, snapshot_key


@dataclass(frozen=True, slots=True)
class Cleared:
    """What clearing removed (or would): history of the catalog up to `stop`."""

    catalog: str
    stop: TsSeq | None
    deltas: int
    snapshots: int
    objects: tuple[str, ...]


def clear_history(session: Session, catalog: str, keep_snaps: int, *, dry_run: bool) -> Cleared:
    """Forget the catalog's history up to the oldest of its `keep_snaps` newest snapshots (at least one is kept).

    A snapshot of the current document is made first. Index entries go before objects, so that a crash in
    between leaves objects for vacuum and never an entry without its object.
    """
    _check_keep(keep_snaps)
    if not dry_run:
        materialise(session, catalog)
    snapshots, members = session.index.history(catalog)
    found = _behind(catalog, snapshots, members, keep_snaps)
    if dry_run or found.stop is None:
        return found
    fenced = session.index.clear(catalog, found.stop)
    if fenced is None:
        # Somebody else cleared further in the meantime.
        return Cleared(catalog, found.stop, 0, 0, ())
    objects = (*found.objects, *(_key(catalog, _fenced(member)) for member in fenced))
    session.each(session.storage.delete, objects)
    return dataclasses.replace(found, objects=objects)


def plan_clear(session: Session, catalog: str, keep_snaps: int) -> Cleared:
    """What clearing would remove if it were done now: with the snapshot that it would make first."""
    _check_keep(keep_snaps)
    listing = list_catalog(session, catalog)
    if not listing.exists:
        raise CatalogNotFound(f"there is no catalog {catalog!r}")
    snapshots, members = session.index.history(catalog)
    if listing.entries:
        snapshots = [*snapshots, snapshot_of(listing)[0]]
    return _behind(catalog, snapshots, members, keep_snaps)


def _check_keep(keep_snaps: int) -> None:
    if type(keep_snaps) is not int or keep_snaps < 0:
        raise InvalidInput(f"keep_snaps is a whole number, 0 or more; not {keep_snaps!r}")


def _behind(catalog: str, snapshots: Sequence[Snapshot], members: Sequence[bytes], keep_snaps: int) -> Cleared:
    """What lies behind the newest of these snapshots."""
    if not snapshots:
        return Cleared(catalog, None, 0, 0, ())
    kept = snapshots[-max(1, keep_snaps) :]
    dropped = snapshots[: -len(kept)]
    stop = kept[0].stop
    log = [parse_entry(member) for member in members if not member.startswith(b"pending|")]
    below = [entry for entry in log if entry.last <= stop]
    # A segment belongs to many catalogs: vacuum removes it when nothing points to it any more.
    objects = [_key(catalog, entry) for entry in below if isinstance(entry, Delta)]
    objects += [snapshot_key(catalog, snapshot) for snapshot in dropped if not snapshot.segment]
    count = sum(entry.count for entry in below)
    return Cleared(catalog, stop, count, len(dropped), tuple(objects))


def materialise(session: Session, catalog: str) -> None:
    """Save a snapshot of everything before the first open write."""
    listing = list_catalog(session, catalog)
    if listing.entries:
        document = read(session, listing, "prefix")
        reply = save_snapshot(session, document.listing, dump(document))
        if reply == "open":
            raise PendingError(f"catalog {catalog!r} has open writes below {document.listing.version}: try again")


def remove_delta(session: Session, catalog: str, ts_seq: TsSeq) -> None:
    """Take one delta out of the log for good."""
    entry = session.index.remove_delta(catalog, ts_seq)
    if isinstance(entry, Delta):
        session.storage.delete(_key(catalog, entry))


def _key(catalog: str, delta: Delta) -> str:
    assert delta.merge_type is not None
    return delta_key(catalog, delta.ts_seq, delta.merge_type)


def _fenced(member: bytes) -> Delta:
    parse_pending(member)
    entry = parse_entry(member.removeprefix(b"pending|"))
    assert isinstance(entry, Delta)
    return entry
