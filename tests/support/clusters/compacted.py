"""A cluster with one compacted partition: keyed records, passes at one broker, brokers that are offline for a while."""

from __future__ import annotations

from typing import Any

from partitions.log.log import PartitionLog
from raftlog.model import Acks
from raftlog.records.batch import encode
from tests.support.partitions.compaction import records
from tests.support.partitions.replication_cluster import ReplicationCluster, tp
from tests.support.partitions.replication_cores import broker

CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "1024", "min.cleanable.dirty.ratio": "0.0"}

PASS_MAX = 200
"""The number of steps that a pass may take."""

CATCH_UP_MAX = 50
"""The number of steps that a broker may take to return."""


class CompactedCluster(ReplicationCluster):
    """The cluster. Broker 0 leads first."""

    def __init__(self, *, brokers: int = 3, cache_bytes: int = 1 << 20, **configs: str) -> None:
        self.away: set[int] = set()
        super().__init__(brokers=brokers, cache_bytes=cache_bytes, **(CONFIGS | configs))  # type: ignore[arg-type]

    def put(self, key: bytes | None, value: bytes | None, *, number: int = 0, sequence: int = -1) -> Any:
        """Produce one record at the leader, as producer 7 if it has a sequence. Returns its answer, None if there is
        none yet."""
        answers: list[Any] = []
        batch = encode(
            [value],
            keys=[key],
            base_timestamp_ms=self.scheduler.clock.wall_ms(),
            producer_id=7 if sequence >= 0 else -1,
            producer_epoch=0 if sequence >= 0 else -1,
            base_sequence=sequence,
        )
        self.members[number].manager.produce(tp(0), batch, Acks.ALL, answers.append)
        self.settle()
        return answers[0] if answers else None

    def fill(self, count: int, *, keys: int = 4) -> None:
        for number in range(count):
            self.put(b"k%d" % (number % keys), b"v%d" % number * 6)

    def log(self, number: int) -> PartitionLog:
        return self.members[number].manager.drivers[tp(0)].log

    def offsets(self, number: int) -> list[int]:
        return [offset for offset, _, _ in records(self.log(number))]

    def pass_time(self, moments: int = 4) -> None:
        """Run disks, and timers of a short time."""
        for _ in range(moments):
            self.settle()
            self.scheduler.advance(0.3)
        self.settle()

    def compact(self, number: int) -> bool:
        """Run one whole pass, if one is due."""
        self.pass_time(2)
        compactor = self.members[number].manager.compactor
        before = compactor.passes
        if not compactor.look():
            return False
        for _ in range(PASS_MAX):
            self.settle()
            self.scheduler.advance(0.05)
            if compactor.passes > before:
                self.settle()
                return True
        raise AssertionError("the pass does not end")

    def send_away(self, number: int, leader: int = 0) -> None:
        """Cut off a follower, until it has left the ISR."""
        self.tell(broker(number, fenced=True))
        self.set_isr(*[member for member in self.records[0].isr if member != number])
        self.away.add(number)
        self.members[number].links[leader].close()
        self.settle()

    def dial(self, owner: int, peer: int) -> None:
        link = self.members[owner].links.get(peer)
        if not self.away & {owner, peer} and (link is None or not link.open):
            super().dial(owner, peer)

    def bring_back(self, number: int, leader: int = 0) -> None:
        """Let it follow again, until it has all of its leader's log and may join the ISR."""
        self.away.discard(number)
        self.tell(broker(number))
        self.dial(number, leader)
        for _ in range(CATCH_UP_MAX):
            self.pass_time(1)
            if self.log_end(number) == self.log_end(leader):
                self.pass_time(1)
                return
        raise AssertionError(f"broker {number} does not catch up: {self.members[number].manager.status()}")
