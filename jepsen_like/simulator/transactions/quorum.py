"""How simulated clients ask the quorum for changes of transactions: through any node, until there is an answer."""

from __future__ import annotations

import random
from collections.abc import Callable

from jepsen_like.simulator.load.clients import Clients
from metadata.commands.cluster import SetFeatureLevel
from metadata.commands.envelope import Command
from metadata.commands.results import TransactionAnswer, TransactionsChanged
from metadata.commands.transactions import TRANSACTIONS_FEATURE_LEVEL, ChangeTransactions, TransactionChange
from metadata.quorum.port import Outcome

PROPOSAL_SECONDS = 1.0
TRIES_MAX = 12


class Quorum:
    """Asks some node for a change, again and again, until there is an answer."""

    def __init__(self, clients: Clients, rng: random.Random) -> None:
        self._clients = clients
        self._rng = rng

    def ask(self, change: TransactionChange, then: Callable[[TransactionAnswer | None], None], tries: int = 0) -> None:
        """`then(None)`: nobody answered. A change that was carried out and has nothing to tell has an empty answer."""

        def again() -> None:
            if tries < TRIES_MAX:
                self._clients.heap.schedule(self._rng.uniform(0.05, 0.4), lambda: self.ask(change, then, tries + 1))
            else:
                then(None)

        def hear(outcome: Outcome) -> None:
            if isinstance(outcome.result, TransactionsChanged):
                then(next(iter(outcome.result.answers), TransactionAnswer(0, "", "", (), 0)))
            else:
                again()

        self.propose(ChangeTransactions((change,)), hear, again)

    def propose(self, command: Command, hear: Callable[[Outcome], None], lost: Callable[[], None]) -> None:
        """Once; one of the two is called."""
        running = [node for node in self._clients.nodes if node.running and node.quorum is not None]
        heard = False

        def once(act: Callable[[], None]) -> None:
            nonlocal heard
            if not heard:
                heard = True
                act()

        self._clients.heap.schedule(2 * PROPOSAL_SECONDS, lambda: once(lost))
        if not running:
            return
        node = self._rng.choice(running)
        quorum = node.quorum
        assert quorum is not None

        def answered(outcome: Outcome) -> None:
            if outcome.result is None:
                once(lost)
            else:
                self._clients.answer(node, lambda: once(lambda: hear(outcome)))

        def deliver() -> None:
            if node.broker is not None and node.broker.view.feature_level < TRANSACTIONS_FEATURE_LEVEL:
                level = SetFeatureLevel(TRANSACTIONS_FEATURE_LEVEL)
                quorum.propose(level, lambda outcome: once(lost), timeout=PROPOSAL_SECONDS)
            else:
                quorum.propose(command, answered, timeout=PROPOSAL_SECONDS)

        self._clients.send(node, deliver)
