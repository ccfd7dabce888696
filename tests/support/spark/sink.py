"""A cluster in memory (`tests/support/client/fake_cluster.py`) for tests of Spark's sink.

It has blocks of producer ids by name, which commits and refusals retire, and positions that can be read.
"""

from __future__ import annotations

from urllib.parse import unquote

from aiohttp import web

from raftlog.model import ProducerEpoch, ProducerId
from raftlog.transactions import TransactionKey
from raftlog.wire import (
    CommitRequest,
    OpenBlockRequest,
    RetireBlockRequest,
    TransactionRequest,
    TransactionResponse,
)
from tests.support.client.fake_cluster import FakeCluster, FakeNode
from tests.support.client.fake_transactions import FakeTransactions


class SinkCluster(FakeCluster):
    """`async with SinkCluster() as cluster`."""

    def __init__(self, nodes: int = 1) -> None:
        super().__init__(nodes)
        self.nodes = {number: SinkNode(self, number) for number in range(1, nodes + 1)}
        self.blocks = BlockTransactions(self)
        self.transactions = self.blocks

    async def __aenter__(self) -> SinkCluster:
        await super().__aenter__()
        return self

    @property
    def positions(self) -> dict[str, int]:
        return self.blocks.positions


class BlockTransactions(FakeTransactions):
    """Transactions with named blocks."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(cluster)
        self.named: dict[str, range] = {}
        """Open blocks."""
        self.retired: list[str] = []

    def change(self, request: TransactionRequest) -> TransactionResponse:
        if isinstance(request, RetireBlockRequest):
            self.retire(request.name)
            return TransactionResponse(request.correlation_id)
        try:
            return super().change(request)
        finally:
            if isinstance(request, CommitRequest):
                self.retire(request.block)

    def open_block(self, request: OpenBlockRequest) -> TransactionResponse:
        if not request.name:
            return super().open_block(request)
        if request.name not in self.named:
            first = self.cluster.producer_ids + 1
            self.cluster.producer_ids += request.count
            self.named[request.name] = range(first, first + request.count)
        block = self.named[request.name]
        key = TransactionKey(ProducerId(block[0]), ProducerEpoch(0))
        return TransactionResponse(request.correlation_id, (key,), len(block))

    def retire(self, name: str) -> None:
        """Abort the undecided transactions of the block, including ids that were granted and not used yet."""
        block = self.named.pop(name, None)
        if block is None:
            return
        self.retired.append(name)
        for producer_id in block:
            if (producer_id, 0) not in self.ended:
                self._end((producer_id, 0), "aborted")


class SinkNode(FakeNode):
    """One node of the cluster."""

    async def _route(self, request: web.Request) -> web.Response:
        cluster = self.cluster
        assert isinstance(cluster, SinkCluster)
        path = request.rel_url.raw_path.removeprefix("/v1/").split("/")
        known = cluster.blocks
        if (request.method, path[0]) == ("GET", "positions"):
            return web.json_response({"name": unquote(path[1]), "value": known.positions.get(unquote(path[1]))})
        return await super()._route(request)
