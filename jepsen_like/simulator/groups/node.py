"""A simulated node of the quorum that also serves consumer groups.

`Groups`, its batches, its coordinator and the view are the product's. Here they are wired to the simulated node: to its
heap, clock, quorum and network.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import cast

from jepsen_like.simulator.brokers.node import TraceLogger
from jepsen_like.simulator.quorum.node import QuorumSimNode
from jepsen_like.simulator.world.heap import SimScheduler, SimWorker
from jepsen_like.simulator.world.violation import Violation
from metadata.commands.envelope import Command
from metadata.quorum.links import QuorumLinks
from metadata.quorum.port import Fate, MetadataQuorum, Outcome
from metadata.records.events import MetadataEvent
from metadata.view import ClusterView
from raftlog.broker.changes.group_batches import GroupBatches
from raftlog.broker.changes.groups import Groups
from raftlog.model import BrokerId, QuorumStatus
from raftlog.version import FEATURE_LEVEL

from .heartbeat_links import FORWARD, CoordinatorListener, HeartbeatLinks

CATCH_UP_SECONDS = 1.5
WEEK_MS = 7 * 86_400_000
"""Retention of offsets, as in production: nothing that a run commits becomes so old."""


class GroupSimNode(QuorumSimNode):
    """See `QuorumSimNode`. It is the groups' `MetadataQuorum`, as far as they use one."""

    feature_level = FEATURE_LEVEL
    groups: Groups
    """Those of the running process."""

    def start(self) -> None:
        self.view = ClusterView()
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        """A heap of (index that the view must reach, order of the calls, callback)."""
        self._asked = 0
        super().start()
        assert self.life is not None
        scheduler = SimScheduler(self.heap, self.life)
        quorum = cast("MetadataQuorum", self)
        batches = GroupBatches(quorum, self._when_view_reaches, lambda: self.view.feature_level, self.clock, scheduler)
        self.groups = Groups(
            self.node_id,
            self.view,
            quorum,
            batches,
            HeartbeatLinks(self.node_id, self.life, self.heap, self.network),
            self._catch_up,
            self.clock,
            scheduler,
            SimWorker(self.heap, self.life, self.random, lambda: self.random.uniform(0.0001, 0.003)),
            TraceLogger(self._trace, int(self.node_id), _violated),
            offsets_retention_ms=WEEK_MS,
        )
        self.network.listen(self.node_id, FORWARD, self.life, CoordinatorListener(self.groups.hear))

    # --- The quorum --------------------------------------------------------------------------------------------------

    def propose(self, command: Command, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        assert self.quorum is not None
        self.quorum.propose(command, done, timeout=timeout)
        self.tick_soon()

    def read_barrier(self, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        assert self.quorum is not None
        self.quorum.read_barrier(done, timeout=timeout)
        self.tick_soon()

    def status(self) -> QuorumStatus:
        assert self.quorum is not None
        return self.quorum.status()

    def _led_by(self, links: QuorumLinks, leader: BrokerId) -> None:
        super()._led_by(links, leader)
        self.view.controller = leader
        self.groups.wake()

    def _on_events(self, index: int, events: Sequence[MetadataEvent]) -> None:
        self.view.on_events(index, events)
        super()._on_events(index, events)
        while self._waiting and self._waiting[0][0] <= index:
            heapq.heappop(self._waiting)[2]()

    def _when_view_reaches(self, index: int, callback: Callable[[], None]) -> None:
        if index <= self.view.index:
            callback()
        else:
            self._asked += 1
            heapq.heappush(self._waiting, (index, self._asked, callback))

    def _catch_up(self, done: Callable[[bool], None]) -> None:
        assert self.quorum is not None

        def answered(outcome: Outcome) -> None:
            if outcome.fate is Fate.APPLIED:
                self._when_view_reaches(outcome.index, lambda: done(True))
            else:
                done(False)

        self.quorum.read_barrier(answered, timeout=CATCH_UP_SECONDS)
        self.tick_soon()


def _violated(found: str) -> None:
    raise Violation(found)
