"""What the benchmarks of whole clusters share: processes as /proc tells of them, the machine's mood, a cluster to use.

A figure from a shared machine means little alone. So every table comes with a calibration loop (one million additions,
in CPU time: about 0.05 s on a quiet 2.5 GHz core, twice that on a noisy one), with how busy the machine's cores were,
and with how much of them the hypervisor took away.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console

from raftlog import Admin
from raftlog.cli.nodes.local_cluster import LocalCluster, free_base_port

CALIBRATION_ADDITIONS = 1_000_000
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
GB = 1e9

console = Console(width=None if os.isatty(1) else 120)
"""Wide where nobody has a terminal: tables are read in files, too."""


def calibration(runs: int = 5) -> float:
    """CPU seconds of a bare loop of a million additions: the best of a few."""
    times = []
    for _ in range(runs):
        started, total = time.process_time(), 0
        for number in range(CALIBRATION_ADDITIONS):
            total += number
        times.append(time.process_time() - started)
    return min(times)


@dataclass(frozen=True)
class Cores:
    """All cores' time since boot, or that of a span of time, in ticks."""

    busy: int
    idle: int
    stolen: int

    @staticmethod
    def now() -> Cores:
        with open("/proc/stat") as file:
            user, nice, system, idle, iowait, irq, softirq, steal, *_ = map(int, file.readline().split()[1:])
        return Cores(user + nice + system + irq + softirq, idle + iowait, steal)

    def __add__(self, other: Cores) -> Cores:
        return Cores(self.busy + other.busy, self.idle + other.idle, self.stolen + other.stolen)

    def __sub__(self, before: Cores) -> Cores:
        return Cores(self.busy - before.busy, self.idle - before.idle, self.stolen - before.stolen)

    def since(self, before: Cores) -> str:
        """How the cores spent the time since then, in words."""
        return str(self - before)

    def __str__(self) -> str:
        """Of a span of time: how the cores spent it, in words."""
        total = max(self.busy + self.idle + self.stolen, 1)
        busy, stolen = 100 * self.busy / total, 100 * self.stolen / total
        return f"cores {busy:.0f} % busy, {stolen:.0f} % stolen by the hypervisor"


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, all threads, since it began."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def resident_mb(pid: int, *, peak: bool = False) -> float:
    """Resident memory in MB (10^6 bytes), now or at its highest."""
    wanted = "VmHWM:" if peak else "VmRSS:"
    with open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith(wanted):
                return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"/proc/{pid}/status has no {wanted}")


class Node(Protocol):
    """A process of a cluster, ours or a peer's."""

    @property
    def node_id(self) -> int: ...

    @property
    def process(self) -> subprocess.Popen[bytes] | None: ...


class Nodes(Protocol):
    """A cluster as what is measured of it: `LocalCluster`, or a peer's brokers."""

    @property
    def nodes(self) -> Sequence[Node]: ...


def pids(cluster: Nodes) -> dict[str, int]:
    """Process ids of the nodes that run."""
    return {f"node {node.node_id}": node.process.pid for node in cluster.nodes if node.process is not None}


def percentile_ms(values: Sequence[float], share: float) -> float:
    """Of sorted seconds; in milliseconds."""
    return 1000 * values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def middle(values: Sequence[float]) -> float:
    return statistics.median(values)


def machine() -> str:
    """One line on what this runs on, now."""
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} cores, load average {load:.1f}, calibration loop {calibration():.3f} s"


@contextlib.contextmanager
def a_cluster(folder: str | None, nodes: int = 3, settings: Mapping[str, str] | None = None) -> Iterator[LocalCluster]:
    """A cluster that takes requests, in a folder of its own below `folder`; gone when the block ends. `settings`:
    further lines of every `node.toml`."""
    place = tempfile.mkdtemp(prefix="raftlog-benchmark-", dir=folder)
    cluster = LocalCluster(place, nodes, free_base_port(nodes), settings=settings or {})
    try:
        cluster.start()
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(place, ignore_errors=True)


async def wait_in_sync(admin: Admin, topics: Sequence[str], timeout: float = 120.0) -> None:
    """Until all nodes live and all replicas of these topics are in sync."""
    deadline = time.monotonic() + timeout
    while True:
        cluster = await admin.cluster()
        found = [await admin.describe_topic(topic) for topic in topics]
        full = all(len(p.isr) == len(p.replicas) and p.leader is not None for d in found for p in d.partitions)
        if full and cluster.controller is not None and not any(node.fenced for node in cluster.nodes):
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"the cluster is not in order after {timeout:.0f} s: {found}")
        await asyncio.sleep(0.1)
