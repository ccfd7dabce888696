"""Checks the safety of the metadata quorum (S7, S9) after every event of every voter.

The numbers are those of the table in this folder's README; the terms are Raft's (section 5 of the paper, and raft.tla).

1.  Election safety: at most one leader for each term, over all lives.
2.  A voter's term never falls, over all its lives; within a term it votes once. Its state after an event is
    its state after every restart: no message was sent before its state was durable.
3.  Log matching: (index, term) identifies one entry, and one entry before it.
4.  A leader's own log only grows, and it commits only entries of its own term by counting copies.
5.  Leader completeness: every new leader has every committed entry.
6.  State machine safety: one entry at each applied index, and one state after it, checked by a separate model; applied
   <=
    commit <= last; within a life the commit index never falls, and only committed entries are applied.
7.  A commit needs a majority of *durable* copies: durable on the simulated disks, whatever the journals believe; a
    majority of the voters that the leader's log names, each on the disk that it is named with.
8.  A committed entry is never removed from a log.
9.  An acknowledged command is committed, so 5 and 7 hold for it; a command with a definite refusal is not in the log.
13. A voter that knows that it forgot its promises never votes again, in any of its lives; and only such a voter says
    that it forgot.

Progress (S10) is checked at the end of a run (`run.py`). The work is proportional to the changes: a node with unchanged
`VoterFacts` is not checked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jepsen_like.simulator.world.disk import SimDisk
from jepsen_like.simulator.world.violation import Violation
from metadata.commands.envelope import decode
from metadata.quorum.node import QuorumNode
from metadata.raft.engine import VoterFacts
from metadata.voters.configuration import Configuration

from .model import EMPTY, Model, State, state_of
from .node import QuorumSimNode
from .voters_truth import VotersTruth

FIRST_INDEX = 1
REGULAR = b"\0"


@dataclass(slots=True)
class Memory:
    """The known state of a voter on one disk, over its lives."""

    mark: VoterFacts | None = None
    """The facts of this life at the last check."""
    promised_term: int = 0
    promised_vote: int | None = None
    durable: tuple[int, int] = (FIRST_INDEX, 0)
    """(index, term) of the last entry that is known to be on its disk."""
    interrupted: bool = False
    """The last life ended inside a disk operation: the disk may be one step ahead of `durable`."""
    configuration: Configuration | None = None
    """The latest configuration in its log."""
    forgot: bool = False
    """The voter knows that it forgot its promises."""
    votes: list[tuple[int, int]] = field(default_factory=list)
    """(term, candidate) of votes that are not known to be durable."""


class QuorumTruth:
    """Checks a world of voters; raises `Violation`."""

    def __init__(self, nodes: Sequence[QuorumSimNode], voters: int) -> None:
        """`voters`: the number of nodes that are voters at first, counted from node 0."""
        disks = {int(node.node_id): bytes(node.identity.directory_id) for node in nodes}
        self.voters = VotersTruth(range(voters), disks)
        self._nodes = nodes
        self._memories = {int(node.node_id): Memory() for node in nodes}
        self._replaced: dict[tuple[int, bytes], Memory] = {}
        """(node, directory id) → the durable state of a disk when it was replaced."""
        self._leaders: dict[int, int] = {}
        """Term → its leader."""
        self._entries: dict[tuple[int, int], tuple[bytes, int]] = {}
        """(index, term) → (command, term of the previous entry)."""
        self.committed: dict[int, int] = {FIRST_INDEX: 0}
        """Index → term, without gaps."""
        self.commit_index = FIRST_INDEX
        """The greatest commit index that any node had."""
        self.states: dict[int, State] = {FIRST_INDEX: EMPTY}
        """Index → the state that clients can observe after it."""
        self.applied_index = FIRST_INDEX
        self.model = Model()

    # --- Lives -------------------------------------------------------------------------------------------------------

    def started(self, node: QuorumSimNode) -> None:
        """2 and 8: check that a restarted voter has its earlier state. (A voter that lost it refuses to start.)"""
        assert node.quorum is not None
        memory, mark = self._memories[int(node.node_id)], node.quorum.engine.voter_facts()
        memory.mark = None
        promised = (memory.promised_term, memory.promised_vote)
        kept_vote = memory.promised_vote is None or mark.vote == memory.promised_vote
        if mark.term < memory.promised_term or (mark.term == memory.promised_term and not kept_vote):
            found = f"term {mark.term} vote {mark.vote}"
            raise Violation(f"S7.2: node {node.node_id} comes back with {found} after term, vote {promised}")
        index, term = memory.durable
        found_term = node.quorum.engine.journal.term_at(index)
        covered = node.quorum.engine.snapshot_index >= index
        if not memory.interrupted and found_term != term and not covered:
            raise Violation(
                f"S7.8: node {node.node_id} comes back with term {found_term} at index {index}, where term {term} was "
                "durable"
            )
        memory.interrupted = False

    def ended(self, node: QuorumSimNode, *, inside_disk_operation: bool) -> None:
        """Record that the process is about to be killed."""
        memory = self._memories[int(node.node_id)]
        memory.interrupted |= inside_disk_operation
        if node.quorum is not None:
            self._note_durable(node, node.quorum, memory)
            self._note_votes(node, node.quorum, memory, node.quorum.engine.voter_facts())
        memory.votes.clear()

    def _note_durable(self, node: QuorumSimNode, quorum: QuorumNode, memory: Memory) -> None:
        if is_durable(quorum, node.disk):
            _, last_index, last_term = quorum.engine.journal.entries[-1]
            memory.durable = (last_index, last_term)
        memory.configuration = quorum.engine.journal.configurations[-1][1]

    def _note_votes(self, node: QuorumSimNode, quorum: QuorumNode, memory: Memory, mark: VoterFacts) -> None:
        """A staged vote is durable when the disk holds the whole journal; only then was it sent."""
        if mark.vote is not None and (mark.term, mark.vote) != (memory.promised_term, memory.promised_vote):
            if memory.forgot:
                raise Violation(f"S9.13: node {node.node_id} forgot what it promised, and votes in term {mark.term}")
            memory.votes.append((mark.term, mark.vote))
        if memory.votes and is_durable(quorum, node.disk):
            for term, candidate in memory.votes:
                self.voters.voted(int(node.node_id), term, candidate)
            memory.votes.clear()

    def disk_replaced(self, node: QuorumSimNode) -> None:
        """The operator gave the node an empty disk: its promises are gone, and it is a different voter or none (S9)."""
        number = int(node.node_id)
        self._replaced[number, self.voters.disk_of(number)] = self._memories[number]
        self._memories[number] = Memory()
        self.voters.disk_replaced(int(node.node_id), bytes(node.identity.directory_id))

    # --- Disks that return to an earlier state ---

    def others_hold_all_of(self, node: QuorumSimNode) -> bool:
        """Whether the other nodes know everything that this voter promised, so it may forget it: there is a leader of
        its term, and all other nodes are in this term and hold all its entries durably.
        """
        if node.quorum is None:
            return False
        mine = node.quorum.engine.voter_facts()
        index, term = self._memories[int(node.node_id)].durable
        others = [other for other in self._nodes if other is not node]
        for other in others:
            if other.quorum is None or other.quorum.engine.voter_facts().term != mine.term:
                return False
            if not self._holds(self._memories[int(other.node_id)], index, term):
                return False
        leading = [other for other in others if other.quorum is not None and other.quorum.engine.voter_facts().leads]
        return bool(leading) and (mine.last_index, mine.last_term) == (index, term)

    def rewound(self, node: QuorumSimNode) -> None:
        """The voter lost its promises; the other nodes still know them."""
        memory = self._memories[int(node.node_id)] = Memory()
        memory.interrupted = True

    def forgot(self, node: QuorumSimNode) -> bool:
        """Whether the voter knows that it forgot its promises."""
        return self._memories[int(node.node_id)].forgot

    # --- After every event -------------------------------------------------------------------------------------------

    def after_event(self, node: QuorumSimNode) -> None:
        """`node` has just handled an event."""
        quorum = node.quorum
        if quorum is None:
            return
        memory, mark = self._memories[int(node.node_id)], quorum.engine.voter_facts()
        if mark != memory.mark:
            self._look_at(node, quorum, memory, mark)
            memory.mark = mark

    def _look_at(self, node: QuorumSimNode, quorum: QuorumNode, memory: Memory, mark: VoterFacts) -> None:
        quorum.engine.check_invariants()
        before = memory.mark
        self._note_votes(node, quorum, memory, mark)
        if not mark.base_index <= mark.applied_index <= mark.commit_index <= mark.last_index:
            raise Violation(f"S7.6: node {node.node_id} is at {mark}")
        if mark.term < memory.promised_term:
            raise Violation(f"S7.2: node {node.node_id} falls from term {memory.promised_term} to {mark.term}")
        if before is None or (mark.last_index, mark.last_term) != (before.last_index, before.last_term):
            self._match_log(node, quorum, memory)
        self._learn_commits(node, quorum, memory, mark)
        self.voters.look_at(int(node.node_id), quorum.engine.journal, self.committed)
        if before is None or mark.base_index != before.base_index:
            self.voters.check_base(int(node.node_id), quorum.engine.journal)
        if mark.leads:
            self._check_leader(node, quorum, before, mark)
        if before is not None:
            self._compare(node, before, mark)
        if quorum.engine.forgot is not memory.forgot:
            if memory.forgot or not node.rewound:
                raise Violation(f"S9.13: node {node.node_id} says {quorum.engine.forgot} of having forgotten")
            memory.forgot = True
        if not mark.dirty:
            # The node may have sent what its journal takes for durable. The next start checks that it is durable.
            memory.promised_term, memory.promised_vote = mark.term, mark.vote

    def _compare(self, node: QuorumSimNode, before: VoterFacts, mark: VoterFacts) -> None:
        if mark.commit_index < before.commit_index:
            raise Violation(
                f"S7.6: the commit index of node {node.node_id} falls from {before.commit_index} to {mark.commit_index}"
            )
        same_term = mark.term == before.term
        if same_term and before.vote is not None and mark.vote != before.vote:
            raise Violation(f"S7.2: node {node.node_id} votes for {before.vote} and {mark.vote} in term {mark.term}")
        if same_term and mark.leads and before.leads and mark.last_index < before.last_index:
            raise Violation(f"S7.4: leader {node.node_id} shortens its log in term {mark.term}")

    # --- Logs --------------------------------------------------------------------------------------------------------

    def _match_log(self, node: QuorumSimNode, quorum: QuorumNode, memory: Memory) -> None:
        """3, by induction: entries below the node's commit index at the last check were checked then."""
        journal = quorum.engine.journal
        entries = journal.entries
        first = max(1, memory.mark.commit_index - journal.base_index if memory.mark else 1)
        for position in range(min(first, len(entries)), len(entries)):
            command, index, term = entries[position]
            fact = (command, entries[position - 1][2])
            known = self._entries.setdefault((index, term), fact)
            if known != fact:
                raise Violation(
                    f"S7.3: entry {index} of term {term} is {fact} on node {node.node_id}, elsewhere {known}"
                )
        newest, settled = self.commit_index, self.committed[self.commit_index]
        had = self._holds(memory, newest, settled)
        if had and newest > journal.base_index and journal.term_at(newest) != settled:
            raise Violation(f"S7.8: node {node.node_id} removes entry {newest} of term {settled}, which is committed")

    def _learn_commits(self, node: QuorumSimNode, quorum: QuorumNode, memory: Memory, mark: VoterFacts) -> None:
        """6, 7 and 8: check the entries that this voter takes for committed."""
        journal = quorum.engine.journal
        self._note_durable(node, quorum, memory)
        start = max(mark.base_index + 1, memory.mark.commit_index if memory.mark else 0)
        for index in range(min(start, self.commit_index), mark.commit_index + 1):
            term = journal.term_at(index)
            settled = self.committed.get(index)
            if term is None and settled is None:
                raise Violation(f"S7.6: node {node.node_id} commits {index}, and it is nowhere")
            if settled is None and term is not None:
                self._commit(node, quorum, mark.term, index)
            elif term is not None and settled != term:
                raise Violation(f"S7.6: node {node.node_id} commits term {term} at {index}, committed was {settled}")

    def _commit(self, node: QuorumSimNode, quorum: QuorumNode, in_term: int, index: int) -> None:
        command, _, term = quorum.engine.journal.entries[index - quorum.engine.journal.base_index]
        configuration = self._counted_by(node, in_term)
        holders = [number for number, memory in self._memories.items() if self._holds(memory, index, term)]
        disks = [(number, self.voters.disk_of(number)) for number in holders]
        # A disk's acknowledgement may still be in flight when the disk is replaced; so may a vote.
        disks += [disk for disk, memory in self._replaced.items() if self._holds(memory, index, term)]
        if not self.voters.have_acknowledged(configuration, disks):
            raise Violation(
                f"S7.7: node {node.node_id} commits entry {index} of term {term}, which is durable only on {holders}, "
                f"with the voters {configuration.node_ids}"
            )
        self.committed[index] = term
        self.commit_index = max(self.commit_index, index)
        self.voters.on_commit(index, command)

    def _counted_by(self, node: QuorumSimNode, term: int) -> Configuration:
        """The latest configuration of the term's leader, which may be dead; other nodes only follow its commits."""
        own = int(node.node_id)
        leader = self._leaders.get(term, own)
        configuration = self._memories[leader].configuration or self._memories[own].configuration
        assert configuration is not None, "a node that commits was looked at"
        return configuration

    def _holds(self, memory: Memory, index: int, term: int) -> bool:
        """Whether a disk has this entry, found by walking back from its last entry."""
        at, at_term = memory.durable
        while at > index:
            known = self._entries.get((at, at_term))
            if known is None:
                return False
            at, at_term = at - 1, known[1]
        return (at, at_term) == (index, term)

    # --- Leaders -----------------------------------------------------------------------------------------------------

    def _check_leader(
        self, node: QuorumSimNode, quorum: QuorumNode, before: VoterFacts | None, mark: VoterFacts
    ) -> None:
        number, journal = int(node.node_id), quorum.engine.journal
        first = self._leaders.setdefault(mark.term, number)
        if first != number:
            raise Violation(f"S7.1: nodes {first} and {number} both lead term {mark.term}")
        if before is not None and before.leads and before.term == mark.term:
            if mark.commit_index > before.commit_index and journal.term_at(mark.commit_index) != mark.term:
                raise Violation(f"S7.4: leader {number} of term {mark.term} commits an older entry by counting copies")
            return
        self.voters.check_elected(number, mark.term, journal.configurations[-1][1])
        settled = self.committed[self.commit_index]
        newest = self.commit_index
        if settled < mark.term and mark.base_index <= newest and journal.term_at(newest) != settled:
            raise Violation(f"S7.5: node {number} leads term {mark.term} without the committed entry {newest}")

    # --- Applying ----------------------------------------------------------------------------------------------------

    def applied(self, node: QuorumSimNode, index: int) -> None:
        """6: the node's image is at `index` now, by that entry or by a snapshot."""
        quorum = node.quorum
        if quorum is None:
            return
        # The process may end later in this event, but it has already sent the entries that it synced.
        self._note_durable(node, quorum, self._memories[int(node.node_id)])
        state = state_of(quorum.image)
        known = self.states.get(index)
        if known is None:
            self._first_applied(node, quorum, index, state)
        elif known != state:
            raise Violation(f"S7.6: after entry {index} node {node.node_id} has {state}, another had {known}")

    def _first_applied(self, node: QuorumSimNode, quorum: QuorumNode, index: int, state: State) -> None:
        journal = quorum.engine.journal
        before = self.states.get(index - 1)
        if before is None or journal.term_at(index) is None:
            raise Violation(f"S7.6: node {node.node_id} is at {index}, which no node had applied")
        memory = self._memories[int(node.node_id)]
        self._match_log(node, quorum, memory)
        self._learn_commits(node, quorum, memory, quorum.engine.voter_facts())
        if index not in self.committed:
            raise Violation(f"S7.6: node {node.node_id} applies {index}, which is not committed")
        command, _, term = journal.entries[index - journal.base_index]
        if command[:1] == REGULAR and len(command) > 1:
            self.model.step(index, term, decode(command[1:]), before, state)
        elif state != before:
            raise Violation(f"S7.6: entry {index} has no command, and turns {before} into {state}")
        self.states[index] = state
        self.applied_index = max(self.applied_index, index)


def is_durable(node: QuorumNode, disk: SimDisk) -> bool:
    """Whether the whole journal would survive a power loss, by the disk's state and not by the journal's."""
    journal = node.engine.journal
    return not journal.dirty and disk.is_durable(journal.path)
