"""A cluster's schedule: everything that is decided before the run, as data: its shape, its faults and its operations.

As for the quorum alone (`jepsen_like/simulator/quorum/schedule.py`), a run is a function of its schedule and the code,
so that a failing run is shrunk by deleting parts of its schedule, and replayed from a file. An operation names no topic
and no broker: it has a number, from which its choices are drawn when it is executed, among what exists then. So
deleting one operation leaves the choices of the others as they are, as far as the world stays the same.

A swarm: each seed switches each kind of fault and operation on or off, faults again every `PHASE_SECONDS`.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, fields, replace
from typing import Any

from jepsen_like.simulator.quorum.schedule import Fault
from jepsen_like.simulator.quorum.wrong_clocks import draw_wrong_clocks

from .kinds import KINDS, FaultDraw

FORMAT_VERSION = 1
WORLD = "cluster"
PHASE_SECONDS = 15.0
SETTLE_SECONDS = 4.0
"""Before the first fault: the quorum elects, brokers register, topics are created."""
CREATE_AT = 2.5


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation on topics: its kind, its time (virtual seconds), and the number from which its choices are drawn."""

    at: float
    kind: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class ClusterSchedule:
    """The plan of a run."""

    seed: int
    nodes: int
    seconds: float
    """Duration of the faults; then everything heals, and must recover."""
    slow_probability: float
    slow_max: float
    """The greatest latency of a slow message, in seconds."""
    retention_check_ms: int
    faults: tuple[Fault, ...]
    operations: tuple[Operation, ...]
    planted: str = ""
    """The planted bug that a saved schedule finds."""
    observers: int = 0
    """The last nodes, of this number, do not vote in the quorum."""
    replica_lag_max_ms: int = 5_000
    compaction_check_seconds: float = 15.0
    """Interval at which a node looks for a log to compact."""
    scrub_seconds: float = 0.0
    """Interval of a node's scrubs; 0: as in production, where none falls within a run."""
    producer_expiration_ms: int = 24 * 3_600_000
    producer_state_bytes: int = 16 * 1024 * 1024
    """Limits of the brokers' producer state, in time and in bytes."""
    transactions: bool = False
    """Applications write transactions, beside the others (`jepsen_like/simulator/transactions/run.py`)."""
    clients: bool = False
    """Clients are those of the library, and topics are deleted and recreated under them
    (`jepsen_like/simulator/library/run.py`).
    """

    @property
    def voters(self) -> int:
        return self.nodes - self.observers

    def to_json(self) -> str:
        """Return the JSON text, with one line for each fault and operation, so that diffs are readable."""
        head = {"version": FORMAT_VERSION, "world": WORLD}
        head |= {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("faults", "operations")}
        rows = [f'"{name}": {json.dumps(value)}' for name, value in head.items()]
        for name, items in (("faults", self.faults), ("operations", self.operations)):
            lines = ",\n    ".join(json.dumps(_row(item)) for item in items)
            rows.append(f'"{name}": [\n    {lines}\n  ]' if items else f'"{name}": []')
        return "{\n  " + ",\n  ".join(rows) + "\n}\n"

    @staticmethod
    def from_json(text: str) -> ClusterSchedule:
        """Return the schedule of a JSON text. Raises `ValueError` for another version or another kind of file."""
        held = json.loads(text)
        if not isinstance(held, dict) or (held.pop("version", None), held.pop("world", None)) != (
            FORMAT_VERSION,
            WORLD,
        ):
            raise ValueError(f"not a cluster's schedule of version {FORMAT_VERSION}")
        try:
            held["faults"] = tuple(Fault(**row) for row in held["faults"])
            held["operations"] = tuple(Operation(**row) for row in held["operations"])
            return ClusterSchedule(**held)
        except (TypeError, KeyError) as error:
            raise ValueError(f"not a schedule: {error}") from None


def _row(item: Any) -> dict[str, object]:
    return {f.name: getattr(item, f.name) for f in fields(item)}


DISTURBED_FROM_SEED = 200
"""Shortages and unforeseen exceptions begin with this seed: earlier seeds keep their worlds, and what they find."""

ROT = ("rot", "rot_leader")
"""Faults that destroy a part of a disk permanently."""

