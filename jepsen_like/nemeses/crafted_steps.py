"""Steps that are schedules: several things in an order that opens one hole wide. Pure.

What is *not* here: single faults, and the schedule in which nodes forget, which is a fault of its own (`steps.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from .steps import CLAIM_METADATA, OnNodes, process_claims


@dataclass(frozen=True, slots=True)
class SlowKill(OnNodes):
    """Killed while fsyncs of `slowed` take so much longer: most of what is under way is on disks, and not answered."""

    kind = "slow-kill"
    slowed: tuple[str, ...] = ()
    slow_ms: int = 0

    @property
    def claims(self) -> frozenset[str]:
        return process_claims((*self.nodes, *self.slowed))


@dataclass(frozen=True, slots=True)
class MoveAndKill(OnNodes):
    """A partition is to move from its followers to `receiver`, at a byte a second. The followers (`nodes` behind the
    first) stall until they are fenced; when they are back the leader (the first) is killed. Nobody but it and them has
    what was acknowledged."""

    kind = "move-kill"
    topic: str = ""
    partition: int = 0
    receiver: str = ""

    @property
    def claims(self) -> frozenset[str]:
        return process_claims(self.nodes) | {CLAIM_METADATA}
