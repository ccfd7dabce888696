"""The process of one node: its settings, its loop, the signals that stop it, and the time limit of a stop."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import msgspec
import structlog

from raftlog.broker.loop_stalls import LoopStalls
from raftlog.config import NodeConfig, load_node_config
from raftlog.errors import InvalidRequest

from .node import Node
from .scheduling import schedule_in_batches

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
    config, folder = _read_config(config_path)
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


def _read_config(path: str) -> tuple[NodeConfig, str]:
    """Return the settings, and the data folder that they name."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise InvalidRequest("invalid_config", f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            "invalid_config", f"{path} is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from None
    config = load_node_config(text)
    beside = os.path.dirname(os.path.abspath(path))
    if config.tls is not None:
        files = {name: os.path.join(beside, path) for name, path in config.tls.paths.items()}
        config = msgspec.structs.replace(config, tls=msgspec.structs.replace(config.tls, **files))
    oidc = config.security.oidc
    if oidc is not None:
        local = {} if not oidc.jwks or oidc.jwks_is_a_url else {"jwks": os.path.join(beside, oidc.jwks)}
        if oidc.authority:
            local["authority"] = os.path.join(beside, oidc.authority)
        security = msgspec.structs.replace(config.security, oidc=msgspec.structs.replace(oidc, **local))
        config = msgspec.structs.replace(config, security=security)
    return config, os.path.join(beside, config.data_folder)
