"""The audit trail: which caller did what from where, allowed or refused, and by which rule. A pure core.

Every event becomes one line of JSON. Equal events within `MERGE_SECONDS` of the first share a second line with their
number, so that a flood of wrong logins or a busy producer costs a line in ten seconds, not one a request. Lines that
wait for a slow sink, and distinct events in one interval, are bounded: the number of those that were not recorded is
itself recorded in a line of kind `gap`, so a reader knows that the trail is incomplete, and by how much.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import NamedTuple

import msgspec

from raftlog.security.acls import Operation, Resource
from raftlog.security.authorizer import Decision
from raftlog.security.principals import Caller

MERGE_SECONDS = 10.0
"""Time in seconds for which equal events are counted into one line after the first."""
MAX_MERGING = 10_000
"""The most distinct events in such intervals at once."""
MAX_MERGING_LOGINS = 5_000
"""The most of them that are failed authentications: anybody can cause those, and other events must find room."""
MAX_WAITING_LINES = 10_000
"""The most lines that wait for a sink."""
MAX_TEXT = 512
"""Characters of a text from a client that are recorded."""


class AuditLevel(enum.StrEnum):
    """The extent of the trail; each level includes those before it."""

    REFUSED = "refused"
    """Failed authentications and refused requests."""
    CHANGES = "changes"
    """Also every request that changes more than records and offsets: topics, groups, users, rules, the cluster."""
    ALL = "all"
    """Also reading and writing of records and offsets."""

    def includes(self, operation: str, *, allowed: bool) -> bool:
        """Return whether decisions about an operation are recorded at this level."""
        if not allowed or self is AuditLevel.ALL:
            return True
        return self is AuditLevel.CHANGES and operation not in DATA_OPERATIONS


DATA_OPERATIONS = frozenset({Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.IDEMPOTENT_WRITE})
"""Operations of the data path, and looks at it; recorded at level `all` if they are allowed."""


class AuditEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the trail. Equal events may be merged, so the time is not part of one."""

    kind: str
    """`authentication`, `authorization` or `gap`."""
    allowed: bool
    principal: str = ""
    host: str = ""
    mechanism: str = ""
    """How the caller was authenticated: `token`, `password`, `access_token`, `certificate`."""
    action: str = ""
    """The request: method and route of the HTTP API, or the tag of a message."""
    operation: str = ""
    resource_type: str = ""
    resource: str = ""
    rule: str = ""
    """The deciding rule."""
    reason: str = ""


class _Line(AuditEvent, frozen=True, kw_only=True, omit_defaults=True):
    time_ms: int
    """Wall clock time in milliseconds since 1970; of merged events the first."""
    until_ms: int = 0
    """Time of the last of several merged events."""
    count: int = 1
    node: int = -1
    request_id: str = ""


class WaitingLine(NamedTuple):
    """One line that waits for a sink."""

    text: bytes
    """JSON, ended by a newline."""
    events: int
    """The number of events in the line, or that it reports as missing."""


class _Merged(msgspec.Struct):
    """The events equal to one that was recorded."""

    began_ms: int
    until_ms: int = 0
    count: int = 0


def of_decision(
    caller: Caller, action: str, operation: Operation, resource: Resource, decision: Decision
) -> AuditEvent:
    """Return the event of an authorizer's decision."""
    return AuditEvent(
        kind="authorization",
        allowed=decision.allowed,
        principal=str(caller.principal),
        host=caller.host,
        mechanism=caller.mechanism,
        action=action,
        operation=operation,
        resource_type=resource.type,
        resource=resource.name[:MAX_TEXT],
        rule="" if decision.rule is None else str(decision.rule),
        reason=decision.reason if decision.rule is None else "",
    )


def of_failed_login(host: str, claimed: str, mechanism: str, reason: str) -> AuditEvent:
    """Return the event of a failed authentication. `claimed`: the name that was given, if any; never a secret."""
    return AuditEvent(
        kind="authentication",
        allowed=False,
        principal=claimed[:MAX_TEXT],
        host=host,
        mechanism=mechanism,
        reason=reason,
    )


class AuditTrail:
    """The events of one node, merged and bounded, on their way to a sink.

    Invariant: every event is in a line, in a merged count, or in the count of the next gap.
    """

    def __init__(self, level: AuditLevel, node: int) -> None:
        self._level = level
        self._node = node
        self._lines: deque[WaitingLine] = deque()
        self._merging: dict[AuditEvent, _Merged] = {}
        """Recorded events by content, the oldest interval first."""
        self._merging_logins = 0
        self._missing = 0
        self._missing_since_ms = 0

    def wants(self, event: AuditEvent) -> bool:
        """Return whether events like this one are recorded at the trail's level."""
        return self._level.includes(event.operation, allowed=event.allowed)

    def note(self, event: AuditEvent, now_ms: int, request_id: str = "") -> None:
        """Record an event, or count it to an equal one."""
        if not self.wants(event):
            return
        merged = self._merging.get(event)
        if merged is not None and now_ms - merged.began_ms < MERGE_SECONDS * 1000:
            merged.count += 1
            merged.until_ms = now_ms
            return
        if merged is not None:
            self._end(event)
        is_login = event.kind == "authentication"
        if len(self._merging) >= MAX_MERGING or (is_login and self._merging_logins >= MAX_MERGING_LOGINS):
            self.miss(1, now_ms)
            return
        self._merging[event] = _Merged(now_ms)
        self._merging_logins += is_login
        self._add(event, now_ms, request_id=request_id)

    def miss(self, count: int, now_ms: int) -> None:
        """Count events that are not in the trail: there was no room, or a sink lost their lines."""
        self._missing_since_ms = self._missing_since_ms if self._missing else now_ms
        self._missing += count

    def take(self, now_ms: int, *, last: bool = False) -> list[WaitingLine]:
        """Return the lines that are due. The trail forgets them. `last` ends all intervals."""
        for event, merged in list(self._merging.items()):
            if not last and 0 <= now_ms - merged.began_ms < MERGE_SECONDS * 1000:
                break
            self._end(event)
        if self._missing and len(self._lines) < MAX_WAITING_LINES:
            gap = AuditEvent(kind="gap", allowed=False, reason="events were not recorded: there was no room for them")
            count, self._missing = self._missing, 0
            self._add(gap, self._missing_since_ms, until_ms=now_ms, count=count)
        lines = list(self._lines)
        self._lines.clear()
        return lines

    @property
    def has_work(self) -> bool:
        """Whether `take` will have something to return, now or when an interval ends."""
        return bool(self._lines or self._merging or self._missing)

    def _end(self, event: AuditEvent) -> None:
        """End an event's interval, with a line for its repetitions."""
        merged = self._merging.pop(event)
        self._merging_logins -= event.kind == "authentication"
        if merged.count:
            self._add(event, merged.began_ms, until_ms=merged.until_ms, count=merged.count)

    def _add(self, event: AuditEvent, time_ms: int, *, until_ms: int = 0, count: int = 1, request_id: str = "") -> None:
        if len(self._lines) >= MAX_WAITING_LINES:
            self.miss(count, time_ms)
            return
        line = _Line(
            **msgspec.structs.asdict(event),
            time_ms=time_ms,
            until_ms=until_ms,
            count=count,
            node=self._node,
            request_id=request_id,
        )
        self._lines.append(WaitingLine(msgspec.json.encode(line) + b"\n", count))
