"""Broker sessions: the brokers' heartbeats, in memory on the quorum's leader only.

A session belongs to one incarnation and begins when the controller first sees that incarnation registered; so a new
controller, which has received no heartbeat yet, grants every broker a full session before it fences any. Silence counts
only while the controller listens: of a gap between two calls of `watch` at most a third of a session counts, because a
controller that was itself stopped knows nothing about the others. (It counts *something*, so that a controller that
always is slow still fences the dead.)

Time comes in from outside, as monotonic seconds.
"""

from __future__ import annotations

import msgspec

from raftlog.model import BrokerId, Incarnation


class _Session(msgspec.Struct):
    incarnation: Incarnation
    deadline: float
    heard: bool = False
    applied_index: int = -1
    stopping: bool = False


class Sessions:
    """One controller's sessions; bounded by the number of brokers."""

    def __init__(self, timeout: float) -> None:
        """`timeout`: the duration of a session in seconds."""
        assert timeout > 0
        self._timeout = timeout
        self._most_silence_between_watches = timeout / 3
        self._last_watch: float | None = None
        self._sessions: dict[BrokerId, _Session] = {}

    def watch(self, now: float) -> None:
        """Record that the controller listens now. Call it before checking for expired sessions."""
        if self._last_watch is not None:
            excess = now - self._last_watch - self._most_silence_between_watches
            if excess > 0:
                for session in self._sessions.values():
                    session.deadline += excess
        self._last_watch = now

    def begin(self, broker_id: BrokerId, incarnation: Incarnation, now: float) -> None:
        """Begin a full session for a registered incarnation; later calls for it have no effect."""
        session = self._sessions.get(broker_id)
        if session is None or session.incarnation != incarnation:
            self._sessions[broker_id] = _Session(incarnation, now + self._timeout)

    def heartbeat(
        self, broker_id: BrokerId, incarnation: Incarnation, applied_index: int, now: float, *, stopping: bool = False
    ) -> bool:
        """Record a heartbeat; False, without effect, if it is not of the session's incarnation.

        `stopping` is final: this incarnation wants to be fenced, and is never unfenced again.
        """
        session = self._sessions.get(broker_id)
        if session is None or session.incarnation != incarnation:
            return False
        session.deadline = now + self._timeout
        session.heard = True
        session.applied_index = max(session.applied_index, applied_index)
        session.stopping = session.stopping or stopping
        return True

    def is_heard(self, broker_id: BrokerId, incarnation: Incarnation, now: float) -> bool:
        """Return whether it sent this controller a heartbeat within the session timeout and is not stopping."""
        session = self._of(broker_id, incarnation)
        return session is not None and session.heard and not session.stopping and now < session.deadline

    def is_over(self, broker_id: BrokerId, incarnation: Incarnation, now: float) -> bool:
        """Return whether it was silent for a whole session, or is stopping."""
        session = self._of(broker_id, incarnation)
        return session is not None and (session.stopping or now >= session.deadline)

    def is_stopping(self, broker_id: BrokerId, incarnation: Incarnation, now: float) -> bool:
        """Return whether it is stopping and still sends heartbeats."""
        session = self._of(broker_id, incarnation)
        return session is not None and session.stopping and now < session.deadline

    def has_applied(self, broker_id: BrokerId, incarnation: Incarnation, index: int) -> bool:
        """Return whether it has reported that its view has reached `index`."""
        session = self._of(broker_id, incarnation)
        return session is not None and session.applied_index >= index

    def _of(self, broker_id: BrokerId, incarnation: Incarnation) -> _Session | None:
        session = self._sessions.get(broker_id)
        return session if session is not None and session.incarnation == incarnation else None
