"""The broker's port for authentication, authorization and quotas. `raftlog/broker/security/access/request_access.py`
implements it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable
from typing import Protocol

from raftlog.errors import RaftlogError
from raftlog.security.acls import Operation, Resource, ResourceType
from raftlog.security.authorizer import Decision
from raftlog.security.presented import Presented
from raftlog.security.principals import Caller, Principal
from raftlog.wire import GroupRequest, TransactionRequest


class Usage(enum.Enum):
    """The uses of a node by its callers that quotas limit."""

    REQUESTS = "requests"
    BYTES_IN = "bytes_in"
    """Bodies of requests, as they were sent."""
    METADATA_COMMANDS = "metadata_commands"
    """Requests about which the quorum decides."""
    TOPICS_CREATED = "topics_created"
    PARTITIONS_CREATED = "partitions_created"
    BYTES_OUT = "bytes_out"
    """Bodies of answers, as they are sent."""


class Authenticated(Protocol):
    """The caller of one request, with the credential behind it."""

    @property
    def caller(self) -> Caller: ...

    def watch(self, ended: Callable[[RaftlogError], None]) -> Callable[[], None]:
        """Call `ended` at most once, in an event of its own, with `unauthenticated` when the credential is revoked or
        expires: within a second. Return the function that ends the watch.

        Raises `InvalidRequest` (`unauthenticated`) if that has happened already.
        """
        ...


class AccessService(Protocol):
    """The callers of requests, what they may do (S12), and how much of it."""

    @property
    def needs_credentials(self) -> bool:
        """Whether a request without a credential is refused."""
        ...

    @property
    def rules_version(self) -> int:
        """The version of the access rules: another one after each change. A decision holds for one version."""
        ...

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], object]:
        """Call `listener` after each change of the access rules. Return the function that ends this."""
        ...

    async def authenticate(self, presented: Presented) -> Authenticated:
        """Return the caller of a request. Raises `InvalidRequest` (`unauthenticated`, with the same text whatever the
        cause), or a `RetriableError` if the credential cannot be checked at present."""
        ...

    def check(
        self, caller: Caller, operation: Operation, resource: Resource, action: str, request_id: str = ""
    ) -> None:
        """Raise `InvalidRequest` (`authorization_failed`) if the request is not allowed. `action`: its method and
        route, for the audit log."""
        ...

    def check_any(
        self, caller: Caller, operation: Operation, kind: ResourceType, action: str, request_id: str = ""
    ) -> None:
        """Raise `InvalidRequest` (`authorization_failed`) if the caller may do this to no resource of the type."""
        ...

    def allow_own(self, caller: Caller, operation: Operation, action: str, request_id: str = "") -> None:
        """Record an operation of a caller on its own user, password or tokens, which no rule has to allow."""
        ...

    def check_request(
        self, caller: Caller, request: GroupRequest | TransactionRequest, action: str, request_id: str = ""
    ) -> None:
        """Raise `InvalidRequest` (`authorization_failed`) if something that the request names is not allowed, or
        `RetriableError` (`metadata_behind`) if it names a producer id that this node does not know yet."""
        ...

    def allows(self, caller: Caller, operation: Operation, resource: Resource) -> bool:
        """Return whether an operation is allowed, for lists; this is not recorded."""
        ...

    def explain(self, principal: Principal, host: str, operation: Operation, resource: Resource) -> Decision:
        """Return the decision about requests of a principal, with its rule, for administrators; this is not recorded.
        `host`: IP address, or empty for one that no rule names."""
        ...

    def delay_s(self, caller: Caller, *usages: Usage) -> float:
        """Return the seconds that the caller has to wait, because it has used up a quota for one of these uses; 0:
        none."""
        ...

    def delay_for_s(self, caller: Caller, usage: Usage, amount: int) -> float:
        """Return the seconds that the caller has to wait before it may use that amount at once; 0: none."""
        ...

    def charge(self, caller: Caller, usage: Usage, amount: int) -> None:
        """Count what a request used. It may exceed a quota; then the next one has to wait."""
        ...

    def principal_of(self, caller: Caller) -> str:
        """Return the name of the principal to which belongs what the caller makes; empty without security."""
        ...

    def enter(self, connection: Hashable, caller: Caller) -> None:
        """Count a connection as this caller's, whose request it carries, and no longer as an earlier caller's.

        Raises `RetriableError` (`throttled`), and counts it for no caller, if that would be a connection over the
        quota: the connection must be closed.
        """
        ...

    def leave(self, connection: Hashable) -> None:
        """Count a connection, perhaps one that `enter` never counted, for no caller: it is closed."""
        ...
