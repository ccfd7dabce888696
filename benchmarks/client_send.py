"""Records per second of one producer: `send`, awaited sends and `send_many`, against a sink in this process.

The sink is a real HTTP/2 listener on the same event loop. It answers every produce request at once and stores nothing,
so a figure is the client's cost, including encoding and socket, plus the small cost of the sink. Values are distinct,
incompressible, of 100 bytes each, and are created before the clock starts. Every run ends with `flush`, so all of its
records are acknowledged. A loop of bare additions gives the machine's speed: on a noisy machine, compare ratios.

    python benchmarks/client_send.py [--seconds 2] [--batch-bytes 262144] [--best-of 5]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import time
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from raftlog import Producer
from raftlog.http2 import Http2Listener, Http2Stream
from raftlog.wire import ProducedPartition, ProduceRequest, ProduceResponse, decode_request, encode

VALUE_BYTES = 100
POOL = 100_000
TOPIC_ID = bytes(15) + b"\x01"
IN_FLIGHT = 20_000
"""Records in flight for the awaited kinds."""
TASKS = 5_000
"""Tasks for the kind in which each task has one record in flight."""

Way = Callable[[Producer, Sequence[bytes], int], Awaitable[None]]


class Sink:
    """A broker that acknowledges everything: `/v1/produce`, and the three API calls of a producer."""

    def __init__(self) -> None:
        self.records = 0
        self._offset = 0
        self._listener = Http2Listener({"/v1/produce": lambda stream: self})
        self._runner: web.AppRunner | None = None
        self.address = ""
        self._data = ""

    async def start(self) -> None:
        self._data = f"127.0.0.1:{await self._listener.start('127.0.0.1', 0)}"
        app = web.Application()
        app.router.add_get("/v1/cluster", self._cluster)
        app.router.add_get("/v1/topics/{topic}", self._topic)
        app.router.add_post("/v1/producers", self._producer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.address = f"127.0.0.1:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        await self._listener.close(0.0)
        if self._runner is not None:
            await self._runner.cleanup()

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        request, body = decode_request(message)
        assert isinstance(request, ProduceRequest)
        answers, start = [], 0
        for part in request.partitions:
            self.records += int.from_bytes(body[start + 57 : start + 61], "big")
            start += part.length
            answers.append(ProducedPartition(TOPIC_ID, part.partition, base_offset=self._offset))
            self._offset += 1
        stream.send(encode(ProduceResponse(request.correlation_id, answers)))

    def on_ended(self, stream: Http2Stream) -> None:
        stream.end()

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        pass

    async def _cluster(self, request: web.Request) -> web.Response:
        node = {"id": 1, "api": self.address, "data": self._data}
        return web.json_response({"cluster_id": "sink", "nodes": [node], "controller": 1})

    async def _topic(self, request: web.Request) -> web.Response:
        partitions = [{"partition": number, "leader": 1, "leader_epoch": 1} for number in range(6)]
        return web.json_response(
            {"name": "t", "id": TOPIC_ID.hex(), "partition_count": 6, "replication_factor": 1, "partitions": partitions}
        )

    async def _producer(self, request: web.Request) -> web.Response:
        return web.json_response({"producer_id": 1, "producer_epoch": 0})


async def send(producer: Producer, values: Sequence[bytes], rounds: int) -> None:
    """Call `send` for each record, and process answers now and then."""
    for _ in range(rounds):
        for start in range(0, len(values), 2000):
            for value in values[start : start + 2000]:
                producer.send("t", value)
            await producer.drain()


async def send_when_room(producer: Producer, values: Sequence[bytes], rounds: int) -> None:
    """Await one call for each record, which waits only for room."""
    for _ in range(rounds):
        for value in values:
            await producer.send_when_room("t", value)


async def awaited(producer: Producer, values: Sequence[bytes], rounds: int) -> None:
    """Await the delivery of each record's batch, with many records in flight."""
    for _ in range(rounds):
        deliveries = []
        for value in values:
            deliveries.append(await producer.send_when_room("t", value))
            if len(deliveries) >= IN_FLIGHT:
                for delivery in deliveries[: IN_FLIGHT // 2]:
                    await delivery
                del deliveries[: IN_FLIGHT // 2]
        for delivery in deliveries:
            await delivery


async def send_and_wait(producer: Producer, values: Sequence[bytes], rounds: int) -> None:
    """Await every record's own offset, with many records in flight and no tasks."""
    for _ in range(rounds):
        waiting = []
        for value in values:
            waiting.append(producer.send_and_wait("t", value))
            if len(waiting) >= IN_FLIGHT:
                for record in waiting[: IN_FLIGHT // 2]:
                    await record
                del waiting[: IN_FLIGHT // 2]
        for record in waiting:
            await record


async def send_and_wait_tasks(producer: Producer, values: Sequence[bytes], rounds: int) -> None:
    """Run tasks that each send a record, wait for its offset, and send the next."""

    async def one(mine: Sequence[bytes]) -> None:
        for _ in range(rounds):
            for value in mine:
                await producer.send_and_wait("t", value)

    await asyncio.gather(*(one(values[task::TASKS]) for task in range(TASKS)))


async def send_many(producer: Producer, values: Sequence[bytes], rounds: int) -> None:
    """Send lists of 10,000 values."""
    for _ in range(rounds):
        for start in range(0, len(values), 10_000):
            await producer.send_many("t", values[start : start + 10_000])


async def send_many_keys(producer: Producer, values: Sequence[bytes], rounds: int) -> None:
    """Send lists of values with a key each."""
    keys = [value[:12] for value in values]
    for _ in range(rounds):
        for start in range(0, len(values), 10_000):
            await producer.send_many("t", values[start : start + 10_000], keys=keys[start : start + 10_000])


async def send_many_arrow(producer: Producer, values: Sequence[bytes], rounds: int) -> None:
    """Send all values as pyarrow arrays."""
    import pyarrow as pa

    array = pa.array(values, pa.binary())
    for _ in range(rounds):
        await producer.send_many("t", array)


WAYS: dict[str, Way] = {
    "send": send,
    "send_when_room": send_when_room,
    "send_when_room, each delivery awaited": awaited,
    "send_and_wait, 20,000 in flight": send_and_wait,
    "send_and_wait, 5,000 tasks": send_and_wait_tasks,
    "send_many, lists": send_many,
    "send_many, lists with keys": send_many_keys,
    "send_many, pyarrow": send_many_arrow,
}


async def rate(way: Way, values: Sequence[bytes], batch_bytes: int, seconds: float) -> tuple[float, float]:
    """Return the records per second, all acknowledged and counted by the sink, and the microseconds of CPU per record,
    including the sink's."""
    sink = Sink()
    await sink.start()
    try:
        async with Producer(sink.address, batch_bytes=batch_bytes) as producer:
            await way(producer, values[:10_000], 1)
            await producer.flush()
            rounds = 1
            while True:
                before = sink.records
                gc.collect()
                start, cpu = time.perf_counter(), time.process_time()
                await way(producer, values, rounds)
                await producer.flush()
                elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
                count = rounds * len(values)
                assert sink.records - before == count, "records were lost or sent twice"
                if elapsed >= seconds / 2:
                    return count / elapsed, cpu / count * 1e6
                rounds = max(rounds + 1, int(rounds * seconds / elapsed))
    finally:
        await sink.close()


def calibration() -> float:
    """Return the seconds for a million bare additions."""
    start, total = time.perf_counter(), 0
    for number in range(1_000_000):
        total += number
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of each run in seconds")
    parser.add_argument("--batch-bytes", type=int, default=256 * 1024)
    parser.add_argument("--best-of", type=int, default=3)
    parser.add_argument("--only", help="run only the variants whose names contain this")
    options = parser.parse_args()
    values = [os.urandom(VALUE_BYTES) for _ in range(POOL)]
    gc.freeze()
    print(f"a million bare additions: {min(calibration() for _ in range(3)):.3f} s")
    for name, way in WAYS.items():
        if options.only is None or options.only in name:
            runs = [
                asyncio.run(rate(way, values, options.batch_bytes, options.seconds)) for _ in range(options.best_of)
            ]
            best, cpu = max(runs)
            print(f"{name:34} {best:>12,.0f} records/s   {cpu:5.2f} us CPU per record, including the sink", flush=True)


if __name__ == "__main__":
    main()
