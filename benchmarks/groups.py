"""Many consumer groups at once: committed offsets per second over data connections, latency of commits, CPU.

    python benchmarks/groups.py                                   # 1,000 groups, 10,000 offsets per second, one minute
    python benchmarks/groups.py --groups 50 --seconds 3           # a short trial

Three nodes run with fsync on. Each group has one member, which joins, is assigned all (ten) partitions of a topic, and
commits all of them every `--interval`, with heartbeats in between, as a `GroupConsumer` does with automatic commits.
Groups are spread over the nodes and over time. A commit's latency begins when it was *due*, so the figures show if the
cluster falls behind. Afterwards, every group's offsets are read back: they must be the last that were acknowledged
(S8), or those of a later commit without an answer.

All members are tasks of this process. Its CPU time is reported beside the nodes', because on a small machine it is the
larger part.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from measuring import Cores, a_cluster, console, cpu_seconds, machine, percentile_ms, pids, resident_mb, wait_in_sync
from rich.table import Table

from raftlog import Admin
from raftlog.api.groups import GroupPartition, JoinGroup, MembershipInfo
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.client.cluster.api import HttpApi
from raftlog.client.groups.api import unpack
from raftlog.client.groups.calls import MemberCalls
from raftlog.errors import RaftlogError

TOPIC = "read-by-many"
PARTITIONS = 10
SESSION_MS = 30_000
HEARTBEAT_SECONDS = 5.0
JOINING = 50
"""Groups that join at the same time."""
PATIENCE_SECONDS = 60.0


@dataclass
class Result:
    """The measurements of all groups."""

    commits: list[float] = field(default_factory=list)
    """Seconds from the time when each commit was due to its acknowledgement."""
    heartbeats: list[float] = field(default_factory=list)
    failed: dict[str, int] = field(default_factory=dict)
    """Error code → number of occurrences."""
    acknowledged_late: int = 0
    """Commits that ended after the next one of their group was due."""


class Member:
    """A group's only member."""

    def __init__(self, api: HttpApi, name: str) -> None:
        self.name = name
        self.group = MemberCalls(api, name)
        self.member_id = f"{name}-member"
        self.known: MembershipInfo | None = None
        self.partitions: list[GroupPartition] = []
        self.offset = 0
        """The last offset that was acknowledged, in every partition."""
        self.asked = 0
        """The last offset of a request: it may have been committed without an answer."""

    async def join(self) -> None:
        """Join, and wait until all partitions are assigned."""
        wanted = JoinGroup(
            topics=[TOPIC],
            member_id=self.member_id,
            client_id="benchmark",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
        )
        self.known = await self.group.join(wanted)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(unpack(self.known.assigned)) < PARTITIONS:
            if time.monotonic() > deadline:
                raise SystemExit(f"group {self.name} is {self.known.state} after {PATIENCE_SECONDS:.0f} s")
            await asyncio.sleep(0.05)
            await self.beat()
        self.partitions = unpack(self.known.assigned)

    async def beat(self) -> None:
        assert self.known is not None
        known = self.known
        self.known = await self.group.heartbeat(self.member_id, known.incarnation, known.generation, (), timeout=10.0)

    async def commit(self, offset: int) -> None:
        assert self.known is not None
        known = self.known
        offsets, self.asked = dict.fromkeys(self.partitions, offset), max(self.asked, offset)
        await self.group.commit(offsets, self.member_id, known.incarnation, known.generation)
        self.offset = offset

    async def verify(self) -> None:
        found = {one.partition: one.offset for one in await self.group.committed()}
        offset = found.get(0, -1)
        if found != dict.fromkeys(range(PARTITIONS), offset) or not self.offset <= offset <= self.asked:
            raise SystemExit(f"NOT VERIFIED: {self.name} has {found}, {self.offset} was acknowledged everywhere")


async def committing(member: Member, result: Result, first: float, interval: float, until: float) -> None:
    """Commit at fixed times, regardless of the duration of earlier commits."""
    due, offset = first, member.offset
    while due < until:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        offset += 1
        try:
            await member.commit(offset)
            result.commits.append(time.monotonic() - due)
        except RaftlogError as error:
            result.failed[error.code] = result.failed.get(error.code, 0) + 1
        due += interval
        result.acknowledged_late += time.monotonic() > due


