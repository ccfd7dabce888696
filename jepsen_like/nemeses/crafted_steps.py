"""Steps that are schedules: several things in an order that opens one hole wide. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .steps import CLAIM_METADATA, CLAIM_NETWORK, OnNodes, process_claims


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
    """A partition gets one more replica, the `receiver`, at a byte a second; then it is to go there from its followers,
    and the leader (the only one of `nodes`), from which nothing comes there any more, is killed. What was acknowledged
    is with it and with the followers."""

    kind = "move-kill"
    followers: tuple[str, ...] = ()
    receiver: str = ""
    topic: str = ""
    partition: int = 0

    @property
    def claims(self) -> frozenset[str]:
        return process_claims(self.nodes) | {CLAIM_METADATA, CLAIM_NETWORK}


@dataclass(frozen=True, slots=True)
class LeaveBehind(OnNodes):
    """The only other replica of a partition is killed, and the leader (the second of `nodes`) when it has gone on alone
    for a while; the first is back then, and whatever it lacks is only with the one that is away."""

    kind = "left-behind"
    topic: str = ""
    partition: int = 0

    @property
    def claims(self) -> frozenset[str]:
        return process_claims(self.nodes)
