"""The image's table of users, tokens, rules and quotas, whose changes are kept or undone together."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from heapq import merge
from itertools import islice

from metadata.records.events import (
    QuotaChanged,
    QuotaRemoved,
    RulesChanged,
    SecurityBegun,
    SecurityEvent,
    TokenChanged,
    TokenRemoved,
    UserChanged,
    UserRemoved,
)
from metadata.records.security import NEVER_EXPIRES, QuotaLimits, QuotaRecord, TokenRecord, UserRecord
from metadata.records.security_table import SecurityTable
from raftlog.security.acls import AclRule

EVENTS_PER_STEP = 1_000
"""Some milliseconds of work."""

TOKENS_PER_STEP = 10_000
"""The tokens that are examined in one step: some milliseconds of work."""


class SecurityState(SecurityTable):
    """The image's table. Changes take effect at once, and are noted as events when they are kept."""

    def __init__(self, note: Callable[[SecurityEvent], None]) -> None:
        super().__init__()
        self._note = note
        self._undecided: list[tuple[SecurityEvent, SecurityEvent]] = []
        """The changes that are neither kept nor undone, each with its inverse."""
        self._first_expiry: float = math.inf
        """No token expires before this cluster time, in milliseconds."""

    def on_event(self, event: SecurityEvent) -> None:
        super().on_event(event)
        if isinstance(event, TokenChanged) and event.record.expires_ms != NEVER_EXPIRES:
            self._first_expiry = min(self._first_expiry, event.record.expires_ms)

    def expired_in_steps(self, now_ms: int) -> Generator[None, None, Iterator[str]]:
        """Return the ids of the tokens that have expired at this cluster time, in milliseconds, the earliest first.

        All tokens are examined, but only if one may have expired since the last time.
        """
        if now_ms < self._first_expiry:
            return iter(())
        parts: list[list[tuple[int, str]]] = []
        first: float = math.inf
        tokens = iter(self._tokens.values())
        while some := list(islice(tokens, TOKENS_PER_STEP)):
            expiring = [token for token in some if token.expires_ms != NEVER_EXPIRES]
            first = min(first, min((token.expires_ms for token in expiring), default=math.inf))
            parts.append(sorted((token.expires_ms, token.token_id) for token in expiring if token.expires_ms <= now_ms))
            yield
        self._first_expiry = first
        return (token_id for _, token_id in merge(*parts))

    def change(self, event: SecurityEvent) -> None:
        """Change the table. The rules of a `RulesChanged` must be absent (`added`) and present (`removed`)."""
        self._undecided.append((event, self._inverse(event)))
        self.on_event(event)

    @property
    def undecided_count(self) -> int:
        """The number of changes that are neither kept nor undone."""
        return len(self._undecided)

    def keep_in_steps(self) -> Generator[None, None, None]:
        """Keep the undecided changes. After the first ones ever the cluster cannot be bootstrapped any more."""
        if self._undecided and not self.bootstrapped:
            self.change(SecurityBegun())
        kept, self._undecided = self._undecided, []
        kept.reverse()
        while kept:
            self._note(kept.pop()[0])
            if len(kept) % EVENTS_PER_STEP == 0:
                yield

    def undo_in_steps(self) -> Generator[None, None, None]:
        """Undo the undecided changes, `EVENTS_PER_STEP` between two steps."""
        while self._undecided:
            _, inverse = self._undecided.pop()
            self.on_event(inverse)
            if len(self._undecided) % EVENTS_PER_STEP == 0:
                yield

    def copies(
        self,
    ) -> tuple[dict[str, UserRecord], dict[str, TokenRecord], dict[AclRule, None], dict[str, QuotaLimits]]:
        """Return current copies of users, tokens, rules and quotas, to be iterated in steps."""
        return self._users.copy(), self._tokens.copy(), self._rules.copy(), self._quotas.copy()

    def _inverse(self, event: SecurityEvent) -> SecurityEvent:
        """Return the event that leads back to the present state."""
        match event:
            case UserChanged(UserRecord(name=name)) | UserRemoved(name):
                user = self.user(name)
                return UserRemoved(name) if user is None else UserChanged(user)
            case TokenChanged(TokenRecord(token_id=token_id)) | TokenRemoved(token_id):
                token = self.token(token_id)
                return TokenRemoved(token_id) if token is None else TokenChanged(token)
            case RulesChanged(added, removed):
                return RulesChanged(added=removed, removed=added)
            case QuotaChanged(QuotaRecord(entity=entity)) | QuotaRemoved(entity):
                limits = self.quota(entity)
                return QuotaRemoved(entity) if limits is None else QuotaChanged(QuotaRecord(entity, limits))
            case SecurityBegun():
                # Never used: it is the last change of a command, and so is kept.
                return event
