"""A cluster in memory (`fake_cluster.py`) as a sink of Spark's needs it: blocks of producer ids by name, which commits
and refusals retire, and positions that can be read.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import msgspec
from aiohttp import web

from .fake_cluster import FakeCluster, FakeNode
from .fake_transactions import FakeTransactions


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
    """With named blocks."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(cluster)
        self.named: dict[str, range] = {}
        """Those that are open."""
        self.retired: list[str] = []

    def open_block(self, name: str, count: int) -> range:
        if name not in self.named:
            first = self.cluster.producer_ids + 1
            self.cluster.producer_ids += count
            self.named[name] = range(first, first + count)
        return self.named[name]

    def retire(self, name: str) -> None:
        """What is undecided in it is aborted; ids that were handed out and not used yet, too."""
        block = self.named.pop(name, None)
        if block is None:
            return
        self.retired.append(name)
        for producer_id in block:
            if (producer_id, 0) not in self.ended:
                self._end((producer_id, 0), "aborted")


class SinkNode(FakeNode):
    """One node of it."""

    async def _route(self, request: web.Request) -> web.Response:
        cluster = self.cluster
        assert isinstance(cluster, SinkCluster)
        path = request.rel_url.raw_path.removeprefix("/v1/").split("/")
        known = cluster.blocks
        if (request.method, path[0]) == ("GET", "positions"):
            return web.json_response({"value": known.positions.get(unquote(path[1]))})
        if (request.method, path[:2]) == ("DELETE", ["transactions", "blocks"]):
            known.retire(unquote(path[2]))
            return web.Response(status=204)
        if (request.method, path) == ("POST", ["transactions", "blocks"]):
            asked: Any = msgspec.json.decode(await request.read())
            if asked.get("name"):
                block = known.open_block(asked["name"], asked["count"])
                return web.json_response({"first_producer_id": block[0], "count": len(block)})
        if (request.method, path) == ("POST", ["transactions", "commit"]):
            body: Any = msgspec.json.decode(await request.read())
            try:
                return await super()._route(request)
            finally:
                if "commit" not in known.refuse:
                    known.retire(body["block"])
        return await super()._route(request)
