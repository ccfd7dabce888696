"""The authentications of open streams, and their end (S12). A pure core beside its timer.

A stream authenticates once and may stay open for weeks. Its authentication ends when the user's record changes (another
password, another standing) or is removed, when its token is removed, or when its time is over. The stream then gets
`unauthenticated` within `TICK_SECONDS`; a client whose credential is still good opens another one. Only the streams
concerned are looked at.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

from metadata.records.events import MetadataEvent, TokenChanged, TokenRemoved, UserChanged, UserRemoved
from metadata.records.security import TokenRecord, UserRecord
from raftlog.broker.security.unauthenticated import Cause, Unauthenticated
from raftlog.ports import Scheduler, Timer
from raftlog.slices import in_turns

from .authentication import NEVER, Authentication

TICK_SECONDS = 0.5
"""Interval between two looks at the time while authentications with an end are open."""
SLACK = 1_000
"""Closed sessions in the heap that are tolerated before it is rebuilt."""


class Security(Protocol):
    """The part of `view.security` that is needed here."""

    def user(self, name: str) -> UserRecord | None: ...

    def token(self, token_id: str) -> TokenRecord | None: ...


class Session:
    """One open stream's authentication."""

    __slots__ = ("authentication", "end", "is_open")

    def __init__(self, authentication: Authentication, end: Callable[[Unauthenticated], None]) -> None:
        self.authentication = authentication
        self.end = end
        self.is_open = True


class Sessions:
    """The open streams' authentications of one node. All calls are made on the loop's thread."""

    def __init__(self, security: Security, now_ms: Callable[[], int], scheduler: Scheduler) -> None:
        """`now_ms` returns the cluster's time in milliseconds since 1970."""
        self._security = security
        self._now_ms = now_ms
        self._scheduler = scheduler
        self._of_user: dict[str, dict[Session, None]] = {}
        self._of_token: dict[str, dict[Session, None]] = {}
        self._ends: list[tuple[int, int, Session]] = []
        """A heap of (end in milliseconds, number, session), with closed sessions among them."""
        self._ending = 0
        """The open sessions in the heap."""
        self._numbers = itertools.count()
        self._timer: Timer | None = None

    @property
    def open_of_users(self) -> int:
        """The number of open sessions that rest on a user's record."""
        return sum(len(sessions) for sessions in self._of_user.values())

    @property
    def ending(self) -> int:
        """The number of open sessions that have an end."""
        return self._ending

    @property
    def remembered(self) -> int:
        """The number of sessions, open or closed, whose end is kept in mind."""
        return len(self._ends)

    def open(self, authentication: Authentication, end: Callable[[Unauthenticated], None]) -> Session:
        """Return the session of a stream that was just authenticated. `end` is called at most once, in an event of its
        own, when the authentication ends.

        Raises `Unauthenticated` if it has ended already.
        """
        ended = self._why_ended(authentication)
        if ended is not None:
            raise ended
        session = Session(authentication, end)
        if authentication.user:
            self._of_user.setdefault(authentication.user, {})[session] = None
        if authentication.token_id:
            self._of_token.setdefault(authentication.token_id, {})[session] = None
        if authentication.ends_ms != NEVER:
            heapq.heappush(self._ends, (authentication.ends_ms, next(self._numbers), session))
            self._ending += 1
            self._wait()
        return session

    def close(self, session: Session) -> None:
        """Forget the session of a stream that has ended. A second call does nothing."""
        if not session.is_open:
            return
        session.is_open = False
        found = session.authentication
        for sessions, key in ((self._of_user, found.user), (self._of_token, found.token_id)):
            alike = sessions.get(key)
            if alike is not None:
                alike.pop(session, None)
                if not alike:
                    del sessions[key]
        if found.ends_ms != NEVER:
            self._ending -= 1
            if len(self._ends) > 2 * self._ending + SLACK:
                self._ends = [entry for entry in self._ends if entry[2].is_open]
                heapq.heapify(self._ends)

    def on_events(self, index: int, events: Sequence[MetadataEvent]) -> None:
        """End the sessions that a change of the view concerns (a `ViewListener`)."""
        for event in events:
            match event:
                case UserChanged(record):
                    self._end_stale(self._of_user.get(record.name))
                case UserRemoved(name):
                    self._end_stale(self._of_user.get(name))
                case TokenChanged(record):
                    self._end_stale(self._of_token.get(record.token_id))
                case TokenRemoved(token_id):
                    self._end_stale(self._of_token.get(token_id))

    def stop(self) -> None:
        """Stop looking at the time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- Inside ---

    def _why_ended(self, found: Authentication) -> Unauthenticated | None:
        """Return why an authentication no longer holds; None if it does."""
        user = self._security.user(found.user) if found.user else None
        if found.user and (user is None or user.version != found.user_version):
            return Unauthenticated(Cause.CHANGED, f"user {found.user} was changed or removed", found.user)
        if found.token_id and self._security.token(found.token_id) is None:
            return Unauthenticated(Cause.CHANGED, f"token {found.token_id} was removed", found.user)
        if found.ends_ms != NEVER and found.ends_ms <= self._now_ms():
            return Unauthenticated(Cause.EXPIRED, "", found.caller.principal.name)
        return None

    def _end_stale(self, sessions: dict[Session, None] | None) -> None:
        self._end([session for session in sessions or () if self._why_ended(session.authentication) is not None])

    def _end(self, sessions: list[Session]) -> None:
        """End sessions in later events, so that neither the view nor the loop waits for many of them."""
        if sessions:
            self._scheduler.call_soon(lambda: in_turns(self._scheduler, sessions, self._end_one))

    def _end_one(self, session: Session) -> None:
        if session.is_open:
            found = session.authentication
            self.close(session)
            session.end(self._why_ended(found) or Unauthenticated(Cause.CHANGED, claimed=found.user))

    def _wait(self) -> None:
        if self._timer is None and self._ending:
            self._timer = self._scheduler.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_ms = self._now_ms()
        over = []
        while self._ends and (self._ends[0][0] <= now_ms or not self._ends[0][2].is_open):
            over.append(heapq.heappop(self._ends)[2])
        self._end(over)
        self._wait()
