"""The requests of programs that use HTTP consumers: the API's handlers, called by a node for a client that may vanish.

A read asks for positions, reads, and answers. The answer arrives as a whole and the node learns it; or it is cut; or it
arrives, and the node does not learn that; or it takes longer than the lease of the positions. The settling of the lease
is the product's (`http_api/rest_proxy/v2/consumer_reads.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
from multidict import CIMultiDict, MultiDict

from http_api.rest_proxy.errors import RestRefusal
from http_api.rest_proxy.v2 import consumer_reads, consumers
from http_api.rest_proxy.v2.media_types import V2_TYPE
from http_api.service.instances import Lease
from http_api.web.call import Call
from http_api.web.query import Query
from raftlog.errors import RaftlogError
from raftlog.model import Offset, TopicPartition
from raftlog.security.principals import ANONYMOUS, Caller

from .node import EMPTY, ConsumersSimNode
from .truth import ConsumersTruth

GROUP = "readers"
PATTERN = "register-.*"
WAITS_MS = (0, 50, 300)
RECORDS_MAX = 8
FATES = (("whole", 0.55), ("cut", 0.2), ("not learned", 0.15), ("slow", 0.1))
QUICK_SECONDS = (0.0005, 0.05)
SLOW_SECONDS = (2.0, 12.0)
"""Longer than a lease, too."""
VANISHES = 0.1
"""Share of the programs that close their connection while they wait for an answer."""


class ConsumerRequest(dict[Any, Any]):
    """A request with the part of aiohttp's interface that these handlers use."""

    charset = None
    scheme = "http"
    host = "simulated"
    protocol = None
    raw_path = "/"

    def __init__(self, name: str, document: Any) -> None:
        super().__init__()
        body = b"" if document is None else msgspec.json.encode(document)
        self.match_info = {"group": GROUP, "instance": name}
        self.query: MultiDict[str] = MultiDict()
        self.headers = CIMultiDict({"Content-Type": V2_TYPE} if body else {})
        self.content_length = len(body)
        self.content = SimpleNamespace(is_eof=lambda: True, exception=lambda: None, read_nowait=lambda: body)
        self.is_closed = False
        """Whether the client has closed the connection."""
        self.transport = SimpleNamespace(is_closing=lambda: self.is_closed)

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


