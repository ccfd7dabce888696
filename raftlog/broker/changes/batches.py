"""Batching of changes to the quorum: changes that arrive while a command is in flight go into the next one.

So ten thousand changes a second become some hundred commands of bounded size, and the changes of one node stay in
order. The queue is bounded. If many callers submit at once and none is urgent, a kind of change may delay the next
command a little (`GATHER_SECONDS` after the last one began): a command costs every node the same, however many changes
it carries.

A change is answered when this node's view shows it; if the caller needs only the answer, as soon as it is decided. The
difference matters because a view must process everything before it, and lags under load. To bound that lag, no command
is sent while `MOST_AHEAD` earlier ones are decided and not yet in the view.

If the cluster's feature level is too low for a kind of change, its changes are refused until an operator raises the
level (`feature_levels.py`). A change that no node could decode is refused before it can spoil a command with other
callers' changes (S11).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from metadata.commands.envelope import Command
from metadata.commands.security import SECURITY_FEATURE_LEVEL
from metadata.quorum.port import Fate, MetadataQuorum, Outcome
from metadata.records.owners import NO_OWNER
from raftlog.broker.unforeseen import raise_soon
from raftlog.config import MIB
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError, error_from_code
from raftlog.ports import Answer, Clock, Scheduler, Timer

from .feature_levels import check_level
from .proposer import failure_of

PROPOSAL_SECONDS = 5.0
MAX_WAITING = 20_000
MAX_WAITING_BYTES = 32 * MIB
MOST_AHEAD = 16
"""Maximum number of commands that are decided and not in this node's view yet: two megabytes at most."""
GATHER_SECONDS = 0.04
"""Time in seconds from the start of one command to the start of the next, if it may wait for more changes..."""
GATHER_FROM = 4
"""...which it does if the last command carried this many changes, and some of their callers have not submitted
again: a few callers that retry as soon as they are answered are not delayed."""
GATHER_UPTO = 100
"""Number of queued changes from which a command no longer waits."""

Change = TypeVar("Change")
Decision = TypeVar("Decision")

_encoder = msgspec.msgpack.Encoder()


@dataclass(slots=True)
class _Waiting(Generic[Change, Decision]):
    change: Change
    size: int
    answer: Answer[Decision] | None
    """The caller's callback; None after the call."""
    shown: bool
    """Whether the answer waits for the view."""
    principal: str
    """The principal to which belongs what the change makes; empty: none."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one kind of change."""

    change_bytes: int
    too_large: str
    """The error code for a change that exceeds `change_bytes`."""
    command_bytes: int
    command_changes: int
    command_work: int
    """Limit in units of `ChangeBatches._work_of`."""


