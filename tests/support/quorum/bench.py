"""One voter of three (or more), driven by hand: incoming messages, and its outgoing messages."""

from __future__ import annotations

import random

from jepsen_like.simulator.world.disk import SimDisk
from metadata.journal.journal import prepare_journal
from metadata.raft import messages
from metadata.raft.messages import Append, AppendReply, Entry, PreVote, RequestVote, Vote
from metadata.raft.pysyncobj_engine import PySyncObjEngine
from metadata.raft.pysyncobj_node import EngineChecks
from metadata.voters.configuration import Configuration, Voter
from raftlog.config import TimingConfig
from raftlog.model import BrokerId, DirectoryId, Endpoint

from .world import identity_of, prepare_pinned

REGULAR = b"\0"
"""pysyncobj's first byte of a command."""


class Bench:
    """Voter 1."""

    def __init__(self, *, voters: int = 3, pinned: bool = False) -> None:
        """`pinned`: its log begins with the voters' disks, so that a majority elects."""
        self.disk = SimDisk()
        self.identity = identity_of(1, voters)
        (prepare_pinned if pinned else prepare_journal)(self.disk, self.identity)
        self.electors = self.identity.peers[:1] if pinned else self.identity.peers
        self.now = 0.0
        self.start()

    def start(self, checks: EngineChecks | None = None) -> None:
        self.engine = PySyncObjEngine(
            self.identity, disk=self.disk, now=self.now, random=random.Random(1), timing=TimingConfig(), checks=checks
        )
        for peer in self.identity.peers:
            self.engine.peer_connected(peer)

    def hear(self, sender: int, message: messages.Message) -> list[tuple[int, messages.Message]]:
        self.engine.step(BrokerId(sender), messages.encode(message))
        return self.tick(0.0)

    def tick(self, seconds: float = 0.01) -> list[tuple[int, messages.Message]]:
        self.now += seconds
        self.engine.tick(self.now)
        ready = self.engine.ready()
        self.applied = ready.applied
        self.lost = ready.lost
        self.engine.check_invariants()
        return [(int(peer), messages.decode(packed)) for peer, packed in ready.messages]

    def replies(self, sender: int, message: messages.Message) -> list[messages.Message]:
        return [answer for peer, answer in self.hear(sender, message) if peer == sender]

    def vote(self, sender: int, message: RequestVote) -> Vote | None:
        """The answer to a request for votes, if there is one."""
        said = self.replies(sender, message)
        return next((answer for answer in said if isinstance(answer, Vote)), None)

    def append(self, first: int, *terms: int, term: int = 5, commit: int = 1, prev_term: int | None = None) -> Append:
        """Entries from `first` on with these terms, from a leader of `term`."""
        before = prev_term if prev_term is not None else (self.engine.journal.term_at(first - 1) or 0)
        entries = tuple(Entry(t, REGULAR + b"%d/%d" % (first + n, t)) for n, t in enumerate(terms))
        return Append(term, first - 1, before, commit, entries)

    def campaign(self) -> None:
        """Wait for the election timer, win all pre-votes, and request votes."""
        for _ in range(200):
            said = self.tick()
            while said:
                peer, message = said.pop(0)
                if isinstance(message, RequestVote):
                    return
                if isinstance(message, PreVote):
                    said += self.hear(peer, messages.PreVoteReply(message.term - 1, message.round, True))
        raise AssertionError("no campaign")

    def lead(self) -> None:
        """Win an election with as many votes as needed; voter 2 has the leader's log."""
        self.campaign()
        for peer in self.electors:
            self.hear(peer, Vote(self.engine.term, True))
        self.hear(2, AppendReply(self.engine.term, True, self.engine.status().last_index, 0))
        assert self.engine.is_leader


# --- Voters with disks ------------------------------------------------------------------------------------------------


def voter(node: int, disk: int = 0) -> Voter:
    return Voter.of(BrokerId(node), DirectoryId(bytes([node, disk] * 8)), Endpoint(f"node-{node}", 1))


def configuration(*nodes: int) -> Configuration:
    return Configuration.of(voter(node) for node in nodes)


def meet(bench: Bench, *nodes: int, disk: int = 0) -> None:
    for node in nodes:
        met = voter(node, disk)
        bench.engine.meet(BrokerId(node), met.directory_id, met.endpoint)
        bench.engine.peer_connected(BrokerId(node))


def led(*nodes: int) -> Bench:
    """Voter 1 leads voters 1 to 3, is connected to all, and has recorded their disks."""
    bench = Bench(pinned=True)
    meet(bench, 2, 3, *nodes)
    bench.lead()
    bench.engine.append_configuration(configuration(1, 2, 3), 1)
    bench.tick()
    acknowledge(bench, 2)
    assert bench.engine.facts().may_change
    return bench


def acknowledge(bench: Bench, *nodes: int) -> None:
    """They acknowledge everything."""
    bench.tick()
    for node in nodes:
        bench.hear(node, AppendReply(bench.engine.term, True, bench.engine.status().last_index, 0))
