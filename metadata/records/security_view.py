"""The table of security as a broker reads it, with the rules indexed for decisions."""

from __future__ import annotations

from raftlog.security.authorizer import Authorizer

from .events import RulesChanged, SecurityEvent
from .security_table import SecurityTable


class SecurityView(SecurityTable):
    """The table, and the decisions that follow from its rules (S12)."""

    def __init__(self) -> None:
        super().__init__()
        self.authorizer = Authorizer()
        """The decisions by the rules as of the view's index."""

    def on_event(self, event: SecurityEvent) -> None:
        super().on_event(event)
        if isinstance(event, RulesChanged):
            for rule in event.removed:
                self.authorizer.remove(rule)
            for rule in event.added:
                self.authorizer.add(rule)
