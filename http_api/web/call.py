"""One request on its way through a handler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from http_api.service.service import BrokerService, PartitionService
from metadata.view import ClusterView
from raftlog.errors import RaftlogError
from raftlog.security.acls import CLUSTER, Operation, Resource, ResourceType
from raftlog.security.principals import Caller
from raftlog.wire import GroupRequest, TransactionRequest

from .authentication import AUTHENTICATED
from .context import ApiContext
from .query import Query


@dataclass(frozen=True, slots=True)
class Call:
    """A request with the API that received it, its caller and its checked query."""

    request: web.Request
    context: ApiContext
    query: Query
    caller: Caller
    action: str
    """Method and route, for the audit log."""
    request_id: str
    guard: Callable[[Call], None]
    """The route's right, as far as its path says (`guards.py`)."""
    rules_version: int
    """The version of the access rules by which the guard first decided."""

    @property
    def service(self) -> BrokerService:
        """The broker behind the API."""
        return self.context.service

    @property
    def view(self) -> ClusterView:
        """The cluster as the broker knows it."""
        return self.context.service.view

    @property
    def partitions(self) -> PartitionService:
        """The partitions as the caller may use them."""
        return self.context.service.as_caller(self.caller)

    def segment(self, name: str) -> str:
        """Return a variable segment of the path."""
        return self.request.match_info[name]

    async def catch_up(self, what: str) -> None:
        """Bring the view up to date before `what` is reported or changed (S7), with the rules in it (S12).

        Raises `RetriableError` (`quorum_unavailable`), or `InvalidRequest` (`authorization_failed`).
        """
        await self.context.catch_up(what)
        self.check_again()

    # --- What the caller may do (S12) --------------------------------------------------------------------------------

    def check(self, operation: Operation, resource: Resource = CLUSTER) -> None:
        """Raise `InvalidRequest` (`authorization_failed`) if the caller may not do this."""
        self.service.access.check(self.caller, operation, resource, self.action, self.request_id)

    def check_any(self, operation: Operation, kind: ResourceType) -> None:
        """Raise `InvalidRequest` (`authorization_failed`) if the caller may do this to no resource of the type."""
        self.service.access.check_any(self.caller, operation, kind, self.action, self.request_id)

    def check_again(self) -> None:
        """Let the guard decide again if the rules have changed since it first did: a client may take minutes to send
        its body, and the quorum seconds to answer. Raises `InvalidRequest` (`authorization_failed`)."""
        if self.service.access.rules_version != self.rules_version:
            self.guard(self)

    def allow_own(self, operation: Operation) -> None:
        """Record that the caller does this to its own user, which no rule has to allow."""
        self.service.access.allow_own(self.caller, operation, self.action, self.request_id)

    def check_request(self, request: GroupRequest | TransactionRequest) -> None:
        """Raise `InvalidRequest` (`authorization_failed`) if the caller may not do what the request asks."""
        self.service.access.check_request(self.caller, request, self.action, self.request_id)

    @property
    def principal(self) -> str:
        """The principal to which belongs what the request makes; empty without security."""
        return self.service.access.principal_of(self.caller)

    def watch(
        self, ended: Callable[[RaftlogError], None], still_allowed: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """Call `ended` at most once, within a second after the caller's credential is revoked or expires, or the rules
        stop to allow the request. Return the function that ends the watch.

        `still_allowed` is called after each change of the rules, and raises `InvalidRequest` (`authorization_failed`)
        if they no longer allow the request; None: the route's guard decides.

        Raises `InvalidRequest` (`unauthenticated`, `authorization_failed`) if the credential or the right has been lost
        already.
        """
        check = self.check_again if still_allowed is None else still_allowed
        check()
        is_over = False

        def end(error: RaftlogError) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                ended(error)

        def rules_changed() -> None:
            if is_over:
                return
            try:
                check()
            except RaftlogError as error:
                end(error)

        found = self.request.get(AUTHENTICATED)  # None: everybody gets this answer.
        unwatch = None if found is None else found.watch(end)
        unsubscribe = self.service.access.subscribe(rules_changed)

        def stop() -> None:
            unsubscribe()
            if unwatch is not None:
                unwatch()

        return stop

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return whether the caller may do this, for the entries of a list."""
        return self.service.access.allows(self.caller, operation, Resource(kind, name))


CALL: web.RequestKey[Call] = web.RequestKey("call", Call)
"""The call of a request that has reached its route."""
