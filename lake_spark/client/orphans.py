"""Orphans: objects that nothing in the index names. Only those go whose end is known; the rest may be all that is left.

An object that the index cannot explain (not fenced, not removed, not cleared) may be the body of a write that Redis
has lost. It is reported, and left alone unless somebody says otherwise.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from lake_spark.client.problems import DeleteObject, Problem
from lake_spark.client.session import Session
from lake_spark.errors import CorruptObject
from lake_spark.index.members import parse_entry, parse_pending, parse_snapshot
from lake_spark.index.repair import Log, given_up, logs_of, transaction_states
from lake_spark.model import ZERO, TsSeq
from lake_spark.names import ObjectName, b64, decode_name, parse_object_key, shard_of
from lake_spark.storage import StoredObject

# Objects that are asked about together.
_OBJECTS = 1000
_SEGMENTS = "_segments/"
_DOCTOR = "_doctor/"
_SEGMENT = re.compile(r"_segments/[^/]+/(([0-9a-z]+)\.[0-9]+\.[0-9]+)\.parquet", re.ASCII)
_DELTA = re.compile(r"([0-9]+_[0-9]+)_([0-9]+)\.json", re.ASCII)
_SNAPSHOT = re.compile(r"([0-9]+_[0-9]+)~([0-9]+_[0-9]+)(?:~([0-9a-f]+))?\.snap", re.ASCII)

_UNKNOWN = (
    "Redis may have lost its memory of it (a crash, a failover, another Redis): look at it before it goes; "
    "--repair --remove-unknown deletes it"
)


class Counts(Protocol):
    """Where objects are counted."""

    objects: int
    bytes: int


@dataclass(slots=True)
class Segments:
    """Segments in storage that no writer is at work on; those that a log names are crossed off."""

    # Name to key, size, and whether Redis knows what became of the transaction.
    _left: dict[str, tuple[StoredObject, bool]]

    @classmethod
    def stored(cls, session: Session, min_age: float) -> Segments:
        """The segments that are older than that, without those of live transactions."""
        left: dict[str, tuple[StoredObject, bool]] = {}
        found = (each for each in session.storage.objects(_SEGMENTS) if time.time() - each.modified >= min_age)
        while some := list(islice(found, _OBJECTS)):
            names = [(match[1], match[2], each) for each in some if (match := _SEGMENT.fullmatch(each.key))]
            states = transaction_states(session.index, sorted({txn for _, txn, _ in names}))
            for name, txn, each in names:
                state = states[txn]
                if state is None or not state.live:
                    left[name] = each, state is not None
        return cls(left)

    def used(self, names: Iterable[str | None]) -> None:
        """Cross these off: a log names them."""
        for name in names:
            if name:
                self._left.pop(name, None)

    def orphans(self) -> Iterator[Problem]:
        """What is left once every log has been read."""
        for stored, known in self._left.values():
            if known:
                yield Problem(
                    "segment.orphan",
                    "warning",
                    f"object {stored.key}",
                    f"no log names this segment of {stored.size} bytes: its transaction was given up, or its rows were "
                    "cleared, or it was an attempt that did not count",
                    "delete it (--repair)",
                    DeleteObject(stored.key),
                )
            else:
                yield _unknown("segment.unknown", stored, "no log names this segment, and its transaction is forgotten")


def orphans(session: Session, min_age: float, counts: Counts) -> Iterator[Problem]:
    """Objects of catalogs that no log names; the objects first and the logs then, so that none is too new."""
    fenced: dict[str, set[tuple[str, str]]] = {}
    last = ""
    found = session.storage.objects("")
    while some := list(islice(found, _OBJECTS)):
        counts.objects += len(some)
        counts.bytes += sum(each.size for each in some)
        old = [each for each in some if time.time() - each.modified >= min_age]
        named = [(name, each) for each in old if (name := parse_object_key(each.key))]
        catalogs = sorted({name.catalog for name, _ in named})
        logs = {log.catalog: log for log in logs_of(session.index, catalogs)}
        keys = session.index.keys
        files = dict(zip(catalogs, session.index.fields([keys.files(name) for name in catalogs]), strict=True))
        # Keys come in the order of shards: those of the batch before are done with, but for its last.
        shards = {shard_of(name) for name in catalogs}
        fenced = {shard: fenced[shard] if shard in fenced else given_up(session.index, shard) for shard in shards}
        for each in old:
            if each.key.startswith(_DOCTOR):
                yield _orphan(each, "a probe of lake doctor, which was killed, left it behind")
        for name, each in named:
            problem = _judged(name, each, logs[name.catalog], fenced[shard_of(name.catalog)], files[name.catalog])
            if problem:
                yield problem
        yield from _unlisted(log for name, log in logs.items() if name != last)
        last = catalogs[-1] if catalogs else last


def _judged(
    name: ObjectName, stored: StoredObject, log: Log, fenced: set[tuple[str, str]], files: Iterable[str]
) -> Problem | None:
    if name.kind == "files":
        path = _file_path(name.name)
        if path is None or path in set(files):
            return None
        return _unknown("object.unknown", stored, f"the index has no such file of catalog {name.catalog!r}")
    try:
        return _delta(name, stored, log, fenced) if name.kind == "delta" else _snapshot(name, stored, log)
    except (CorruptObject, ValueError):
        # A member, or a name, that nobody can read: the check of the logs says so.
        return None


def _delta(name: ObjectName, stored: StoredObject, log: Log, fenced: set[tuple[str, str]]) -> Problem | None:
    found = _DELTA.fullmatch(name.name)
    if found is None:
        return None
    ts_seq = TsSeq.parse(found[1])
    for member in log.members:
        if not member.startswith(b"run|") and _sequence(member) == ts_seq:
            return None
    if log.floor and ts_seq <= log.floor:
        return _orphan(stored, f"history of catalog {name.catalog!r} was cleared up to {log.floor}")
    if (b64(name.catalog), str(ts_seq)) in fenced:
        return _orphan(stored, f"the write of catalog {name.catalog!r} at {ts_seq} was fenced, taken back or removed")
    return _unknown("object.unknown", stored, f"the index knows of no write of catalog {name.catalog!r} at {ts_seq}")


def _snapshot(name: ObjectName, stored: StoredObject, log: Log) -> Problem | None:
    found = _SNAPSHOT.fullmatch(name.name)
    if found is None:
        return None
    start, stop, digest = TsSeq.parse(found[1]), TsSeq.parse(found[2]), found[3] or ""
    snapshots = [parse_snapshot(member) for member in log.snapshots]
    if any((each.start, each.stop, each.digest) == (start, stop, digest) for each in snapshots):
        return None
    if start == max((each.stop for each in snapshots), default=ZERO):
        # It follows on the newest one: a reader may register it any moment.
        return None
    ends = {_sequence(member) for member in log.members} | {each.stop for each in snapshots}
    if stop in ends or (log.floor and stop <= log.floor):
        return _orphan(stored, f"a snapshot of catalog {name.catalog!r} that nobody can register any more")
    return _unknown("object.unknown", stored, f"the index knows of no version {stop} of catalog {name.catalog!r}")


def _sequence(member: bytes) -> TsSeq:
    """The last TsSeq of a member of a log."""
    return parse_pending(member) if member.startswith(b"pending|") else parse_entry(member).last


def _file_path(encoded: str) -> str | None:
    try:
        return "/" + decode_name(encoded)
    except ValueError:
        return None


def _unlisted(logs: Iterable[Log]) -> Iterator[Problem]:
    for log in logs:
        if not log.registered and (log.snapshots or any(not m.startswith(b"pending|") for m in log.members)):
            yield Problem(
                "catalog.unlisted",
                "warning",
                f"catalog {log.catalog!r}",
                "it has a log, and its name is not in the registry: it can be read by its name, and is in no list",
                "write to it: any write puts its name back, such as an empty merge patch",
            )


def _orphan(stored: StoredObject, why: str) -> Problem:
    found = f"nothing names this object of {stored.size} bytes: {why}"
    delete = DeleteObject(stored.key)
    return Problem("object.orphan", "warning", f"object {stored.key}", found, "delete it (--repair)", delete)


def _unknown(kind: str, stored: StoredObject, why: str) -> Problem:
    found = f"{why} ({stored.size} bytes)"
    return Problem(kind, "warning", f"object {stored.key}", found, _UNKNOWN, DeleteObject(stored.key, unknown=True))
