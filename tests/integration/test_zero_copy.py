"""Regions of real files are sent by `sendfile`, also while their segment is deleted; pages that the kernel has dropped
are known to be cold.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

import pytest

from partitions.log.log import PartitionLog
from partitions.log.tail import FetchCache
from raftlog.config import TopicConfig
from raftlog.model import Offset
from raftlog.ports import FileRegion
from raftlog.system.disk import LocalDisk
from tests.support.partitions.storage import PATH, Batch, append, part_bytes, recover_log, settle

pytestmark = pytest.mark.integration

CONFIG = TopicConfig(segment_bytes=2 << 20, index_interval_bytes=4096)


def make(tmp_path: Path) -> tuple[LocalDisk, PartitionLog, list[Batch]]:
    disk = LocalDisk(str(tmp_path))
    log, _ = recover_log(disk, PATH, CONFIG, clean_shutdown=False, cache=FetchCache(0))
    made = [append(log, count=10, size=6000) for _ in range(100)]
    settle(log)
    return disk, log, made


def send(region: FileRegion, target: socket.socket) -> None:
    position, end = region.position, region.position + region.length
    while position < end:
        sent = os.sendfile(target.fileno(), region.file.fileno(), position, end - position)
        assert sent > 0, "the region ended early"
        position += sent
    region.release()


def test_regions_go_by_sendfile_while_their_segments_are_deleted(tmp_path: Path) -> None:
    disk, log, made = make(tmp_path)
    slice_ = log.read(Offset(0), log.log_end_offset, 4 << 20)
    assert len(slice_.parts) >= 2, "from two segments"
    ours, theirs = socket.socketpair()
    received = bytearray()

    def receive() -> None:
        with theirs:
            while data := theirs.recv(1 << 16):
                received.extend(data)

    reader = threading.Thread(target=receive)
    reader.start()
    with ours:
        for number, part in enumerate(slice_.parts):
            assert isinstance(part, FileRegion)
            if number == 0:
                log.advance_log_start(log.log_end_offset)
                settle(log)
                assert len([name for name in disk.list(PATH) if name.endswith(".log")]) == 1
            send(part, ours)
    reader.join(10)
    whole = b"".join(one.data for one in made)
    assert len(received) == slice_.length
    assert bytes(received) == whole[: slice_.length]
    descriptors = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.exists() or link.is_symlink()]
    assert not [path for path in descriptors if path.startswith(str(tmp_path)) and "deleted" in path]


def test_pages_dropped_by_the_kernel_are_cold_and_a_worker_loads_them(tmp_path: Path) -> None:
    disk, log, made = make(tmp_path)
    segment = log.segments.all[0]
    with contextlib.closing(disk.open(f"{PATH}/{segment.base_offset:020d}.log")) as file:
        file.fsync()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if file.pread_cached(1, 100_000) is not None:
            pytest.skip("this file system keeps its pages, or cannot tell")
    slice_ = log.read(Offset(0), Offset(100), 1 << 20)
    assert slice_.cold
    assert slice_.load is not None
    loaded = slice_.load()
    assert b"".join(map(part_bytes, loaded.parts)) == b"".join(one.data for one in made[: loaded.batch_count])
    # Now that a worker has read them, they are in memory.
    again = log.read(Offset(0), loaded.next_offset, 1 << 20)
    assert not again.cold
    again.release()
