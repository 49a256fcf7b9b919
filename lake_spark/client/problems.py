"""What fsck finds, and how it is put right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from lake_spark.client.session import Session
from lake_spark.index import abort_if_expired
from lake_spark.index.inspect import open_writes
from lake_spark.index.repair import forget_catalog, remove_snapshot
from lake_spark.model import Snapshot, TsSeq
from lake_spark.names import shard_of, snapshot_key

Level = Literal["warning", "error"]


class Fence(NamedTuple):
    """Fence an open write that expired."""

    catalog: str
    ts_seq: TsSeq


class Abort(NamedTuple):
    """Give up a transaction whose lease ran out."""

    txn: str


class Forget(NamedTuple):
    """Take a name out of the registry that has no log."""

    catalog: str


class DropSnapshot(NamedTuple):
    """Take a snapshot out of the index that cannot be read, and its object, if there is one."""

    catalog: str
    snapshot: Snapshot


class DeleteObject(NamedTuple):
    """Delete an object that nothing in the index names; `unknown` if nobody can say why, which takes more than leave
    to repair.
    """

    key: str
    unknown: bool = False


Repair = Fence | Abort | Forget | DropSnapshot | DeleteObject


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it should be. `kind` stays the same from version to version; an error is data that is
    lost or damaged, a warning is what can be put right or costs only room.
    """

    kind: str
    level: Level
    place: str
    found: str
    action: str
    repair: Repair | None = None

    def repaired_by(self, *, remove_unknown: bool) -> Repair | None:
        """How it is put right, if that is allowed."""
        unknown = isinstance(self.repair, DeleteObject) and self.repair.unknown
        return None if unknown and not remove_unknown else self.repair


def repair(session: Session, step: Repair) -> bool:
    """Put one thing right; False if it was no longer so, or somebody is in the way. No document changes by it."""
    index = session.index
    if isinstance(step, Fence):
        shard = shard_of(step.catalog)
        index.high_water_mark(shard)
        [left] = open_writes(index, [shard])
        return all((write.catalog, write.ts_seq) != (step.catalog, step.ts_seq) for write in left)
    if isinstance(step, Abort):
        return abort_if_expired(index, step.txn) == 0.0
    if isinstance(step, Forget):
        return forget_catalog(index, step.catalog)
    if isinstance(step, DropSnapshot):
        if remove_snapshot(index, step.catalog, step.snapshot, ask=True) == "needed":
            # History was cleared since: even a damaged object may be all that is left.
            return False
        if not step.snapshot.segment:
            # The object first: were it still there, the next reader would register it again as it is.
            session.storage.delete(snapshot_key(step.catalog, step.snapshot))
        return remove_snapshot(index, step.catalog, step.snapshot) != "needed"
    session.storage.delete(step.key)
    return True
