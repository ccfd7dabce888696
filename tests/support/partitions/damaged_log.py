"""A log of several segments that is damaged on its disk and opened again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jepsen_like.simulator.world.disk import SimDisk
from partitions.log.log import PartitionLog
from partitions.recovery.outcome import Recovery
from raftlog.config import TopicConfig
from tests.support.partitions.storage import recover_log

from .storage import PATH, Batch, append, open_log, settle

CONFIG = TopicConfig(segment_bytes=1000, index_interval_bytes=150)


@dataclass
class Damaged:
    """A log of several segments (and its content) to be damaged."""

    disk: SimDisk
    batches: list[Batch]

    def names(self, suffix: str = ".log") -> list[str]:
        return [f"{PATH}/{name}" for name in self.disk.list(PATH) if name.endswith(suffix)]

    def change(self, name: str, change: Callable[[bytes], bytes]) -> None:
        file = self.disk.open(name)
        content = change(file.pread(file.size(), 0))
        file.truncate(0)
        file.pwritev([content], 0)
        file.fsync()
        file.close()

    def base(self, name: str) -> int:
        return int(name.rpartition("/")[2][:20])

    def reopen(self, *, clean: bool = False) -> tuple[PartitionLog, Recovery]:
        return recover_log(self.disk, PATH, CONFIG, clean_shutdown=clean)

    def before(self, offset: int) -> list[bytes]:
        return [one.data for one in self.batches if one.end_offset <= offset]

    def set_aside(self) -> list[str]:
        return [name for name in self.disk.list(PATH) if name.endswith(".quarantined")]


def make(*, clean: bool) -> Damaged:
    disk = SimDisk()
    disk.make_directory("partitions")
    log = open_log(disk, CONFIG)
    batches = []
    for number in range(24):
        batches.append(append(log, count=2, epoch=number // 5, size=30))
        settle(log)
    log.close(clean=clean)
    made = Damaged(disk, batches)
    assert len(made.names()) >= 4
    return made


def flip(position: int, mask: int = 1) -> Callable[[bytes], bytes]:
    return lambda good: good[:position] + bytes([good[position] ^ mask]) + good[position + 1 :]
