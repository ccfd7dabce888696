"""Administrators in the simulated quorum: each operation is one command at one node, made from that node's view.

A view may be stale, so commands are refused now and then. Every token and every version of a user has unique content.
"""

from __future__ import annotations

import random

from jepsen_like.simulator.quorum.clients import QuorumClients
from jepsen_like.simulator.quorum.schedule import Operation
from metadata.commands.results import Done
from metadata.commands.security import (
    AddRules,
    BootstrapSecurity,
    ChangeSecurity,
    PutToken,
    PutUser,
    RemoveRules,
    RemoveToken,
    RemoveUser,
)
from metadata.quorum.port import Fate, Outcome
from metadata.records.security_view import SecurityView
from raftlog.security.acls import AclRule, PatternType, Permission, ResourceType
from raftlog.security.acls import Operation as Access

from .node import SecuritySimNode
from .truth import FIRST_ADMINISTRATOR, SecurityTruth

TIMEOUT = 2.0
"""Seconds, by the clock of the node that is asked."""
LIFETIMES_MS = (0, 0, 200, 3_000)
"""The times that tokens are accepted, in milliseconds; 0: they never expire."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"


class Administrators:
    """All administrators of one run."""

    def __init__(self, clients: QuorumClients, truth: SecurityTruth, rng: random.Random) -> None:
        self._clients = clients
        self._truth = truth
        self._rng = rng
        self._number = 0
        self._answered = 0
        """The greatest index in any answer."""
        self.counts = {"security_applied": 0, "security_refused": 0, "security_unknown": 0}

    def call(self, operation: Operation, node: SecuritySimNode) -> None:
        """Propose a change at a node, unless the node is down or its view has nothing to change."""
        if not node.running or node.quorum is None:
            return
        command = self._command(operation, node)
        if command is None:
            return
        self._truth.proposed(command)
        call = self._clients.begin(operation, node)
        answered_before = self._answered

        def done(outcome: Outcome) -> None:
            call.over = True
            self._outcome(command, outcome, answered_before)

        node.quorum.propose(command, done, timeout=TIMEOUT)
        node.tick_soon()

    def _outcome(self, command: ChangeSecurity | BootstrapSecurity, outcome: Outcome, answered_before: int) -> None:
        if outcome.fate is Fate.APPLIED and isinstance(outcome.result, Done):
            self.counts["security_applied"] += 1
            self._truth.carried_out(command, outcome.index, answered_before)
            self._answered = max(self._answered, outcome.index)
        elif outcome.fate is Fate.UNKNOWN:
            self.counts["security_unknown"] += 1
        else:
            self.counts["security_refused"] += 1
            self._truth.refused(command)

    # --- Commands ----------------------------------------------------------------------------------------------------

    def _command(self, operation: Operation, node: SecuritySimNode) -> ChangeSecurity | BootstrapSecurity | None:
        """The command to propose, from this node's view."""
        view, now_ms = node.view.security, node.view.time.now_ms
        name = f"user-{operation.subject}"
        match operation.kind:
            case "bootstrap":
                user = self._put_user(FIRST_ADMINISTRATOR, 0, superuser=True)
                return BootstrapSecurity(user, self._put_token(FIRST_ADMINISTRATOR, 0))
            case "put_user":
                known = view.user(name)
                return ChangeSecurity((self._put_user(name, 0 if known is None else known.version),))
            case "remove_user":
                return ChangeSecurity((RemoveUser(name),)) if view.user(name) is not None else None
            case "put_tokens":
                users = [user.name for user in view.users()] or [name]
                return ChangeSecurity((*self._removals(view, 1), *self._put_tokens(users, now_ms)))
            case "remove_token":
                removals = self._removals(view, 2)
                return ChangeSecurity(removals) if removals else None
            case "refused_changes":
                tokens = self._put_tokens([user.name for user in view.users()] or [name], now_ms)
                return ChangeSecurity((*self._removals(view, 2), *tokens, RemoveUser("nobody")))
        rules = tuple(_rule(name, f"topic-{self._rng.randrange(3)}", permission) for permission in Permission)
        added, removed = self._rng.sample(rules, 2)
        return ChangeSecurity((AddRules.of((added,)), RemoveRules.of((removed,))))

    def _put_user(self, name: str, replaces: int, *, superuser: bool = False) -> PutUser:
        self._number += 1
        return PutUser(name, superuser, None, f"$argon2id${self._number}", replaces)

    def _put_tokens(self, users: list[str], now_ms: int) -> tuple[PutToken, ...]:
        lifetime_ms = self._rng.choice(LIFETIMES_MS)
        expires_ms = now_ms + lifetime_ms if lifetime_ms and now_ms else 0
        return tuple(self._put_token(self._rng.choice(users), expires_ms) for _ in range(self._rng.choice((1, 2, 3))))

    def _put_token(self, name: str, expires_ms: int) -> PutToken:
        self._number += 1
        token_id = "".join(_LETTERS[self._number >> shift & 31] for shift in range(0, 60, 5))
        return PutToken(token_id, self._number.to_bytes(32, "big"), name, "", expires_ms)

    def _removals(self, view: SecurityView, most: int) -> tuple[RemoveToken, ...]:
        tokens = [token.token_id for user in view.users() for token in view.tokens_of(user.name)]
        count = min(self._rng.randint(0 if most == 1 else 1, most), len(tokens))
        return tuple(RemoveToken(token_id) for token_id in self._rng.sample(tokens, count))


def _rule(name: str, topic: str, permission: Permission) -> AclRule:
    return AclRule(f"User:{name}", "*", Access.READ, permission, ResourceType.TOPIC, PatternType.LITERAL, topic)
