"""The right that each route needs, as far as its path says. Every route has a guard; a test calls each route without
rights (S12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from raftlog.security.acls import Operation, Resource, ResourceType

from .call import Call

OWN_MECHANISMS = frozenset({"password", "token", "certificate"})
"""Ways to authenticate that rest on the user's own record; an access token's issuer keeps its own users."""

Guard: TypeAlias = Callable[[Call], None]
"""Called before the handler. Raises `InvalidRequest` (`authorization_failed`)."""


def on_cluster(operation: Operation) -> Guard:
    """Return the guard of a route about the cluster."""
    return lambda call: call.check(operation)


def on(kind: ResourceType, operation: Operation, segment: str) -> Guard:
    """Return the guard of a route whose path names a resource."""
    return lambda call: call.check(operation, Resource(kind, call.segment(segment)))


def on_topic(operation: Operation) -> Guard:
    """Return the guard of a route about the topic in its path."""
    return on(ResourceType.TOPIC, operation, "topic")


def on_group(operation: Operation) -> Guard:
    """Return the guard of a route about the group in its path."""
    return on(ResourceType.GROUP, operation, "group")


def on_name(operation: Operation, segment: str = "name") -> Guard:
    """Return the guard of a route about a transactional id, a block or a position in its path."""
    return on(ResourceType.TRANSACTIONAL_ID, operation, segment)


def on_any_topic(operation: Operation) -> Guard:
    """Return the guard of a route whose body names topics: a caller that may use none of them need not send it. The
    broker checks those that are named."""
    return lambda call: call.check_any(operation, ResourceType.TOPIC)


def on_own_user(operation: Operation) -> Guard:
    """Return the guard of a route about the user in its path: the user itself, or somebody with the right to the
    cluster. Either is recorded."""

    def guard(call: Call) -> None:
        caller = call.caller
        if caller.principal.name == call.segment("user") and caller.mechanism in OWN_MECHANISMS:
            call.allow_own(operation)
        else:
            call.check(operation)

    return guard


def by_content(call: Call) -> None:
    """Leave the check to the handler, or to the broker: the body names the resources."""


def by_entry(call: Call) -> None:
    """Let every caller list; the handler leaves out the entries that the caller may not describe."""


def for_every_caller(call: Call) -> None:
    """Let every authenticated caller pass."""
