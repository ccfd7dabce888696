"""The schedule of a quorum run: its shape, its faults and its clients' operations, as plain data.

`draw` draws a schedule once from a seed, and a run is a function of the schedule and the code. So a failing run can be
shrunk by deletions from its schedule, saved to a file, and replayed long after `draw` has changed. A schedule does
*not* hold the latency of each message and the election timers of each node: these come from generators seeded by the
run's seed, one for each purpose, so the deletion of one fault leaves the other draws unchanged.

Faults are drawn as a swarm: each seed switches each kind of fault on or off, and draws the switches again every
`PHASE_SECONDS`; a quarter of the phases have no faults. So rare combinations occur, and no quorum is unavailable for a
whole run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

FORMAT_VERSION = 2
LEADER = -1
"""In place of an operation's node: the node that leads at that time."""
PHASE_SECONDS = 10.0
ROTS = ("rot", "rot", "lose_end", "rewind")
"""The kinds of damage to a disk."""
SETTLE_SECONDS = 1.5
"""Seconds before the first fault, so that the faults meet a working quorum."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: time (virtual seconds), kind, node, duration (seconds), and a number with any further parameter."""

    at: float
    kind: str
    node: int = 0
    peer: int = 0
    seconds: float = 0.0
    number: float = 0.0


@dataclass(frozen=True, slots=True)
class Operation:
    """One call at a node: write, create, delete or read a register, grant a block of ids, or add or remove a voter."""

    at: float
    kind: str
    node: int
    subject: int = 0
    """The register's or the node's number."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the product that a run makes small, so that rare events occur: compactions, full windows, snapshots in
    pieces.
    """

    snapshot_entries: int = 40
    trailing_entries: int = 8
    append_entries: int = 4096
    snapshot_chunk_bytes: int = 256 * 1024
    answers: int = 4096


@dataclass(frozen=True, slots=True)
class Schedule:
    """The full description of a run."""

    seed: int
    voters: int
    seconds: float
    """Duration of the part with faults; afterwards everything heals, and the quorum must work."""
    slow_probability: float
    slow_max: float
    """The greatest latency of a slow message, in seconds."""
    tick_seconds: float
    """Period in which a node without a leader is ticked..."""
    wake_seconds: float
    """...and the delay of a tick after an input. Inputs that arrive within the delay share the tick, as in a thread
    that must wake up.
    """
    limits: Limits
    faults: tuple[Fault, ...]
    operations: tuple[Operation, ...]
    planted: str = ""
    """The planted bug that a saved schedule detects."""
    observers: int = 0
    """The number of nodes that are no voters at first; their numbers follow the voters'."""

    @property
    def nodes(self) -> int:
        return self.voters + self.observers

    def without_faults(self) -> Schedule:
        return replace(self, faults=())

    def to_json(self) -> str:
        """One line for each fault and each operation, so diffs are readable."""
        rows = [f'"{name}": {json.dumps(value)}' for name, value in self._head().items()]
        for name, items in (("faults", self.faults), ("operations", self.operations)):
            lines = ",\n    ".join(json.dumps(_row(item)) for item in items)
            rows.append(f'"{name}": [\n    {lines}\n  ]' if items else f'"{name}": []')
        return "{\n  " + ",\n  ".join(rows) + "\n}\n"

    def _head(self) -> dict[str, object]:
        return {
            "version": FORMAT_VERSION,
            "planted": self.planted,
            "seed": self.seed,
            "voters": self.voters,
            "observers": self.observers,
            "seconds": self.seconds,
            "slow_probability": self.slow_probability,
            "slow_max": self.slow_max,
            "tick_seconds": self.tick_seconds,
            "wake_seconds": self.wake_seconds,
            "limits": _row(self.limits),
        }

    @staticmethod
    def from_json(text: str) -> Schedule:
        """Raises `ValueError` if the text is no schedule or one of another version."""
        held = json.loads(text)
        if not isinstance(held, dict) or held.pop("version", None) != FORMAT_VERSION:
            raise ValueError(f"not a schedule of version {FORMAT_VERSION}")
        try:
            held["limits"] = Limits(**held["limits"])
            held["faults"] = tuple(Fault(**row) for row in held["faults"])
            held["operations"] = tuple(Operation(**row) for row in held["operations"])
            return Schedule(**held)
        except (TypeError, KeyError) as error:
            raise ValueError(f"not a schedule: {error}") from None


