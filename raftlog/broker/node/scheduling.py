"""The kernel's scheduling of a node's threads.

A record that arrives alone wakes a dozen threads of four processes one after the other. If there are fewer cores than
that, a thread that wakes takes the core from one that has not finished, which then waits for a whole slice in the
middle of work that others wait for. `SCHED_BATCH` (sched(7), Linux) gives the same share of the processor without that:
a woken thread waits until the others have nothing more to do, and those finish their work in one go. The effect is
described in `docs/performance.md`.

The quorum's thread keeps its policy: its heartbeats must not wait for records.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

import structlog

from raftlog.system.runtime import ThreadWorker


def schedule_in_batches(workers: Iterable[ThreadWorker]) -> None:
    """Apply the policy to the calling thread (the loop's), the workers' threads, and all threads that these start
    later.

    This needs no privilege. If it fails nothing changes, and a log line says why.
    """
    policy = getattr(os, "SCHED_BATCH", None)
    if policy is None:
        return  # Only Linux has this policy.
    try:
        for thread in (threading.get_native_id(), *(thread for worker in workers for thread in worker.native_ids)):
            os.sched_setscheduler(thread, policy, os.sched_param(0))
    except OSError as error:  # A sandbox forbids the call.
        structlog.get_logger().info("not scheduled in batches", reason=str(error))
