"""The operator of the simulated quorum: adds and removes voters with the requests of `raftlog quorum`.

The operator makes no change after which the quorum would depend on a voter that may be lost permanently (`Prudence`): a
quorum that stops for this reason was broken by its operator. Otherwise the operator is careless: asks any node, during
other changes, for changes that are already made, and for changes that the leader must refuse.
"""

from __future__ import annotations

from jepsen_like.simulator.world.violation import Violation
from metadata.quorum.protocol import VotersChanged
from metadata.voters.changes import Action, VoterChange
from metadata.voters.configuration import Configuration
from raftlog.config import majority

from .clients import QuorumClients
from .node import QuorumSimNode
from .schedule import Operation
from .voters_truth import VotersTruth

ACTIONS = {"add_voter": Action.ADD, "remove_voter": Action.REMOVE}
TIMEOUT = 3.0
"""Seconds, by the clock of the node that is asked."""


class QuorumOperator:
    """All changes of the voters in one run."""

    def __init__(
        self, nodes: list[QuorumSimNode], clients: QuorumClients, voters: VotersTruth, *, unreliable: int
    ) -> None:
        """`unreliable`: the node that may be lost permanently."""
        self._nodes = nodes
        self._clients = clients
        self._voters = voters
        self._unreliable = unreliable
        self.counts: dict[str, int] = {}
        """Answer → count: applied, or the code of a refusal."""

    def call(self, operation: Operation) -> None:
        """Ask a node for a change, unless the node is down or the change imprudent."""
        node = self._nodes[operation.node]
        action = ACTIONS[operation.kind]
        if not node.running or node.quorum is None or not self._is_prudent(action, operation.subject):
            return
        call = self._clients.begin(operation, node)

        def done(answer: VotersChanged) -> None:
            call.over = True
            told = answer.code or answer.verdict
            self.counts[told] = self.counts.get(told, 0) + 1
            if answer.verdict == "applied" and answer.index >= 0:
                self._check_applied(action, operation.subject, answer)

        node.quorum.change_voters(VoterChange(action, operation.subject), done, timeout=TIMEOUT)
        node.tick_soon()

    def _is_prudent(self, action: Action, subject: int) -> bool:
        ids = set(self._voters.committed[-1][1].node_ids)
        after = ids | {subject} if action is Action.ADD else ids - {subject}
        return len(after - {self._unreliable}) >= majority(len(after))

    def _check_applied(self, action: Action, subject: int, answer: VotersChanged) -> None:
        """S7.9: an applied change is a committed entry, and has the requested effect."""
        found: Configuration | None = dict(self._voters.committed).get(answer.index)
        if found is None or (found.voter(subject) is not None) is not (action is Action.ADD):
            raise Violation(f"S7.9: {action.value} voter {subject} was answered with {answer}; the log has {found}")
