"""Requests without answers (`acks=0`): a broker that refuses one says so, which ends nothing else."""

from __future__ import annotations

import asyncio

from raftlog import Producer
from raftlog.client.cluster.transport import REFUSED_PAUSE
from raftlog.wire import ErrorResponse, ProduceRequest, encode
from tests.support.client.fake_cluster import OK, FakeCluster, Fate


async def test_a_refusal_of_an_unanswered_request_keeps_the_connection() -> None:
    async with FakeCluster() as cluster, asyncio.timeout(20):
        topic = cluster.create_topic("t")
        node = cluster.nodes[1]

        def refuse_the_second(request: ProduceRequest) -> Fate:
            if len(node.produces) != 2:
                return OK
            (stream,) = node.streams()
            stream.send(encode(ErrorResponse(request.correlation_id, "overloaded", "too much is in flight")))
            return Fate(ignore=True)

        node.on_produce = refuse_the_second
        async with Producer(cluster.bootstrap, acks=0, linger_ms=0) as producer:
            streams, times = [], list[float]()
            for number in range(4):
                await producer.send_and_wait("t", b"%d" % number)
                await cluster.until(lambda number=number: len(node.produces) == number + 1)
                streams += node.streams()
                times.append(asyncio.get_running_loop().time())
        assert topic.partitions[0].values() == [b"0", b"2", b"3"]
        assert len(set(streams)) == 1
        assert times[2] - times[1] >= REFUSED_PAUSE - 0.05, "the producer slows down"
