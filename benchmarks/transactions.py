"""The cost of a transaction: transactions per second, and the time added to waiting for the acknowledgements alone.

    python benchmarks/transactions.py                          # 30 s per row
    python benchmarks/transactions.py --seconds 2 --runs 1     # a short trial

Each client repeatedly sends 10 records over 3 partitions and waits: `acks` for the acknowledgements, without a
transaction; `decided` for the commit as well; `visible` until every partition shows it. Clients are tasks of one
process, each with a producer of its own, named or (`unnamed`) with an id for each transaction. Afterwards a second
consumer counts the committed records; without the right number, there is no result.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from measuring import Cores, a_cluster, console, machine, middle, wait_in_sync
from rich.table import Table

from raftlog import Admin, Consumer, Producer

PARTITIONS = 3
RECORDS = 10
CLIENTS = (1, 32)
KINDS = ("acks", "decided", "visible", "unnamed")
WARM_UP = 5


@dataclass
class Row:
    """One kind with a number of clients."""

    kind: str
    clients: int
    seconds: list[float] = field(default_factory=list)
    """The duration of each round."""
    took: float = 0.0
    sent: int = 0
    """Records, including those of the warm-up."""

    @property
    def rate(self) -> float:
        return len(self.seconds) / self.took

    def percentile(self, share: float) -> float:
        """Milliseconds."""
        ordered = sorted(self.seconds)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def client(row: Row, topic: str, producer: Producer, values: Sequence[bytes], until: float | None) -> None:
    """Run rounds until that time, or (None) a few that do not count."""
    done = 0
    while (until is None and done < WARM_UP) or (until is not None and time.perf_counter() < until):
        started = time.perf_counter()
        if row.kind == "acks":
            sent = [producer.send_and_wait(topic, v, partition=i % PARTITIONS) for i, v in enumerate(values)]
            for record in sent:
                await record
        else:
            async with producer.transaction(wait="visible" if row.kind == "visible" else "decided") as transaction:
                for number, value in enumerate(values):
                    transaction.send(topic, value, partition=number % PARTITIONS)
        done += 1
        row.sent += len(values)
        if until is not None:
            row.seconds.append(time.perf_counter() - started)


async def measure(bootstrap: str, kind: str, clients: int, seconds: float, run: int) -> Row:
    row = Row(kind, clients)
    topic = f"{kind}-{clients}-{run}"
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, PARTITIONS, replication_factor=3)
        await wait_in_sync(admin, [topic])
    values = [os.urandom(100) for _ in range(RECORDS)]
    named = kind in ("decided", "visible")
    producers = [
        Producer(bootstrap, linger_ms=0, transactional_id=f"{topic}-{number}" if named else None)
        for number in range(clients)
    ]
    try:
        await asyncio.gather(*(client(row, topic, producer, values, None) for producer in producers))
        started = time.perf_counter()
        await asyncio.gather(*(client(row, topic, producer, values, started + seconds) for producer in producers))
        row.took = time.perf_counter() - started
    finally:
        await asyncio.gather(*(producer.close() for producer in producers))
    await check(bootstrap, topic, row.sent)
    return row


async def check(bootstrap: str, topic: str, expected: int) -> None:
    """Check that every record is there exactly once."""
    count = 0
    async with Consumer(bootstrap, topic) as consumer, asyncio.timeout(60):
        while count < expected:
            batch = await consumer.next_batch()
            count += 0 if batch is None else len(batch)
        extra = await consumer.next_batch(timeout=0.2)
    if count != expected or extra is not None:
        raise SystemExit(f"{topic}: {count} records are committed where {expected} were, and then {extra}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=list(CLIENTS))
    arguments = parser.parse_args()
    console.print(machine())
    with a_cluster(None) as cluster:
        table = Table(
            "clients", "", "a second", "p50, ms", "p99, ms", title="10 records over 3 partitions, acks=all, fsynced"
        )
        for clients in arguments.clients:
            alone = 0.0
            for kind in KINDS:
                cores = Cores.now()
                runs = [
                    asyncio.run(measure(cluster.bootstrap, kind, clients, arguments.seconds, run))
                    for run in range(arguments.runs)
                ]
                rate, half, most = (
                    middle([one.rate for one in runs]),
                    middle([one.percentile(0.5) for one in runs]),
                    middle([one.percentile(0.99) for one in runs]),
                )
                alone = half if kind == "acks" else alone
                added = "" if kind == "acks" else f" (+{half - alone:.1f})"
                table.add_row(str(clients), kind, f"[bold]{rate:.0f}[/]", f"{half:.1f}{added}", f"{most:.1f}")
                console.print(f"{clients} clients, {kind}: {Cores.now().since(cores)}")
        console.print(table)
    console.print(machine())


if __name__ == "__main__":
    main()
