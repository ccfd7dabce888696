"""A program that consumes, transforms and produces exactly once, as described in `docs/client.md`.

`python -P -m tests.support.clusters.transformer BOOTSTRAP SOURCE SINK GROUP NAME` continues at the group's offsets,
until there is nothing more to read. It prints a line for each transaction, so that a test can kill it at a chosen
moment.
"""

from __future__ import annotations

import asyncio
import sys

from raftlog import Consumer, Producer
from raftlog.errors import InvalidRequest

BATCH = 20


def transform(value: bytes) -> bytes:
    return value[::-1]


async def run(bootstrap: str, source: str, sink: str, group: str, name: str) -> None:
    """Run until all available records were handed out and are committed."""
    async with (
        Consumer.subscribe(
            bootstrap, group, [source], enable_auto_commit=False, auto_offset_reset="earliest",
            session_timeout_ms=1_000, heartbeat_interval_ms=100,
        ) as consumer,
        Producer(bootstrap, transactional_id=name, linger_ms=1, transaction_timeout_ms=10_000) as producer,
    ):  # fmt: skip
        while True:
            records = await consumer.poll(BATCH, timeout=0.5)
            if not records:
                if consumer.lag.keys() == set(consumer.assignment) and consumer.lag and not any(consumer.lag.values()):
                    return
                continue
            try:
                async with producer.transaction() as transaction:
                    for record in records:
                        assert record.value is not None
                        transaction.send(sink, transform(record.value), key=record.key)
                    transaction.send_offsets(consumer)
            except InvalidRequest as error:
                if error.code == "producer_fenced":
                    raise
                await consumer.seek_to_committed()
                continue
            print(len(records), flush=True)  # noqa: T201  the killing test counts these lines


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
