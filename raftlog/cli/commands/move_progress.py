"""Progress of moves: copied bytes, partitions in progress, and a bar on a terminal.

The logs keep growing during a move, so the bar is an estimate; a partition counts in full when its move is complete.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from raftlog.cli.terminal.output import counted
from raftlog.cli.terminal.progress import ProgressLine
from raftlog.errors import RaftlogError, RetriableError

if TYPE_CHECKING:
    from raftlog.api.moves import ReassignmentInfo, ReplicaInfo
    from raftlog.sync import Admin

LOOK_EVERY = 0.5
SILENCE_MAX = 60.0
"""Time without an answer of the cluster after which watching ends, in seconds."""


def sizes(admin: Admin) -> dict[tuple[str, int], int]:
    """Return the size in bytes of the largest replica of each partition, among the nodes that answer."""
    largest: dict[tuple[str, int], int] = {}
    for held in admin.replicas().values():
        for replica in held:
            name = (replica.topic, replica.partition)
            largest[name] = max(largest.get(name, 0), replica.size_bytes)
    return largest


def watch(admin: Admin, partitions: Iterable[tuple[str, int]], total_bytes: int, timeout: float) -> None:
    """Watch until none of these partitions is moving.

    Raises `RetriableError` (`request_timed_out`) after `timeout` seconds, and the cluster's error after a minute
    without success.
    """
    wanted = set(partitions)
    deadline = time.monotonic() + timeout
    heard_at = time.monotonic()
    with ProgressLine("moving", max(total_bytes, 1)) as line:
        while True:
            try:
                left = [r for r in admin.list_reassignments() if (r.topic, r.partition) in wanted]
                held = admin.replicas() if left and line.shows else {}
                heard_at = time.monotonic()
            except RaftlogError as error:
                if not error.retriable or time.monotonic() > heard_at + SILENCE_MAX:
                    raise
            else:
                if not left:
                    return
                done = len(wanted) - len(left)
                line.show(
                    max(0, total_bytes - missing_bytes(left, held)), f"{done} of {counted(len(wanted), 'partition')}"
                )
            if time.monotonic() >= deadline:
                raise RetriableError(
                    "request_timed_out",
                    f"not complete within {timeout:.0f} s; the moves continue: see `raftlog cluster reassign --list`",
                )
            time.sleep(min(LOOK_EVERY, max(0.0, deadline - time.monotonic())))


def missing_bytes(left: Iterable[ReassignmentInfo], held: dict[int, list[ReplicaInfo]]) -> int:
    """Return the bytes that added replicas lack, relative to the largest replica of each partition."""
    size = {(node, r.topic, r.partition): r.size_bytes for node, replicas in held.items() for r in replicas}
    missing = 0
    for one in left:
        known = [size.get((node, one.topic, one.partition), 0) for node in held]
        full = max(known, default=0)
        for broker in one.target_replicas:
            if broker not in one.replicas or broker in one.adding_replicas:
                missing += max(0, full - size.get((broker, one.topic, one.partition), 0))
    return missing
