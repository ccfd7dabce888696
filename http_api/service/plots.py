"""The broker's port for plots. `raftlog/broker/plots/plots.py` implements it."""

from __future__ import annotations

from typing import Protocol

from raftlog.api.plots import Plots
from raftlog.model import TopicId
from raftlog.security.principals import Caller


class PlotService(Protocol):
    """The last day of the main numbers of the cluster, from all live nodes, which are asked in the caller's name, for
    at most a few seconds. Each call raises `RetriableError` (`overloaded`) if too many plots are being read."""

    async def topic(self, topic_id: TopicId, minutes: int, caller: Caller | None) -> Plots:
        """Return throughput and size of a topic over the last minutes."""
        ...

    async def group(self, group_id: str, minutes: int, caller: Caller | None) -> Plots:
        """Return the lag of a consumer group over all partitions."""
        ...

    async def nodes(self, minutes: int, caller: Caller | None) -> Plots:
        """Return the main numbers of each node."""
        ...
