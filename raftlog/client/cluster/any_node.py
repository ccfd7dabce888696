"""Calls that any node answers: which node to ask, and what a slow, failing or dead one costs.

A call goes to the node that answered last. If repeating it is harmless, the next node is asked as well after
`HEDGE_AFTER` without an answer (a stopped process still accepts connections, so waiting for it would take longer than
failing over), then the others, round by round until the deadline. A node that answers other calls meanwhile is slow,
not stopped: it gets `PATIENCE` times as long, because doubling late requests overloads a busy cluster.

If repeating is not harmless (creating or deleting a topic), nodes are tried one after the other, and only while it is
certain that nothing was applied; a lost answer is `outcome_unknown`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Generic, TypeAlias, TypeVar

from raftlog.errors import Applied, RaftlogError, RetriableError

N = TypeVar("N")
T = TypeVar("T")

Attempt: TypeAlias = Callable[[N], Coroutine[Any, Any, T]]
"""Asks one node. It raises `NotSent`, the `RaftlogError` of the answer, or `connection_lost` if there is no answer."""

HEDGE_AFTER = 0.2
PATIENCE = 5
ROUND_PAUSE = 0.05


THROTTLED = "throttled"


class Throttled(RetriableError):
    """A quota of the user is used up. Each node counts for itself, but asking another one would evade the quota."""

    def __init__(self, detail: str, retry_after: float) -> None:
        super().__init__(THROTTLED, detail)
        self.retry_after = retry_after
        """Seconds that the node asks to wait."""


class NotSent(RetriableError):
    """The request never reached the node."""

    def __init__(self, detail: str) -> None:
        super().__init__("connection_lost", detail)


def blames_caller(error: RaftlogError) -> bool:
    """Whether the request itself is wrong, so that every node would refuse it.

    Failures of the cluster and bugs of a node do not count.
    """
    return not error.retriable and error.status < 500


def is_busy(silent: float, waited: float, hedge_after: float) -> bool:
    """Whether a node is slow rather than stopped.

    `silent`: seconds since it last answered any call; `waited`: seconds that this call has waited.
    """
    return silent < hedge_after and waited < PATIENCE * hedge_after


class AnyNode(Generic[N]):
    """The nodes of one cluster, each known by its address or id. Belongs to one event loop."""

    def __init__(self, nodes: Iterable[N]) -> None:
        self.nodes = list(nodes)
        """Nodes to ask; the one that answered last is first."""
        self._answered: dict[N, float] = {}
        """Loop time of each node's last answer that was not its own failure."""

    def heard_from(self, node: N) -> None:
        """Record that a node answered, other than with its own failure."""
        self._answered[node] = asyncio.get_running_loop().time()

    def remove(self, node: N) -> None:
        """Send no more requests to this node."""
        self.nodes.remove(node)
        self._answered.pop(node, None)

    def prefer_another(self) -> None:
        """Start the next calls at another node: the preferred one may be stale, cut off from the quorum."""
        self.nodes.append(self.nodes.pop(0))

    async def repeatable(self, attempt: Attempt[N, T], *, timeout: float, hedge_after: float | None = None) -> T:
        """Return the first node's answer. `hedge_after`: seconds after which the next node is asked as well; None:
        `HEDGE_AFTER`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        last: RaftlogError | None = None
        while True:
            try:
                return await self._round(attempt, deadline, hedge_after or HEDGE_AFTER, last)
            except RaftlogError as error:
                last = _more_telling(last, error)
                pause = _pause_after(error)
                if not error.retriable or loop.time() + pause >= deadline:
                    raise last from None
            await asyncio.sleep(pause)

    async def once(self, attempt: Attempt[N, T], *, timeout: float) -> T:
        """Return the answer to a request that is sent again only if it certainly was not applied.

        Raises `outcome_unknown` if the answer is lost.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            last: RaftlogError = RetriableError("connection_lost", "no node is known")
            for node in list(self.nodes):
                try:
                    answer = await attempt(node)
                except NotSent as error:
                    last = _more_telling(last, error)
                except RaftlogError as error:
                    if error.code == "connection_lost":
                        unknown = (
                            f"{node} received the request and did not answer: {error.detail}. It may have been applied"
                        )
                        raise RetriableError("outcome_unknown", unknown) from None
                    if not error.retriable or error.applied is not Applied.NO:
                        raise
                    last = _more_telling(last, error)
                    if error.code == THROTTLED:
                        break
                else:
                    self._prefer(node)
                    return answer
            pause = _pause_after(last)
            if loop.time() + pause >= deadline:
                raise last
            await asyncio.sleep(pause)

    # --- Inside -------------------------------------------------------------------------------------------------------

    async def _round(
        self,
        attempt: Attempt[N, T],
        deadline: float,
        hedge_after: float,
        last: RaftlogError | None,
    ) -> T:
        """Ask all nodes: the next one whenever an answer is late or failed.

        `last`: the error of the previous round, which says more than that this one ran out of time.
        """
        loop = asyncio.get_running_loop()
        waiting = list(self.nodes)
        running: dict[asyncio.Task[T], N] = {}
        asked, asked_at, busy = None, loop.time(), False
        try:
            while waiting or running:
                if waiting and not busy:
                    asked, asked_at = waiting.pop(0), loop.time()
                    running[loop.create_task(attempt(asked))] = asked
                left = deadline - loop.time()
                if left <= 0:
                    break
                patience = min(hedge_after, left) if waiting else left
                done, _ = await asyncio.wait(running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                busy = not done and asked is not None and self._is_busy(asked, hedge_after, loop.time() - asked_at)
                for task in [one for one in running if one in done]:  # a set has no order
                    node = running.pop(task)
                    try:
                        answer = task.result()
                    except RaftlogError as error:
                        if blames_caller(error) or error.code == THROTTLED:
                            raise
                        last = _more_telling(last, error)
                    else:
                        self._prefer(node)
                        return answer
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        shown = ", ".join(map(str, self.nodes[:8])) or "any node"
        raise last or RetriableError("connection_lost", f"no answer from {shown} in time")

    def _is_busy(self, node: N, hedge_after: float, waited: float) -> bool:
        silent = asyncio.get_running_loop().time() - self._answered.get(node, float("-inf"))
        return is_busy(silent, waited, hedge_after)

    def _prefer(self, node: N) -> None:
        if self.nodes[0] != node and node in self.nodes:  # it may have been dropped meanwhile
            self.nodes.remove(node)
            self.nodes.insert(0, node)


def _pause_after(error: RaftlogError) -> float:
    """Return the seconds before the next round of requests."""
    return max(ROUND_PAUSE, error.retry_after) if isinstance(error, Throttled) else ROUND_PAUSE


def _more_telling(known: RaftlogError | None, error: RaftlogError) -> RaftlogError:
    """Return the more informative error: a node's answer rather than a failure to reach another node."""
    if known is not None and error.code == "connection_lost" and known.code != "connection_lost":
        return known
    return error
