"""Short names for rules and callers in tests, and an audit log that keeps events in a list."""

from __future__ import annotations

from raftlog.broker.security.audit.audit import AuditEvent
from raftlog.security.acls import AclRule, Operation, PatternType, Permission, ResourceType
from raftlog.security.principals import Caller, Principal

ALICE = Caller(Principal("alice"), "10.0.0.1")
BOB = Caller(Principal("bob"), "10.0.0.2")
ROOT = Caller(Principal("root"), "10.0.0.3", superuser=True)


def allow(
    operation: Operation,
    kind: ResourceType,
    name: str = "*",
    *,
    principal: str = "User:alice",
    deny: bool = False,
    prefixed: bool = False,
) -> AclRule:
    """Return a rule for alice, from any host."""
    return AclRule(
        principal,
        "*",
        operation,
        Permission.DENY if deny else Permission.ALLOW,
        kind,
        PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        name,
    )


class KeptAudit:
    """An audit log that records everything, in memory."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    def wants(self, operation: Operation, *, allowed: bool) -> bool:
        return True

    def note(self, event: AuditEvent, request_id: str = "") -> None:
        self.events.append(event)

    @property
    def refused(self) -> list[str]:
        """`operation resource` of each refused request."""
        return [f"{event.operation} {event.resource}" for event in self.events if not event.allowed]
