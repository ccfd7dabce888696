"""Small ext4 file systems behind loop devices, so that a disk is really full. They need root; without it tests skip."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from raftlog.cli.nodes.local_cluster import LocalCluster, LocalNode, free_base_port
from raftlog.config import MIB

from .cluster import started

DISK_BYTES = 48 * MIB
DATA = "data"
FILLER = "filler"
COMMAND_SECONDS = 60.0


@dataclass(frozen=True)
class SmallDisk:
    """One small file system."""

    path: str

    @property
    def free(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self) -> int:
        """Let a file of another owner take every free block. Returns its size."""
        with open(os.path.join(self.path, FILLER), "ab", buffering=0) as filler:
            for size in (MIB, 4096, 1024):
                with contextlib.suppress(OSError):
                    while filler.write(bytes(size)) == size:
                        pass
            return filler.tell()


@contextlib.contextmanager
def small_disks(count: int) -> Iterator[list[SmallDisk]]:
    """Mount this number of disks; skips the test, with the reason, if the machine does not support it."""
    if os.geteuid() != 0:
        pytest.skip("a disk of its own takes root: mount")
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("there is no mkfs.ext4 here")
    with tempfile.TemporaryDirectory(prefix="raftlog-small-") as folder, contextlib.ExitStack() as mounted:
        disks = []
        for number in range(count):
            image, path = os.path.join(folder, f"{number}.img"), os.path.join(folder, f"{number}")
            with open(image, "wb") as made:
                made.truncate(DISK_BYTES)
            os.mkdir(path)
            for command in (["mkfs.ext4", "-q", "-m", "0", image], ["mount", "-o", "loop", image, path]):
                done = subprocess.run(command, capture_output=True, timeout=COMMAND_SECONDS, check=False)
                if done.returncode:
                    pytest.skip(f"{command[0]} cannot be used here: {done.stderr.decode().strip()}")
            mounted.callback(subprocess.run, ["umount", "-l", path], timeout=COMMAND_SECONDS, check=False)
            disks.append(SmallDisk(path))
        yield disks


def move_to(disk: SmallDisk, node: LocalNode) -> None:
    """Move the data of a stopped node to this disk."""
    data = os.path.join(node.folder, DATA)
    shutil.move(data, os.path.join(disk.path, DATA))
    os.symlink(os.path.join(disk.path, DATA), data)


@contextlib.contextmanager
def cluster_on_small_disks(disks: Sequence[SmallDisk], node_count: int = 3, **settings: str) -> Iterator[LocalCluster]:
    """A `running_cluster` whose first nodes have their data on these disks."""
    with tempfile.TemporaryDirectory(prefix="raftlog-test-") as folder:
        cluster = LocalCluster(folder, node_count, free_base_port(node_count), settings=settings)
        cluster.prepare()
        for disk, node in zip(disks, cluster.nodes, strict=False):
            move_to(disk, node)
        with started(cluster):
            yield cluster
