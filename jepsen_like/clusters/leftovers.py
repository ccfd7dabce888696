"""Leftovers of killed runs on this machine, identified by name and removed.

A run removes what it created. A killed run cannot, so the next run does it first. Only resources of a process that has
ended are removed: nodes that are still running (paused ones, at most), network namespaces and interfaces, mounts with
their loop devices, and folders. Two concurrent cleanups do not disturb each other: a resource that is already gone
counts as removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

from . import clocks, power_loss
from .commands import CommandFailed, run
from .ownership import FOLDER_PREFIX, folder_owners, is_alive, owner

NAMESPACES = Path("/run/netns")
INTERFACES = Path("/sys/class/net")
END_SECONDS = 10.0
POLL_SECONDS = 0.02
GONE_SECONDS = 1.0


def remove_leftovers() -> list[str]:
    """Remove all leftovers and return a readable list of them.

    Raises `CommandFailed` if one cannot be removed. Blocks.
    """
    found = []
    for pid in abandoned_processes():
        found.append(f"process {pid}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _await_end(pid)
        clocks.forget(pid)
    if os.geteuid() == 0:
        found += _remove_network()
        power_loss.remove_leftovers()
    for folder in abandoned(Path(tempfile.gettempdir())):
        if folder.startswith(FOLDER_PREFIX):
            found.append(f"folder {folder}")
            shutil.rmtree(Path(tempfile.gettempdir()) / folder, ignore_errors=True)
    return found


def abandoned(folder: Path) -> list[str]:
    """Return the names in a folder that a process of ours created which has ended."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    return [name for name in names if (pid := owner(name)) is not None and not is_alive(pid)]


def abandoned_processes() -> list[int]:
    """Return the processes that work in the folder of an ended run: nodes, and programs attached to them."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command_line = file.read().decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        owners = folder_owners(command_line)
        if owners and not any(is_alive(one) for one in owners):
            found.append(int(pid))
    return sorted(found)


def remove_namespace(name: str) -> None:
    """Remove a network namespace with its interfaces, if it exists. Raises `CommandFailed`. Blocks."""
    if (NAMESPACES / name).exists():
        _unless_gone(NAMESPACES / name, "ip", "netns", "delete", name)


def remove_interface(name: str) -> None:
    """Remove a network interface, if it exists. Raises `CommandFailed`. Blocks."""
    if (INTERFACES / name).exists():
        _unless_gone(INTERFACES / name, "ip", "link", "delete", name)


def _remove_network() -> list[str]:
    found = []
    for name in abandoned(NAMESPACES):
        remove_namespace(name)
        found.append(f"network namespace {name}")
    for name in abandoned(INTERFACES):
        remove_interface(name)
        found.append(f"interface {name}")
    return found


def _unless_gone(thing: Path, *command: str) -> None:
    """Run a command, ignoring a failure if the thing disappears by itself shortly afterwards.

    The end of a namespace removes its interfaces a little later, and another process may be removing the same thing.
    """
    try:
        run(*command)
    except CommandFailed:
        deadline = time.monotonic() + GONE_SECONDS
        while thing.exists():
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)


def _await_end(pid: int) -> None:
    """Wait for the end of a process that is not our child, by polling. A zombie has ended."""
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                if file.read().rpartition(")")[2].split()[0] in {"Z", "X"}:
                    return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(POLL_SECONDS)
    raise CommandFailed(f"process {pid} of an ended run does not end after SIGKILL")
