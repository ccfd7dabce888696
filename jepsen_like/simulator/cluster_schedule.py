"""Everything that is decided before a cluster's run: its shape, its faults and what is done to its topics, as data.

As for the quorum alone (`quorum_schedule.py`), a run is a function of its schedule and the code, so that a failing run
is made smaller by deleting from its schedule, and replayed from a file. An operation names no topic and no broker: it
carries a number, from which its choices are drawn when it is carried out, among what there is then. So deleting one
leaves the others' choices as they are, as far as the world does.

A swarm: each seed switches each kind of fault and of operation on or off, faults again every `PHASE_SECONDS`.

What is *not* here: what a fault does (`cluster_faults.py`), what an operation does (`cluster_operations.py`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from .quorum_schedule import Fault

FORMAT_VERSION = 1
WORLD = "cluster"
PHASE_SECONDS = 15.0
SETTLE_SECONDS = 4.0
"""Before the first fault: the quorum elects, brokers register, topics are made."""
CREATE_AT = 2.5


@dataclass(frozen=True, slots=True)
class Operation:
    """Something that is done to the topics: what, when (virtual seconds), and a number from which the rest is drawn."""

    at: float
    kind: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class ClusterSchedule:
    """A run before it is run."""

    seed: int
    nodes: int
    seconds: float
    """Of faults; then everything heals, and must work."""
    slow_probability: float
    slow_max: float
    """A slow message's greatest latency, in seconds."""
    retention_check_ms: int
    faults: tuple[Fault, ...]
    operations: tuple[Operation, ...]
    planted: str = ""
    """The planted bug that a saved schedule is known to find."""

    def to_json(self) -> str:
        """One line a fault and an operation, so that a change is read in a diff."""
        head = {"version": FORMAT_VERSION, "world": WORLD}
        head |= {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("faults", "operations")}
        rows = [f'"{name}": {json.dumps(value)}' for name, value in head.items()]
        for name, items in (("faults", self.faults), ("operations", self.operations)):
            lines = ",\n    ".join(json.dumps(_row(item)) for item in items)
            rows.append(f'"{name}": [\n    {lines}\n  ]' if items else f'"{name}": []')
        return "{\n  " + ",\n  ".join(rows) + "\n}\n"

    @staticmethod
    def from_json(text: str) -> ClusterSchedule:
        """Raises `ValueError` for another version or a file that is no schedule of a cluster."""
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


# --- Drawing faults --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Draw:
    """Draws the faults of one schedule."""

    rng: random.Random
    nodes: int
    rots_left: int = 1
    """So many disks may still rot: fewer than `min.insync.replicas`, else records may be lost by right (S1)."""
    faults: list[Fault] = field(default_factory=list)

    def down_for(self) -> float:
        return self.rng.choice((0.05, 0.3, 1.0, 3.0)) * self.rng.uniform(0.5, 1.5)

    def node(self) -> int:
        return self.rng.randrange(self.nodes)

    def number(self) -> int:
        return self.rng.randrange(1 << 30)

    def add(self, at: float, kind: str, node: int = 0, peer: int = 0, seconds: float = 0.0, number: float = 0) -> None:
        self.faults.append(Fault(round(at, 4), kind, node, peer, round(seconds, 4), number))


def _one(kind: str) -> Callable[[_Draw, float], None]:
    return lambda draw, at: draw.add(at, kind, draw.node(), seconds=draw.down_for(), number=draw.number())


def _all(kind: str) -> Callable[[_Draw, float], None]:
    def of_all(draw: _Draw, at: float) -> None:
        for node in range(draw.nodes):
            draw.add(at, kind, node, seconds=draw.down_for(), number=draw.number())

    return of_all


def _kill_and_back(draw: _Draw, at: float) -> None:
    """Back before anybody's session has ended."""
    draw.add(at, draw.rng.choice(("kill", "power_loss")), draw.node(), seconds=draw.rng.uniform(0.001, 0.2))


def _cut_one_way(draw: _Draw, at: float) -> None:
    first, second = draw.rng.sample(range(draw.nodes), 2)
    draw.add(at, "cut", first, second, draw.down_for())


