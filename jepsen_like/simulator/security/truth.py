"""Checks users, tokens and rules after every entry that the quorum has applied (S7, S12).

Every token and every version of a user has unique content, so each is found again in the states of all nodes.

1. After each entry all nodes have the same users, tokens and rules, and each node's view shows what its image holds.
2. A token that is gone (revoked, expired, or its user removed) never comes back.
3. The changes of one command are carried out together or not at all.
4. An acknowledged change was carried out, after everything that had been answered when it began; a refused one never
   was.
5. An acknowledged change of a user replaced exactly the version that it names.
6. The first administrator is made at most once, and before any other record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from jepsen_like.simulator.world.violation import Violation
from metadata.commands.security import BootstrapSecurity, ChangeSecurity, PutToken, PutUser, RemoveToken
from metadata.image.image import ClusterImage
from metadata.image.invariants import check_security
from metadata.records.security import TokenRecord, UserRecord
from metadata.records.security_table import SecurityTable
from raftlog.security.acls import AclRule

FIRST_ADMINISTRATOR = "root"


class State(NamedTuple):
    """Everything about security after one entry."""

    bootstrapped: bool
    users: tuple[UserRecord, ...]
    tokens: tuple[TokenRecord, ...]
    rules: tuple[AclRule, ...]


EMPTY = State(False, (), (), ())


def state_of(table: SecurityTable) -> State:
    """The state in one node's image or view."""
    users = tuple(table.users())
    tokens = tuple(token for user in users for token in table.tokens_of(user.name))
    return State(table.bootstrapped, users, tokens, table.rules())


@dataclass(frozen=True, slots=True)
class Made:
    """A version of a user, by the entry that made it."""

    index: int
    replaced: int
    """The version before; 0: there was no such user."""


class SecurityTruth:
    """Checks all nodes; raises `Violation`."""

    def __init__(self) -> None:
        self.index = 0
        """Index of the last checked entry."""
        self.state = EMPTY
        """The state after it."""
        self.tokens: dict[str, int] = {}
        """Token id → the entry that made it."""
        self.gone: dict[str, int] = {}
        """Token id → the entry after which it was not there any more."""
        self.users: dict[str, Made] = {}
        """Content of a version of a user → the entry that made it."""
        self._states: dict[int, State] = {}
        self._together: dict[str, frozenset[str]] = {}
        """Token id → the tokens of its command."""
        self._refused: list[ChangeSecurity | BootstrapSecurity] = []

    # --- Entries -----------------------------------------------------------------------------------------------------

    def applied(self, index: int, image: ClusterImage, view: SecurityTable) -> None:
        """A node's image is at this index, and so is its view."""
        state = state_of(image.security)
        if state_of(view) != state:
            raise Violation(f"S12.1: at {index} a view shows {state_of(view)}, and its image has {state}")
        known = self._states.get(index)
        if known is not None and known != state:
            raise Violation(f"S12.1: after entry {index} a node has {state}, another had {known}")
        self._states[index] = state
        if index > self.index:
            self.index = index
            for wrong in check_security(image):
                raise Violation(f"S12: after entry {index}: {wrong}")
            self._look_at_tokens(index, state)
            self._look_at_users(index, state)
            self.state = state

    def _look_at_tokens(self, index: int, state: State) -> None:
        now, before = {token.token_id for token in state.tokens}, {token.token_id for token in self.state.tokens}
        for token_id in sorted(now - before):
            if token_id in self.gone:
                raise Violation(f"S12.2: entry {index} brings token {token_id} back, gone since {self.gone[token_id]}")
            self.tokens[token_id] = index
        for token_id in sorted(before - now):
            self.gone[token_id] = index
        for token_id in sorted(now - before):
            missing = self._together[token_id] - now
            if missing:
                raise Violation(f"S12.3: entry {index} makes token {token_id}, and not {sorted(missing)}")

    def _look_at_users(self, index: int, state: State) -> None:
        if self.state.bootstrapped and not state.bootstrapped:
            raise Violation(f"S12.6: after entry {index} the cluster can be bootstrapped again")
        before = {user.name: user for user in self.state.users}
        for user in state.users:
            former = before.get(user.name)
            if former == user:
                continue
            if user.version != index or (former is not None and former.version >= index):
                raise Violation(f"S12.5: entry {index} makes {user} of {former}")
            if user.argon2 in self.users:
                raise Violation(f"S12.5: entry {index} makes {user}, as {self.users[user.argon2]} did")
            if user.name == FIRST_ADMINISTRATOR and self.state.bootstrapped:
                raise Violation(f"S12.6: entry {index} makes the first administrator in {self.state}")
            self.users[user.argon2] = Made(index, 0 if former is None else former.version)

    # --- Commands ----------------------------------------------------------------------------------------------------

    def proposed(self, command: ChangeSecurity | BootstrapSecurity) -> None:
        """A client is about to propose this command."""
        tokens = frozenset(put.token_id for put in tokens_put(command))
        self._together.update(dict.fromkeys(tokens, tokens))

    def carried_out(self, command: ChangeSecurity | BootstrapSecurity, index: int, answered_before: int) -> None:
        """4, 5: a client was answered that the command was carried out, at this index or before."""
        for put in tokens_put(command):
            self._check_order(command, self.tokens.get(put.token_id), index, answered_before)
        for user in users_put(command):
            made = self.users.get(user.argon2)
            self._check_order(command, None if made is None else made.index, index, answered_before)
            if made is not None and made.replaced != user.replaces:
                raise Violation(f"S12.5: {command} is acknowledged, and replaced version {made.replaced}")
        for token_id in tokens_removed(command):
            if token_id not in self.gone or self.gone[token_id] > index:
                raise Violation(f"S12.4: {command} is acknowledged at {index}, gone since {self.gone.get(token_id)}")

    def _check_order(self, command: object, found: int | None, index: int, answered_before: int) -> None:
        if found is None or not answered_before < found <= index:
            raise Violation(
                f"S12.4: {command} is acknowledged at {index}, after answers up to {answered_before}; made by {found}"
            )

    def refused(self, command: ChangeSecurity | BootstrapSecurity) -> None:
        """4: a client was answered that the command was refused, for certain."""
        self._refused.append(command)

    def check_refused(self) -> None:
        """4: nothing of a refused command was ever carried out."""
        for command in self._refused:
            tokens = [put.token_id for put in tokens_put(command) if put.token_id in self.tokens]
            users = [user.name for user in users_put(command) if user.argon2 in self.users]
            if tokens or users:
                raise Violation(f"S12.4: {command} was refused, and made {tokens} and {users}")


def tokens_put(command: ChangeSecurity | BootstrapSecurity) -> list[PutToken]:
    """The tokens that a command makes."""
    if isinstance(command, BootstrapSecurity):
        return [command.token]
    return [change for change in command.changes if isinstance(change, PutToken)]


def users_put(command: ChangeSecurity | BootstrapSecurity) -> list[PutUser]:
    """The versions of users that a command makes."""
    if isinstance(command, BootstrapSecurity):
        return [command.user]
    return [change for change in command.changes if isinstance(change, PutUser)]


def tokens_removed(command: ChangeSecurity | BootstrapSecurity) -> list[str]:
    """The ids of the tokens that a command revokes."""
    if isinstance(command, BootstrapSecurity):
        return []
    return [change.token_id for change in command.changes if isinstance(change, RemoveToken)]