OPERATIONS = (
    "create",
    "delete",
    "recreate",
    "add_partitions",
    "reassign",
    "drain",
    "cancel_moves",
    "delete_records",
    "alter_topic",
    "send_again",
    "seek",
)


def draw(seed: int, seconds: float, *, faulty: bool = True) -> ClusterSchedule:
    """Return the schedule of a seed."""
    rng = random.Random(f"{seed}/cluster/shape")
    voters, observers = rng.choice((3, 3, 3, 5)), rng.choice((0, 0, 1))
    schedule = ClusterSchedule(
        seed=seed,
        nodes=voters + observers,
        seconds=seconds,
        slow_probability=rng.choice((0.0, 0.01, 0.05)),
        slow_max=rng.choice((0.02, 0.2)),
        retention_check_ms=rng.choice((500, 2_000, 30_000)),
        faults=(),
        operations=_operations(random.Random(f"{seed}/cluster/operations"), seconds),
        observers=observers,
        replica_lag_max_ms=rng.choice((1_000, 5_000)),
        compaction_check_seconds=rng.choice((0.5, 2.0, 15.0)),
    )
    if not faulty:
        return schedule
    faults = _faults(random.Random(f"{seed}/cluster/faults"), schedule)
    faults += _full_disks(random.Random(f"{seed}/cluster/full-disks"), schedule)
    filled = _filled_disks(random.Random(f"{seed}/cluster/filled-disks"), schedule)
    faults += filled
    if not filled:  # A world with filled disks has none of these.
        schedule = _crowded(random.Random(f"{seed}/cluster/crowds"), schedule)
        faults += _shortages(random.Random(f"{seed}/cluster/open-files"), schedule)
        faults += _exceptions(random.Random(f"{seed}/cluster/exceptions"), schedule)
    rng = random.Random(f"{seed}/cluster/wrong-clocks")
    faults += draw_wrong_clocks(rng, voters, schedule.nodes, seconds)
    rng = random.Random(f"{seed}/cluster/rot-in-service")
    rots = _rots_in_service(rng, schedule)
    if rots:
        faults = (*(fault for fault in faults if fault.kind not in ROT), *rots)
    return replace(
        schedule,
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        scrub_seconds=rng.choice((0.5, 2.0, 5.0)) if rots else 0.0,
    )


def _operations(rng: random.Random, seconds: float) -> tuple[Operation, ...]:
    operations = [Operation(CREATE_AT, "create", rng.randrange(1 << 30)) for _ in range(rng.choice((1, 1, 2)))]
    chosen = [kind for kind in OPERATIONS if rng.random() < 0.5]
    mean = rng.choice((1.0, 3.0, 8.0))
    at = SETTLE_SECONDS
    while chosen:
        at += rng.expovariate(1 / mean)
        if at >= seconds:
            break
        operations.append(Operation(round(at, 4), rng.choice(chosen), rng.randrange(1 << 30)))
    return tuple(operations)


def _crowded(rng: random.Random, schedule: ClusterSchedule) -> ClusterSchedule:
    """Add crowds of short-lived producers in a sixth of the schedules, with tight limits of the brokers' producer
    state.
    """
    if rng.randrange(6) != 4:  # Any of the six would do.
        return schedule
    mean, at, crowds = rng.choice((2.0, 5.0)), SETTLE_SECONDS, list[Operation]()
    while (at := at + rng.expovariate(1 / mean)) < schedule.seconds:
        crowds.append(Operation(round(at, 4), "crowd", rng.randrange(1 << 30)))
    operations = sorted((*schedule.operations, *crowds), key=lambda operation: operation.at)
    return replace(
        schedule,
        operations=tuple(operations),
        producer_expiration_ms=rng.choice((1_500, 4_000)),
        producer_state_bytes=rng.choice((64 * 1024, 16 * 1024 * 1024)),
    )


def _full_disks(rng: random.Random, schedule: ClusterSchedule) -> tuple[Fault, ...]:
    """In a quarter of the schedules, leave some disks without space for logs for a while."""
    if rng.random() >= 0.25:
        return ()
    times = (rng.uniform(SETTLE_SECONDS, schedule.seconds) for _ in range(rng.randrange(1, 8)))
    node, seconds = rng.randrange(schedule.nodes), rng.choice((0.5, 2.0, 6.0))
    return tuple(
        Fault(round(at, 4), "full_disk", (node + n) % schedule.nodes, 0, seconds) for n, at in enumerate(times)
    )


