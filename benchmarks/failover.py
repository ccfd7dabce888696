"""Write availability after a leader is killed: the time from SIGKILL to the first acknowledged write.

    python benchmarks/failover.py --kills 10           # idle: 10 leaders that are also the controller, 10 that are not
    python benchmarks/failover.py --kills 10 --load    # the same while a producer keeps both cores busy
    python benchmarks/failover.py --watch 10           # 10 minutes of full load: spurious leader changes

A program writes one record every 5 ms to one partition (replication factor 3, `acks=all`, fsync on) through the public
client, which finds the new leader by itself. The measured time begins just before the SIGKILL and ends with the first
acknowledgement of a record that was sent after the process was gone. In half of the trials, the killed node leads the
metadata quorum as well. After each trial, the node is restarted and all replicas are awaited; every acknowledged record
must be in the log exactly once.

`--watch` counts events that must not happen: increased leader epochs, new terms of the quorum, brokers that were fenced
or registered again, and ISR changes. All are derived from counters of the quorum, so no event between two readings is
missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from measuring import Cores, a_cluster, console, machine, middle, wait_in_sync
from rich.table import Table

from raftlog import Admin, Producer
from raftlog.cli.nodes.local_cluster import LocalCluster

EVERY_SECONDS = 0.005
PROBE_PARTITIONS = 3
LOAD_TOPIC = "load"
LOAD_PARTITIONS = 6
SETTLE_SECONDS = 2.0
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class Trial:
    controller: bool
    seconds: float
    in_sync_seconds: float
    """The time from the restart until every replica of every topic was in sync again."""
    cores: str


class Probe:
    """A probe that sends one record every few milliseconds to one partition and records the time of each
    acknowledgement."""

    def __init__(self, producer: Producer, topic: str, partition: int) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self.sent = 0
        self.acknowledged = 0
        self._counts_from: float | None = None
        self.first_after: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def count_from_now(self) -> None:
        """Count only acknowledgements of records that are sent from now on."""
        self._counts_from = time.monotonic()

    async def run(self) -> None:
        while True:
            sent_at = time.monotonic()
            delivery = self._producer.send(self._topic, b"%d" % self.sent, partition=self._partition)
            self.sent += 1
            delivery.add_done_callback(lambda done, sent_at=sent_at: self._done(done.exception(), sent_at))
            await asyncio.sleep(EVERY_SECONDS)

    def _done(self, error: BaseException | None, sent_at: float) -> None:
        if error is not None:
            raise SystemExit(f"a record was not acknowledged: {error}")
        self.acknowledged += 1
        if self._counts_from is not None and sent_at >= self._counts_from and not self.first_after.done():
            self.first_after.set_result(time.monotonic())


async def trial(cluster: LocalCluster, admin: Admin, number: int, *, controller: bool, loaded: bool) -> Trial:
    """Kill one leader and wait for the first write."""
    topic = f"probe-{number}"
    topics = [topic, LOAD_TOPIC] if loaded else [topic]
    # A new topic's leaders are spread over the nodes, so both kinds of leader exist.
    await admin.create_topic(topic, PROBE_PARTITIONS, replication_factor=3)
    await wait_in_sync(admin, topics)
    async with Producer(cluster.bootstrap, linger_ms=0) as producer:
        await producer.prepare(topic)
        await asyncio.sleep(SETTLE_SECONDS)
        described, quorum = await admin.describe_topic(topic), (await admin.quorum()).leader
        fitting = [p for p in described.partitions if p.leader is not None and (p.leader == quorum) is controller]
        victim = fitting[0]
        assert victim.leader is not None
        probe = Probe(producer, topic, victim.partition)
        running = asyncio.create_task(probe.run())
        cores = Cores.now()
        await asyncio.sleep(SETTLE_SECONDS)
        killed_at = time.monotonic()
        await asyncio.to_thread(cluster.kill_node, victim.leader)
        probe.count_from_now()
        async with asyncio.timeout(PATIENCE_SECONDS):
            seconds = await probe.first_after - killed_at
        busy = Cores.now().since(cores)
        running.cancel()
        await asyncio.wait([running])
        await producer.flush()
    restarted_at = time.monotonic()
    await asyncio.to_thread(cluster.start_node, victim.leader)
    await asyncio.to_thread(cluster.wait_ready, 60.0)
    await wait_in_sync(admin, topics, timeout=600.0)
    in_sync = time.monotonic() - restarted_at
    stored = (await admin.offsets(topic, victim.partition)).latest
    if not stored == probe.sent == probe.acknowledged:
        raise SystemExit(f"{probe.sent} were sent, {probe.acknowledged} acknowledged, {stored} are stored")
    await admin.delete_topic(topic)
    return Trial(controller, seconds, in_sync, busy)


@asynccontextmanager
async def load(cluster: LocalCluster, admin: Admin) -> AsyncIterator[None]:
    """Run a producer process at full speed for the duration of the block."""
    configs = {"retention.bytes": "1000000000", "segment.bytes": "100000000"}
    await admin.create_topic(LOAD_TOPIC, LOAD_PARTITIONS, replication_factor=3, configs=configs)
    await wait_in_sync(admin, [LOAD_TOPIC])
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, "--produce", cluster.bootstrap)
    try:
        before = await stored(admin)
        while await stored(admin) == before:  # noqa: ASYNC110 - only asking tells
            await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLE_SECONDS)
        yield
        if process.returncode is not None:
            raise SystemExit(f"the load ended early, with exit code {process.returncode}")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def stored(admin: Admin) -> int:
    return sum([(await admin.offsets(LOAD_TOPIC, p)).latest for p in range(LOAD_PARTITIONS)])


async def produce(bootstrap: str) -> None:
    """The main function of the load's process."""
    values = [os.urandom(100) for _ in range(100_000)]
    async with Producer(bootstrap) as producer:
        while True:
            await producer.send_many(LOAD_TOPIC, values)


