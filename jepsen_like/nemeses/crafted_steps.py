"""Crafted schedules as steps: several faults in an order that makes one kind of bug likely to show. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .steps import CLAIM_METADATA, CLAIM_NETWORK, OnNodes, process_claims


@dataclass(frozen=True, slots=True)
class SlowKill(OnNodes):
    """Kill nodes while fsyncs of `slowed` take `slow_ms` longer: most requests in flight are on disks, and
    unanswered.
    """

    kind = "slow-kill"
    slowed: tuple[str, ...] = ()
    slow_ms: int = 0

    @property
    def claims(self) -> frozenset[str]:
        return process_claims((*self.nodes, *self.slowed))


@dataclass(frozen=True, slots=True)
class MoveAndKill(OnNodes):
    """A partition gains one replica, the `receiver`, at one byte per second. Then it is reassigned from its followers
    to the receiver, and the leader (the only one of `nodes`), which sends the receiver nothing any more, is killed.

    The acknowledged records are on the leader and on the followers.
    """

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
    """The only other replica of a partition is killed; after the leader (the second of `nodes`) has continued alone for
    a while, it is killed too, and the first returns: the records that it lacks exist only on the dead leader.
    """

    kind = "left-behind"
    topic: str = ""
    partition: int = 0

    @property
    def claims(self) -> frozenset[str]:
        return process_claims(self.nodes)
