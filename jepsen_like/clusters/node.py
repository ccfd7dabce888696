"""One node: its folder, its settings, and a `raftlog server` process, started and stopped as any user would.

A node's log lies beside its settings, outside the disk that suffers faults: messages about a broken disk must survive
that disk. A node stops when its parent ends, in whatever way (`server run --stop-with-stdin`); a node that is paused at
that time is killed by the next cleanup (`leftovers.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from raftlog.model import Endpoint

from . import clocks
from .commands import CommandFailed, run

PROGRAM = (sys.executable, "-P", "-m", "raftlog.cli.main")
SETTINGS_FILE = "node.toml"
LOG_FILE = "log.jsonl"
INIT_SECONDS = 120.0
START_SECONDS = 120.0
"""Upper bound; a start takes about a second on an idle machine."""
STOP_SECONDS = 40.0
"""More than the product allows itself for an orderly stop."""
KILL_SECONDS = 30.0
POLL_SECONDS = 0.05
DIAL_SECONDS = 1.0
TAIL_BYTES = 16 * 1024


class NodeEnded(Exception):
    """A node that should be running has ended or does not listen; the text has the end of its log."""

    def __init__(self, node: str, why: str, tail: str) -> None:
        super().__init__(f"{node} {why}:\n{tail}")
        self.node = node
        self.tail = tail


@dataclass(slots=True)
class NodeProcess:
    """A node, running or not. `folder` holds settings and log; `data_folder` may be on another disk."""

    name: str
    number: int
    """The node id."""
    folder: Path
    data_folder: Path
    api: Endpoint
    data: Endpoint
    peers: Mapping[int, Endpoint]
    """Addresses at which it dials the data listeners of other nodes, by node id."""
    prefix: tuple[str, ...] = ()
    """Command prefix, such as the one that enters a namespace."""
    program: tuple[str, ...] = PROGRAM
    """The command that runs as the node; it takes the arguments of `raftlog`."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further lines of `node.toml`: name → TOML value."""
    environment: Mapping[str, str] = field(default_factory=dict)
    monotonic_offset: int = 0
    """Seconds by which its monotonic clock is ahead of the machine's, from the next start on."""
    descriptors: int | None = None
    """Limit of its open files, from the next start on; None: the limit of this process."""
    process: subprocess.Popen[bytes] | None = None

    @property
    def settings_file(self) -> Path:
        return self.folder / SETTINGS_FILE

    @property
    def log_file(self) -> Path:
        return self.folder / LOG_FILE

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self.process.pid if self.process is not None and self.process.poll() is None else None

    # --- Start ---

    def prepare(self, cluster_id: str, voters: Mapping[int, Endpoint]) -> None:
        """Run `raftlog server init`, once. Raises `CommandFailed`. Blocks."""
        self.folder.mkdir(parents=True, exist_ok=True)
        listed = ",".join(f"{number}@{endpoint}" for number, endpoint in sorted(voters.items()))
        command = [*PROGRAM, "server", "init", "--data-folder", str(self.data_folder), "--node-id", str(self.number)]
        command += ["--cluster-id", cluster_id, "--voters", listed]
        if self.number not in voters:
            command.append("--observer")
        run(*command, seconds=INIT_SECONDS)

    def start(self) -> None:
        """Start `raftlog server run` unless it is running. Blocks briefly."""
        if self.pid is not None:
            return
        self.reap()
        self.settings_file.write_text(self._settings_text())
        command = [*self.prefix, *_with_descriptors(self.descriptors)]
        command += [*_with_monotonic_offset(self.monotonic_offset), *self.program]
        command += ["server", "run", "--stop-with-stdin", "--config", str(self.settings_file)]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONFAULTHANDLER": "1", **self.environment},
                start_new_session=True,  # Ctrl-C at the terminal is handled by the parent.
            )

    async def listens(self, within: float = START_SECONDS) -> None:
        """Wait until the API accepts connections. Raises `NodeEnded`."""
        deadline = asyncio.get_running_loop().time() + within
        while True:
            if self.pid is None:
                code = None if self.process is None else self.process.returncode
                raise NodeEnded(self.name, f"ended with exit code {code}", self.log_tail())
            if await _is_open(self.api):
                return
            if asyncio.get_running_loop().time() > deadline:
                raise NodeEnded(self.name, f"did not listen within {within:.0f} s", self.log_tail())
            await asyncio.sleep(POLL_SECONDS)

    # --- End ---

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self.process is not None:
            self.process.send_signal(number)

    def reap(self, within: float = KILL_SECONDS) -> int | None:
        """Wait for the process to end and return its exit code; None if there is no process.

        Raises `CommandFailed` if it does not end in time. Blocks.
        """
        if self.process is None:
            return None
        try:
            code = self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise CommandFailed(f"{self.name} (process {self.process.pid}) did not end within {within:.0f} s") from None
        clocks.forget(self.process.pid)
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        self.process = None
        return code

    def stop(self) -> int | None:
        """Stop the node in order (SIGTERM) and return its exit code; after a timeout it is killed (-9). Blocks."""
        self.signal(signal.SIGTERM)
        try:
            return self.reap(STOP_SECONDS)
        except CommandFailed:
            self.signal(signal.SIGKILL)
            return self.reap()

    def log_tail(self, lines: int = 15) -> str:
        """Return the end of its log as text."""
        try:
            with self.log_file.open("rb") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - TAIL_BYTES, 0))
                return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""

    # --- Inside ---

    def _settings_text(self) -> str:
        lines = [f"data_folder = {json.dumps(str(self.data_folder))}"]
        lines += [f"{name} = {value}" for name, value in self.settings.items()]
        places = {"api.listen": self.api, "data.listen": self.data}
        places |= {f"peers.{number}.data": endpoint for number, endpoint in sorted(self.peers.items())}
        for table, endpoint in places.items():
            lines += [f"[{table}]", f"host = {json.dumps(endpoint.host)}", f"port = {endpoint.port}"]
        return "\n".join(lines) + "\n"


def _with_descriptors(limit: int | None) -> tuple[str, ...]:
    return () if limit is None else ("prlimit", f"--nofile={limit}:{limit}")


def _with_monotonic_offset(seconds: int) -> tuple[str, ...]:
    if not seconds:
        return ()
    return (sys.executable, "-P", "-m", "jepsen_like.clusters.time_namespace", str(seconds))


async def _is_open(endpoint: Endpoint) -> bool:
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
