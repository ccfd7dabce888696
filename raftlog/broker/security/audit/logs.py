"""The audit logs of one node: one for each destination, so that a slow one holds up no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raftlog.security.acls import Operation

from .audit import AuditEvent, AuditLevel
from .log import AuditLog


class AuditLogs:
    """Every destination of the audit log. All calls are made on the broker's loop."""

    def __init__(self, level: AuditLevel, logs: Sequence[AuditLog]) -> None:
        self._level = level
        self._logs = logs

    def wants(self, operation: Operation, *, allowed: bool) -> bool:
        """Return whether such decisions are recorded."""
        return bool(self._logs) and self._level.includes(operation, allowed=allowed)

    def note(self, event: AuditEvent, request_id: str = "") -> None:
        """Record an event. Costs no I/O."""
        for log in self._logs:
            log.note(event, request_id)

    def problems(self) -> list[str]:
        """Return the problems for the node's health."""
        return [problem for log in self._logs for problem in log.problems()]

    def close(self, closed: Callable[[], None]) -> None:
        """Write the lines that are due, then call `closed`."""
        left = len(self._logs)

        def one_closed() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                closed()

        if not self._logs:
            closed()
        for log in self._logs:
            log.close(one_closed)
