"""`python -m jepsen_like.clusters.time_namespace SECONDS PROGRAM...`: run a program with another monotonic clock.

A Linux time namespace shifts the monotonic clock against the machine's by a number of seconds; a process enters it when
it executes a program, and cannot change it later. The process id stays. This finds code that compares timestamps of two
machines, or of two runs of a process. The wall clock is the machine's (`clocks.py` changes that one).

Source: time_namespaces(7).
"""

from __future__ import annotations

import ctypes
import os
import sys

CLONE_NEWTIME = 0x80
OFFSETS = "/proc/self/timens_offsets"


def enter(seconds: int) -> None:
    """Shift the monotonic clock of the next program that this process executes. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWTIME) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare(CLONE_NEWTIME): {os.strerror(number)}")
    with open(OFFSETS, "w", encoding="ascii") as file:
        file.write(f"monotonic {seconds} 0\nboottime {seconds} 0\n")


def offset_of(pid: int) -> int:
    """Return the seconds by which a process's monotonic clock is ahead of the machine's. Raises `OSError`."""
    with open(f"/proc/{pid}/timens_offsets", encoding="ascii") as file:
        for line in file:
            name, seconds, _ = line.split()
            if name == "monotonic":
                return int(seconds)
    return 0


def shares_our_time(pid: int) -> bool:
    """Return whether a process has the same clocks as this one. Raises `OSError`."""
    return os.readlink(f"/proc/{pid}/ns/time") == os.readlink("/proc/self/ns/time")


if __name__ == "__main__":
    enter(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