async def beating(member: Member, result: Result, first: float, until: float) -> None:
    due = first
    while due < until:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        try:
            await member.beat()
            result.heartbeats.append(time.monotonic() - due)
        except RaftlogError as error:
            result.failed[error.code] = result.failed.get(error.code, 0) + 1
        due += HEARTBEAT_SECONDS


async def run(members: Sequence[Member], interval: float, seconds: float) -> Result:
    """Run all members, spread evenly over an interval."""
    result, began = Result(), time.monotonic() + 0.5
    async with asyncio.TaskGroup() as tasks:
        for number, member in enumerate(members):
            share = number / len(members)
            tasks.create_task(committing(member, result, began + share * interval, interval, began + seconds))
            tasks.create_task(beating(member, result, began + share * HEARTBEAT_SECONDS, began + seconds))
    return result


async def join_all(members: Sequence[Member]) -> float:
    """Let all groups join. Returns the seconds that this took."""
    room, began = asyncio.Semaphore(JOINING), time.monotonic()

    async def join(member: Member) -> None:
        async with room:
            await member.join()

    async with asyncio.TaskGroup() as tasks:
        for member in members:
            tasks.create_task(join(member))
    return time.monotonic() - began


def show(result: Result, took: float, options: argparse.Namespace, cpu: dict[str, float]) -> None:
    commits, beats = sorted(result.commits), sorted(result.heartbeats)
    table = Table("", "a second", "p50 ms", "p99 ms", "p99.9 ms", "max ms")
    for name, seconds, each in (("commits", commits, 1), ("offsets", commits, PARTITIONS), ("heartbeats", beats, 1)):
        marks = [f"{percentile_ms(seconds, share):,.1f}" for share in (0.5, 0.99, 0.999, 1.0)]
        table.add_row(name, f"{each * len(seconds) / took:,.0f}", *marks)
    spent = Table("CPU, cores", *cpu, "all", "µs per commit")
    used = sum(cpu.values())
    cores = [f"{seconds / took:.2f}" for seconds in cpu.values()]
    spent.add_row("", *cores, f"{used / took:.2f}", f"{1e6 * used / max(1, len(commits)):,.0f}")
    console.print(table, spent)
    late = f"{result.acknowledged_late:,} ended after the next one of their group was due"
    due = f"{options.groups / options.interval:,.0f} commits per second were due"
    console.print(f"{due}; {late}; failed: {result.failed or 'none'}")


async def measure(cluster: LocalCluster, options: argparse.Namespace) -> None:
    nodes = cluster.bootstrap.split(",")
    apis = [HttpApi(",".join(nodes[number:] + nodes[:number])) for number in range(len(nodes))]
    try:
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topic(TOPIC, PARTITIONS)
            await wait_in_sync(admin, [TOPIC])
        members = [Member(apis[number % len(apis)], f"group-{number}") for number in range(options.groups)]
        joining = await join_all(members)
        console.print(f"{len(members):,} groups have their partitions after {joining:.1f} s")
        await run(members, options.interval, options.warm_up)
        processes = {**pids(cluster), "clients": os.getpid()}
        before, cores = {who: cpu_seconds(pid) for who, pid in processes.items()}, Cores.now()
        began = time.monotonic()
        result = await run(members, options.interval, options.seconds)
        took = time.monotonic() - began - 0.5
        cpu = {who: cpu_seconds(pid) - before[who] for who, pid in processes.items()}
        spent = Cores.now().since(cores)
        for first in range(0, len(members), JOINING):
            await asyncio.gather(*(member.verify() for member in members[first : first + JOINING]))
        show(result, took, options, cpu)
        peaks = ", ".join(f"{resident_mb(pid, peak=True):.0f}" for pid in pids(cluster).values())
        console.print(f"all offsets verified; peak MB of each node: {peaks}; {spent}")
    finally:
        for api in apis:
            await api.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two commits of a group")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm-up", type=float, default=5.0)
    parser.add_argument(
        "--folder", default=None, help="folder on the disk to measure (default: that of temporary files)"
    )
    options = parser.parse_args()
    console.print(machine())
    with a_cluster(options.folder) as cluster:
        asyncio.run(measure(cluster, options))
    console.print(machine())


if __name__ == "__main__":
    main()
