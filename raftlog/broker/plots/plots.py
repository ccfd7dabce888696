"""Plots of topics, groups and nodes, from the rings of all live nodes.

The same plot is read once, however many ask for it within one interval of ten seconds, and a bounded number of
different ones at a time: 100 open pages of one topic cost one read in each ring.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from metadata.view import ClusterView
from raftlog.api.plots import Plots, PlotSeries
from raftlog.broker.explain.facts import Unanswered
from raftlog.errors import RetriableError
from raftlog.model import BrokerId, TopicId
from raftlog.security.principals import Caller
from raftlog.system.futures import resolve

from .asking import PlotQuery, Values, read_own
from .rows import SLOT_MS, Span, summed
from .sampler import PlotSampler

MAX_ASKED = 64
"""The most other nodes that one plot asks."""
MAX_READING = 4
"""The most plots that are being read at once."""
MAX_WAITING = 64
"""The most plots that wait for that."""
MAX_KEPT = 64
"""The most plots that are kept for others who ask for the same."""


class AskPlot(Protocol):
    """`PlotAsker.ask`."""

    async def __call__(self, node: BrokerId, query: PlotQuery, caller: Caller | None) -> Values | Unanswered: ...


async def ask_no_other(node: BrokerId, query: PlotQuery, caller: Caller | None) -> Values | Unanswered:
    """Answer for every other node that this one has no connections for questions."""
    return Unanswered(node, "this node asks no other one")


class ClusterPlots:
    """The implementation of `http_api.service.plots.PlotService`. All calls are made on the broker's loop."""

    def __init__(self, node_id: BrokerId, view: ClusterView, sampler: PlotSampler, ask: AskPlot) -> None:
        self._node_id = node_id
        self._view = view
        self._sampler = sampler
        self._ask = ask
        self._turns = asyncio.Semaphore(MAX_READING)
        self._kept: dict[PlotQuery, asyncio.Task[Plots]] = {}
        """Plots of the newest interval; other ones are forgotten."""

    async def topic(self, topic_id: TopicId, minutes: int, caller: Caller | None) -> Plots:
        return await self._plots(PlotQuery(self._span(minutes), topic_id=topic_id), caller)

    async def group(self, group_id: str, minutes: int, caller: Caller | None) -> Plots:
        return await self._plots(PlotQuery(self._span(minutes), group=group_id), caller)

    async def nodes(self, minutes: int, caller: Caller | None) -> Plots:
        return await self._plots(PlotQuery(self._span(minutes)), caller)

    def _span(self, minutes: int) -> Span:
        return Span.of(minutes, self._sampler.now_ms())

    async def _plots(self, query: PlotQuery, caller: Caller | None) -> Plots:
        """Return the plots. Those who ask for the same share one reading; each of them was allowed to ask."""
        for old in [one for one in self._kept if one.span.end < query.span.end and one.span.step == query.span.step]:
            del self._kept[old]
        task = self._kept.get(query)
        if task is None or task.cancelled() or (task.done() and task.exception() is not None):
            waiting = sum(not one.done() for one in self._kept.values())
            if waiting >= MAX_READING + MAX_WAITING:
                raise RetriableError("overloaded", f"{waiting} plots are being read or wait for it, the maximum")
            task = self._kept[query] = asyncio.get_running_loop().create_task(self._read(query, caller))
            done = [one for one, kept in self._kept.items() if kept.done()]
            for old in done[: max(0, len(self._kept) - MAX_KEPT)]:
                del self._kept[old]
        # The task is that of all who wait: the first one may give up, the others not with it.
        return await asyncio.shield(task)

    async def _read(self, query: PlotQuery, caller: Caller | None) -> Plots:
        async with self._turns:
            others = [
                one.broker_id for one in self._view.brokers() if one.broker_id != self._node_id and not one.fenced
            ]
            answers = await asyncio.gather(
                self._read_own(query), *(self._ask(node, query, caller) for node in others[:MAX_ASKED])
            )
        found: dict[BrokerId, Values] = {}
        silent: dict[str, str] = {}
        for node, answer in zip([self._node_id, *others], answers, strict=False):
            if isinstance(answer, Unanswered):
                silent[str(node)] = answer.reason
            else:
                found[node] = answer
        span = query.span
        return Plots(span.first * SLOT_MS, span.step * SLOT_MS, span.points, _series(query, found), silent)

    async def _read_own(self, query: PlotQuery) -> Values | Unanswered:
        answered: asyncio.Future[Values | Unanswered] = asyncio.get_running_loop().create_future()

        def read(values: Values | None, error: BaseException | None) -> None:
            resolve(answered, values or [] if error is None else Unanswered(self._node_id, f"its ring: {error}"))

        read_own(self._sampler, query, read)
        return await answered


class NoPlots:
    """The plots of a node that keeps none."""

    async def topic(self, topic_id: TopicId, minutes: int, caller: Caller | None) -> Plots:
        return self._nothing(minutes)

    async def group(self, group_id: str, minutes: int, caller: Caller | None) -> Plots:
        return self._nothing(minutes)

    async def nodes(self, minutes: int, caller: Caller | None) -> Plots:
        return self._nothing(minutes)

    @staticmethod
    def _nothing(minutes: int) -> Plots:
        span = Span.of(minutes, 0)
        return Plots(0, span.step * SLOT_MS, span.points, [])


def _series(query: PlotQuery, found: dict[BrokerId, Values]) -> list[PlotSeries]:
    """Return sums over nodes of what is about a topic or group, and one series for each node of what is about nodes."""
    if query.topic_id or query.group:
        parts: list[Sequence[Sequence[float | None]]] = [
            [values[number] for values in found.values()] for number in range(len(query.series))
        ]
        return [PlotSeries(name, summed(part)) for name, part in zip(query.series, parts, strict=True)]
    return [
        PlotSeries(name, values[number], node)
        for number, name in enumerate(query.series)
        for node, values in sorted(found.items())
    ]
