"""The process of one node: its settings, its loop, the signals that stop it, and the time limit of a stop.

SIGTERM and SIGINT stop the node in order, within `shutdown_timeout_ms`. A second one ends the process at once: no
acknowledged record is lost (S1), but the next start recovers as after a crash.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading

import structlog

from raftlog.broker.loop_stalls import LoopStalls
from raftlog.config import NodeConfig

from .node import Node
from .scheduling import schedule_in_batches
from .settings_file import read_settings

PARENT_ENDED = signal.SIGUSR1
"""A signal that stops the node in order, however often it arrives: a parent's end is no wish to hurry."""


def run_node(config_path: str) -> int:
    """Run the node that `node.toml` describes, on a loop of its own, until a signal. Return the process's exit code.

    Raises `InvalidRequest` for unusable settings or folders, and `DiskFailed` if a folder cannot be read.
    """
    stalls = LoopStalls()
    config, folder = read_settings(config_path)
    seconds = config.shutdown_timeout_ms / 1000
    overdue = threading.Timer(seconds, _end_here, ("did not stop in time",), {"seconds": seconds})
    overdue.daemon = True
    try:
        with asyncio.Runner(loop_factory=stalls.new_loop) as runner:
            return runner.run(_run(config, folder, stalls, overdue))
    finally:
        overdue.cancel()


async def _run(config: NodeConfig, folder: str, stalls: LoopStalls, overdue: threading.Timer) -> int:
    node = Node(config, folder, stalls)
    loop = asyncio.get_running_loop()
    signals = itertools.count(1)

    def on_signal() -> None:
        if next(signals) > 1:
            _end_here("stopped by a second signal")
        node.stop_soon()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    loop.add_signal_handler(PARENT_ENDED, node.stop_soon)
    try:
        await node.start()
        if config.scheduling == "batch":
            schedule_in_batches(node.workers)
        return await node.wait()
    finally:
        overdue.start()
        await node.stop()


def _end_here(event: str, **details: float) -> None:
    """End the process at once. The next start recovers as after a crash."""
    structlog.get_logger().error(event, **details)
    os._exit(1)
