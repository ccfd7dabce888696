"""An observer loses its disk while the leader's connection to it survives, half-open: its acknowledgements are gone
with the disk (S9).
"""

from __future__ import annotations

from metadata.raft.pysyncobj_engine import PySyncObjEngine
from metadata.voters.changes import Action, ChangeRefused, NextConfiguration, VoterChange, decide
from raftlog.model import BrokerId
from tests.support.quorum.membership_world import MembershipWorld

OBSERVER = 4


class HalfOpen(MembershipWorld):
    """The failure of a crashed node's connection is not noticed; only nothing arrives from it any more."""

    def _lost_link(self, engine: PySyncObjEngine, number: int) -> None:
        engine.forget(BrokerId(number))


def settled(seed: int = 1) -> tuple[HalfOpen, int]:
    """Three voters and an observer that has everything; the leader."""
    world = HalfOpen(seed, 4, 3)
    leader = world.await_leader()
    world.propose(leader)
    world.run(2.0)
    assert world.nodes[leader].live().facts().observers[OBSERVER].match == last(world, leader)
    return world, leader


def last(world: HalfOpen, number: int) -> int:
    return world.nodes[number].live().journal.last_index


def test_an_empty_disk_does_not_count_as_the_observers_old_one() -> None:
    """S9: with its old disk's acknowledgements it would be a voter that counts before it has a single entry."""
    world, leader = settled()
    assert world.swap_disk(OBSERVER)
    add = VoterChange(Action.ADD, OBSERVER)
    gone = decide(world.nodes[leader].live().facts(), add)
    assert isinstance(gone, ChangeRefused) and gone.code == "voter_not_caught_up", gone
    world.start(OBSERVER)
    empty = decide(world.nodes[leader].live().facts(), add)
    assert isinstance(empty, ChangeRefused) and empty.code == "voter_not_caught_up", empty
    world.run(2.0)
    assert last(world, OBSERVER) == last(world, leader)
    caught_up = decide(world.nodes[leader].live().facts(), add)
    assert isinstance(caught_up, NextConfiguration), caught_up
