"""One node: its folder, its settings, and `raftlog server` on them, started and ended as anybody would.

A node's log lies beside its settings, outside of the disk that faults are made on: what it says about a broken disk
must survive that disk. A child stops when its parent ends, however that ends (`server run --stop-with-stdin`); one that
is paused then is killed by whoever cleans up next (`leftovers.py`).
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
"""For what takes a second on a quiet machine."""
STOP_SECONDS = 40.0
"""Above what the product allows itself for an orderly stop."""
KILL_SECONDS = 30.0
POLL_SECONDS = 0.05
DIAL_SECONDS = 1.0
TAIL_BYTES = 16 * 1024


class NodeEnded(Exception):
    """A node that should run does not, or does not listen; the text has the end of its log."""

    def __init__(self, node: str, why: str, tail: str) -> None:
        super().__init__(f"{node} {why}:\n{tail}")
        self.node = node
        self.tail = tail


@dataclass(slots=True)
class NodeProcess:
    """A node that may run. `folder` holds settings and log, `data_folder` may be on another disk."""

    name: str
    number: int
    """Its node id."""
    folder: Path
    data_folder: Path
    api: Endpoint
    data: Endpoint
    peers: Mapping[int, Endpoint]
    """Where it dials the data listeners of others, by node id."""
    prefix: tuple[str, ...] = ()
    """In front of the program, such as what enters a namespace."""
    program: tuple[str, ...] = PROGRAM
    """What runs as the node: takes the arguments of `raftlog`."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further lines of `node.toml`: name → TOML value."""
    environment: Mapping[str, str] = field(default_factory=dict)
    monotonic_offset: int = 0
    """Seconds by which its monotonic clock is ahead of the machine's, from its next start on."""
    descriptors: int | None = None
    """Limit of its open files, from its next start on; None: this process's own."""
    process: subprocess.Popen[bytes] | None = None

    @property
    def settings_file(self) -> Path:
        return self.folder / SETTINGS_FILE

    @property
    def log_file(self) -> Path:
        return self.folder / LOG_FILE

    @property
    def pid(self) -> int | None:
        """While it runs."""
        return self.process.pid if self.process is not None and self.process.poll() is None else None

    # --- Start ---

    def prepare(self, cluster_id: str, voters: Mapping[int, Endpoint]) -> None:
        """`raftlog server init`, once. Raises `CommandFailed`. Blocks."""
        self.folder.mkdir(parents=True, exist_ok=True)
        listed = ",".join(f"{number}@{endpoint}" for number, endpoint in sorted(voters.items()))
        command = [*PROGRAM, "server", "init", "--data-folder", str(self.data_folder), "--node-id", str(self.number)]
        command += ["--cluster-id", cluster_id, "--voters", listed]
        if self.number not in voters:
            command.append("--observer")
        run(*command, seconds=INIT_SECONDS)

    def start(self) -> None:
        """`raftlog server run`, unless it runs. Blocks for a moment."""
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
                start_new_session=True,  # A Ctrl-C at the terminal is the parent's to handle.
            )

    async def listens(self, within: float = START_SECONDS) -> None:
        """Until its API takes connections. Raises `NodeEnded`."""
        deadline = asyncio.get_running_loop().time() + within
        while True:
            if self.pid is None:
                code = None if self.process is None else self.process.returncode
                raise NodeEnded(self.name, f"ended with exit code {code}", self.log_tail())
            if await _is_open(self.api):
                return
            if asyncio.get_running_loop().time() > deadline:
                raise NodeEnded(self.name, f"does not listen after {within:.0f} s", self.log_tail())
            await asyncio.sleep(POLL_SECONDS)

    # --- End ---

    def signal(self, number: signal.Signals) -> None:
        """To the process, if it runs."""
        if self.process is not None:
            self.process.send_signal(number)

    def reap(self, within: float = KILL_SECONDS) -> int | None:
        """Its exit code once it has ended; None where none ran. Raises `CommandFailed` where it does not. Blocks."""
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
        """In order, by SIGTERM; its exit code. What does not stop in time is killed, and -9. Blocks."""
        self.signal(signal.SIGTERM)
        try:
            return self.reap(STOP_SECONDS)
        except CommandFailed:
            self.signal(signal.SIGKILL)
            return self.reap()

    def log_tail(self, lines: int = 15) -> str:
        """The end of its log, for people."""
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
