"""Every interleaving of a few processes, step by step on the real scripts.

Each process is a generator that yields after each of its atomic steps. A schedule is the order in which
they take steps; all schedules are tried, each on an empty lake. Run as a program for the large ones:
`python tests/interleavings.py` prints how many schedules each scene has and what broke, if anything.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

from servers import RedisServer

from lake_spark import MergeType, TsSeq
from lake_spark.errors import FencedError, TransactionAborted
from lake_spark.index import Block, CatalogRun, Connection, Index, SnapshotClaim, TransactionIndex, digest_of
from lake_spark.model import ZERO, Listing, Snapshot
from lake_spark.names import Keys, shard_of

Process = Generator[None, None, None]
# Two catalogs of one shard: their sequences come from one allocator.
CATALOGS = ("a", next(name for name in map(str, range(10_000)) if shard_of(name) == shard_of("a")))


@dataclass
class World:
    """A lake under test: the index, what each write put into storage, and what was promised to whom."""

    index: Index
    bodies: dict[tuple[str, TsSeq], str] = field(default_factory=dict)
    documents: dict[tuple[str, Snapshot], tuple[str, ...]] = field(default_factory=dict)
    acknowledged: list[tuple[str, str]] = field(default_factory=list)
    reads: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    expired: bool = False

    @property
    def reader(self) -> Index:
        """Readers see open writes as abandoned once time has run out."""
        return dataclasses.replace(self.index, pending_timeout=1e-6 if self.expired else 3600.0)

    def document(self, listing: Listing) -> tuple[str, ...]:
        base = self.documents[listing.catalog, listing.snapshot] if listing.snapshot else ()
        return base + tuple(self.bodies[listing.catalog, delta.ts_seq] for delta in listing.deltas)


def writer(world: World, catalog: str, name: str) -> Process:
    """Pre-commit, put, commit; fenced, it goes again under a new sequence."""
    while True:
        opened = world.index.precommit(catalog, MergeType.RFC7396, "/")
        yield
        world.bodies[catalog, opened.ts_seq] = name
        yield
        try:
            world.index.commit(opened, {})
        except FencedError:
            continue
        world.acknowledged.append((catalog, name))
        return


def quick_writer(world: World, catalog: str, name: str) -> Process:
    """A whole write in one step."""
    for _ in writer(world, catalog, name):
        pass
    return
    yield


def dying_writer(world: World, catalog: str, name: str) -> Process:
    """Dies between put and commit."""
    opened = world.index.precommit(catalog, MergeType.RFC7396, "/")
    yield
    world.bodies[catalog, opened.ts_seq] = name


def transaction(world: World, catalogs: Sequence[str], name: str) -> Process:
    """Intend, publish, commit, over several catalogs; its lease may run out at any moment."""
    txn = TransactionIndex.begin(world.index, 3600.0)
    try:
        txn.intend()
        yield
        for chunk, catalog in enumerate(catalogs):
            block = Block(shard_of(catalog), f"{txn.txn}.0.{chunk}", [CatalogRun(catalog, 0, 2)])
            [[first]] = txn.publish([block])
            for offset in range(2):
                world.bodies[catalog, TsSeq(first.seconds, first.seq + offset)] = f"{name}{offset}"
            yield
        txn.commit()
    except TransactionAborted:
        return
    world.acknowledged += [(catalog, f"{name}{offset}") for catalog in catalogs for offset in range(2)]


def reader(world: World, catalog: str) -> Process:
    """Reads the closed prefix, then saves a snapshot of it."""
    listing = world.reader.listing(catalog)
    found = world.document(listing)
    world.reads.append((catalog, found))
    yield
    if listing.entries:
        digest = digest_of(listing.snapshot, listing.members)
        start = listing.snapshot.stop if listing.snapshot else ZERO
        snapshot = Snapshot(start, listing.version, digest)
        world.documents[catalog, snapshot] = found
        world.reader.snapshot([SnapshotClaim(catalog, snapshot, digest)])


def cleaner(world: World, catalog: str) -> Process:
    """Clears up to the newest snapshot that it saw."""
    snapshots, _ = world.reader.history(catalog)
    yield
    if snapshots:
        world.reader.clear(catalog, snapshots[-1].stop)


def time_runs_out(world: World) -> Process:
    """Everything open now has been open for too long, and every lease has run out."""
    world.expired = True
    client = world.index.connection.client
    for txn in world.index.inflight():
        client.hset(world.index.keys.txn(txn), "lease", "1")
        TransactionIndex(world.index, txn, 0.0).abort()
    return
    yield


Scene = dict[str, Callable[[World], Process]]
A, B = CATALOGS
SCENES: dict[str, Scene] = {
    "a slow write, a quick one, a reader that snapshots": {
        "slow": lambda w: writer(w, A, "slow"),
        "quick": lambda w: quick_writer(w, A, "quick"),
        "reader": lambda w: reader(w, A),
        "time": time_runs_out,
    },
    "a transaction, a quick write, a reader that snapshots": {
        "transaction": lambda w: transaction(w, [A], "t"),
        "quick": lambda w: quick_writer(w, A, "quick"),
        "reader": lambda w: reader(w, A),
        "time": time_runs_out,
    },
    "two writes, a reader that snapshots, a cleaner": {
        "quick": lambda w: quick_writer(w, A, "quick"),
        "other": lambda w: quick_writer(w, A, "other"),
        "reader": lambda w: reader(w, A),
        "cleaner": lambda w: cleaner(w, A),
    },
}
LARGE_SCENES: dict[str, Scene] = {
    "a dying write, a quick one, two readers that snapshot": {
        "dying": lambda w: dying_writer(w, A, "dead"),
        "quick": lambda w: quick_writer(w, A, "quick"),
        "reader": lambda w: reader(w, A),
        "other reader": lambda w: reader(w, A),
        "time": time_runs_out,
    },
    "a slow write, a quick one, two readers that snapshot, time": {
        "slow": lambda w: writer(w, A, "slow"),
        "quick": lambda w: quick_writer(w, A, "quick"),
        "reader": lambda w: reader(w, A),
        "other reader": lambda w: reader(w, A),
        "time": time_runs_out,
    },
    "a slow write, a quick one, a reader that snapshots, a cleaner, time": {
        "slow": lambda w: writer(w, A, "slow"),
        "quick": lambda w: quick_writer(w, A, "quick"),
        "reader": lambda w: reader(w, A),
        "cleaner": lambda w: cleaner(w, A),
        "time": time_runs_out,
    },
    "a transaction over two catalogs, a slow write, a reader that snapshots, time": {
        "transaction": lambda w: transaction(w, [A, B], "t"),
        "writer": lambda w: writer(w, B, "x"),
        "reader": lambda w: reader(w, B),
        "time": time_runs_out,
    },
}


def run(world: World, scene: Scene, choices: Sequence[int]) -> tuple[list[int], list[str]]:
    """Run one schedule: `choices`, then always the first process. How many could go at each step, and who went."""
    alive = {name: start(world) for name, start in scene.items()}
    widths: list[int] = []
    order: list[str] = []
    while alive:
        step = len(widths)
        names = list(alive)
        widths.append(len(names))
        name = names[choices[step] if step < len(choices) else 0]
        order.append(name)
        try:
            next(alive[name])
        except StopIteration:
            del alive[name]
        # A writer that is fenced goes again, but not for ever.
        assert len(widths) < 100, order
    return widths, order


def schedules(attempt: Callable[[Sequence[int]], list[int]]) -> Iterator[int]:
    """Depth first through every choice at every step."""
    choices: list[int] = []
    count = 0
    while True:
        widths = attempt(choices)
        count += 1
        yield count
        choices += [0] * (len(widths) - len(choices))
        while choices and choices[-1] + 1 >= widths[len(choices) - 1]:
            choices.pop()
        if not choices:
            return
        choices[-1] += 1


def broken(world: World) -> list[str]:
    """What P1 and P2 say against how it ended."""
    world.expired = True
    for txn in world.index.inflight():
        TransactionIndex(world.index, txn, 0.0).abort()
    found = {catalog: world.document(world.reader.listing(catalog)) for catalog in CATALOGS}
    faults = [
        f"{name!r} was acknowledged and is in {catalog!r} {found[catalog].count(name)} times"
        for catalog, name in world.acknowledged
        if found[catalog].count(name) != 1
    ]
    faults += [
        f"{seen} was read, and is no beginning of {found[catalog]}"
        for catalog, seen in world.reads
        if found[catalog][: len(seen)] != seen
    ]
    return faults


def explore(url: str, scene: Scene) -> int:
    """Try every schedule of a scene; the number of them, or an AssertionError with the one that broke a promise."""
    connection = Connection(url)

    def attempt(choices: Sequence[int]) -> list[int]:
        connection.client.flushdb()
        world = World(Index(connection, Keys("model:lake"), 3600.0))
        widths, order = run(world, scene, choices)
        faults = broken(world)
        assert not faults, (order, faults)
        return widths

    try:
        return max(schedules(attempt))
    finally:
        connection.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, RedisServer(folder) as server:
        for name, scene in {**SCENES, **LARGE_SCENES}.items():
            print(f"{name}: {explore(server.url, scene)} schedules, every promise held", flush=True)


if __name__ == "__main__":
    sys.exit(main())