class ChangeBatches(ABC, Generic[Change, Decision]):
    """The queue for one kind of change on one node. All calls are made on the scheduler's thread."""

    def __init__(
        self,
        quorum: MetadataQuorum,
        when_view_reaches: Callable[[int, Callable[[], None]], None],
        feature_level: Callable[[], int],
        clock: Clock,
        scheduler: Scheduler,
        *,
        what: str,
        needs_level: int,
        limits: Limits,
        decoder: msgspec.msgpack.Decoder[Any],
    ) -> None:
        """`what` names the changes in error texts; `needs_level` is the feature level that they need."""
        self._quorum = quorum
        self._when_view_reaches = when_view_reaches
        self._feature_level = feature_level
        self._clock = clock
        self._scheduler = scheduler
        self._what = what
        self._needs_level = needs_level
        self._limits = limits
        self._decoder = decoder
        self._queue: deque[_Waiting[Change, Decision]] = deque()
        self._bytes = 0
        """Bytes in the queue, and of changes that wait for the confirmation of the feature level."""
        self._unconfirmed = 0
        """Number of the latter."""
        self._under_way: list[_Waiting[Change, Decision]] = []
        self._proposing = False
        self._began = 0.0
        """When the last command was sent, on the monotonic clock."""
        self._carried = 0
        """Number of changes that it carried."""
        self._away: set[Hashable] = set()
        """Owners with a change in flight that have not submitted again."""
        self._hurried = 0
        """Number of queued changes that must not wait for others."""
        self._gathering: Timer | None = None
        """The end of the time in which the next command waits for more changes."""
        self._decided: deque[int] = deque()
        """Log indexes of the last commands."""

    # --- What a kind defines -----------------------------------------------------------------------------------------

    @abstractmethod
    def _command(self, changes: tuple[Change, ...]) -> Command: ...

    @abstractmethod
    def _command_as(self, changes: tuple[Change, ...], principals: tuple[str, ...]) -> Command:
        """Return the command for changes of principals, one for each change (empty: none)."""
        ...

    @abstractmethod
    def _answers(self, outcome: Outcome, count: int) -> list[Decision | RaftlogError] | None:
        """Return the outcome of each of the `count` changes, in their order; None if this does not answer a command."""
        ...

    def _work_of(self, change: Change) -> int:
        """Return the cost of applying the change, in units of its kind."""
        return 0

    def _patient(self, change: Change) -> Hashable | None:
        """Return the owner to batch by, or None if the change must be sent at once."""
        return None

    # --- Submitting --------------------------------------------------------------------------------------------------

    def submit(
        self,
        change: Change,
        answer: Answer[Decision],
        *,
        shown: bool = True,
        decodable: bool = False,
        principal: str = NO_OWNER,
    ) -> None:
        """Queue a change. `answer` is called once it is decided and, with `shown`, this node's view shows that.

        `answer` gets the decision, the refusal or a `RetriableError`, perhaps before this call returns. Raises
        `InvalidRequest` or `RetriableError` for a change that is not even queued; `answer` is not called for it.
        `decodable`: every field is known to be within its bounds, so that is not checked again. `principal`: the one to
        which belongs what the change makes.
        """
        size = self._size_of(change, decodable)
        if size > self._limits.change_bytes:
            raise InvalidRequest(
                self._limits.too_large,
                f"a change of {self._what} may have at most {self._limits.change_bytes} bytes, not {size}: split it",
            )
        if len(self._queue) + self._unconfirmed >= MAX_WAITING or self._bytes + size > MAX_WAITING_BYTES:
            raise RetriableError("overloaded", f"too many changes of {self._what} wait for the quorum")
        self._bytes += size
        waiting = _Waiting[Change, Decision](change, size, answer, shown, principal)
        if self._feature_level() < self._needs_level:
            self._confirm_level(waiting)
        else:
            self._enqueue(waiting)

    def _confirm_level(self, waiting: _Waiting[Change, Decision]) -> None:
        """Queue a change if the feature level, as the quorum knows it, permits that.

        The view may be behind, in particular after a start. A final refusal because of it would be wrong, and
        contradict an earlier attempt of the same request through another node, which may have been carried out (S11).
        """
        self._unconfirmed += 1

        def answered(outcome: Outcome) -> None:
            if outcome.fate is Fate.APPLIED:
                self._when_view_reaches(outcome.index, known)
            else:
                why = f"the quorum does not confirm the feature level: {outcome.detail}"
                refuse(RetriableError("quorum_unavailable", why))

        def known() -> None:
            try:
                check_level(self._feature_level(), self._needs_level, f"there are {self._what}")
            except InvalidRequest as error:
                refuse(error)
                return
            self._unconfirmed -= 1
            self._enqueue(waiting)

        def refuse(error: RaftlogError) -> None:
            self._unconfirmed -= 1
            self._bytes -= waiting.size
            answer, waiting.answer = waiting.answer, None
            if answer is not None:
                answer(error)

        self._quorum.read_barrier(answered, timeout=PROPOSAL_SECONDS)

    def _enqueue(self, waiting: _Waiting[Change, Decision]) -> None:
        self._queue.append(waiting)
        asker = self._patient(waiting.change)
        self._hurried += asker is None
        self._away.discard(asker)
        self._pump()

    def _size_of(self, change: Change, decodable: bool) -> int:
        """Return the size of a change within a command, in bytes.

        Raises `InvalidRequest` for a change that no node could decode.
        """
        try:
            packed = _encoder.encode(change)
            if not decodable:
                self._decoder.decode(packed)
        except (msgspec.MsgspecError, UnicodeError, OverflowError) as error:
            raise InvalidRequest("invalid_request", f"malformed change of {self._what}: {error}") from None
        return len(packed)

    # --- In flight ---------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        if self._proposing or not self._queue:
            return
        pause = self._began + GATHER_SECONDS - self._clock.monotonic() if self._gathers() else 0.0
        if pause <= 0:
            self._send()
        elif self._gathering is None:
            self._gathering = self._scheduler.call_later(pause, self._send)

    def _send(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._proposing = True
        self._began = self._clock.monotonic()
        try:
            self._take()
            self._quorum.propose(self._next_command(), self._answered, timeout=PROPOSAL_SECONDS)
        except Exception as error:  # noqa: BLE001  reported; the waiting callers get an error
            self._broke(error)

    def _next_command(self) -> Command:
        changes = tuple(waiting.change for waiting in self._under_way)
        principals = tuple(waiting.principal for waiting in self._under_way)
        # Without security there are no principals, and older nodes do not know the command with them.
        if any(principals) and self._feature_level() >= SECURITY_FEATURE_LEVEL:
            return self._command_as(changes, principals)
        return self._command(changes)

    def _gathers(self) -> bool:
        """Return whether to wait for more: many callers are active, more will come, and no queued change is urgent."""
        many = self._carried >= GATHER_FROM and len(self._queue) < GATHER_UPTO
        return many and bool(self._away) and not self._hurried

    def _take(self) -> None:
        """Take as many changes as fit the next command, at least one."""
        size = work = 0
        self._away.clear()
        while self._queue and len(self._under_way) < self._limits.command_changes:
            waiting = self._queue[0]
            work += self._work_of(waiting.change)
            full = size + waiting.size > self._limits.command_bytes or work > self._limits.command_work
            if self._under_way and full:
                break
            size += waiting.size
            asker = self._patient(waiting.change)
            self._hurried -= asker is None
            if asker is not None:
                self._away.add(asker)
            self._under_way.append(self._queue.popleft())
        self._bytes -= size
        self._carried = len(self._under_way)

    def _answered(self, outcome: Outcome) -> None:
        try:
            self._take_answer(outcome)
        except Exception as error:  # noqa: BLE001  as above
            self._broke(error)

    def _broke(self, error: Exception) -> None:
        """Fail the command in flight, whose outcome will not be known."""
        raise_soon(self._scheduler, error)
        self._tell_failed(RetriableError("outcome_unknown", f"an unexpected error on this node: {error!r}"))
        self._scheduler.call_soon(self._next)

    def _take_answer(self, outcome: Outcome) -> None:
        answers = self._answers(outcome, len(self._under_way))
        if answers is not None:
            told = list(zip(self._under_way, answers, strict=True))
            self._tell((waiting, answer) for waiting, answer in told if not waiting.shown)
            later = [(waiting, answer) for waiting, answer in told if waiting.shown]
            if later:
                self._when_view_reaches(outcome.index, lambda: self._tell(later))
            self._decided.append(outcome.index)
            due = self._decided.popleft() if len(self._decided) > MOST_AHEAD else 0
            self._when_view_reaches(due, self._next)
        else:
            self._fail(failure_of(outcome))

    def _fail(self, error: RaftlogError) -> None:
        self._tell_failed(error)
        self._next()

    def _tell_failed(self, error: RaftlogError) -> None:
        self._tell((waiting, error_from_code(error.code, error.detail)) for waiting in self._under_way)

    def _next(self) -> None:
        self._under_way.clear()
        self._proposing = False
        self._pump()

    def _tell(self, answers: Iterable[tuple[_Waiting[Change, Decision], Decision | RaftlogError]]) -> None:
        """Call the callbacks that were not called yet. An exception in one of them does not affect the others."""
        for waiting, outcome in answers:
            answer, waiting.answer = waiting.answer, None
            if answer is not None:
                try:
                    answer(outcome)
                except Exception as error:  # noqa: BLE001  reported; the other callers get their answers
                    raise_soon(self._scheduler, error)