def _row(item: Any) -> dict[str, object]:
    return {name: getattr(item, name) for name in item.__dataclass_fields__}


@dataclass(slots=True)
class _Draw:
    """Draws the faults of one schedule."""

    rng: random.Random
    voters: int
    nodes: int
    replaceable: int
    """The number of voters that may still suffer permanent loss: the other voters keep a majority."""
    faults: list[Fault] = field(default_factory=list)

    def down_for(self) -> float:
        return self.rng.choice((0.05, 0.3, 1.0, 3.0)) * self.rng.uniform(0.5, 1.5)

    def node(self) -> int:
        return self.rng.randrange(self.nodes)

    def pair(self) -> tuple[int, int]:
        first, second = self.rng.sample(range(self.nodes), 2)
        return first, second

    def pair_of_voters(self) -> tuple[int, int]:
        first, second = self.rng.sample(range(self.voters), 2)
        return first, second

    def add(self, at: float, kind: str, node: int = 0, peer: int = 0, seconds: float = 0.0, number: float = 0) -> None:
        self.faults.append(Fault(round(at, 4), kind, node, peer, round(seconds, 4), number))


def _one(kind: str) -> Callable[[_Draw, float], None]:
    """A temporary fault of one node."""
    return lambda draw, at: draw.add(at, kind, draw.node(), seconds=draw.down_for())


def _all(kind: str) -> Callable[[_Draw, float], None]:
    def of_all(draw: _Draw, at: float) -> None:
        for node in range(draw.nodes):
            draw.add(at, kind, node, seconds=draw.down_for())

    return of_all


def _cut_one_way(draw: _Draw, at: float) -> None:
    first, second = draw.pair()
    draw.add(at, "cut", first, second, draw.down_for())


