"""All fetch sessions of a broker: their bounds, and the session that a request means.

A session belongs to a stream and ends with it, so it does not expire by time. Sessions and their slots are bounded over
the whole broker. At the bound, sessions without a request for `UNUSED_SECONDS` are evicted, the least recently used
first; their clients get `unknown_fetch_session` and name everything again. If that is not enough, a new session is
refused with `overloaded`: its client fetches without one.
"""

from __future__ import annotations

from raftlog.config import MAX_FETCH_BYTES, MAX_FETCH_WAIT_MS
from raftlog.errors import RaftlogError, RetriableError
from raftlog.ports import Clock, Scheduler
from raftlog.wire import SessionFetchRequest

from .doubts import FetchDoubts
from .reads import Replicas
from .session import FetchSession, SessionDone

MAX_SESSIONS = 2_000
MAX_SLOTS = 200_000
"""Bound over all sessions: a slot takes about 400 bytes."""
UNUSED_SECONDS = 60.0
"""Seconds; a consumer that fetches sends a request at least every `MAX_FETCH_WAIT_MS`."""


class FetchSessions:
    """All fetch sessions of a broker, on its one thread."""

    def __init__(self, replicas: Replicas, clock: Clock, scheduler: Scheduler, doubts: FetchDoubts) -> None:
        self._replicas = replicas
        self._clock = clock
        self._scheduler = scheduler
        self._doubts = doubts
        self._sessions: dict[FetchSession, None] = {}
        """The sessions, least recently used first."""
        self._slots = 0
        self._closing = False

    def fetch(self, current: FetchSession | None, request: SessionFetchRequest, done: SessionDone) -> FetchSession:
        """Let the session answer; return the stream's session from now on. `current`: the stream's session so far.

        `done` is called once, perhaps before this returns, with nothing if the session is closed meanwhile. Raises
        `RetriableError` (`unknown_fetch_session`, `overloaded`) and `InvalidRequest`, without any effect, except that a
        request that begins a session closes the one before it.
        """
        if request.begins:
            self.close_session(current)
            current = self._begin(request)
        elif current is None or current.closed or current.number != request.session:
            detail = f"fetch session {request.session} does not exist, or was closed: begin another"
            raise RetriableError("unknown_fetch_session", detail)
        try:
            current.check(request)
            self._admit(len(request.added), current)
        except RaftlogError:
            if request.begins:
                self.close_session(current)
            raise
        current.used_at = self._clock.monotonic()
        self._sessions.pop(current, None)
        self._sessions[current] = None
        wait_ms = 0 if self._closing else min(request.max_wait_ms, MAX_FETCH_WAIT_MS)
        current.poll(request, done, wait_ms / 1000, min(request.max_bytes, MAX_FETCH_BYTES))
        return current

    def close_session(self, session: FetchSession | None) -> None:
        """Close a session whose stream is gone or has another one. Idempotent."""
        if session is not None:
            self._sessions.pop(session, None)
            session.close()

    def close(self) -> None:
        """Answer every poll with the available data, and let none wait from now on."""
        self._closing = True
        for session in self._sessions:
            session.finish_polls()

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def slots(self) -> int:
        """The slots of all sessions."""
        return self._slots

    # --- Inside ---

    def _begin(self, request: SessionFetchRequest) -> FetchSession:
        if len(self._sessions) >= MAX_SESSIONS and not self._forget_unused(None):
            raise RetriableError("overloaded", f"this broker has {MAX_SESSIONS} fetch sessions: fetch without one")
        return FetchSession(
            request.session,
            self._replicas,
            self._scheduler,
            self._doubts,
            committed=request.isolation == 1,
            left=self._went,
        )

    def _admit(self, count: int, asking: FetchSession) -> None:
        while self._slots + count > MAX_SLOTS:
            if not self._forget_unused(asking):
                raise RetriableError(
                    "overloaded", f"the fetch sessions of this broker have {MAX_SLOTS} slots: fetch without one"
                )
        self._slots += count

    def _forget_unused(self, asking: FetchSession | None) -> bool:
        """Evict an unused session; return whether there was one."""
        oldest = next(iter(self._sessions), None)
        if oldest is None or oldest is asking or not oldest.idle:
            return False
        if self._clock.monotonic() - oldest.used_at < UNUSED_SECONDS:
            return False
        self.close_session(oldest)
        return True

    def _went(self, count: int) -> None:
        self._slots -= count

    def __str__(self) -> str:
        return f"fetch sessions={len(self._sessions)} slots={self._slots}"
