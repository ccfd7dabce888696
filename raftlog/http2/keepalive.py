"""Detection of silent, half-open, idle and strangers' connections. Pure: the time goes in, a verdict comes out."""

from __future__ import annotations

import enum

from .limits import Http2Limits


class Verdict(enum.Enum):
    """The action that is due."""

    NOTHING = "nothing"
    PING = "ping"
    HALF_OPEN = "the peer sent no SETTINGS in time"
    SILENT = "the peer did not answer a PING in time"
    STRANGER = "no stream was accepted in time"
    IDLE = "the connection was idle for too long"


class Keepalive:
    """Deadlines of one connection.

    Bytes of any kind prove that the peer is alive: its answer to a PING may still be queued.
    """

    __slots__ = (
        "_idle_since",
        "_last_received",
        "_limits",
        "_opened",
        "_ping_due",
        "_ping_sent",
        "_serves",
        "is_stranger",
    )

    def __init__(self, limits: Http2Limits, now: float, *, serves: bool) -> None:
        self._limits = limits
        self._serves = serves
        """Whether this is a listener's connection; a dialer's owner decides itself when to close an idle one."""
        self._opened = self._idle_since = self._last_received = now
        self._ping_due = now + limits.ping_interval_s
        self._ping_sent: float | None = None
        self.is_stranger = serves
        """Whether a listener has accepted no stream of the connection yet."""

    def received(self, now: float) -> None:
        """Record that bytes arrived."""
        self._last_received = now
        self._ping_sent = None

    def check(self, now: float, *, ready: bool, used: bool, reading: bool) -> Verdict:
        """Return what is due now.

        `used`: whether there is a stream, or was since the last check. `reading`: false while this side has stopped
        reading.
        """
        limits = self._limits
        if used:
            self._idle_since = now
        if not ready:
            return Verdict.HALF_OPEN if now - self._opened >= limits.handshake_timeout_s else Verdict.NOTHING
        if self.is_stranger and now - self._opened >= limits.stranger_timeout_s:
            return Verdict.STRANGER
        if not reading:
            self._ping_sent = None
            return Verdict.NOTHING
        if self._ping_sent is not None and now - self._ping_sent >= limits.ping_timeout_s:
            return Verdict.SILENT
        if self._serves and now - self._idle_since >= limits.idle_timeout_s:
            return Verdict.IDLE
        if self._ping_sent is None and now >= self._ping_due:
            self._ping_due = now + limits.ping_interval_s
            self._ping_sent = now
            return Verdict.PING
        return Verdict.NOTHING

    def next_check(self, now: float, *, ready: bool, reading: bool) -> float:
        """Return the time of the next check: the next deadline.

        A listener checks four times per idle timeout, so that an idle connection is closed not much later than it
        should be.
        """
        limits = self._limits
        if not ready:
            due = min(self._opened + limits.handshake_timeout_s, now + limits.ping_interval_s)
        elif not reading:
            due = now + limits.ping_interval_s / 4
        elif self._ping_sent is not None:
            due = self._ping_sent + limits.ping_timeout_s
        else:
            due = self._ping_due
        if self.is_stranger:
            due = min(due, self._opened + limits.stranger_timeout_s)
        return min(due, now + limits.idle_timeout_s / 4) if self._serves else due
