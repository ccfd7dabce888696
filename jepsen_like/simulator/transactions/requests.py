"""Requests of simulated applications about transactions: sent to one node after the other until one answers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeAlias, cast

from jepsen_like.simulator.load.clients import Clients
from metadata.commands.cluster import SetFeatureLevel
from metadata.commands.transactions import TRANSACTIONS_FEATURE_LEVEL
from metadata.view import ClusterView
from raftlog.errors import RaftlogError
from raftlog.wire import TransactionRequest, TransactionResponse

from .node import TransactionNode

ANSWER_SECONDS = 2.0
"""The time after which an unanswered request goes to another node, without the time that it waits for markers."""
TRIES_MAX = 12

Outcome: TypeAlias = TransactionResponse | RaftlogError


class TransactionRequests:
    """Sends requests to random nodes. As with the client library, any number of them may carry out the same request,
    and the first answer counts, however late it is."""

    def __init__(self, clients: Clients, rng: random.Random) -> None:
        self._clients = clients
        self._rng = rng

    def ask(
        self,
        request: TransactionRequest,
        then: Callable[[Outcome | None], None],
        *,
        check: Callable[[TransactionResponse, ClusterView], None] = lambda response, view: None,
        patience: float = 0.0,
    ) -> None:
        """Retry until there is an answer that is not retriable; call `then` with it, or with None if there is none.

        `check` is called with each response, and the view of the node that gave it at that time. `patience`: seconds
        for which the node may wait for markers.
        """
        over, tries = False, 0

        def finish(outcome: Outcome | None) -> None:
            nonlocal over
            if not over:
                over = True
                then(outcome)

        def attempt() -> None:
            nonlocal tries
            if over:
                return
            if tries == TRIES_MAX:
                finish(None)
                return
            tries += 1
            moved_on = False

            def move_on() -> None:
                nonlocal moved_on
                if not moved_on:
                    moved_on = True
                    self._clients.heap.schedule(self._rng.uniform(0.05, 0.4), attempt)

            def hear(outcome: Outcome) -> None:
                if isinstance(outcome, RaftlogError) and outcome.retriable:
                    move_on()
                else:
                    finish(outcome)

            self._clients.heap.schedule(ANSWER_SECONDS + patience, move_on)
            self._send(request, hear, check)

        attempt()

    def _send(
        self,
        request: TransactionRequest,
        hear: Callable[[Outcome], None],
        check: Callable[[TransactionResponse, ClusterView], None],
    ) -> None:
        running = [node for node in self._clients.nodes if node.running and node.broker is not None]
        if not running:
            return
        node = cast(TransactionNode, self._rng.choice(running))

        def answered(outcome: Outcome) -> None:
            assert node.broker is not None and node.quorum is not None
            if isinstance(outcome, TransactionResponse):
                check(outcome, node.broker.view)
            elif outcome.code == "unsupported_version":
                node.quorum.propose(SetFeatureLevel(TRANSACTIONS_FEATURE_LEVEL), lambda _: None, timeout=1.0)
                outcome = RaftlogError("overloaded", "the feature level is raised first")
            self._clients.answer(node, lambda: hear(outcome))

        self._clients.send(node, lambda: node.transactions.ask(request, answered))