def _amnesia(draw: _Draw, at: float) -> None:
    """A minority is isolated, a third voter loses power, and then reaches only the nodes that had been isolated."""
    lonely, dark = draw.pair_of_voters()
    away = draw.rng.uniform(0.5, 2.0)
    rest = [node for node in range(draw.voters) if node not in (lonely, dark)]
    draw.add(at, "isolate", lonely, seconds=away)
    draw.add(at + away * 0.9, "power_loss", dark, seconds=away * 0.2)
    for node in rest[: len(rest) - (draw.voters // 2 - 1)]:
        draw.add(at + away * 0.95, "isolate", node, seconds=away + 1.0)


def _lag(draw: _Draw, at: float) -> None:
    """A follower is isolated until the others have compacted the entries it needs; it returns while the others fail."""
    lonely, other = draw.pair()
    away = draw.rng.uniform(2.0, 6.0)
    draw.add(at, "isolate", lonely, seconds=away)
    draw.add(at + away + draw.rng.uniform(0.0, 0.3), draw.rng.choice(("power_loss", "kill")), other, seconds=0.5)
    draw.add(at + away + draw.rng.uniform(0.0, 0.5), "power_loss", lonely, seconds=0.1)


def _duel(draw: _Draw, at: float) -> None:
    """All voters' election timers expire at one instant while votes are duplicated, so several campaign. Often one
    voter is isolated.
    """
    if draw.rng.random() < 0.7:
        draw.add(at, "duplicate", seconds=1.5, number=draw.rng.choice((0.3, 0.9)))
    for node in range(draw.nodes):
        draw.add(at + 0.1, "clock_jump", node, number=0.7)
    if draw.rng.random() < 0.5:
        draw.add(at, "isolate", draw.node(), seconds=draw.down_for())


def _strand(draw: _Draw, at: float) -> None:
    """Of three voters, a leader with one follower is a majority, and not stranded."""
    if draw.voters > 3:
        draw.add(at, "strand", draw.node(), seconds=draw.rng.uniform(0.7, 1.2))


def _crash_in_disk_operation(draw: _Draw, at: float) -> None:
    draw.add(at, "crash_in_disk_operation", draw.node(), seconds=draw.down_for(), number=draw.rng.randrange(1, 30))


def _crash_in_compaction(draw: _Draw, at: float) -> None:
    draw.add(at, "crash_in_compaction", draw.node(), seconds=draw.down_for(), number=draw.rng.randrange(1, 13))


def _weather(kind: str, numbers: tuple[float, ...]) -> Callable[[_Draw, float], None]:
    return lambda draw, at: draw.add(at, kind, seconds=draw.rng.uniform(0.5, 4.0), number=draw.rng.choice(numbers))


def _slow_disk(draw: _Draw, at: float) -> None:
    draw.add(
        at, "slow_disk", draw.node(), seconds=draw.rng.uniform(0.5, 4.0), number=draw.rng.choice((0.01, 0.05, 0.4))
    )


def _clock(kind: str, least: float, most: float) -> Callable[[_Draw, float], None]:
    return lambda draw, at: draw.add(at, kind, draw.node(), number=round(draw.rng.uniform(least, most), 3))


def _for_good(kind: str) -> Callable[[_Draw, float], None]:
    """A fault after which a voter never returns with its earlier state: it never affects a majority."""

    def once(draw: _Draw, at: float) -> None:
        if draw.replaceable:
            draw.replaceable -= 1
            node = draw.voters - 1 - draw.replaceable
            draw.add(at, kind, node, seconds=draw.down_for(), number=draw.rng.randrange(1 << 30))

    return once


def _rot(draw: _Draw, at: float) -> None:
    """A disk is damaged while its node is down: bits flip, the journal's end is lost, or the disk returns to an earlier
    state.
    """
    before = len(draw.faults)
    _for_good("rot")(draw, at)
    for position, fault in enumerate(draw.faults[before:], before):
        draw.faults[position] = replace(fault, kind=ROTS[int(fault.number) % len(ROTS)])


KINDS: Mapping[str, Callable[[_Draw, float], None]] = {
    "kill": _one("kill"),
    "kill_all": _all("kill"),
    "power_loss": _one("power_loss"),
    "power_loss_all": _all("power_loss"),
    "crash_in_disk_operation": _crash_in_disk_operation,
    "crash_in_compaction": _crash_in_compaction,
    "failed_fsync": _one("failed_fsync"),
    "slow_disk": _slow_disk,
    "stall": _one("stall"),
    "cut_one_way": _cut_one_way,
    "isolate": _one("isolate"),
    "deafen": _one("deafen"),
    "reset_connections": _weather("reset_connections", (0.2, 1.0)),
    "drop": _weather("drop", (0.02, 0.2)),
    "duplicate": _weather("duplicate", (0.05, 0.3)),
    "delay": _weather("delay", (0.05, 0.3)),
    "wall_clock_jump": _clock("wall_clock_jump", -288.0, 288.0),
    "clock_jump": _clock("clock_jump", 0.05, 3.0),
    "amnesia": _amnesia,
    "lag": _lag,
    "duel": _duel,
    "strand": _strand,
    "rot": _rot,
    "replace_disk": _for_good("replace_disk"),
}
"""Kind → the function that draws it. One draw may make several faults."""

OPERATIONS = ("grant", "grant", "write", "write", "create", "delete", "read", "read")
CHANGES = ("add_voter", "add_voter", "remove_voter")


def draw(seed: int, seconds: float, *, faulty: bool = True) -> Schedule:
    """Draw the schedule of a seed."""
    rng = random.Random(f"{seed}/quorum/shape")
    voters, observers = rng.choice((3, 3, 3, 5)), rng.choice((0, 0, 1, 2))
    operations = _operations(random.Random(f"{seed}/quorum/operations"), voters + observers, seconds)
    faults = _faults(random.Random(f"{seed}/quorum/faults"), voters, voters + observers, seconds) if faulty else ()
    changes = _changes(random.Random(f"{seed}/quorum/voters"), voters + observers, seconds, faults)
    return Schedule(
        seed=seed,
        voters=voters,
        seconds=seconds,
        slow_probability=rng.choice((0.0, 0.01, 0.05)),
        slow_max=rng.choice((0.02, 0.2)),
        tick_seconds=rng.choice((0.02, 0.05, 0.05)),
        wake_seconds=rng.choice((0.0, 0.002, 0.005)),
        limits=_limits(rng),
        faults=faults,
        operations=tuple(sorted((*operations, *changes), key=lambda operation: operation.at)),
        observers=observers,
    )


def _limits(rng: random.Random) -> Limits:
    return Limits(
        snapshot_entries=rng.choice((5, 20, 60, 200)),
        trailing_entries=rng.choice((0, 2, 8, 64)),
        append_entries=rng.choice((1, 3, 4096)),
        snapshot_chunk_bytes=rng.choice((128, 512, 256 * 1024)),
        answers=rng.choice((16, 4096, 4096)),
    )


def _operations(rng: random.Random, nodes: int, seconds: float) -> tuple[Operation, ...]:
    mean = rng.choice((0.15, 0.4, 1.0))
    favourite = rng.randrange(nodes)
    operations = []
    at = SETTLE_SECONDS * 0.5
    while at < seconds:
        at += rng.expovariate(1 / mean)
        for _ in range(rng.choice((1, 1, 1, 5))):
            node = favourite if rng.random() < 0.3 else rng.randrange(nodes)
            operations.append(Operation(round(at, 4), rng.choice(OPERATIONS), node, rng.randrange(4)))
    return tuple(operations)


def _changes(rng: random.Random, nodes: int, seconds: float, faults: tuple[Fault, ...]) -> tuple[Operation, ...]:
    """Changes of the voters: rarely, often or never. After a disk was replaced, its voter is removed and added again. A
    stranded leader appends entries that no majority accepts, changes of the voters included.
    """
    changes: list[Operation] = []

    def change(at: float, kind: str, subject: int, node: int | None = None) -> None:
        if at < seconds:
            changes.append(Operation(round(at, 4), kind, rng.randrange(nodes) if node is None else node, subject))

    mean = rng.choice((0.0, 6.0, 1.5))
    at = SETTLE_SECONDS
    while mean and at < seconds:
        at += rng.expovariate(1 / mean)
        for _ in range(rng.choice((1, 1, 2))):
            change(at, rng.choice(CHANGES), rng.randrange(nodes))
    for fault in faults:
        if fault.kind == "replace_disk":
            out = fault.at + rng.uniform(0.5, 4.0)
            change(out, "remove_voter", fault.node)
            change(out + rng.uniform(0.5, 4.0), "add_voter", fault.node)
        if fault.kind == "strand":
            change(fault.at + 0.05, "remove_voter", rng.randrange(nodes), LEADER)
            for number in range(12):
                change(fault.at + 0.1 + 0.02 * number, "grant", 0, LEADER)
            change(fault.at + fault.seconds + 2.0, "remove_voter", rng.randrange(nodes), LEADER)
    return tuple(changes)


def _faults(rng: random.Random, voters: int, nodes: int, seconds: float) -> tuple[Fault, ...]:
    draw = _Draw(rng, voters, nodes, replaceable=1)
    phase = SETTLE_SECONDS
    while phase < seconds:
        chosen = [kind for kind in KINDS if rng.random() < 0.3]
        mean = rng.choice((0.3, 1.0, 3.0))
        end = min(phase + PHASE_SECONDS, seconds)
        at = phase
        while chosen and rng.random() >= 0.25 / PHASE_SECONDS:
            at += rng.expovariate(1 / mean)
            if at >= end:
                break
            KINDS[rng.choice(chosen)](draw, at)
        phase = end
    return tuple(sorted(draw.faults, key=lambda fault: fault.at))
