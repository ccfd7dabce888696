"""Changes on their way to the quorum: what is asked while one command is under way goes into the next.

So ten thousand changes a second are some hundred commands of bounded size, and what one node asks for stays in order.
What waits is bounded. Where many ask at once and nothing is in a hurry, a kind may let the next command wait a little
(`GATHER_SECONDS` after the last one began): a command costs every node the same, however many changes it carries.

A change's answer comes when this node's view shows it, or, where whoever asks needs no more than the answer, as soon as
it is decided: a view has to take over everything before it, and is late under load. So that what it has to take over
stays bounded, no command goes out more than `MOST_AHEAD` of them ahead of it.

Where the cluster's feature level is below that from which all nodes know a kind, its changes are refused until an
operator raises it (`feature_levels.py`). What no node could decode is refused before it can spoil the command of others
(S11).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from metadata.commands.envelope import Command
from metadata.quorum.port import MetadataQuorum, Outcome
from raftlog.config import MIB
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError, error_from_code

from .feature_levels import check_level
from .proposer import failure_of

PROPOSAL_SECONDS = 5.0
MAX_WAITING = 20_000
MAX_WAITING_BYTES = 32 * MIB
MOST_AHEAD = 16
"""Commands that are decided and that this node's view does not show yet: two megabytes at most."""
GATHER_SECONDS = 0.04
"""From the beginning of one command to that of the next, where they may wait for more to come..."""
GATHER_FROM = 4
"""...which is where the last one carried so many changes, and not all of their askers have asked again: a few who ask
anew as soon as they are answered are not held up."""
GATHER_UPTO = 100
"""What waits is enough for a command."""

Change = TypeVar("Change")
Decision = TypeVar("Decision")

_encoder = msgspec.msgpack.Encoder()


@dataclass(slots=True)
class _Waiting(Generic[Change, Decision]):
    change: Change
    size: int
    decided: asyncio.Future[Decision]
    shown: bool
    """Its answer waits for the view."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one kind of changes."""

    change_bytes: int
    too_large: str
    """The code for a change that has more."""
    command_bytes: int
    command_changes: int
    command_work: int
    """In units of `ChangeBatches._work_of`."""


