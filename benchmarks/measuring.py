"""Common parts of the benchmarks of whole clusters: processes in /proc, the machine's load, a cluster to use.

A single figure from a shared machine means little. Every table is therefore printed with a calibration loop (one
million additions, in CPU time: about 0.05 s on a quiet 2.5 GHz core, twice that on a noisy one), the load of the
machine's cores, and the share of them that the hypervisor took away.
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
"""Wide if there is no terminal: tables are also read in files."""


def calibration(runs: int = 5) -> float:
    """Return the CPU seconds of a bare loop of a million additions: the best of a few."""
    times = []
    for _ in range(runs):
        started, total = time.process_time(), 0
        for number in range(CALIBRATION_ADDITIONS):
            total += number
        times.append(time.process_time() - started)
    return min(times)


@dataclass(frozen=True)
class Cores:
    """The time of all cores since boot, or during a span of time, in ticks."""

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
        """Describe how the cores spent the time since then."""
        return str(self - before)

    def __str__(self) -> str:
        """Describe how the cores spent a span of time."""
        total = max(self.busy + self.idle + self.stolen, 1)
        busy, stolen = 100 * self.busy / total, 100 * self.stolen / total
        return f"cores {busy:.0f} % busy, {stolen:.0f} % stolen by the hypervisor"


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process, all threads, since its start."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def resident_mb(pid: int, *, peak: bool = False) -> float:
    """Return the resident memory in MB (10^6 bytes), current or peak."""
    wanted = "VmHWM:" if peak else "VmRSS:"
    with open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith(wanted):
                return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"/proc/{pid}/status has no {wanted}")


class Node(Protocol):
    """A process of a cluster: raftlog's, or a peer's."""

    @property
    def node_id(self) -> int: ...

    @property
    def process(self) -> subprocess.Popen[bytes] | None: ...


class Nodes(Protocol):
    """A cluster to measure: `LocalCluster`, or a peer's brokers."""

    @property
    def nodes(self) -> Sequence[Node]: ...


def pids(cluster: Nodes) -> dict[str, int]:
    """Return the process ids of the running nodes."""
    return {f"node {node.node_id}": node.process.pid for node in cluster.nodes if node.process is not None}


def percentile_ms(values: Sequence[float], share: float) -> float:
    """Return a percentile of sorted seconds, in milliseconds."""
    return 1000 * values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def middle(values: Sequence[float]) -> float:
    return statistics.median(values)


def machine() -> str:
    """Describe the machine and its present load in one line."""
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} cores, load average {load:.1f}, calibration loop {calibration():.3f} s"


@contextlib.contextmanager
def a_cluster(
    folder: str | None, nodes: int = 3, settings: Mapping[str, str] | None = None, *, secure: bool = False
) -> Iterator[LocalCluster]:
    """Run a cluster that accepts requests, in a folder of its own below `folder`, which is removed when the block ends.
    `settings`: additional lines of every `node.toml`. `secure`: with TLS at every listener, and required credentials.
    """
    place = tempfile.mkdtemp(prefix="raftlog-benchmark-", dir=folder)
    cluster = LocalCluster(place, nodes, free_base_port(nodes), settings=settings or {}, secure=secure)
    try:
        cluster.start()
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(place, ignore_errors=True)


async def wait_in_sync(admin: Admin, topics: Sequence[str], timeout: float = 120.0) -> None:
    """Wait until all nodes run and all replicas of these topics are in sync."""
    deadline = time.monotonic() + timeout
    while True:
        cluster = await admin.cluster()
        found = [await admin.describe_topic(topic) for topic in topics]
        full = all(len(p.isr) == len(p.replicas) and p.leader is not None for d in found for p in d.partitions)
        if full and cluster.controller is not None and not any(node.fenced for node in cluster.nodes):
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"the cluster has not recovered after {timeout:.0f} s: {found}")
        await asyncio.sleep(0.1)
