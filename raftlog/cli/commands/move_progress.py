"""Watching moves: how many bytes are there, which partitions are still under way, and a bar on a terminal.

Bytes are of logs that go on growing, so the bar is an estimate; a partition counts in full when its move is over.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from raftlog.errors import RaftlogError, RetriableError

if TYPE_CHECKING:
    from rich.progress import Progress

    from raftlog.client import Admin
    from raftlog.client.admin import ReassignmentInfo, ReplicaInfo

LOOK_EVERY = 0.5
SILENCE_MAX = 60.0
"""Seconds without an answer of the cluster after which watching ends."""


async def sizes(admin: Admin) -> dict[tuple[str, int], int]:
    """Bytes of the largest replica of each partition, of the nodes that answer."""
    largest: dict[tuple[str, int], int] = {}
    for held in (await admin.replicas()).values():
        for replica in held:
            name = (replica.topic, replica.partition)
            largest[name] = max(largest.get(name, 0), replica.size_bytes)
    return largest


async def watch(admin: Admin, partitions: Iterable[tuple[str, int]], total_bytes: int, timeout: float) -> None:
    """Until none of these is under way. Raises `RetriableError` (`request_timed_out`) after `timeout` seconds, and what
    the cluster answers when it has not answered well for a minute."""
    wanted = set(partitions)
    deadline = time.monotonic() + timeout
    heard_at = time.monotonic()
    with _Bar(total_bytes, len(wanted)) as bar:
        while True:
            try:
                left = [r for r in await admin.list_reassignments() if (r.topic, r.partition) in wanted]
                held = await admin.replicas() if left and bar.shows else {}
                heard_at = time.monotonic()
            except RaftlogError as error:
                if not error.retriable or time.monotonic() > heard_at + SILENCE_MAX:
                    raise
            else:
                if not left:
                    return
                bar.update(missing_bytes(left, held), len(left))
            if time.monotonic() >= deadline:
                raise RetriableError(
                    "request_timed_out",
                    f"not moved within {timeout:.0f} s, and going on: `raftlog cluster reassign --list`",
                )
            await asyncio.sleep(min(LOOK_EVERY, max(0.0, deadline - time.monotonic())))


def missing_bytes(left: Iterable[ReassignmentInfo], held: dict[int, list[ReplicaInfo]]) -> int:
    """What the added replicas lack, by the largest replica of each partition."""
    size = {(node, r.topic, r.partition): r.size_bytes for node, replicas in held.items() for r in replicas}
    missing = 0
    for one in left:
        known = [size.get((node, one.topic, one.partition), 0) for node in held]
        full = max(known, default=0)
        for broker in one.target_replicas:
            if broker not in one.replicas or broker in one.adding_replicas:
                missing += max(0, full - size.get((broker, one.topic, one.partition), 0))
    return missing


class _Bar:
    """A bar on standard error, if that is a terminal."""

    def __init__(self, total_bytes: int, partitions: int) -> None:
        self.shows = sys.stderr.isatty()
        self._total = max(total_bytes, 1)
        self._partitions = partitions
        self._progress: Progress | None = None

    def __enter__(self) -> _Bar:
        if self.shows:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("moving"), BarColumn(), DownloadColumn(), TextColumn("{task.fields[left]}"))
            console = Console(stderr=True)
            self._progress = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
            self._progress.add_task("", total=self._total, left="")
            self._progress.start()
        return self

    def update(self, missing: int, left: int) -> None:
        """So much is still to be done."""
        if self._progress is not None:
            done = max(0, self._total - missing)
            text = f"{self._partitions - left} of {self._partitions} partitions"
            self._progress.update(self._progress.task_ids[0], completed=done, left=text)

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
