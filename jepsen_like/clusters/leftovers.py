"""What runs that were killed have left on this machine, found by the names that they gave it, and removed.

A run removes what it made. One that was killed cannot; the next one does it first. Only what belongs to a process that
is gone is touched: nodes that go on running (paused ones, at most), network namespaces and interfaces, mounts with
their loop devices, and folders. Two that clean up at the same time do each other no harm: what is gone is done.
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
    """What was there, for people. Raises `CommandFailed` where something cannot be removed. Blocks."""
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
    """Names of ours in it whose makers are gone."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    return [name for name in names if (pid := owner(name)) is not None and not is_alive(pid)]


def abandoned_processes() -> list[int]:
    """Running programs that work in the folder of a run which is gone: nodes, and what was attached to them."""
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
    """With the interfaces in it, if it is there. Raises `CommandFailed`. Blocks."""
    if (NAMESPACES / name).exists():
        _unless_gone(NAMESPACES / name, "ip", "netns", "delete", name)


def remove_interface(name: str) -> None:
    """If it is there. Raises `CommandFailed`. Blocks."""
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
    """The end of a namespace takes its interfaces along, a little later, and somebody else may be removing it just now:
    what goes by itself is no failure."""
    try:
        run(*command)
    except CommandFailed:
        deadline = time.monotonic() + GONE_SECONDS
        while thing.exists():
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)


def _await_end(pid: int) -> None:
    """Somebody else's child: it cannot be waited for, only looked at. A zombie has ended."""
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                if file.read().rpartition(")")[2].split()[0] in {"Z", "X"}:
                    return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(POLL_SECONDS)
    raise CommandFailed(f"process {pid} of a run that is gone does not end")
