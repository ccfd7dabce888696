"""A world of engines whose voters change.

Every node's disk is known to the others, steps are decided as a leader decides them, and the history of configurations
is checked with everything else.
"""

from __future__ import annotations

import itertools

from jepsen_like.simulator.world.disk import SimDisk
from metadata.journal.journal import prepare_journal
from metadata.raft.engine import Committed, InstalledSnapshot
from metadata.raft.pysyncobj_engine import PySyncObjEngine
from metadata.voters.changes import Action, NextConfiguration, ResignFirst, VoterChange, decide, decide_pin
from metadata.voters.configuration import Configuration, is_single_step
from raftlog.model import BrokerId

from .world import Node, World, identity_of


class MembershipWorld(World):
    """The first `voters` nodes vote at first."""

    def __init__(self, seed: int, size: int, voters: int) -> None:
        self.changes: set[int] = set()
        """Tokens of steps."""
        self.history: dict[int, Configuration] = {}
        """Index → the configuration that was committed there."""
        self.swapped: int | None = None
        """The voter that lost its disk."""
        self.disks = 0
        """A token that is used again."""
        self.steps = 0
        super().__init__(seed, size, voters=voters, pinned=False)

    def start(self, number: int) -> None:
        super().start(number)
        node = self.nodes[number]
        for other in self.nodes.values():
            if other.number != number and other.engine is not None:
                node.live().meet(BrokerId(other.number), other.identity.directory_id, None)
                other.live().meet(BrokerId(number), node.identity.directory_id, None)

    def _lost_link(self, engine: PySyncObjEngine, number: int) -> None:
        """Its messages are lost. The connection to it may outlive it, half-open, as after a power failure."""
        engine.forget(BrokerId(number))
        if self.rng.random() < 0.5:
            super()._lost_link(engine, number)

    def advance(self, number: int) -> None:
        """A leader records the voters' disks as soon as it may."""
        super().advance(number)
        engine = self.nodes[number].engine
        if engine is not None and engine.is_leader and not engine.configuration.is_pinned:
            pinned = decide_pin(engine.facts())
            if pinned is not None:
                self._append(number, pinned)

    def _append(self, leader: int, configuration: Configuration) -> None:
        token = self.next_token
        self.next_token += 1
        self.tokens[token] = (leader, b"")
        self.changes.add(token)
        self.nodes[leader].live().append_configuration(configuration, token)

    def step_voters(self, action: Action, number: int) -> None:
        """Request a step from the leader, if there is one; it decides as it does in a node."""
        leader = self.leader()
        if leader is None:
            return
        engine = self.nodes[leader].live()
        facts = engine.facts()
        decision = decide(facts, VoterChange(action, number))
        if isinstance(decision, NextConfiguration):
            self._append(leader, decision.configuration)
            self.steps += 1
        elif isinstance(decision, ResignFirst):
            engine.resign()

    def swap_disk(self, number: int) -> bool:
        """A node loses its disk while everything is settled: a voter once per world, if three others remain, an
        observer at any time."""
        engines = [node.engine for node in self.nodes.values()]
        if any(engine is None for engine in engines):
            return False
        latest = {engine.journal.configurations[-1] for engine in engines if engine is not None}
        index, configuration = max(latest, key=lambda one: one[0])
        settled = len(latest) == 1 and all(e is not None and e.status().commit_index >= index for e in engines)
        if not settled or not configuration.is_pinned:
            return False
        if configuration.voter(number) is not None:
            if self.swapped is not None or len(configuration.voters) < 4:
                return False
            self.swapped = number
        node = self.nodes[number]
        self.crash(number)
        node.disk = SimDisk()
        self.disks += 1
        node.identity = identity_of(number, self.voters, directory=self.disks)
        prepare_journal(node.disk, node.identity)
        return True

    def _apply(self, node: Node, entry: Committed | InstalledSnapshot) -> None:
        super()._apply(node, entry)
        for index, configuration in node.live().journal.configurations[1:]:
            if index == entry.index:
                assert self.history.setdefault(index, configuration) == configuration

    def check_history(self) -> None:
        """Each committed configuration is one step from the previous one (S7)."""
        chain = [Configuration.initial(BrokerId(n) for n in range(1, self.voters + 1))]
        chain += [self.history[index] for index in sorted(self.history)]
        for before, after in itertools.pairwise(chain):
            assert is_single_step(before, after), (before, after)

    def check_acked_survive(self) -> None:
        for token in self.changes:
            self.lost.pop(token, None)  # they have no content of their own
        super().check_acked_survive()
