"""The HTTP API's view of a node's security: without it every caller may do everything, with it each is authenticated,
authorized and limited (S12). See `http_api.service.access.AccessService`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable

from http_api.service.access import Usage
from metadata.records.owners import NO_OWNER
from metadata.view import ClusterView
from raftlog.broker.security.authentication.authentication import Authentication
from raftlog.broker.security.authentication.sessions import Sessions
from raftlog.broker.security.quotas.api_connections import ApiConnections
from raftlog.broker.security.quotas.quotas import Quotas, Rate
from raftlog.errors import RaftlogError
from raftlog.ports import Clock
from raftlog.security.acls import Operation, Resource, ResourceType
from raftlog.security.authorizer import Decision
from raftlog.security.presented import Presented
from raftlog.security.principals import ANONYMOUS, Caller, Principal
from raftlog.wire import GroupRequest, TransactionRequest

from .access import Access
from .needs import ids_of, needs_of

_OPEN = Decision(True, None, "security is off on this node")


class AnonymousRequest:
    """The caller of one request to a node without security."""

    def __init__(self, host: str) -> None:
        self.caller = Caller(ANONYMOUS, host)

    def watch(self, ended: Callable[[RaftlogError], None]) -> Callable[[], None]:
        """Watch nothing: there is no credential."""
        return lambda: None


class AuthenticatedRequest:
    """The caller of one request to a node with security."""

    def __init__(self, authentication: Authentication, sessions: Sessions) -> None:
        self._authentication = authentication
        self._sessions = sessions

    @property
    def caller(self) -> Caller:
        return self._authentication.caller

    def watch(self, ended: Callable[[RaftlogError], None]) -> Callable[[], None]:
        session = self._sessions.open(self._authentication, ended)
        return lambda: self._sessions.close(session)


class OpenAccess:
    """The access of a node without security: every caller is anonymous and may do everything."""

    guard: Access | None = None
    """The decisions about partitions; None: every caller may use all of them."""
    needs_credentials = False
    rules_version = 0

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Subscribe to nothing: there are no rules."""
        return lambda: None

    async def authenticate(self, presented: Presented) -> AnonymousRequest:
        return AnonymousRequest(presented.host)

    def check(
        self, caller: Caller, operation: Operation, resource: Resource, action: str, request_id: str = ""
    ) -> None:
        """Allow it."""

    def check_any(
        self, caller: Caller, operation: Operation, kind: ResourceType, action: str, request_id: str = ""
    ) -> None:
        """Allow it."""

    def allow_own(self, caller: Caller, operation: Operation, action: str, request_id: str = "") -> None:
        """Record nothing."""

    def check_request(
        self, caller: Caller, request: GroupRequest | TransactionRequest, action: str, request_id: str = ""
    ) -> None:
        """Allow it."""

    def allows(self, caller: Caller, operation: Operation, resource: Resource) -> bool:
        return True

    def explain(self, principal: Principal, host: str, operation: Operation, resource: Resource) -> Decision:
        return _OPEN

    def delay_s(self, caller: Caller, *usages: Usage) -> float:
        return 0.0

    def delay_for_s(self, caller: Caller, usage: Usage, amount: int) -> float:
        return 0.0

    def charge(self, caller: Caller, usage: Usage, amount: int) -> None:
        """Limit nothing."""

    def principal_of(self, caller: Caller) -> str:
        return NO_OWNER

    def enter(self, connection: Hashable, caller: Caller) -> None:
        """Count nothing."""

    def leave(self, connection: Hashable) -> None:
        """Nothing was counted."""


class GuardedAccess:
    """The access of a node with security. All calls are made on the broker's loop."""

    def __init__(
        self,
        authenticate: Callable[[Presented], Awaitable[Authentication]],
        access: Access,
        view: ClusterView,
        sessions: Sessions,
        quotas: Quotas,
        clock: Clock,
        *,
        needs_credentials: bool,
        is_super_user: Callable[[str], bool],
    ) -> None:
        """`authenticate` raises `Unauthenticated`, or a `RetriableError` if it cannot check at present.
        `needs_credentials`: whether a request without a credential is refused. `is_super_user` returns whether the
        node's settings make a principal (`User:alice`) a superuser."""
        self._authenticate = authenticate
        self.guard = access
        self.needs_credentials = needs_credentials
        self._view = view
        self._sessions = sessions
        self._quotas = quotas
        connections = ApiConnections(quotas)
        self._clock = clock
        self._is_super_user = is_super_user
        self.subscribe = access.subscribe
        self.check = access.check
        self.check_any = access.check_any
        self.allow_own = access.allow_own
        self.allows = access.allows
        self.enter = connections.enter
        self.leave = connections.leave

    @property
    def rules_version(self) -> int:
        return self.guard.rules_version

    async def authenticate(self, presented: Presented) -> AuthenticatedRequest:
        return AuthenticatedRequest(await self._authenticate(presented), self._sessions)

    def check_request(
        self, caller: Caller, request: GroupRequest | TransactionRequest, action: str, request_id: str = ""
    ) -> None:
        self.guard.check_all(caller, needs_of(request, self._view), action, request_id)
        self.guard.check_ids(caller, ids_of(request), action, request_id)

    def principal_of(self, caller: Caller) -> str:
        return caller.principal.name

    def explain(self, principal: Principal, host: str, operation: Operation, resource: Resource) -> Decision:
        user = self._view.security.user(principal.name)
        superuser = self._is_super_user(str(principal)) or (user is not None and user.superuser)
        return self.guard.decide(Caller(principal, host, superuser=superuser), operation, resource)

    def delay_s(self, caller: Caller, *usages: Usage) -> float:
        now = self._clock.monotonic()
        return max(self._quotas.wait(caller, _RATES[usage], now) for usage in usages)

    def delay_for_s(self, caller: Caller, usage: Usage, amount: int) -> float:
        return self._quotas.wait_for(caller, _RATES[usage], amount, self._clock.monotonic())

    def charge(self, caller: Caller, usage: Usage, amount: int) -> None:
        self._quotas.charge(caller, _RATES[usage], amount, self._clock.monotonic())


_RATES = {usage: Rate[usage.name] for usage in Usage}
