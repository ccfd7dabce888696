"""A user's program for the type checker: `mypy` accepts it, and finds every line that is marked as wrong."""

from __future__ import annotations

import raftlog.sync
from raftlog.client import Consumer, GroupConsumer, Producer, ProducerSettings


async def asyncio_program() -> None:
    producer = Producer("localhost:9640", linger_ms=5, settings=ProducerSettings(acks=1))
    producer.send("t", b"value", key=b"key")
    producer.send("t", "text")  # type: ignore[arg-type]
    Producer("localhost:9640", linger=5)  # type: ignore[call-arg]
    Producer("localhost:9640", compression=5)  # type: ignore[arg-type]
    await producer.send_when_room("t", b"value", headers={"name": b"content"})
    await producer.send_and_wait("t", 5)  # type: ignore[arg-type]
    Consumer("localhost:9640", "t", start="latest", prefetch_bytes=1 << 20, topic_id="0" * 32)
    Consumer("localhost:9640", "t", linger_ms=5)  # type: ignore[call-arg]
    member: GroupConsumer = Consumer.subscribe("localhost:9640", "g", ["t"], auto_offset_reset="earliest")
    Consumer.subscribe("localhost:9640", "g", ["t"], auto_offset_reset=5)  # type: ignore[arg-type]
    topics: list[str] = [record.topic for record in await member.poll()]
    await member.commit(topics)  # type: ignore[arg-type]


def blocking_program() -> None:
    with raftlog.sync.Producer("localhost:9640", linger_ms=5) as producer:
        offset: int = producer.send("t", b"value", key=b"key").result(timeout=5.0).offset
        producer.send("t", offset)  # type: ignore[arg-type]
        producer.drain()  # type: ignore[attr-defined]
        raftlog.sync.Producer("localhost:9640", linger=5)  # type: ignore[call-arg]
        with producer.transaction(wait="visible") as transaction:
            transaction.send_offsets(raftlog.sync.GroupConsumer("localhost:9640", "g", ["t"]))
            transaction.commit(wait="soon")  # type: ignore[arg-type]
    with raftlog.sync.Consumer("localhost:9640", "t") as consumer:
        for record in consumer:
            offset = record.offset
        for batch in consumer.batches():
            offset = batch.end_offset
        offset = consumer.positions[0]
        consumer.seek("t", 5)  # type: ignore[arg-type]
    with raftlog.sync.Consumer.subscribe("localhost:9640", "g", pattern="t.*", instance_id="one") as member:
        member.commit(dict.fromkeys(member.assignment, 5), timeout=1.0)
        for record in member:
            offset = record.offset
    with raftlog.sync.Admin("localhost:9640") as admin:
        admin.create_topic("t", partitions="1")  # type: ignore[arg-type]
        output = admin.describe_transaction("t")
    raftlog.sync.commit_together([transaction], positions={"p": (0, 1)}, block="b", wait="visible")
    raftlog.sync.commit_together([transaction], position={"p": (0, 1)})  # type: ignore[call-arg]
    raftlog.sync.commit_together([output])  # type: ignore[list-item]