def _crash_in_disk_operation(draw: _Draw, at: float) -> None:
    draw.add(at, "crash_in_disk_operation", draw.node(), seconds=draw.down_for(), number=draw.rng.randrange(1, 40))


def _weather(kind: str, numbers: tuple[float, ...]) -> Callable[[_Draw, float], None]:
    return lambda draw, at: draw.add(at, kind, draw.node(), 0, draw.rng.uniform(0.5, 4.0), draw.rng.choice(numbers))


def _wall_clock_jump(draw: _Draw, at: float) -> None:
    draw.add(at, "wall_clock_jump", draw.node(), number=draw.rng.randrange(-100, 100))


def _forgotten_tail(draw: _Draw, at: float) -> None:
    """A leader that nobody follows goes on appending and loses power; the others go on without it, then it is back."""
    number, away = draw.number(), draw.rng.uniform(0.3, 2.5)
    draw.add(at, "isolate_leader", seconds=away, number=number)
    if draw.rng.random() < 0.6:
        draw.add(at + away * draw.rng.uniform(0.2, 0.9), draw.rng.choice(("kill", "power_loss")), draw.node(), 0, away)


def _dark(draw: _Draw, at: float) -> None:
    """Power fails everywhere, soon after a leader fell, and nodes come back one by one."""
    draw.add(at, "kill_leader", seconds=draw.down_for(), number=draw.number())
    dark = at + draw.rng.uniform(0.2, 2.5)
    for node in range(draw.nodes):
        draw.add(dark, "power_loss", node, seconds=draw.rng.uniform(0.05, 5.0), number=draw.number())


def _rot(draw: _Draw, at: float) -> None:
    if draw.rots_left:
        draw.rots_left -= 1
        draw.add(at, "rot", draw.node(), seconds=draw.down_for(), number=draw.number())


KINDS: Mapping[str, Callable[[_Draw, float], None]] = {
    "kill": _one("kill"),
    "kill_and_back": _kill_and_back,
    "kill_leader": _one("kill_leader"),
    "power_loss": _one("power_loss"),
    "power_loss_all": _all("power_loss"),
    "kill_all": _all("kill"),
    "dark": _dark,
    "crash_in_disk_operation": _crash_in_disk_operation,
    "failed_fsync": _one("failed_fsync"),
    "slow_disk": _weather("slow_disk", (0.01, 0.05, 0.3)),
    "clean_stop": _one("clean_stop"),
    "stall": _one("stall"),
    "cut_one_way": _cut_one_way,
    "isolate": _one("isolate"),
    "isolate_leader": _one("isolate_leader"),
    "forgotten_tail": _forgotten_tail,
    "deafen": _one("deafen"),
    "cut_off_clients": _one("cut_off_clients"),
    "mute_to_clients": _one("mute_to_clients"),
    "reset_connections": _weather("reset_connections", (0.2, 1.0)),
    "wall_clock_jump": _wall_clock_jump,
    "rot": _rot,
}
"""Kind of a draw → how it is drawn. One draw may be several faults."""

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
    """The schedule of a seed."""
    rng = random.Random(f"{seed}/cluster/shape")
    nodes = rng.choice((3, 3, 3, 5))
    schedule = ClusterSchedule(
        seed=seed,
        nodes=nodes,
        seconds=seconds,
        slow_probability=rng.choice((0.0, 0.01, 0.05)),
        slow_max=rng.choice((0.02, 0.2)),
        retention_check_ms=rng.choice((500, 2_000, 30_000)),
        faults=(),
        operations=_operations(random.Random(f"{seed}/cluster/operations"), seconds),
    )
    faults = _faults(random.Random(f"{seed}/cluster/faults"), nodes, seconds) if faulty else ()
    return replace(schedule, faults=faults)


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


def _faults(rng: random.Random, nodes: int, seconds: float) -> tuple[Fault, ...]:
    draw = _Draw(rng, nodes)
    phase = SETTLE_SECONDS
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
