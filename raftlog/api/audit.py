"""The newest lines of a node's audit log."""

from __future__ import annotations

import msgspec

MAX_LINES = 1_000
"""The most lines that a node keeps for answers."""


class AuditLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the audit log; members that do not apply are absent."""

    kind: str
    """`authentication`, `authorization` or `gap`: events that were not recorded."""
    allowed: bool
    time_ms: int
    """Wall clock time of the node in milliseconds since 1970; of merged events the first."""
    node: int = -1
    principal: str = ""
    """The caller; of a failed authentication the name that was given."""
    host: str = ""
    mechanism: str = ""
    action: str = ""
    """Method and route, or the tag of a message."""
    operation: str = ""
    resource_type: str = ""
    resource: str = ""
    rule: str = ""
    """The deciding rule."""
    reason: str = ""
    count: int = 1
    """The number of equal events that the line stands for."""
    until_ms: int = 0
    """The time of the last of several events."""
    request_id: str = ""


class AuditLines(msgspec.Struct, frozen=True):
    """The newest lines of this node's audit log, the newest first."""

    recorded: bool
    """Whether the node writes an audit log."""
    level: str
    """The events that are recorded: `refused`, `changes` or `all`; empty if none are."""
    node_id: int
    lines: list[AuditLine]
