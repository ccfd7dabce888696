"""A folder's disk: room, file system, and how long an fsync takes.

The latency is measured on a file without a name (`O_TMPFILE`), which leaves nothing behind, whatever happens.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable

from raftlog.quantities import shown_duration, shown_size

from .findings import Finding, ok, problem, warning

ROUNDS = 25
BLOCK = b"\xa5" * 4_096
SLOW_MS = 20.0
"""Median latency from which on an fsync is slow: every acknowledgement waits for one."""
VERY_SLOW_MS = 200.0
FULL_SHARE = 0.9
VOLATILE = ("tmpfs", "ramfs")
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "virtiofs")
KNOWN = ("ext4", "xfs", "btrfs", "f2fs")


def check_disk(folder: str, reserved_bytes: int) -> list[Finding]:
    """Return the findings about the disk of a folder. `reserved_bytes`: free space that a node keeps."""
    return [*check_room(folder, reserved_bytes), *check_file_system(folder), *check_fsync(folder)]


def check_room(folder: str, reserved_bytes: int) -> list[Finding]:
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return [problem("disk", f"{folder}: {error.strerror}", "create the folder, or correct data_folder")]
    total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    reserve = min(reserved_bytes, total // 20)
    shown = f"{folder}: {shown_size(free)} of {shown_size(total)} free"
    remedy = "delete topics or records, lower retention, or move the data folder to a larger disk"
    if free < reserve:
        told = f"{shown}, less than the {shown_size(reserve)} below which a node refuses batches of clients"
        return [problem("disk", told, remedy)]
    if total and free < total * (1 - FULL_SHARE):
        return [warning("disk", f"{shown}: nearly full", remedy)]
    findings = [ok("disk", shown)]
    if found.f_files and found.f_favail < found.f_files // 100:
        findings.append(warning("disk", f"{folder}: {found.f_favail} inodes left", "make a file system with more"))
    return findings


def check_file_system(folder: str, mounts: str = "/proc/mounts") -> list[Finding]:
    """Linux only; elsewhere there is no finding."""
    kind = file_system_of(folder, mounts)
    if kind is None:
        return []
    advice = f"use a local file system of its own: {', '.join(KNOWN)}"
    if kind in VOLATILE:
        return [problem("disk", f"{folder} is on {kind}, in memory: records are lost with the machine's power", advice)]
    if kind in REMOTE:
        return [
            warning("disk", f"{folder} is on {kind}, over the network: fsync and locks depend on the server", advice)
        ]
    if kind == "overlay":
        return [warning("disk", f"{folder} is in the writable layer of a container and ends with it", "mount a volume")]
    return (
        [ok("disk", f"{folder} is on {kind}")] if kind in KNOWN else [warning("disk", f"{folder} is on {kind}", advice)]
    )


def file_system_of(folder: str, mounts: str) -> str | None:
    """Return the type of the file system that holds a folder, by the longest mount point above it."""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.split() for line in file]
    except OSError:
        return None
    path = os.path.realpath(folder)
    best: tuple[int, str] | None = None
    for row in rows:
        if len(row) < 3:
            continue
        point = row[1].replace("\\040", " ")
        inside = point == "/" or path == point or path.startswith(f"{point.rstrip('/')}/")
        if inside and (best is None or len(point) >= best[0]):  # a later mount on the same point hides the earlier one
            best = (len(point), row[2])
    return None if best is None else best[1]


def check_fsync(folder: str, clock: Callable[[], float] = time.perf_counter) -> list[Finding]:
    try:
        latencies = measure_fsync(folder, clock)
    except OSError as error:
        return [problem("disk", f"cannot write in {folder}: {error.strerror}", "correct the folder's owner and mode")]
    median, worst = statistics.median(latencies), max(latencies)
    shown = f"an fsync of 4 KiB takes {shown_duration(median)} (median of {len(latencies)})"
    shown += f", at most {shown_duration(worst)}"
    remedy = "use a disk with power-loss protection, or one that other programs leave alone; see docs/performance.md"
    if median >= VERY_SLOW_MS:
        return [problem("disk", shown, remedy)]
    return [warning("disk", shown, remedy) if median >= SLOW_MS else ok("disk", shown)]


def measure_fsync(folder: str, clock: Callable[[], float]) -> list[float]:
    """Return the milliseconds of appends of a block with their fsync. Raises `OSError`."""
    with tempfile.TemporaryFile(dir=folder, prefix=".raftlog-doctor-", buffering=0) as file:
        latencies = []
        for _ in range(ROUNDS):
            began = clock()
            file.write(BLOCK)
            os.fsync(file.fileno())
            latencies.append((clock() - began) * 1000)
    return latencies
