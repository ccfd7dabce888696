"""The kinds of faults in a cluster's schedule, and the drawing of each. One draw may add several faults in a row.

Simple faults affect one node at a time. Composed faults lead to states that chance alone seldom reaches: each is the
beginning of a schedule that breaks some rule of replication if that rule is left out (`jepsen_like/planted/`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jepsen_like.simulator.quorum.schedule import Fault


@dataclass(slots=True)
class FaultDraw:
    """Draws the faults of one schedule."""

    rng: random.Random
    nodes: int
    lag_seconds: float
    """Time after which a lagging follower is proposed out of the ISR."""
    rots_left: int = 1
    """Number of disks that may still be damaged: fewer than `min.insync.replicas`, since more may rightly lose records
    (S1).
    """
    faults: list[Fault] = field(default_factory=list)

    def down_for(self) -> float:
        return self.rng.choice((0.05, 0.3, 1.0, 3.0)) * self.rng.uniform(0.5, 1.5)

    def node(self) -> int:
        return self.rng.randrange(self.nodes)

    def number(self) -> int:
        return self.rng.randrange(1 << 30)

    def add(self, at: float, kind: str, node: int = 0, peer: int = 0, seconds: float = 0.0, number: float = 0) -> None:
        self.faults.append(Fault(round(at, 4), kind, node, peer, round(seconds, 4), number))

    def may_rot(self) -> bool:
        """Return whether a disk may be damaged, and count it."""
        self.rots_left -= 1
        return self.rots_left >= 0


# --- One node ---------------------------------------------------------------------------------------------------------


def _one(kind: str) -> Callable[[FaultDraw, float], None]:
    return lambda draw, at: draw.add(at, kind, draw.node(), seconds=draw.down_for(), number=draw.number())


def _all(kind: str) -> Callable[[FaultDraw, float], None]:
    def of_all(draw: FaultDraw, at: float) -> None:
        for node in range(draw.nodes):
            draw.add(at, kind, node, seconds=draw.down_for(), number=draw.number())

    return of_all


def _kill_and_back(draw: FaultDraw, at: float) -> None:
    """Restart before any session expires."""
    draw.add(at, draw.rng.choice(("kill", "power_loss")), draw.node(), seconds=draw.rng.uniform(0.001, 0.2))


def _cut_one_way(draw: FaultDraw, at: float) -> None:
    first, second = draw.rng.sample(range(draw.nodes), 2)
    draw.add(at, "cut", first, second, draw.down_for())


def _crash_in_disk_operation(draw: FaultDraw, at: float) -> None:
    draw.add(at, "crash_in_disk_operation", draw.node(), seconds=draw.down_for(), number=draw.rng.randrange(1, 40))


def _weather(kind: str, numbers: tuple[float, ...]) -> Callable[[FaultDraw, float], None]:
    return lambda draw, at: draw.add(at, kind, draw.node(), 0, draw.rng.uniform(0.5, 4.0), draw.rng.choice(numbers))


def _wall_clock_jump(draw: FaultDraw, at: float) -> None:
    draw.add(at, "wall_clock_jump", draw.node(), number=draw.rng.randrange(-100, 100))


def _rot(draw: FaultDraw, at: float) -> None:
    if draw.may_rot():
        draw.add(at, "rot", draw.node(), seconds=draw.down_for(), number=draw.number())


def _stall_replication(draw: FaultDraw, at: float) -> None:
    """Sometimes long enough that followers leave the ISR, which the mere death of a node would not cause."""
    seconds = draw.rng.choice((0.3, 1.0, draw.lag_seconds + 2.0)) * draw.rng.uniform(0.5, 1.2)
    draw.add(at, draw.rng.choice(("stall_replication", "stall_leader")), draw.node(), 0, seconds, draw.number())


# --- Several, in a row ------------------------------------------------------------------------------------------------


def _forgotten_tail(draw: FaultDraw, at: float) -> None:
    """An isolated leader continues to append and loses power; the others continue without it, and then it returns."""
    number, away = draw.number(), draw.rng.uniform(0.3, 2.5)
    draw.add(at, "isolate_leader", seconds=away, number=number)
    if draw.rng.random() < 0.6:
        draw.add(at + away * draw.rng.uniform(0.2, 0.9), draw.rng.choice(("kill", "power_loss")), draw.node(), 0, away)


def _tails_in_a_row(draw: FaultDraw, at: float) -> None:
    """Stop replication while several leaders in a row append, die and return at once, in sync as before.

    This makes tails of several epochs, of which one ends where another does (KIP-279).
    """
    number, seconds = draw.number(), draw.rng.uniform(1.2, 3.5)
    draw.add(at, "stall_all_replication", seconds=seconds)
    kill_at = at
    while True:
        kill_at += draw.rng.uniform(0.15, 0.9)
        if kill_at > at + seconds:
            break
        draw.add(kill_at, "kill_leader", seconds=draw.rng.uniform(0.001, 0.05), number=number)


def _lagging_successor(draw: FaultDraw, at: float) -> None:
    """Starve one follower, slow the disks down, and kill the leader: a follower truncates bytes that it is still
    writing.
    """
    number, seconds = draw.number(), draw.rng.uniform(0.2, 0.8)
    for node in range(draw.nodes):
        draw.add(at, "slow_disk", node, 0, seconds + 1.0, draw.rng.choice((0.05, 0.3)))
    draw.add(at, "stall_replication", draw.node(), seconds=seconds)
    draw.add(at + seconds - 0.01, "kill_leader", seconds=draw.rng.uniform(0.001, 0.1), number=number)


def _last_member(draw: FaultDraw, at: float) -> None:
    """Leave a leader alone in the ISR by starving its followers; then damage its disk or cut its power."""
    number, seconds = draw.number(), draw.lag_seconds + 2.0
    kind = "rot_leader" if draw.may_rot() else "power_loss_of_leader"
    draw.add(at, "stall_leader", seconds=seconds, number=number)
    draw.add(at + seconds - draw.rng.uniform(0.05, 0.8), kind, draw.node(), 0, draw.down_for(), number)


def _dark(draw: FaultDraw, at: float) -> None:
    """Cut the power of all nodes soon after a leader failed, and restart them one by one."""
    draw.add(at, "kill_leader", seconds=draw.down_for(), number=draw.number())
    dark = at + draw.rng.uniform(0.2, 2.5)
    for node in range(draw.nodes):
        draw.add(dark, "power_loss", node, seconds=draw.rng.uniform(0.05, 5.0), number=draw.number())


KINDS: Mapping[str, Callable[[FaultDraw, float], None]] = {
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
    "tails_in_a_row": _tails_in_a_row,
    "lagging_successor": _lagging_successor,
    "last_member": _last_member,
    "deafen": _one("deafen"),
    "cut_off_clients": _one("cut_off_clients"),
    "mute_to_clients": _one("mute_to_clients"),
    "stall_replication": _stall_replication,
    "reset_connections": _weather("reset_connections", (0.2, 1.0)),
    "wall_clock_jump": _wall_clock_jump,
    "rot": _rot,
}
"""Kind of a draw → the function that draws it."""
