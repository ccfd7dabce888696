"""Changes of groups on their way to the quorum: what is asked while one command is under way goes into the next.

So ten thousand commits a second are some hundred commands, each no larger than `MAX_CHANGES_BYTES`, and what one node
asks for stays in order. What waits is bounded. A change's answer comes when this node's view shows it.

The first change of all raises the cluster's feature level, which the quorum refuses while some broker is too old to
know groups.

What is *not* here: which changes (`groups.py`), and what they do (`metadata/groups/image.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from metadata.commands import Command, GroupsChanged, Refused, SetFeatureLevel
from metadata.engine import Fate, Outcome
from metadata.groups.changes import (
    GROUPS_FEATURE_LEVEL,
    MAX_CHANGES,
    MAX_CHANGES_BYTES,
    MAX_OFFSETS,
    ChangeGroups,
    Commit,
    GroupChange,
    Reset,
)
from raftlog.config import MIB
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError, error_from_code

PROPOSAL_SECONDS = 5.0
REBALANCE_WORK = 12
"""Applying a join, a release or targets costs about what so many offsets do."""
MAX_WAITING = 20_000
MAX_WAITING_BYTES = 32 * MIB

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(GroupChange)


class Proposer(Protocol):
    """The part of the quorum that is needed here."""

    def propose(self, command: Command, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None: ...


@dataclass(slots=True)
class _Waiting:
    change: GroupChange
    size: int
    decided: asyncio.Future[int]


class GroupBatches:
    """One node's. Lives on the broker's loop."""

    def __init__(
        self,
        quorum: Proposer,
        when_view_reaches: Callable[[int, Callable[[], None]], None],
        feature_level: Callable[[], int],
    ) -> None:
        self._quorum = quorum
        self._when_view_reaches = when_view_reaches
        self._feature_level = feature_level
        self._queue: deque[_Waiting] = deque()
        self._bytes = 0
        """Of the queue."""
        self._under_way: list[_Waiting] = []
        self._proposing = False

    def submit(self, change: GroupChange) -> asyncio.Future[int]:
        """The index of the entry that decided it, once this node's view shows that entry. Fails with the refusal, or a
        `RetriableError`. Raises `InvalidRequest` or `RetriableError` for what is not even begun."""
        size = _size_of(change)
        if size > MAX_CHANGES_BYTES:
            raise InvalidRequest(
                "invalid_request", f"a change of a group has at most {MAX_CHANGES_BYTES} bytes, not {size}: cut it"
            )
        if len(self._queue) >= MAX_WAITING or self._bytes + size > MAX_WAITING_BYTES:
            raise RetriableError("overloaded", "too many changes of groups wait for the quorum")
        decided: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(change, size, decided))
        self._bytes += size
        self._pump()
        return decided

    def _pump(self) -> None:
        if self._proposing or not self._queue:
            return
        self._proposing = True
        if self._feature_level() < GROUPS_FEATURE_LEVEL:
            self._quorum.propose(SetFeatureLevel(GROUPS_FEATURE_LEVEL), self._level_set, timeout=PROPOSAL_SECONDS)
            return
        self._take()
        command = ChangeGroups(tuple(waiting.change for waiting in self._under_way))
        self._quorum.propose(command, self._answered, timeout=PROPOSAL_SECONDS)

    def _take(self) -> None:
        """What the next command has room for, one change at least."""
        size = work = 0
        while self._queue and len(self._under_way) < MAX_CHANGES:
            waiting = self._queue[0]
            work += len(waiting.change.offsets) if isinstance(waiting.change, Commit | Reset) else REBALANCE_WORK
            if self._under_way and (size + waiting.size > MAX_CHANGES_BYTES or work > MAX_OFFSETS):
                break
            size += waiting.size
            self._under_way.append(self._queue.popleft())
        self._bytes -= size

    def _level_set(self, outcome: Outcome) -> None:
        if outcome.fate is Fate.APPLIED and not isinstance(outcome.result, Refused):
            self._when_view_reaches(outcome.index, self._next)
            return
        # Nothing of what waits was proposed.
        if isinstance(outcome.result, Refused):
            error: RaftlogError = outcome.result.error()
        else:
            error = RetriableError("quorum_unavailable", f"the metadata quorum cannot decide: {outcome.detail}")
        self._under_way.extend(self._queue)
        self._queue.clear()
        self._bytes = 0
        self._fail(error)

    def _answered(self, outcome: Outcome) -> None:
        result = outcome.result
        if isinstance(result, GroupsChanged):
            self._when_view_reaches(outcome.index, lambda: self._decided(outcome.index, result))
        elif isinstance(result, Refused):
            self._fail(result.error())
        elif outcome.fate is Fate.REFUSED:
            self._fail(RetriableError("quorum_unavailable", f"the metadata quorum cannot decide: {outcome.detail}"))
        else:
            self._fail(RetriableError("outcome_unknown", f"the quorum's decision is not known: {outcome.detail}"))

    def _decided(self, index: int, result: GroupsChanged) -> None:
        refusals = {refused.position: refused for refused in result.refusals}
        for position, waiting in enumerate(self._under_way):
            refused = refusals.get(position)
            if waiting.decided.done():
                continue  # whoever asked has gone
            if refused is None:
                waiting.decided.set_result(index)
            else:
                waiting.decided.set_exception(error_from_code(refused.code, refused.detail))
        self._next()

    def _fail(self, error: RaftlogError) -> None:
        for waiting in self._under_way:
            if not waiting.decided.done():
                waiting.decided.set_exception(error_from_code(error.code, error.detail))
        self._next()

    def _next(self) -> None:
        self._under_way.clear()
        self._proposing = False
        self._pump()


def _size_of(change: GroupChange) -> int:
    """Encoded. Raises `InvalidRequest` for what no node could decode: all else of its command would be refused, too."""
    try:
        packed = _encoder.encode(change)
        _decoder.decode(packed)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidRequest("invalid_request", f"malformed change of a group: {error}") from None
    return len(packed)