def _filled_disks(rng: random.Random, schedule: ClusterSchedule) -> tuple[Fault, ...]:
    """In a quarter of the schedules, fill the disks of some nodes, or of all at once, permanently."""
    if rng.random() >= 0.25:
        return ()
    at = rng.uniform(2 * SETTLE_SECONDS, max(2 * SETTLE_SECONDS, 0.7 * schedule.seconds))
    nodes = rng.choice((1, 2, schedule.nodes, schedule.nodes))
    first, apart = rng.randrange(schedule.nodes), rng.choice((0.0, 0.5, 5.0))
    return tuple(
        Fault(round(at + n * apart, 4), "fill_disk", (first + n) % schedule.nodes, number=rng.choice((0, 0, 1, 6)))
        for n in range(nodes)
    )


def _shortages(rng: random.Random, schedule: ClusterSchedule) -> tuple[Fault, ...]:
    """In a seventh of the schedules, let some nodes run out of descriptors for a while.

    At the end all nodes do, when no restart follows.
    """
    if schedule.seed < DISTURBED_FROM_SEED or rng.random() >= 0.15:
        return ()
    times = sorted(rng.uniform(SETTLE_SECONDS, schedule.seconds) for _ in range(rng.choice((2, 6, 12))))
    some = tuple(
        Fault(round(at, 4), "no_descriptors", rng.randrange(schedule.nodes), 0, rng.choice((0.3, 1.5, 5.0)))
        for at in times
    )
    at = round(schedule.seconds - rng.uniform(1.0, 3.0), 4)
    return (*some, *(Fault(at, "no_descriptors", node, 0, 3.0) for node in range(schedule.nodes)))


def _exceptions(rng: random.Random, schedule: ClusterSchedule) -> tuple[Fault, ...]:
    """In a seventh of the schedules, let the ports of some nodes raise unforeseen exceptions for a while.

    At the end all nodes' ports do, when no restart follows that would repair what the product did not.
    """
    if schedule.seed < DISTURBED_FROM_SEED or rng.random() >= 0.15:
        return ()
    times = sorted(rng.uniform(SETTLE_SECONDS, schedule.seconds - 2.0) for _ in range(rng.choice((3, 8, 16))))
    probability = rng.choice((0.01, 0.05, 0.2))
    some = tuple(
        Fault(round(at, 4), "exceptions", rng.randrange(schedule.nodes), 0, rng.choice((1.0, 4.0)), probability)
        for at in times
    )
    at = round(schedule.seconds - rng.uniform(0.3, 1.5), 4)
    return (*some, *(Fault(at, "exceptions", node, 0, 1.0, probability) for node in range(schedule.nodes)))


def _rots_in_service(rng: random.Random, schedule: ClusterSchedule) -> tuple[Fault, ...]:
    """In a fifth of the schedules, damage one disk repeatedly while its process runs, and no other: the data is on
    others (S1).
    """
    if rng.random() >= 0.2:
        return ()
    node = rng.randrange(schedule.nodes)
    times = sorted(rng.uniform(2 * SETTLE_SECONDS, schedule.seconds) for _ in range(rng.choice((2, 5, 10))))
    return tuple(Fault(round(at, 4), "rot_in_service", node, number=rng.randrange(1 << 30)) for at in times)


def _faults(rng: random.Random, schedule: ClusterSchedule) -> tuple[Fault, ...]:
    draw = FaultDraw(rng, schedule.nodes, schedule.replica_lag_max_ms / 1000)
    seconds, phase = schedule.seconds, SETTLE_SECONDS
    while phase < seconds:
        chosen = [kind for kind in KINDS if rng.random() < 0.4] or ["kill"]
        mean = rng.choice((0.5, 2.0, 5.0))
        end = min(phase + PHASE_SECONDS, seconds)
        at = phase
        while True:
            at += rng.expovariate(1 / mean)
            if at >= end:
                break
            KINDS[rng.choice(chosen)](draw, at)
        phase = end
    return tuple(sorted((fault for fault in draw.faults if fault.at < seconds), key=lambda fault: fault.at))
