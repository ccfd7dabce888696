"""A cluster in memory (`tests/support/client/fake_cluster.py`) that also answers a Spark driver's API requests: topics
by pattern, long polls, and commits to groups.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from raftlog.patterns import full_matcher
from raftlog.records.batch import encode
from raftlog.wire import (
    CONTENT_TYPE,
    FetchRequest,
    FetchResponse,
    FoundOffset,
    OffsetsResponse,
    decode_request,
    decode_response,
)
from raftlog.wire import encode as encode_message
from spark_source.reading.options import SourceOptions, parse
from tests.support.client.fake_cluster import FakeCluster, FakeNode, FakePartition, FakeTopic


class SparkCluster(FakeCluster):
    """`async with SparkCluster() as cluster`."""

    def __init__(self, nodes: int = 1) -> None:
        super().__init__(nodes)
        self.nodes = {number: SparkNode(self, number) for number in range(1, nodes + 1)}
        self.commits: list[dict[str, Any]] = []
        """Bodies of commits to groups."""
        self.group_problem: str | None = None
        """The error of commits."""
        self.leaderless: dict[int, int] = {}
        """Partition → the number of requests about its offsets that get no answer."""

    def options(self, *, streaming: bool = True, **options: str) -> SourceOptions:
        """The options of a query that reads this cluster."""
        given = {"raftlog.bootstrap.servers": self.bootstrap, **options}
        return parse(given, streaming=streaming)

    @property
    def calls(self) -> list[str]:
        """The requests to the nodes' APIs, node after node."""
        return [call for node in self.nodes.values() for call in node.api_calls]


class SparkNode(FakeNode):
    """One node of the cluster."""

    def __init__(self, cluster: FakeCluster, number: int) -> None:
        super().__init__(cluster, number)
        self.unseen: set[str] = set()
        """Topics that it does not list, because its view lags."""
        self.partitions_known = 1_000
        """The partitions that it does not list, by topic."""

    def describe(self, topic: FakeTopic) -> dict[str, Any]:
        known = super().describe(topic)
        partitions = known["partitions"][: self.partitions_known]
        return {**known, "partition_count": len(partitions), "partitions": partitions}

    async def _route(self, request: web.Request) -> web.Response:
        path = request.path.removeprefix("/v1/").split("/")
        cluster = self.cluster
        assert isinstance(cluster, SparkCluster)
        if (request.method, path) == ("GET", ["topics"]):
            fits = full_matcher(request.query.get("pattern", ".*"))
            known = {**cluster.topics, **self.behind}
            topics = [self.describe(topic) for name, topic in known.items() if fits(name) and name not in self.unseen]
            return web.json_response({"topics": topics})
        if (request.method, path) == ("POST", ["fetch"]):
            return await self._poll(await request.read())
        if request.method == "POST" and path[0] == "groups" and path[2:] == ["offsets"]:
            if cluster.group_problem is not None:
                body = {"code": cluster.group_problem, "detail": "says the test"}
                return web.json_response(body, status=409)
            cluster.commits.append({"group": path[1], **msgspec.json.decode(await request.read(), type=dict[str, Any])})
            return web.json_response({})
        return await super()._route(request)

    def _offsets(self, message: bytes) -> web.Response:
        cluster = self.cluster
        assert isinstance(cluster, SparkCluster)
        response, _ = decode_response(super()._offsets(message).body)  # type: ignore[arg-type]
        assert isinstance(response, OffsetsResponse)
        left = {partition: times for partition, times in cluster.leaderless.items() if times > 0}
        answers = [
            FoundOffset(one.topic_id, one.partition, "leader_not_available", "says the test")
            if one.partition in left
            else one
            for one in response.partitions
        ]
        answers = [
            one
            if one.partition < self.partitions_known
            else FoundOffset(one.topic_id, one.partition, "unknown_partition", "says the test")
            for one in answers
        ]
        cluster.leaderless.update({partition: times - 1 for partition, times in left.items()})
        parts = encode_message(OffsetsResponse(response.correlation_id, answers))
        return web.Response(body=b"".join(map(bytes, parts)), content_type=CONTENT_TYPE)  # type: ignore[arg-type]

    async def _poll(self, message: bytes) -> web.Response:
        request, _ = decode_request(message)
        assert isinstance(request, FetchRequest)
        deadline = asyncio.get_running_loop().time() + request.max_wait_ms / 1000
        while True:
            changed = self.cluster.changed
            answers, body = self._read(request, "")
            late = asyncio.get_running_loop().time() >= deadline
            if body or late or any(answer.error for answer in answers):
                break
            try:
                async with asyncio.timeout_at(deadline):
                    await changed.wait()
            except TimeoutError:
                continue
        parts = encode_message(FetchResponse(request.correlation_id, answers), body)
        return web.Response(body=b"".join(map(bytes, parts)), content_type=CONTENT_TYPE)  # type: ignore[arg-type]


def fill(partition: FakePartition, count: int, *, batch: int = 10, timestamp_ms: int = 1_000, **settings: Any) -> None:
    """Produce this number of records `v<offset>`, in batches."""
    while count > 0:
        first, size = partition.end_offset, min(batch, count)
        values = [b"v%d" % offset for offset in range(first, first + size)]
        keys = [b"k%d" % offset for offset in range(first, first + size)]
        assert not isinstance(
            partition.append(encode(values, keys=keys, base_timestamp_ms=timestamp_ms, **settings)), str
        )
        count -= size