async def failover(options: argparse.Namespace) -> None:
    with a_cluster(options.folder) as cluster:
        async with Admin(cluster.bootstrap) as admin:
            if options.load:
                async with load(cluster, admin):
                    trials = await all_trials(cluster, admin, options)
            else:
                trials = await all_trials(cluster, admin, options)
    table = Table("killed", "kills", "median", "worst", "all", title="first acknowledged write after SIGKILL, ms")
    for controller, name in ((True, "leader and controller"), (False, "leader only")):
        times = sorted(t.seconds * 1000 for t in trials if t.controller is controller)
        if times:
            shown = " ".join(f"{ms:.0f}" for ms in times)
            table.add_row(name, str(len(times)), f"[bold]{middle(times):.0f}", f"[bold]{times[-1]:.0f}", shown)
    rejoined = sorted(t.in_sync_seconds for t in trials)
    console.print(table, f"{'under load' if options.load else 'idle'}; last trial: {trials[-1].cores}")
    console.print(f"restart to all replicas in sync: median {middle(rejoined):.1f} s, worst {rejoined[-1]:.1f} s")


async def all_trials(cluster: LocalCluster, admin: Admin, options: argparse.Namespace) -> Sequence[Trial]:
    trials = []
    for number in range(2 * options.kills):
        found = await trial(cluster, admin, number, controller=number % 2 == 0, loaded=options.load)
        trials.append(found)
        kind = "leader and controller" if found.controller else "leader"
        told = f"{kind} killed, {found.seconds * 1000:.0f} ms; in sync {found.in_sync_seconds:.1f} s after its restart"
        console.print(f"{number + 1}/{2 * options.kills}: {told}; {found.cores}")
    return trials


async def watch(options: argparse.Namespace) -> int:
    """Run full load for some minutes. The exit code is 1 if any leader changed."""
    with a_cluster(options.folder) as cluster:
        async with Admin(cluster.bootstrap) as admin, load(cluster, admin):
            before, count = await changes(admin), await stored(admin)
            cores, started = Cores.now(), time.monotonic()
            while (passed := time.monotonic() - started) < options.watch * 60:
                await asyncio.sleep(min(30.0, options.watch * 60 - passed))
                now = await changes(admin)
                console.print(f"{time.monotonic() - started:.0f} s: {await stored(admin) - count:,} records; {now}")
            seconds, count = time.monotonic() - started, await stored(admin) - count
            after, busy = await changes(admin), Cores.now().since(cores)
    table = Table("spurious", "before", "after", "changes", title=f"{seconds / 60:.1f} minutes of full load")
    for what, value in after.items():
        table.add_row(what, str(before[what]), str(value), f"[bold]{value - before[what]}")
    console.print(table, f"{count / seconds:,.0f} records/s; {busy}")
    return 1 if before != after else 0


async def changes(admin: Admin) -> dict[str, int]:
    """Return counters of the quorum that only increase."""
    partitions = (await admin.describe_topic(LOAD_TOPIC)).partitions
    nodes = (await admin.cluster()).nodes
    return {
        "leader epochs, sum": sum(p.leader_epoch for p in partitions),
        "partition epochs (ISR changes), sum": sum(p.partition_epoch for p in partitions),
        "quorum terms": (await admin.quorum()).term,
        "broker registrations (last incarnation)": max(node.incarnation for node in nodes),
        "brokers fenced now": sum(node.fenced for node in nodes),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="number of kills of each kind")
    parser.add_argument("--load", action="store_true", help="run a producer that keeps both cores busy")
    parser.add_argument(
        "--watch", type=float, metavar="MINUTES", help="kill no node; count leader changes under load for MINUTES"
    )
    parser.add_argument(
        "--folder", default=None, help="folder on the disk to measure (default: that of temporary files)"
    )
    parser.add_argument("--produce", metavar="BOOTSTRAP", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.produce:
        asyncio.run(produce(options.produce))
    console.print(machine())
    code = asyncio.run(watch(options)) if options.watch else asyncio.run(failover(options)) or 0
    console.print(machine())
    return code


if __name__ == "__main__":
    sys.exit(main())
