"""`delete-records` at the leader: how far the log start may move, and when a request is answered.

Moving the start is one thing, promising that it stays is another: a successor with an older start would show the
deleted records again. So a request is answered under the rule of `acks=all`: when every member of the maximal ISR has
the start on disk and the accepted ISR has `min.insync.replicas` members. The next leader is a member of the ISR or of
an earlier commit set (S6), so its log begins there as well.

A replica that joins the ISR later must have the start on disk first (`admits`): at least the start with which this
leader began, because its predecessors may have promised that much, and whatever it has promised since.

Sources: KIP-107 (DeleteRecords: not beyond the high watermark; replicas report their start).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.model import BrokerId, Offset

from .effects import AdvanceLogStart, Effect, RecordsDeleted, Reject, RequestId
from .isr import IsrState, replicated_end_offset
from .log_view import LogView

MAX_WAITING = 1024
"""Bound on the deletions of one partition that wait for disks; more are refused."""

UP_TO_HIGH_WATERMARK = Offset(-1)
"""The request for everything that consumers may read now, in place of an offset."""


class Deletions:
    """The deletions of one leadership.

    `start_of` returns where a replica's log begins on its disk, None while that is unknown.

    Invariant: no request is answered while a member of the maximal ISR may still begin its log below its offset.
    """

    def __init__(self, log: LogView, isr: IsrState, start_of: Callable[[BrokerId], Offset | None]) -> None:
        self._log = log
        self._isr = isr
        self._start_of = start_of
        self._waiting: list[tuple[Offset, RequestId]] = []
        """A heap by offset."""
        self._promised = log.log_start_offset

    def delete(self, request: RequestId, before: Offset, readable_end: Offset | None) -> list[Effect]:
        """Delete the records below `before`.

        `readable_end` is the high watermark, None while this leader must not expose it.
        """
        refusal = self._refusal(before, readable_end)
        if refusal is not None or readable_end is None:
            return [Reject(request, refusal or _hidden())]
        before = readable_end if before == UP_TO_HIGH_WATERMARK else before
        heapq.heappush(self._waiting, (before, request))
        return [AdvanceLogStart(before)] if before > self._log.log_start_offset else []

    def advance(self) -> list[Effect]:
        """Answer the requests that are due: a log start, or the ISR, changed."""
        if not self._waiting or self._isr.below_minimum:
            return []
        everywhere = replicated_end_offset(self._isr.maximal, self._start_of)
        effects: list[Effect] = []
        while everywhere is not None and self._waiting and self._waiting[0][0] <= everywhere:
            before, request = heapq.heappop(self._waiting)
            self._promised = max(self._promised, before)
            # Not this leader's own start, which may be higher than the others': the answer must hold for a successor.
            effects.append(RecordsDeleted(request, everywhere))
        return effects

    def admits(self, start_offset: Offset) -> bool:
        """Whether a replica whose log begins here may join the ISR."""
        return start_offset >= self._promised

    def abandon(self, error: RaftlogError) -> list[Effect]:
        """Reject the waiting requests: this leadership has ended, and its successor may have moved its start or not."""
        waiting, self._waiting = sorted(self._waiting), []
        return [Reject(request, error) for _, request in waiting]

    def _refusal(self, before: Offset, readable_end: Offset | None) -> RaftlogError | None:
        """Return the error if nothing can be deleted; nothing has been deleted then."""
        if readable_end is None:
            return _hidden()
        if before != UP_TO_HIGH_WATERMARK and not 0 <= before <= readable_end:
            bounds = f"[{self._log.log_start_offset}, {readable_end}]"
            return InvalidRequest("offset_out_of_range", f"cannot delete before {before}: the bounds are {bounds}")
        if self._isr.below_minimum:
            return RetriableError("not_enough_replicas", f"too few in-sync replicas: {self._isr}")
        if len(self._waiting) >= MAX_WAITING:
            return RetriableError("overloaded", f"{MAX_WAITING} deletions are waiting already")
        return None


def _hidden() -> RetriableError:
    return RetriableError("offset_not_available", "a new leader has not committed its predecessor's log yet")