class ChangeBatches(ABC, Generic[Change, Decision]):
    """One node's, of one kind. Lives on the broker's loop."""

    def __init__(
        self,
        quorum: MetadataQuorum,
        when_view_reaches: Callable[[int, Callable[[], None]], None],
        feature_level: Callable[[], int],
        *,
        what: str,
        needs_level: int,
        limits: Limits,
        decoder: msgspec.msgpack.Decoder[Any],
    ) -> None:
        """`what` these are changes of, for errors; `needs_level`: the feature level from which nodes know them."""
        self._quorum = quorum
        self._when_view_reaches = when_view_reaches
        self._feature_level = feature_level
        self._what = what
        self._needs_level = needs_level
        self._limits = limits
        self._decoder = decoder
        self._queue: deque[_Waiting[Change, Decision]] = deque()
        self._bytes = 0
        """Of the queue."""
        self._under_way: list[_Waiting[Change, Decision]] = []
        self._proposing = False
        self._began = 0.0
        """When the last command went out, by the loop's clock."""
        self._carried = 0
        """How many changes it had."""
        self._away: set[Hashable] = set()
        """Whose they were, as far as they have not asked again."""
        self._hurried = 0
        """So many of those in the queue do not wait for others."""
        self._gathering: asyncio.TimerHandle | None = None
        self._decided: deque[int] = deque()
        """Where the last commands are in the log."""

    # --- What a kind says --------------------------------------------------------------------------------------------

    @abstractmethod
    def _command(self, changes: tuple[Change, ...]) -> Command: ...

    @abstractmethod
    def _answers(self, outcome: Outcome, count: int) -> list[Decision | RaftlogError] | None:
        """What became of each of so many changes, in their order; None where this is not the answer to a command."""
        ...

    def _work_of(self, change: Change) -> int:
        """What applying it costs, in units of its kind."""
        return 0

    def _patient(self, change: Change) -> Hashable | None:
        """Who asks, where the change may wait for others to go with it; None where it may not."""
        return None

    # --- Asking ------------------------------------------------------------------------------------------------------

    def submit(self, change: Change, *, shown: bool = True) -> asyncio.Future[Decision]:
        """Done when it is decided and, with `shown`, this node's view shows that. Fails with the refusal, or a
        `RetriableError`. Raises `InvalidRequest` or `RetriableError` for what is not even begun."""
        check_level(self._feature_level(), self._needs_level, f"there are {self._what}")
        size = self._size_of(change)
        if size > self._limits.change_bytes:
            raise InvalidRequest(
                self._limits.too_large,
                f"a change of {self._what} has at most {self._limits.change_bytes} bytes, not {size}: cut it",
            )
        if len(self._queue) >= MAX_WAITING or self._bytes + size > MAX_WAITING_BYTES:
            raise RetriableError("overloaded", f"too many changes of {self._what} wait for the quorum")
        decided: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(change, size, decided, shown))
        self._bytes += size
        asker = self._patient(change)
        self._hurried += asker is None
        self._away.discard(asker)
        self._pump()
        return decided

    def _size_of(self, change: Change) -> int:
        """Bytes within a command. Raises `InvalidRequest` for what no node could decode."""
        try:
            packed = _encoder.encode(change)
            self._decoder.decode(packed)
        except (msgspec.MsgspecError, UnicodeError, OverflowError) as error:
            raise InvalidRequest("invalid_request", f"malformed change of {self._what}: {error}") from None
        return len(packed)

    # --- On the way --------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        if self._proposing or not self._queue:
            return
        loop = asyncio.get_running_loop()
        pause = self._began + GATHER_SECONDS - loop.time() if self._gathers() else 0.0
        if pause > 0:
            if self._gathering is None:
                self._gathering = loop.call_later(pause, self._gathered)
            return
        self._proposing = True
        self._began = loop.time()
        try:
            self._take()
            command = self._command(tuple(waiting.change for waiting in self._under_way))
            self._quorum.propose(command, self._answered, timeout=PROPOSAL_SECONDS)
        except Exception as error:  # noqa: BLE001  reported; those who wait are told, and the others have their turn
            self._broke(error)

    def _gathers(self) -> bool:
        """Many ask at once, more are to come, and none of those who wait is in a hurry."""
        many = self._carried >= GATHER_FROM and len(self._queue) < GATHER_UPTO
        return many and bool(self._away) and not self._hurried

    def _gathered(self) -> None:
        self._gathering = None
        self._pump()

    def _take(self) -> None:
        """What the next command has room for, one change at least."""
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
        except Exception as error:  # noqa: BLE001  likewise
            self._broke(error)

    def _broke(self, error: Exception) -> None:
        """Nothing more will be heard of what is under way."""
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": f"a command of {self._what} broke", "exception": error})
        self._tell_failed(RetriableError("outcome_unknown", f"this node met an error that nobody foresaw: {error!r}"))
        loop.call_soon(self._next)

    def _take_answer(self, outcome: Outcome) -> None:
        answers = self._answers(outcome, len(self._under_way))
        if answers is not None:
            told = list(zip(self._under_way, answers, strict=True))
            _tell((waiting, answer) for waiting, answer in told if not waiting.shown)
            later = [(waiting, answer) for waiting, answer in told if waiting.shown]
            if later:
                self._when_view_reaches(outcome.index, lambda: _tell(later))
            self._decided.append(outcome.index)
            due = self._decided.popleft() if len(self._decided) > MOST_AHEAD else 0
            self._when_view_reaches(due, self._next)
        else:
            self._fail(failure_of(outcome))

    def _fail(self, error: RaftlogError) -> None:
        self._tell_failed(error)
        self._next()

    def _tell_failed(self, error: RaftlogError) -> None:
        for waiting in self._under_way:
            if not waiting.decided.done():
                waiting.decided.set_exception(error_from_code(error.code, error.detail))

    def _next(self) -> None:
        self._under_way.clear()
        self._proposing = False
        self._pump()


def _tell(answers: Iterable[tuple[_Waiting[Change, Decision], Decision | RaftlogError]]) -> None:
    for waiting, answer in answers:
        if waiting.decided.done():
            continue  # whoever asked has gone
        if isinstance(answer, RaftlogError):
            waiting.decided.set_exception(answer)
        else:
            waiting.decided.set_result(answer)
