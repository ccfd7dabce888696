"""A broker in memory with security: the real authentication, rules and quotas, with passwords that cost nothing."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any, TypeVar

from metadata.records.events import RulesChanged
from raftlog.broker.security.access.access import Access
from raftlog.broker.security.access.request_access import GuardedAccess
from raftlog.broker.security.authentication.authentication import Authentication
from raftlog.broker.security.authentication.authenticator import Authenticator
from raftlog.broker.security.authentication.client_names import ClientNames
from raftlog.broker.security.authentication.sessions import Sessions
from raftlog.broker.security.passwords.checks import PasswordChecks
from raftlog.broker.security.quotas.limits import QuotaTable
from raftlog.broker.security.quotas.quotas import Quotas
from raftlog.config import DEFAULT_USER_NAME, SecurityConfig
from raftlog.security.acls import AclRule
from raftlog.security.presented import Presented
from raftlog.security.secrets import Secret
from raftlog.system.futures import future_of
from raftlog.system.runtime import LoopScheduler
from tests.support.partitions.manual import ManualClock
from tests.support.security.authenticated_world import NamedAccessTokens
from tests.support.security.rules import KeptAudit

from .fake_broker import CLUSTER_ID, FakeBroker
from .fake_security import CheapHasher

T = TypeVar("T")

Headers = dict[str, str]


class SecuredBroker(FakeBroker):
    """Create it on a running loop."""

    def __init__(self, *, mode: Any = "required", **settings: Any) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        scheduler = LoopScheduler(loop)
        config = SecurityConfig(mode=mode, **settings)
        self.clock = ManualClock()
        """The time of quotas and of the cluster."""
        self.audit = KeptAudit()
        self.refusals: list[tuple[str, str, str, str]] = []
        """Host, claimed name, mechanism and reason of each failed authentication."""
        self.access_tokens = NamedAccessTokens()
        checks = PasswordChecks(CheapHasher(), self.clock, scheduler, _AtOnce(loop), lambda length: b"k" * length)
        self._authenticator = Authenticator(
            config,
            self.view.security,
            self.clock.wall_ms,
            ClientNames(DEFAULT_USER_NAME, CLUSTER_ID),
            checks,
            self.access_tokens,
            lambda *refusal: self.refusals.append(refusal),
        )
        self.sessions = Sessions(self.view.security, self.clock.wall_ms, scheduler)
        self.guard = Access(self.view, self.view.security.authorizer, self.audit)
        quotas = QuotaTable(self.view.security)
        self.access = GuardedAccess(
            self._authenticate,
            self.guard,
            self.view,
            self.sessions,
            Quotas(quotas.limits_of, quotas.is_limited),
            self.clock,
            needs_credentials=config.mode == "required",
            is_super_user=frozenset(config.super_users).__contains__,
        )
        self.view.subscribe(self._on_events)

    async def user(self, name: str, *, superuser: bool = False, password: str | None = None) -> Headers:
        """Create a user; return the headers with a token of its own."""
        await self.security.create_user(name, None if password is None else Secret(password), superuser=superuser)
        return await self.token(name)

    async def token(self, name: str) -> Headers:
        """Return the headers with a new token of a user."""
        _, text = await self.security.create_token(name, "", None)
        return {"Authorization": f"Bearer {text.reveal()}"}

    async def allow(self, *rules: AclRule) -> None:
        """Add rules."""
        await self.security.add_rules(rules)

    async def _authenticate(self, presented: Presented) -> Authentication:
        return await future_of(lambda answer: self._authenticator.authenticate(presented, answer))

    def _on_events(self, index: int, events: Any) -> None:
        self.sessions.on_events(index, events)
        if any(isinstance(event, RulesChanged) for event in events):
            self.guard.rules_changed()


def basic(name: str, password: str) -> Headers:
    """Return the headers with a name and password."""
    text = base64.b64encode(f"{name}:{password}".encode()).decode()
    return {"Authorization": f"Basic {text}"}


class _AtOnce:
    """`Worker` that works at once, and answers in a later event."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        try:
            result = work()
        except Exception as error:
            self._loop.call_soon(done, None, error)
        else:
            self._loop.call_soon(done, result, None)
