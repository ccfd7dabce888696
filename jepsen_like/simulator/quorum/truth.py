"""The safety of the metadata quorum (S7, S9), looked at after every event of every voter.

Numbers as in the README's table; the words are Raft's (section 5 of the paper, and raft.tla).

1.  Election safety: one leader for each term, also over lives.
2.  A voter's term never falls, over its lives; within a term its vote is given once. What it had when an event was over
    it has after every restart: nothing left the node before it was durable.
3.  Log matching: (index, term) names one entry, and one entry before it.
4.  A leader's own log only grows, and it commits by counting only entries of its own term.
5.  Leader completeness: whoever becomes leader has every committed entry.
6.  State machine safety: one entry at each applied index, and one state after it, by a model of its own; applied <=
    commit <= last; a life's commit index never falls, nor is an entry applied that nobody committed.
7.  A commit needs a majority of *durable* copies: as the simulated disks know it, not as journals believe it; by the
    voters that the leader's log names, each on the disk that it is named with.
8.  Nothing committed is ever taken from a log again.
9.  What was acknowledged is committed, so 5 and 7 hold for it; what was refused for certain is nowhere.
13. A voter that knows that it forgot what it had promised gives no vote, over all its lives, and nobody else says so
    of itself.

Progress (S10) is the run's last part (`run.py`). Work is proportional to what changed: a node whose `Mark` is as
before is not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jepsen_like.simulator.world.violation import Violation
from metadata.commands.envelope import decode
from metadata.quorum.node import QuorumNode
from metadata.voters.configuration import Configuration

from .model import EMPTY, Model, State, state_of
from .node import QuorumSimNode
from .probe import (
    Mark,
    check_inside,
    image_of,
    is_durable,
    it_forgot,
    journal_of,
    mark_of,
    snapshot_index,
)
from .voters_truth import VotersTruth

FIRST_INDEX = 1
REGULAR = b"\0"


@dataclass(slots=True)
class Memory:
    """What a voter is held to, over its lives on one disk."""

    mark: Mark | None = None
    """Of this life, when it was last looked at."""
    promised_term: int = 0
    promised_vote: int | None = None
    durable: tuple[int, int] = (FIRST_INDEX, 0)
    """(index, term) of the last entry that its disk is known to hold."""
    interrupted: bool = False
    """The last life ended inside a disk operation: the disk may be a step ahead of `durable`."""
    configuration: Configuration | None = None
    """The latest in its log."""
    forgot: bool = False
    """It knows that it forgot what it had promised."""
    votes: list[tuple[int, int]] = field(default_factory=list)
    """(term, candidate): given, and not known to be durable."""


class QuorumTruth:
    """Checks a world of voters; raises `Violation`."""

    def __init__(self, nodes: Sequence[QuorumSimNode], voters: int) -> None:
        """The first so many nodes are the first voters."""
        disks = {int(node.node_id): bytes(node.identity.directory_id) for node in nodes}
        self.voters = VotersTruth(range(voters), disks)
        self._nodes = nodes
        self._memories = {int(node.node_id): Memory() for node in nodes}
        self._replaced: dict[tuple[int, bytes], Memory] = {}
        """(node, directory id) → what was durable on a disk when it was taken away."""
        self._leaders: dict[int, int] = {}
        """Term → who led it."""
        self._entries: dict[tuple[int, int], tuple[bytes, int]] = {}
        """(index, term) → (command, term of the entry before)."""
        self.committed: dict[int, int] = {FIRST_INDEX: 0}
        """Index → term. Dense."""
        self.commit_index = FIRST_INDEX
        """The greatest anywhere, ever."""
        self.states: dict[int, State] = {FIRST_INDEX: EMPTY}
        """Index → what clients can see after it."""
        self.applied_index = FIRST_INDEX
        self.model = Model()

    # --- Lives -------------------------------------------------------------------------------------------------------

    def started(self, node: QuorumSimNode) -> None:
        """2 and 8: a voter that comes back has what it had. A voter that comes back without says so by not starting."""
        assert node.quorum is not None
        memory, mark = self._memories[int(node.node_id)], mark_of(node.quorum)
        memory.mark = None
        promised = (memory.promised_term, memory.promised_vote)
        kept_vote = memory.promised_vote is None or mark.vote == memory.promised_vote
        if mark.term < memory.promised_term or (mark.term == memory.promised_term and not kept_vote):
            found = f"term {mark.term} vote {mark.vote}"
            raise Violation(f"S7.2: node {node.node_id} comes back with {found} after term, vote {promised}")
        index, term = memory.durable
        found_term = journal_of(node.quorum).term_at(index)
        covered = snapshot_index(node.quorum) >= index
        if not memory.interrupted and found_term != term and not covered:
            raise Violation(
                f"S7.8: node {node.node_id} comes back with term {found_term} at index {index}, where term {term} was "
                "durable"
            )
        memory.interrupted = False

    def ended(self, node: QuorumSimNode, *, inside_disk_operation: bool) -> None:
        """The process is about to be killed."""
        memory = self._memories[int(node.node_id)]
        memory.interrupted |= inside_disk_operation
        if node.quorum is not None:
            self._note_durable(node, node.quorum, memory)
            self._note_votes(node, node.quorum, memory, mark_of(node.quorum))
        memory.votes.clear()

    def _note_durable(self, node: QuorumSimNode, quorum: QuorumNode, memory: Memory) -> None:
        if is_durable(quorum, node.disk):
            _, last_index, last_term = journal_of(quorum).entries[-1]
            memory.durable = (last_index, last_term)
        memory.configuration = journal_of(quorum).configurations[-1][1]

    def _note_votes(self, node: QuorumSimNode, quorum: QuorumNode, memory: Memory, mark: Mark) -> None:
        """What was staged is durable with the whole journal, as the disk knows it; only then did the vote leave."""
        if mark.vote is not None and (mark.term, mark.vote) != (memory.promised_term, memory.promised_vote):
            if memory.forgot:
                raise Violation(f"S9.13: node {node.node_id} forgot what it promised, and votes in term {mark.term}")
            memory.votes.append((mark.term, mark.vote))
        if memory.votes and is_durable(quorum, node.disk):
            for term, candidate in memory.votes:
                self.voters.voted(int(node.node_id), term, candidate)
            memory.votes.clear()

    def disk_replaced(self, node: QuorumSimNode) -> None:
        """An operator gave the node an empty disk: what it promised is gone, and it is another voter, or none (S9)."""
        number = int(node.node_id)
        self._replaced[number, self.voters.disk_of(number)] = self._memories[number]
        self._memories[number] = Memory()
        self.voters.disk_replaced(int(node.node_id), bytes(node.identity.directory_id))

    # --- Disks that go back in time ---

    def others_hold_all_of(self, node: QuorumSimNode) -> bool:
        """Whether everything that the voter promised is known elsewhere, so that it may forget it: a leader of its own
        term is there, and all other nodes are in this term and have, durably, all that it has."""
        if node.quorum is None:
            return False
        mine = mark_of(node.quorum)
        index, term = self._memories[int(node.node_id)].durable
        others = [other for other in self._nodes if other is not node]
        for other in others:
            if other.quorum is None or mark_of(other.quorum).term != mine.term:
                return False
            if not self._holds(self._memories[int(other.node_id)], index, term):
                return False
        leading = [other for other in others if other.quorum is not None and mark_of(other.quorum).leads]
        return bool(leading) and (mine.last_index, mine.last_term) == (index, term)

    def rewound(self, node: QuorumSimNode) -> None:
        """What it promised is known to others, and no more to itself."""
        memory = self._memories[int(node.node_id)] = Memory()
        memory.interrupted = True

    def forgot(self, node: QuorumSimNode) -> bool:
        """It forgot what it had promised, and knows it."""
        return self._memories[int(node.node_id)].forgot

    # --- After every event -------------------------------------------------------------------------------------------

    def after_event(self, node: QuorumSimNode) -> None:
        """`node` has just handled something."""
        quorum = node.quorum
        if quorum is None:
            return
        memory, mark = self._memories[int(node.node_id)], mark_of(quorum)
        if mark != memory.mark:
            self._look_at(node, quorum, memory, mark)
            memory.mark = mark

    def _look_at(self, node: QuorumSimNode, quorum: QuorumNode, memory: Memory, mark: Mark) -> None:
        check_inside(quorum)
        before = memory.mark
        self._note_votes(node, quorum, memory, mark)
        if not mark.base_index <= mark.applied_index <= mark.commit_index <= mark.last_index:
            raise Violation(f"S7.6: node {node.node_id} is at {mark}")
        if mark.term < memory.promised_term:
            raise Violation(f"S7.2: node {node.node_id} falls from term {memory.promised_term} to {mark.term}")
        if before is None or (mark.last_index, mark.last_term) != (before.last_index, before.last_term):
            self._match_log(node, quorum, memory)
        self._learn_commits(node, quorum, memory, mark)
        self.voters.look_at(int(node.node_id), journal_of(quorum), self.committed)
        if before is None or mark.base_index != before.base_index:
            self.voters.check_base(int(node.node_id), journal_of(quorum))
        if mark.leads:
            self._check_leader(node, quorum, before, mark)
        if before is not None:
            self._compare(node, before, mark)
        if it_forgot(quorum) is not memory.forgot:
            if memory.forgot or not node.rewound:
                raise Violation(f"S9.13: node {node.node_id} says {it_forgot(quorum)} of having forgotten")
            memory.forgot = True
        if not mark.dirty:
            # What the journal takes for durable may have been sent. That it is durable is asked at the next start.
            memory.promised_term, memory.promised_vote = mark.term, mark.vote

    def _compare(self, node: QuorumSimNode, before: Mark, mark: Mark) -> None:
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
        """3, by induction; what was committed here before was looked at then."""
        journal = journal_of(quorum)
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
            raise Violation(
                f"S7.8: node {node.node_id} takes away entry {newest} of term {settled}, which is committed"
            )

    def _learn_commits(self, node: QuorumSimNode, quorum: QuorumNode, memory: Memory, mark: Mark) -> None:
        """6, 7 and 8: what this voter takes for committed."""
        journal = journal_of(quorum)
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
        command, _, term = journal_of(quorum).entries[index - journal_of(quorum).base_index]
        configuration = self._counted_by(node, in_term)
        holders = [number for number, memory in self._memories.items() if self._holds(memory, index, term)]
        disks = [(number, self.voters.disk_of(number)) for number in holders]
        # An acknowledgement may be under way when the disk that it speaks of is taken away; a vote counts so, too.
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
        """The latest configuration of the term's leader, who may have ended since; others only follow its commits."""
        own = int(node.node_id)
        leader = self._leaders.get(term, own)
        configuration = self._memories[leader].configuration or self._memories[own].configuration
        assert configuration is not None, "a node that commits was looked at"
        return configuration

    def _holds(self, memory: Memory, index: int, term: int) -> bool:
        """A disk has this entry: found by walking back from its last one."""
        at, at_term = memory.durable
        while at > index:
            known = self._entries.get((at, at_term))
            if known is None:
                return False
            at, at_term = at - 1, known[1]
        return (at, at_term) == (index, term)

    # --- Leaders -----------------------------------------------------------------------------------------------------

    def _check_leader(self, node: QuorumSimNode, quorum: QuorumNode, before: Mark | None, mark: Mark) -> None:
        number, journal = int(node.node_id), journal_of(quorum)
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
        # What follows in this event may be the end of the process: what it synced was sent all the same.
        self._note_durable(node, quorum, self._memories[int(node.node_id)])
        state = state_of(image_of(quorum))
        known = self.states.get(index)
        if known is None:
            self._first_applied(node, quorum, index, state)
        elif known != state:
            raise Violation(f"S7.6: after entry {index} node {node.node_id} has {state}, another had {known}")

    def _first_applied(self, node: QuorumSimNode, quorum: QuorumNode, index: int, state: State) -> None:
        journal = journal_of(quorum)
        before = self.states.get(index - 1)
        if before is None or journal.term_at(index) is None:
            raise Violation(f"S7.6: node {node.node_id} is at {index}, which nobody had come to")
        memory = self._memories[int(node.node_id)]
        self._match_log(node, quorum, memory)
        self._learn_commits(node, quorum, memory, mark_of(quorum))
        if index not in self.committed:
            raise Violation(f"S7.6: node {node.node_id} applies {index}, which is not committed")
        command, _, term = journal.entries[index - journal.base_index]
        if command[:1] == REGULAR and len(command) > 1:
            self.model.step(index, term, decode(command[1:]), before, state)
        elif state != before:
            raise Violation(f"S7.6: entry {index} has no command, and turns {before} into {state}")
        self.states[index] = state
        self.applied_index = max(self.applied_index, index)
