"""A simulated node of the quorum that owns HTTP consumers and serves them to any client.

`InstanceOwner`, `HttpInstances`, `OwnerLinks`, their messages and the handlers of the API are the product's. They run
on an event loop of virtual time, and their connections are links of the world's network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec

from http_api.service.instances import Lease
from http_api.web.context import ApiContext
from http_api.web.hosts import HostPolicy
from http_api.web.limits import Limits
from jepsen_like.simulator.brokers.node import TraceLogger
from jepsen_like.simulator.groups.node import GroupSimNode
from jepsen_like.simulator.library.loop import VirtualLoop
from jepsen_like.simulator.library.network import DATA, REACHES, DataListener, Reach, connect
from jepsen_like.simulator.world.violation import Violation
from metadata.quorum.port import Outcome
from raftlog.broker.changes.groups import Groups
from raftlog.broker.instances import links
from raftlog.broker.instances.instances import HttpInstances
from raftlog.broker.instances.links import OwnerLinks, instances_acceptor
from raftlog.broker.instances.messages import INSTANCES_PATH, Answer, Ask, Lend
from raftlog.broker.instances.owner import InstanceOwner
from raftlog.broker.security.access.request_access import OpenAccess
from raftlog.errors import RaftlogError
from raftlog.model import NO_INCARNATION, BrokerId, Endpoint, Offset, TopicId, TopicPartition
from raftlog.ports import Answer as Callback
from raftlog.system.futures import answer_of
from raftlog.wire import TIMESTAMP_LATEST, CommitOffsetsRequest, OffsetsRequest

from .truth import ConsumersTruth

EMPTY: ContextVar[bool] = ContextVar("EMPTY", default=False)
"""Whether the task carries out a commit with an empty body."""
NEVER_EXPIRES_S = 1e9
"""Consumers do not expire: a run is shorter than any time for that, but clocks leap."""


class ConsumersSimNode(GroupSimNode):
    """See `GroupSimNode`."""

    loop: VirtualLoop
    """That of the running process."""
    owner: WatchedOwner
    instances: WatchedInstances
    context: ApiContext

    def __init__(self, *of_node: Any, **more: Any) -> None:
        super().__init__(*of_node, **more)
        self.truth: ConsumersTruth
        """Set by the world before the first start."""

    def start(self) -> None:
        super().start()
        assert self.life is not None
        loop = self.loop = WatchedLoop(self.heap, self.life, self._task_failed)  # type: ignore[abstract]
        REACHES[loop] = Reach(self.network, int(self.node_id))
        with loop.entered():
            self.owner = WatchedOwner(
                self.truth,
                self.node_id,
                self.view,
                self.groups,
                EndsOnly(self.truth),
                lambda: self.incarnation,
                self._caught_up,
                self.clock,
                TraceLogger(self._trace, int(self.node_id), _violated),
                timeout_s=NEVER_EXPIRES_S,
            )
            self.instances = WatchedInstances(
                self.truth,
                self.node_id,
                self.view,
                self.groups,
                self.owner,
                OwnerLinks(self._data_address),
                lambda: self.incarnation,
                self._caught_up,
                self.clock,
            )
            service = SimpleNamespace(
                view=self.view,
                instances=self.instances,
                groups=CheckedGroups(self.groups, self.truth),
                access=OpenAccess(),
                catch_up=self._caught_up,
            )
            self.context = ApiContext(service, HostPolicy.of((), ()), Limits(), self.clock.wall_ms)
        acceptors = {INSTANCES_PATH: instances_acceptor(self.owner.serve)}
        self.network.listen(self.node_id, DATA, self.life, DataListener(acceptors))

    @property
    def knows_cluster(self) -> bool:
        """Whether the API answers: the view shows this process's own registration."""
        record = self.view.broker(self.node_id)
        return self.running and record is not None and record.incarnation == self.incarnation != NO_INCARNATION

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something in the running process, in an event of its life."""
        self.loop.create_task(work)

    def _registered(self, life: Any, outcome: Outcome) -> None:
        had = self.incarnation
        super()._registered(life, outcome)
        if life.alive and self.incarnation != had:
            self.owner.start()

    async def _caught_up(self) -> bool:
        return await answer_of(self._catch_up)

    def _data_address(self, peer: BrokerId) -> Endpoint | None:
        record = self.view.broker(peer)
        return None if record is None else record.data

    def _task_failed(self, error: BaseException) -> None:
        """Raise the error outside all product code, so nothing catches it."""

        def raise_it() -> None:
            raise error

        self.heap.schedule(0.0, raise_it, self.life)


class WatchedLoop(VirtualLoop):
    """A loop that reports the exceptions of tasks too, unless they are the product's own errors."""

    def create_task(self, coro: Any, **more: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **more)
        task.add_done_callback(self._look)
        return task

    def _look(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, RaftlogError | OSError):
            self.failed(error)


class WatchedOwner(InstanceOwner):
    """Reports every lease."""

    def __init__(self, truth: ConsumersTruth, node: BrokerId, *of_owner: Any, **more: Any) -> None:
        super().__init__(node, *of_owner, **more)
        self._truth = truth
        self._node = int(node)

    async def serve(self, question: Ask) -> Answer:
        answer = await super().serve(question)
        if isinstance(question, Lend):
            self._truth.lent_by(self._node, question.name, question.epoch)
        return answer


class WatchedInstances(HttpInstances):
    """Reports leases and confirmations."""

    def __init__(self, truth: ConsumersTruth, *of_instances: Any) -> None:
        super().__init__(*of_instances)
        self._truth = truth

    async def lend(self, group_id: str, name: str, wait_ms: int) -> Lease:
        lease = await super().lend(group_id, name, wait_ms)
        self._truth.lent(lease)
        return lease

    async def settle(self, lease: Lease, delivered: Mapping[TopicPartition, Offset]) -> None:
        self._truth.confirms(lease, delivered.items())
        await super().settle(lease, delivered)


class CheckedGroups:
    """The commits of the API's handlers, on their way to the product's groups."""

    def __init__(self, groups: Groups, truth: ConsumersTruth) -> None:
        self._groups = groups
        self._truth = truth

    def commit(self, request: CommitOffsetsRequest, answer: Callback[int], *, principal: str = "") -> None:
        name, epoch = request.member_id, request.incarnation
        if EMPTY.get():
            offsets = [(TopicPartition(TopicId(one.topic_id), one.partition), one.offset) for one in request.offsets]
            self._truth.commits_delivered(name, epoch, offsets)
        token = self._truth.token(name, epoch)
        named = [msgspec.structs.replace(one, metadata=token) for one in request.offsets]
        self._groups.commit(msgspec.structs.replace(request, offsets=named), answer, principal=principal)


class EndsOnly:
    """The partitions: they have an end, and nothing before their first record was deleted."""

    def __init__(self, truth: ConsumersTruth) -> None:
        self._truth = truth

    async def offsets(self, request: OffsetsRequest) -> Any:
        found = []
        for query in request.partitions:
            partition = TopicPartition(TopicId(query.topic_id), query.partition)
            offset = self._truth.latest(partition) if query.timestamp_ms == TIMESTAMP_LATEST else 0
            found.append(SimpleNamespace(error="", detail="", leader=-1, offset=offset))
        return SimpleNamespace(partitions=found)


@contextmanager
def virtual_links() -> Iterator[None]:
    """Make the owners' links connections of the simulated network, inside the `with` block."""
    with mock.patch.object(links, "connect", connect):
        try:
            yield
        finally:
            REACHES.clear()


def _violated(found: str) -> None:
    raise Violation(found)
