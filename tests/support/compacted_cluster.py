"""A cluster with one compacted partition: keyed records, passes at one broker, brokers that are away for a while."""

from __future__ import annotations

from typing import Any

from partitions.log.log import PartitionLog
from raftlog.model import Acks
from raftlog.records.batch import encode
from tests.support.compaction import records
from tests.support.replication_cluster import ReplicationCluster, tp
from tests.support.replication_cores import broker

CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "1024", "min.cleanable.dirty.ratio": "0.0"}

PASS_MAX = 200
"""Moments that a pass may take."""

CATCH_UP_MAX = 50
"""Moments that a broker may take to be back."""


class CompactedCluster(ReplicationCluster):
    """See the module. Broker 0 leads first."""

    def __init__(self, *, brokers: int = 3, **configs: str) -> None:
        self.away: set[int] = set()
        super().__init__(brokers=brokers, **(CONFIGS | configs))  # type: ignore[arg-type]

    def put(self, key: bytes | None, value: bytes | None, *, number: int = 0, sequence: int = -1) -> Any:
        """One record at the leader, of producer 7 where it has a sequence; its answer, None where there is none yet."""
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
        """Disks, and what waits for a little time."""
        for _ in range(moments):
            self.settle()
            self.scheduler.advance(0.3)
        self.settle()

    def compact(self, number: int) -> bool:
        """One whole pass, if one is worth it."""
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
        """A follower that hears nothing any more and leaves the ISR."""
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
        """It follows again, until it has all of its leader's log: it may join the ISR then."""
        self.away.discard(number)
        self.tell(broker(number))
        self.dial(number, leader)
        for _ in range(CATCH_UP_MAX):
            self.pass_time(1)
            if self.log_end(number) == self.log_end(leader):
                self.pass_time(1)
                return
        raise AssertionError(f"broker {number} does not catch up: {self.members[number].manager.status()}")
