"""The calculator of `docs/capacity.md`: how many nodes a load needs, and what each of them does.

Every cost is a figure of `docs/performance.md`, where a test finds it. They come from values of 100 bytes on one
machine, without TLS and compression, so they are a beginning: measure your own load with `raftlog bench` before you
rely on them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

MB, GB = 10**6, 10**9


@dataclass(frozen=True)
class Measured:
    """A cost, and where `docs/performance.md` has it."""

    value: float
    text: str
    """A line of the document that contains the figure."""
    command: str
    """The command that measured it."""


TABLE = "python benchmarks/table.py"
WRITE_CPU = Measured(2.1 + 2.7, "| each of three nodes | 2.1 | 2.7 |", TABLE)
"""CPU seconds of a node for each GB of values that one of its replicas stores: user and system."""
WRITE_LOOP = Measured(2.4, "the loop 2.4, two threads that write and fsync 1.1 each", TABLE)
"""The part of it that is the event loop's, which uses one core at most."""
READ_CPU = Measured(1.45, "| CPU time of the three nodes, s, the same | 1.2 to 1.65 | 0.9 to 1.45 |", TABLE)
"""CPU seconds of the nodes, all on the loops, for each GB of values that consumers read."""
COMMIT_CPU = Measured(
    614e-6,
    "| 1,000 members, 1,000 commits per second due | 1,182; 1,043 | 588; 614 |",
    "python benchmarks/groups.py --seconds 20",
)
"""CPU seconds of all nodes and the client for each offset commit."""
LONE_CPU = Measured(2696e-6, "20 other processes beside it) | 3,917 | 2,696 |", "python benchmarks/lone_records.py")
"""CPU seconds of three nodes and the client for a record that is sent alone, rather than in a batch with others."""
DISK_FACTOR = Measured(1.04, "100,000,000 records (10.4 GB)", "python benchmarks/cold_read.py --gigabytes 10")
"""Bytes on disk for each byte of values of 100 bytes."""
COSTS = (WRITE_CPU, WRITE_LOOP, READ_CPU, COMMIT_CPU, LONE_CPU, DISK_FACTOR)

BUSY_MAX = 0.6
"""The share of a core, or of all cores, that a node may use while one node is missing: above it, latency grows fast."""
DISK_MAX = 0.8
"""The share of a disk that logs may use while one node is missing."""
NODES_MAX = 1000


@dataclass(frozen=True, kw_only=True)
class Load:
    """The work of the cluster, and the equipment of each node. Raises `ValueError` for what no cluster can have."""

    write_mb: float
    """MB of values per second from all producers."""
    readers: float = 1.0
    """How often each record is read."""
    replicas: int = 3
    retention_hours: float = 168.0
    commits: float = 0.0
    """Offset commits per second."""
    lone_records: float = 0.0
    """Records per second that are sent one by one, each waiting for the one before it."""
    cores: float = 2.0
    """Cores of each node."""
    disk_gb: float = 1000.0
    """Disk of each node in GB."""

    def __post_init__(self) -> None:
        if self.replicas < 1 or self.cores <= 0 or self.disk_gb <= 0:
            raise ValueError("replicas, cores and disk_gb must be positive")
        if min(self.write_mb, self.readers, self.retention_hours, self.commits, self.lone_records) < 0:
            raise ValueError("write_mb, readers, retention_hours, commits and lone_records must not be negative")


@dataclass(frozen=True)
class NodeUse:
    """The work of one of `nodes` nodes, if partitions and leaders are balanced."""

    nodes: int
    loop: float
    """Share of a core that its event loop uses."""
    cpu: float
    """Cores that it uses altogether."""
    disk_gb: float
    received_mb: float
    """MB per second from clients and leaders."""
    sent_mb: float
    """MB per second to followers and consumers."""


def use_of(load: Load, nodes: int) -> NodeUse:
    """Return what each of `nodes` nodes does."""
    copies = min(load.replicas, nodes)  # a partition has at most one replica on a node
    written, read = load.write_mb / 1000, load.write_mb * load.readers / 1000  # GB per second
    stored = written * copies / nodes
    requests = (load.commits * COMMIT_CPU.value + load.lone_records * LONE_CPU.value) / nodes
    return NodeUse(
        nodes=nodes,
        loop=stored * WRITE_LOOP.value + read / nodes * READ_CPU.value + requests,
        cpu=stored * WRITE_CPU.value + read / nodes * READ_CPU.value + requests,
        disk_gb=stored * DISK_FACTOR.value * load.retention_hours * 3600,
        received_mb=load.write_mb * copies / nodes,
        sent_mb=load.write_mb * (copies - 1 + load.readers) / nodes,
    )


def is_enough(load: Load, use: NodeUse) -> bool:
    """Whether nodes with this use have room left."""
    busy = use.loop <= BUSY_MAX and use.cpu <= BUSY_MAX * load.cores
    return busy and use.disk_gb <= DISK_MAX * load.disk_gb


def nodes_needed(load: Load) -> int | None:
    """Return the fewest nodes that carry the load while one of them is missing; None: not even `NODES_MAX` do."""
    for nodes in range(max(load.replicas, 3), NODES_MAX + 1):
        if is_enough(load, use_of(load, nodes - 1)):
            return nodes
    return None


def report(load: Load) -> str:
    """Return the answer for people."""
    nodes = nodes_needed(load)
    if nodes is None:
        return f"More than {NODES_MAX} nodes: use nodes with more cores or disk, or a shorter retention."
    lines = [f"{nodes} nodes", "", f"{'each node':<24}{'all are up':>12}{'one is down':>13}"]
    up, down = use_of(load, nodes), use_of(load, nodes - 1)
    for name, unit in (
        ("loop", "% of a core"),
        ("cpu", "cores"),
        ("disk_gb", "GB"),
        ("received_mb", "MB/s"),
        ("sent_mb", "MB/s"),
    ):
        factor, digits = (100, 0) if name == "loop" else (1, 2 if name == "cpu" else 0)
        title = f"{name.removesuffix('_gb').removesuffix('_mb')}, {unit}"
        values = [getattr(use, name) * factor for use in (up, down)]
        lines.append(f"{title:<24}{values[0]:>12,.{digits}f}{values[1]:>13,.{digits}f}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Print the nodes for the load that the arguments describe."""
    parser = argparse.ArgumentParser(description="How many nodes a load needs, from measured costs.")
    parser.add_argument("--write-mb", type=float, required=True, help="MB of values per second from all producers")
    parser.add_argument("--readers", type=float, default=1.0, help="how often each record is read")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--retention-hours", type=float, default=168.0)
    parser.add_argument("--commits", type=float, default=0.0, help="offset commits per second")
    parser.add_argument("--lone-records", type=float, default=0.0, help="records per second that are sent one by one")
    parser.add_argument("--cores", type=float, default=2.0, help="cores of each node")
    parser.add_argument("--disk-gb", type=float, default=1000.0, help="disk of each node in GB")
    try:
        load = Load(**vars(parser.parse_args(arguments)))
    except ValueError as error:
        parser.error(str(error))
    print(report(load))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
