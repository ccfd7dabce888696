"""The priority of threads whose work may wait."""

from __future__ import annotations

import os
import sys
import threading

import structlog

BACKGROUND_NICE = 10
"""Under contention a thread with this nice value gets about a tenth of the time of one with 0 (sched(7))."""


def lower_priority() -> None:
    """Give the calling thread the nice value `BACKGROUND_NICE`, unless it has a higher one.

    This needs no privilege. If it fails the thread goes on as it was, and a log line says why.
    """
    if sys.platform != "linux":
        # Elsewhere a nice value is that of the whole process (POSIX), and a thread's id may be another process's: the
        # threads go on with the node's priority.
        return
    thread = threading.get_native_id()
    try:
        if os.getpriority(os.PRIO_PROCESS, thread) < BACKGROUND_NICE:
            os.setpriority(os.PRIO_PROCESS, thread, BACKGROUND_NICE)
    except OSError as error:  # A sandbox forbids the call.
        structlog.get_logger().info("priority not lowered", reason=str(error))
