"""How the kernel shares the processors among a node's threads and those of others.

A record that comes alone wakes a dozen threads of four processes one after the other. Where there are fewer cores than
that, a thread that wakes takes the core from one that has not finished, which then waits for a whole slice, in the
middle of what others wait for. `SCHED_BATCH` (sched(7), Linux) is the same share of the processor without that: who
wakes waits until the others have nothing more to do, and these have their work done in one go. What it gives is in
`docs/performance.md`.

The quorum's thread stays as it is: its heartbeats are not to wait for anybody's records.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

import structlog

from raftlog.system.runtime import ThreadWorker


def schedule_in_batches(workers: Iterable[ThreadWorker]) -> None:
    """The calling thread, which is the loop's, those of the workers, and all that they begin from now on. Needs no
    privilege; where it cannot be done nothing is different from before, and a line of the log says why."""
    policy = getattr(os, "SCHED_BATCH", None)
    if policy is None:
        return  # Another system than Linux.
    try:
        for thread in (threading.get_native_id(), *(thread for worker in workers for thread in worker.native_ids)):
            os.sched_setscheduler(thread, policy, os.sched_param(0))
    except OSError as error:  # A sandbox forbids the call.
        structlog.get_logger().info("not scheduled in batches", reason=str(error))
