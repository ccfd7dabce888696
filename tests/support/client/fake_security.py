"""Users, tokens, rules and quotas for a broker in memory: the real administrator, whose commands an image applies at
once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from metadata.commands.envelope import Command
from metadata.commands.results import CommandResult, Refused
from raftlog.broker.changes.proposer import Proposer
from raftlog.broker.security.administration.administrator import SecurityAdministrator
from raftlog.broker.security.authentication.tokens import new_token
from raftlog.broker.security.passwords.passwords import PasswordMaterial
from raftlog.errors import RetriableError
from raftlog.security.secrets import Secret
from tests.support.metadata.security import SCRAM, secure_cluster
from tests.support.security.authenticated_world import hashed

from .fake_groups import NOW_MS


class CheapHasher:
    """`Hasher` of passwords without cost."""

    def prepared(self, password: Secret) -> bytes:
        return password.reveal().encode()

    def matches(self, phc: str, secret: bytes) -> bool:
        return phc == _phc(secret.decode())

    def unmatched_phc(self) -> str:
        return "$argon2id$none"


async def hash_password(password: Secret) -> PasswordMaterial:
    """Hash without cost."""
    return PasswordMaterial(_phc(password.reveal()), SCRAM)


class FakeSecurity(SecurityAdministrator):
    """`SecurityService`."""

    def __init__(self, feed: Callable[..., None], catch_up: Callable[[], bool]) -> None:
        """`feed(*events)` makes them the view's next entry; `catch_up` returns False if the quorum is silent."""
        quorum = _Quorum(feed, catch_up)
        super().__init__(quorum.cluster.view, cast(Proposer, quorum), hash_password, new_token, lambda: NOW_MS)


def _phc(password: str) -> str:
    return f"$argon2id${hashed(password)}"


class _Quorum:
    """A proposer whose commands are applied at once."""

    def __init__(self, feed: Callable[..., None], catch_up: Callable[[], bool]) -> None:
        self.cluster = secure_cluster()
        self._feed = feed
        self._catch_up = catch_up

    async def catch_up(self) -> None:
        if not self._catch_up():
            raise RetriableError("quorum_unavailable", "the quorum does not answer")

    async def decide(self, command: Command) -> CommandResult:
        result = self.cluster.apply(command)
        if isinstance(result, Refused):
            raise result.error()
        self._feed(*self.cluster.events)
        return result
