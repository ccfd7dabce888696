"""The authorization of requests at this node (S12): the rules' decisions, recorded in the audit log.

A refusal never says whether the resource exists. List calls ask `allows` for each entry and show only what is allowed,
which is not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from metadata.records.owners import NO_OWNER
from metadata.view import ClusterView
from raftlog.broker.security.audit.audit import AuditEvent, of_decision
from raftlog.broker.security.quotas.open_transactions import OpenTransactions
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.model import ProducerId, TopicId
from raftlog.security.acls import ANY, CLUSTER, Operation, Resource, ResourceType
from raftlog.security.authorizer import Authorizer, Decision, refusal
from raftlog.security.principals import Caller
from raftlog.transactions import TransactionKey

from .needs import Need, owner_of

_OWN = Decision(True, None, "the user's own password and tokens")


class Audit(Protocol):
    """The part of the audit log that is needed here."""

    def wants(self, operation: Operation, *, allowed: bool) -> bool:
        """Return whether such decisions are recorded; asked first, since most are not."""
        ...

    def note(self, event: AuditEvent, request_id: str = "") -> None: ...


class Access:
    """The decisions of one node. All calls are made on the broker's loop."""

    def __init__(
        self, view: ClusterView, authorizer: Authorizer, audit: Audit, transactions: OpenTransactions | None = None
    ) -> None:
        """`authorizer` has the view's rules, and follows them. `transactions`: the quota of those; None: no limit."""
        self._transactions = transactions
        self._view = view
        self._authorizer = authorizer
        self._audit = audit
        self._listeners: dict[Callable[[], None], None] = {}
        self.rules_version = 0
        """The number of changes of the rules: a decision holds while it stays the same."""

    def decide(self, caller: Caller, operation: Operation, resource: Resource) -> Decision:
        """Return the decision, without recording it.

        Two operations have a second way: a topic may be created by the right to create it or any topic, and producer
        ids are granted to callers that may write to some topic (KIP-679).
        """
        decision = self._authorizer.decide(caller, operation, resource)
        if decision.allowed:
            return decision
        other: Decision | None = None
        if operation is Operation.CREATE and resource.type is ResourceType.TOPIC:
            other = self._authorizer.decide(caller, operation, CLUSTER)
        elif operation is Operation.IDEMPOTENT_WRITE:
            other = self._authorizer.decide_for_any(caller, Operation.WRITE, ResourceType.TOPIC)
        if other is None or not other.allowed or decision.rule is not None:
            return decision
        return other

    def allows(self, caller: Caller, operation: Operation, resource: Resource) -> bool:
        """Return whether the operation is allowed, without recording it."""
        return self.decide(caller, operation, resource).allowed

    def refusal(
        self, caller: Caller, operation: Operation, resource: Resource, action: str, request_id: str = ""
    ) -> InvalidRequest | None:
        """Return the error with which the request is refused, or None if it is allowed; either is recorded.

        `action`: the request's route or tag.
        """
        decision = self.decide(caller, operation, resource)
        if self._audit.wants(operation, allowed=decision.allowed):
            self._audit.note(of_decision(caller, action, operation, resource, decision), request_id)
        return None if decision.allowed else refusal(caller, operation, resource)

    def check(
        self, caller: Caller, operation: Operation, resource: Resource, action: str, request_id: str = ""
    ) -> None:
        """Raise `InvalidRequest` (`authorization_failed`) if the request is not allowed."""
        error = self.refusal(caller, operation, resource, action, request_id)
        if error is not None:
            raise error

    def check_any(
        self, caller: Caller, operation: Operation, kind: ResourceType, action: str, request_id: str = ""
    ) -> None:
        """Raise `InvalidRequest` (`authorization_failed`) if the operation is allowed on no resource of the type."""
        decision, resource = self._authorizer.decide_for_any(caller, operation, kind), Resource(kind, ANY)
        if self._audit.wants(operation, allowed=decision.allowed):
            self._audit.note(of_decision(caller, action, operation, resource, decision), request_id)
        if not decision.allowed:
            raise refusal(caller, operation, resource)

    def allow_own(self, caller: Caller, operation: Operation, action: str, request_id: str = "") -> None:
        """Record an operation of a caller on its own user, password or tokens, which no rule has to allow."""
        if self._audit.wants(operation, allowed=True):
            self._audit.note(of_decision(caller, action, operation, CLUSTER, _OWN), request_id)

    def check_all(self, caller: Caller, needs: Iterable[Need], action: str, request_id: str = "") -> None:
        """Raise `InvalidRequest` (`authorization_failed`) for the first need that is not met."""
        for operation, resource in dict.fromkeys(needs):
            self.check(caller, operation, resource, action, request_id)

    def refused_id(
        self, caller: Caller, producer_id: ProducerId, action: str, request_id: str = ""
    ) -> RaftlogError | None:
        """Return the error for a request in the name of a producer id that is not the caller's, or None.

        An id of a transactional id or a named block is used by the right to the name. Any other belongs to the
        principal that it was granted to; ids that were granted without security belong to none, and are not refused.
        An id that this node does not know to be granted is refused until it does (`metadata_behind`): ids count up, so
        anybody can guess those that others will get.
        """
        named = owner_of(producer_id, self._view)
        if named is not None:
            return self.refusal(caller, *named, action, request_id)
        if caller.superuser:
            return None
        if producer_id >= self._view.transactions.granted_below:
            return RetriableError("metadata_behind", f"producer id {producer_id} is not known to be granted; retry")
        owner = self._view.owner_of_unnamed_id(producer_id)
        if owner in (NO_OWNER, caller.principal.name):
            return None
        decision = Decision(False, None, f"producer id {producer_id} belongs to another principal")
        self._audit.note(of_decision(caller, action, Operation.IDEMPOTENT_WRITE, CLUSTER, decision), request_id)
        return InvalidRequest(
            "authorization_failed", f"{caller} may not use producer id {producer_id}: it belongs to another principal"
        )

    def refused_transaction(self, caller: Caller, key: TransactionKey) -> RaftlogError | None:
        """Return the error for a batch whose transaction the caller may not begin now, or None."""
        return None if self._transactions is None else self._transactions.begin(caller, key)

    def check_ids(self, caller: Caller, producer_ids: Iterable[ProducerId], action: str, request_id: str = "") -> None:
        """Raise the error of the first producer id that is not the caller's (`refused_id`)."""
        for producer_id in dict.fromkeys(producer_ids):
            error = self.refused_id(caller, producer_id, action, request_id)
            if error is not None:
                raise error

    def refused_topics(
        self, caller: Caller, operation: Operation, topic_ids: Iterable[bytes], action: str
    ) -> dict[bytes, InvalidRequest]:
        """Return the topics on which the operation is not allowed, with the error of each.

        Topics that this node does not know are left out: it cannot serve them either, nor does it name them.
        """
        refused: dict[bytes, InvalidRequest] = {}
        for topic_id in topic_ids:
            topic = self._view.topic_by_id(TopicId(topic_id))
            if topic is not None:
                error = self.refusal(caller, operation, Resource(ResourceType.TOPIC, topic.name), action)
                if error is not None:
                    refused[topic_id] = error
        return refused

    # --- Changes of the rules ----------------------------------------------------------------------------------------

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each change of the rules; returns the function that ends this."""

        # Equal bound methods are one key, so each subscription is a function of its own.
        def call() -> None:
            listener()

        self._listeners[call] = None
        return lambda: self._listeners.pop(call, None)

    def rules_changed(self) -> None:
        """Let those who use resources for longer than one request check again."""
        self.rules_version += 1
        for listener in list(self._listeners):
            if listener in self._listeners:  # One that was called before may have ended it.
                listener()
