"""Linearizable reads (S7), and proposals with their results.

Any node answers for the whole cluster from its own view, which may be stale. Call `catch_up` before refusing a request,
or choosing by names, counts or brokers, based on that view alone.

A command is proposed once. While its outcome is unknown the quorum repeats it under one sequence number of this node's
session, so that it is carried out once and a lost answer is given again. A second proposal could take effect after a
later change. Only a command that certainly reached no log is proposed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from metadata.commands.envelope import Command
from metadata.commands.results import CommandResult, Refused
from metadata.quorum.port import Fate, MetadataQuorum, Outcome
from raftlog.errors import RaftlogError, RetriableError
from raftlog.system.futures import answer_of, resolve

VIEW_GRACE_SECONDS = 1.0
"""Extra time, beyond the quorum's own, that a view may take to reach the index that the quorum named, in seconds."""
DEADLINE_SECONDS = 15.0
RETRY_SECONDS = 0.05
"""Pause in seconds before a command that reached no log is proposed again."""
LEAST_SECONDS = 0.1
"""Minimum time in seconds that a proposal gets, however late it is."""


class Proposer:
    """The proposals of one node. All calls are made on the broker's loop."""

    def __init__(self, quorum: MetadataQuorum, when_view_reaches: Callable[[int, Callable[[], None]], None]) -> None:
        self._quorum = quorum
        self._when_view_reaches = when_view_reaches

    async def catch_up(self) -> None:
        """Bring the view up to everything that the quorum has decided.

        Raises `RetriableError` (`quorum_unavailable`).
        """
        if not await self.catch_up_within(DEADLINE_SECONDS):
            raise RetriableError("quorum_unavailable", "the metadata quorum does not answer; nothing was changed")

    async def catch_up_within(self, seconds: float) -> bool:
        """Bring the view up to everything that was decided before this call.

        Returns False if the quorum does not answer within `seconds`, or the view does not follow it.
        """
        reached: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def answered(outcome: Outcome) -> None:
            if outcome.fate is Fate.APPLIED:
                self._when_view_reaches(outcome.index, lambda: resolve(reached, True))
            else:
                resolve(reached, False)

        self._quorum.read_barrier(answered, timeout=seconds)
        try:
            return await asyncio.wait_for(reached, seconds + VIEW_GRACE_SECONDS)
        except TimeoutError:
            return False

    async def decide(self, command: Command) -> CommandResult:
        """Return the state machine's answer when this node's view shows the decision. Raises like `failure_of`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DEADLINE_SECONDS
        while True:
            outcome = await self._propose(command, max(deadline - loop.time(), LEAST_SECONDS))
            if outcome.fate is Fate.APPLIED and outcome.result is not None:
                await self._seen(outcome.index)
                if isinstance(outcome.result, Refused):
                    raise failure_of(outcome)
                return outcome.result
            if outcome.fate is not Fate.REFUSED or loop.time() >= deadline:
                raise failure_of(outcome)
            await asyncio.sleep(RETRY_SECONDS)

    async def _propose(self, command: Command, seconds: float) -> Outcome:
        return await answer_of(lambda tell: self._quorum.propose(command, tell, timeout=seconds))

    async def _seen(self, index: int) -> None:
        """Wait until this node's view shows the decision. Raises `RetriableError`."""
        seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._when_view_reaches(index, lambda: resolve(seen, None))
        try:
            await asyncio.wait_for(seen, DEADLINE_SECONDS)
        except TimeoutError:
            raise RetriableError(
                "request_timed_out", "the change is decided, but this node does not show it yet"
            ) from None


def failure_of(outcome: Outcome) -> RaftlogError:
    """Return why a proposal was not carried out: the state machine's refusal or a `RetriableError`.

    The latter is `quorum_unavailable` if nothing was decided, and `outcome_unknown` if that is not known.
    """
    if isinstance(outcome.result, Refused):
        return outcome.result.error()
    if outcome.fate is Fate.REFUSED:
        return RetriableError("quorum_unavailable", f"the metadata quorum cannot decide: {outcome.detail}")
    return RetriableError("outcome_unknown", f"the quorum's decision is not known: {outcome.detail}")