class Programs:
    """The clients of one world."""

    def __init__(self, truth: ConsumersTruth, rng: random.Random) -> None:
        self._truth = truth
        self._rng = rng
        self._offset_reset = rng.choice(("earliest", "earliest", "latest"))
        self.got: dict[str, dict[TopicPartition, int]] = {}
        """Consumer → partition → the last record that a program has got by it."""
        self.counts: dict[str, int] = {}
        self.calm = False
        """Whether every answer arrives, and in time."""

    async def request(self, node: ConsumersSimNode, kind: str, name: str) -> None:
        """Carry out one request at a node."""
        if not node.knows_cluster:
            self._count("not ready")
            return
        asked = self._truth.asked
        try:
            await self._of(kind)(node, name)
        except RestRefusal as refused:
            self._count(f"{kind} refused {refused.http_status}")
        except RaftlogError as error:
            self._count(f"{kind} {error.code}")
            if error.code == "unknown_instance":
                self._truth.not_found(name, asked)
        except ConnectionResetError:
            self._count(f"{kind} vanished")
        else:
            self._count(kind)

    def _of(self, kind: str) -> Callable[[ConsumersSimNode, str], Awaitable[None]]:
        return {
            "consumer_opens": self._open,
            "consumer_reads": self._read,
            "consumer_commits": self._commit,
            "consumer_commits_by_number": self._commit_by_number,
            "consumer_is_deleted": self._delete,
        }[kind]

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _call(self, node: ConsumersSimNode, name: str, document: Any = None) -> Call:
        request: Any = ConsumerRequest(name, document)
        if self._rng.random() < VANISHES:
            node.loop.call_later(self._rng.uniform(*QUICK_SECONDS), setattr, request, "is_closed", True)
        return Call(request, node.context, Query(request), Caller(ANONYMOUS, "sim"), "", "", lambda call: None, 0)

    # --- Requests ----------------------------------------------------------------------------------------------------

    async def _open(self, node: ConsumersSimNode, name: str) -> None:
        """Create the consumer, or take it over, and subscribe."""
        settings = {
            "name": name,
            "auto.offset.reset": self._offset_reset,
            "auto.commit.enable": name.endswith("2"),
            "consumer.request.timeout.ms": 300,
        }
        await consumers.create_consumer(self._call(node, name, settings))
        self.got.pop(name, None)
        await consumers.subscribe(self._call(node, name, {"topic_pattern": PATTERN}))

    async def _delete(self, node: ConsumersSimNode, name: str) -> None:
        await consumers.delete_consumer(self._call(node, name))

    async def _commit(self, node: ConsumersSimNode, name: str) -> None:
        """Commit with an empty body."""
        EMPTY.set(True)
        await consumers.commit_offsets(self._call(node, name))
        self._truth.counts["empty_commits"] += 1

    async def _commit_by_number(self, node: ConsumersSimNode, name: str) -> None:
        """Commit the last records that a program has got, of topics that were not recreated: the API knows names."""
        offsets = []
        for partition, last in self.got.get(name, {}).items():
            topic = node.view.topic_by_id(partition.topic_id)
            if topic is not None:
                offsets.append({"topic": topic.name, "partition": partition.partition, "offset": last})
        if offsets:
            await consumers.commit_offsets(self._call(node, name, {"offsets": offsets}))

    async def _read(self, node: ConsumersSimNode, name: str) -> None:
        """As `consumer_reads.read_records`, of which the fetch is missing."""
        call = self._call(node, name)
        await consumers.known_instance_of(call)
        wait_ms = self._rng.choice(WAITS_MS)
        lease = await node.instances.lend(GROUP, name, wait_ms)
        reading = SimulatedReading(call, lease, self._truth, self._rng, self._taken, calm=self.calm)
        try:
            body = await reading.read(wait_ms)
            await reading.send(body, V2_TYPE)
        finally:
            await reading.settle()

    # --- Answers -----------------------------------------------------------------------------------------------------

    def _taken(self, lease: Lease, ends: Mapping[TopicPartition, Offset]) -> None:
        """A whole answer is at its client."""
        self._truth.delivered(lease, ends)
        self.got.setdefault(lease.record.name, {}).update({partition: end - 1 for partition, end in ends.items()})


class SimulatedReading(consumer_reads.Reading):
    """A read of numbers, whose answer may be cut."""

    def __init__(
        self,
        call: Call,
        lease: Lease,
        truth: ConsumersTruth,
        rng: random.Random,
        taken: Callable[[Lease, Mapping[TopicPartition, Offset]], None],
        *,
        calm: bool,
    ) -> None:
        """`taken` is called when a whole answer is at its client. `calm`: every answer arrives."""
        super().__init__(call, lease, RECORDS_MAX)
        self._truth = truth
        self._rng = rng
        self._taken = taken
        self._calm = calm

    async def read(self, wait_ms: int) -> bytes:
        await asyncio.sleep(self._rng.uniform(0.0, wait_ms / 1000))
        for one in self.lease.partitions:
            end = self._truth.ends.get(one.partition, 0)
            if self._calm:  # Everything, so that how much is left says nothing about progress.
                if end > one.offset:
                    self.ends[one.partition] = Offset(end)
            elif end > one.offset and self._rng.random() < 0.8:
                self.ends[one.partition] = Offset(min(end, one.offset + self._rng.randint(1, RECORDS_MAX)))
        return b"[]"

    async def send(self, body: bytes, media_type: str) -> Any:
        fate = self._rng.choices([name for name, _ in FATES], [share for _, share in FATES])[0]
        fate = "whole" if self._calm else fate
        await asyncio.sleep(self._rng.uniform(*(SLOW_SECONDS if fate == "slow" else QUICK_SECONDS)))
        self.written = True
        if fate == "cut":
            self._truth.counts["not_delivered"] += 1
            raise ConnectionResetError("cut")
        if self.ends:
            self._taken(self.lease, self.ends)
        await asyncio.sleep(self._rng.uniform(*QUICK_SECONDS))
        self.delivered = bool(self.ends) and fate != "not learned"
        return None
