"""Checks the safety of changes of the voters (S7, S9): the configurations in the logs, the votes, and which voters
count.

The numbers continue those of `truth.py`:

10. One step at a time: a configuration follows a committed one, and any majority of the one shares a voter, on the
    same disk, with any majority of the other.
11. Every leader had the durable votes of a majority of the voters that its own log names, each on the disk that it
    is named with. Votes of observers, removed voters and replaced disks do not count.
12. The configuration at the beginning of a log was committed there or earlier.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from jepsen_like.simulator.world.violation import Violation
from metadata.journal.journal import Journal
from metadata.voters.configuration import CONFIGURATION, Configuration, Voter, decode_entry
from raftlog.config import majority
from raftlog.model import BrokerId

FIRST_INDEX = 1


class VotersTruth:
    """Checks the configurations and votes of all nodes; raises `Violation`."""

    def __init__(self, initial: Iterable[int], disks: dict[int, bytes]) -> None:
        """`disks`: node → the directory id of its first disk, by which it is known until the log names one."""
        self._first_disks = dict(disks)
        self._disks = dict(disks)
        """Node → the directory id of its current disk."""
        self.committed: list[tuple[int, Configuration]] = [
            (FIRST_INDEX, Configuration.initial(BrokerId(node) for node in initial))
        ]
        """(index, configuration), in the order of the log."""
        self._seen: set[tuple[int, int]] = set()
        """(index, term) of the configurations that were checked."""
        self._votes: dict[tuple[int, int, bytes], int] = {}
        """(term, node, disk) → the candidate of its durable vote."""

    # --- Disks -------------------------------------------------------------------------------------------------------

    def disk_replaced(self, node: int, directory_id: bytes) -> None:
        """From now on the node has an empty disk."""
        self._disks[node] = directory_id

    def counts(self, configuration: Configuration, node: int) -> bool:
        """Whether the node is one of these voters, on the disk that it is named with."""
        voter = configuration.voter(node)
        return voter is not None and self._named(voter)[1] == self._disks[node]

    def have_majority(self, configuration: Configuration, nodes: Iterable[int]) -> bool:
        """Whether those of the nodes that count are a majority."""
        there = {node for node in nodes if self.counts(configuration, node)}
        return len(there) >= majority(len(configuration.voters))

    def disk_of(self, node: int) -> bytes:
        """The node's current disk."""
        return self._disks[node]

    def have_acknowledged(self, configuration: Configuration, disks: Iterable[tuple[int, bytes]]) -> bool:
        """Whether an entry is on a majority of the disks that the voters are named with. `disks`: the disks that have
        it, or had it when they were replaced: a disk's acknowledgement may reach the leader after the disk is gone.
        """
        named = {self._named(voter) for voter in configuration.voters}
        return len(named.intersection(disks)) >= majority(len(configuration.voters))

    def _named(self, voter: Voter) -> tuple[int, bytes]:
        directory_id = bytes(voter.directory_id) if voter.pinned else self._first_disks[voter.node_id]
        return int(voter.node_id), directory_id

    # --- Votes -------------------------------------------------------------------------------------------------------

    def voted(self, node: int, term: int, candidate: int) -> None:
        """The vote is durable on the node's disk."""
        self._votes[term, node, self._disks[node]] = candidate

    def check_elected(self, node: int, term: int, configuration: Configuration) -> None:
        """11: `node` leads `term`, with this configuration in its log."""
        voters = [self._named(voter) for voter in configuration.voters]
        granted = [number for number, disk in voters if self._votes.get((term, number, disk)) == node]
        if len(granted) < majority(len(voters)):
            raise Violation(
                f"S7.11: node {node} leads term {term} with the votes of {granted}, out of {configuration.node_ids}"
            )

    # --- Configurations ----------------------------------------------------------------------------------------------

    def on_commit(self, index: int, command: bytes) -> None:
        """An entry was committed for the first time."""
        if command[:1] == CONFIGURATION:
            configuration = decode_entry(command)
            assert configuration is not None
            self.committed.append((index, configuration))

    def look_at(self, node: int, journal: Journal, committed: dict[int, int]) -> None:
        """10: check the configurations of a node's log that were not checked before. `committed`: index → term."""
        for (before, old), (index, new) in itertools.pairwise(journal.configurations):
            term = journal.term_at(index)
            assert term is not None
            if (index, term) in self._seen:
                continue
            self._seen.add((index, term))
            if before > journal.base_index and committed.get(before) != journal.term_at(before):
                raise Violation(
                    f"S7.10: node {node} has a change of voters at {index} of term {term}, and the one at {before} is "
                    "not committed"
                )
            if not self._share_a_voter(old, new):
                raise Violation(f"S7.10: on node {node} two majorities of {old} and {new} may share no voter")

    def _share_a_voter(self, old: Configuration, new: Configuration) -> bool:
        """Whether any two majorities share a voter. The worst case takes the voters that the other configuration lacks
        first.
        """
        former, latter = {self._named(v) for v in old.voters}, {self._named(v) for v in new.voters}
        from_both = [
            max(majority(len(mine)) - len(mine - others), 0) for mine, others in ((former, latter), (latter, former))
        ]
        return sum(from_both) > len(former & latter)

    def check_base(self, node: int, journal: Journal) -> None:
        """12: the log begins with the configuration that is in effect there."""
        base, found = journal.configurations[0]
        since, wanted = next(one for one in reversed(self.committed) if one[0] <= base)
        # Before the first entry that names voters, each node has the voters that its own folder was prepared with.
        if since > FIRST_INDEX and found != wanted:
            raise Violation(f"S7.12: node {node} has {found} at {base}, where its log begins; committed is {wanted}")
