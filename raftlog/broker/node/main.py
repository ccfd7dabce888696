"""The process of one node: its settings, its loop, the signals that stop it, and the time limit of a stop."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import structlog

from raftlog.broker.loop_stalls import LoopStalls

from .node import Node
from .scheduling import schedule_in_batches
from .settings_file import read_settings

STOP_SECONDS = 30.0
"""Time after which a stop is forced, whatever hangs, in seconds."""


def run_node(config_path: str) -> int:
    """Run the node that `node.toml` describes, on a loop of its own, until a signal. Return the process's exit code.

    Raises `InvalidRequest` for unusable settings or folders, and `DiskFailed` if a folder cannot be read.
    """
    stalls = LoopStalls()
    overdue = threading.Timer(STOP_SECONDS, _end_here)
    overdue.daemon = True
    try:
        with asyncio.Runner(loop_factory=stalls.new_loop) as runner:
            return runner.run(_run(config_path, stalls, overdue))
    finally:
        overdue.cancel()


async def _run(config_path: str, stalls: LoopStalls, overdue: threading.Timer) -> int:
    config, folder = read_settings(config_path)
    node = Node(config, folder, stalls)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.stop_soon)
    try:
        await node.start()
        if config.scheduling == "batch":
            schedule_in_batches(node.workers)
        return await node.wait()
    finally:
        overdue.start()
        await node.stop()


def _end_here() -> None:
    """End the process at once. The next start recovers as after a crash."""
    structlog.get_logger().error("did not stop in time", seconds=STOP_SECONDS)
    os._exit(1)
