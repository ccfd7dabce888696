"""A log without a disk, and a driver without ports, for tests of the replica's cores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from partitions.files.leader_epochs import EpochStart, LeaderEpochHistory
from partitions.producers.state import ProducerStates
from partitions.replica import effects as fx
from partitions.replica.leader import Leader
from partitions.replica.replica import Replica
from raftlog.model import (
    Acks,
    BrokerId,
    BrokerRecord,
    DirectoryId,
    Endpoint,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionRecord,
    ProducerId,
    TopicId,
    TopicPartition,
)
from raftlog.records.batch import BatchHeader
from raftlog.transactions import Outcome, TransactionKey, Verdict

ZERO = Offset(0)
TP = TopicPartition(TopicId(bytes(15) + b"\x01"), 0)


class NoTransactions:
    """Decisions of a cluster that knows no transaction and accepts none."""

    def verdict(self, key: TransactionKey, topic_partition: TopicPartition) -> Verdict:
        return Verdict(Outcome.UNDECIDED)

    def unmarked(self, topic_partition: TopicPartition) -> Iterable[TransactionKey]:
        return ()

    def refusal(self, key: TransactionKey) -> str:
        return "unknown_transaction"

    def timeout_ms(self, key: TransactionKey) -> int | None:
        return None


def header(
    count: int = 1,
    *,
    base_offset: int = -1,
    leader_epoch: int = -1,
    producer: tuple[int, int, int] = (-1, -1, -1),
    size: int = 100,
    max_timestamp: int = 0,
) -> BatchHeader:
    """A batch's header; `producer` is (id, epoch, base sequence), `size` the number of all its bytes."""
    producer_id, producer_epoch, base_sequence = producer
    return BatchHeader(
        base_offset=base_offset,
        batch_length=size - 12,
        leader_epoch=leader_epoch,
        magic=82,
        crc=0,
        attributes=0,
        last_offset_delta=count - 1,
        base_timestamp=0,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=count,
    )


@dataclass
class FakeLog:
    """A `LogView` that effects can change. Epochs are given as (epoch, end offset) pieces."""

    log_start_offset: Offset = ZERO
    log_end_offset: Offset = ZERO
    stable_end_offset: Offset = ZERO
    epochs: LeaderEpochHistory = field(default_factory=LeaderEpochHistory)
    stable_start_offset: Offset = ZERO
    batch_bases: tuple[int, ...] | None = None
    """The offsets at which batches begin; None: everywhere."""

    @property
    def first_batch_offset(self) -> Offset:
        if self.batch_bases is None:
            return self.log_start_offset
        return Offset(max(base for base in self.batch_bases if base <= self.log_start_offset))

    @classmethod
    def of(cls, *pieces: tuple[int, int], start: int = 0, stable: int | None = None) -> FakeLog:
        log = cls(Offset(start), Offset(start), Offset(start))
        for epoch, end in pieces:
            log.append(epoch, end)
        log.stable_end_offset = log.log_end_offset if stable is None else Offset(stable)
        return log

    def append(self, epoch: int, end: int) -> None:
        assert end > self.log_end_offset
        self.epochs.assign(LeaderEpoch(epoch), self.log_end_offset)
        self.log_end_offset = Offset(end)

    def fsync(self) -> None:
        self.stable_end_offset = self.log_end_offset
        self.stable_start_offset = self.log_start_offset

    def truncate_to(self, end: Offset) -> None:
        assert self.log_start_offset <= end
        self.log_end_offset = min(end, self.log_end_offset)
        self.stable_end_offset = min(end, self.stable_end_offset)
        self.epochs.truncate_end(self.log_end_offset)

    def start_at(self, offset: Offset) -> None:
        self.log_start_offset = self.log_end_offset = self.stable_end_offset = offset
        self.stable_start_offset = offset
        self.epochs.clear()


def broker(number: int, incarnation: int = 1, *, fenced: bool = False) -> BrokerRecord:
    endpoint = Endpoint("127.0.0.1", 9640 + number)
    return BrokerRecord(
        BrokerId(number), Incarnation(incarnation), DirectoryId(bytes(16)), 1, endpoint, endpoint, "", fenced, 1
    )


def record(
    leader: int = 0,
    epoch: int = 1,
    isr: Sequence[int] = (0, 1, 2),
    *,
    partition_epoch: int = 1,
    minimum: int = 2,
    replicas: Sequence[int] = (0, 1, 2),
    incarnation: int = 1,
    commit_set: Sequence[int] | None = None,
    not_eligible: Sequence[int] = (),
) -> PartitionRecord:
    return PartitionRecord(
        TP,
        tuple(map(BrokerId, replicas)),
        BrokerId(leader),
        Incarnation(incarnation),
        LeaderEpoch(epoch),
        PartitionEpoch(partition_epoch),
        tuple(map(BrokerId, isr)),
        tuple(map(BrokerId, isr if commit_set is None else commit_set)),
        minimum,
        tuple(map(BrokerId, not_eligible)),
    )


class CoreDriver:
    """Performs the effects of one replica on a `FakeLog` and records outgoing messages."""

    def __init__(
        self,
        log: FakeLog | None = None,
        *,
        node: int = 0,
        brokers: Sequence[int] = (0, 1, 2),
        lag_max: float = 5.0,
        producers: ProducerStates | None = None,
    ) -> None:
        self.log = log or FakeLog()
        self.producers = ProducerStates() if producers is None else producers
        self.brokers = {BrokerId(number): broker(number) for number in brokers}
        self.node = BrokerId(node)
        self.replica = Replica(
            self.node,
            Incarnation(1),
            self.log,
            self.producers,
            self.brokers,
            lag_max=lag_max,
            verdicts=NoTransactions(),
        )
        self.now = 0.0
        self.out: list[fx.Effect] = []
        self.after: list[tuple[int, tuple[fx.Acknowledge, ...]]] = []
        self._requests = 0

    @property
    def leader(self) -> Leader:
        assert self.replica.leader is not None
        return self.replica.leader

    def do(self, effects: Sequence[fx.Effect]) -> list[fx.Effect]:
        """Perform effects; returns (and keeps) the outgoing messages."""
        before = len(self.out)
        for effect in effects:
            self._perform(effect)
        self.replica.check_invariants()
        return self.out[before:]

    def _perform(self, effect: fx.Effect) -> None:
        log = self.log
        if isinstance(effect, fx.Append):
            assert effect.base_offset == log.log_end_offset
            stamped = effect.batch.header
            stamped.base_offset, stamped.leader_epoch = effect.base_offset, effect.leader_epoch
            self.producers.append(stamped)
            log.append(effect.leader_epoch, stamped.end_offset)
            if effect.after:
                self.after.append((stamped.end_offset, effect.after))
            producer = ProducerId(stamped.producer_id)
            self.out.append(effect)
            for following in self.replica.on_appended(effect.leader_epoch, producer, self.now):
                self._perform(following)
            return
        if isinstance(effect, fx.WhenStable):
            self.after.append((effect.end_offset, effect.after))
        elif isinstance(effect, fx.AppendFetched):
            for fetched in effect.batches:
                log.append(fetched.header.leader_epoch, fetched.header.end_offset)
        elif isinstance(effect, fx.TruncateTo):
            log.truncate_to(effect.end_offset)
        elif isinstance(effect, fx.StartLogAt):
            log.start_at(effect.offset)
        elif isinstance(effect, fx.AdvanceLogStart):
            log.log_start_offset = effect.offset
        self.out.append(effect)
        if isinstance(effect, fx.TruncateTo | fx.StartLogAt):
            for following in self.replica.on_truncated(effect.leader_epoch):
                self._perform(following)

    # --- Events ---

    def lead(self, **fields: Any) -> list[fx.Effect]:
        return self.do(self.replica.on_record(record(**fields), self.now))

    def produce(
        self,
        count: int = 1,
        acks: Acks = Acks.ALL,
        producer: tuple[int, int, int] = (-1, -1, -1),
        size: int = 100,
        *,
        resent: bool = False,
        expected_end_offset: int = -1,
    ) -> list[fx.Effect]:
        """Produce one batch; request numbers count from 1."""
        self._requests += 1
        checked = header(count, producer=producer, size=size)
        batch = fx.IncomingBatch(
            fx.RequestId(self._requests), checked, b"", acks, resent=resent, expected_end_offset=expected_end_offset
        )
        return self.do(self.replica.produce(batch, self.now))

    def fsync(self) -> list[fx.Effect]:
        self.log.fsync()
        due = [a for end, after in self.after if end <= self.log.stable_end_offset for a in after]
        self.after = [(end, after) for end, after in self.after if end > self.log.stable_end_offset]
        return self.do([*due, *self.replica.on_stable()])

    def subscribe(
        self,
        follower: int,
        *,
        last_epoch: int = -1,
        end: int = 0,
        stable: int | None = None,
        epoch: int | None = None,
        incarnation: int = 1,
    ) -> list[fx.Effect]:
        return self.do(
            self.replica.on_subscribe(
                BrokerId(follower),
                Incarnation(incarnation),
                fx.FollowerPosition(
                    leader_epoch=LeaderEpoch(self.replica.leader_epoch if epoch is None else epoch),
                    last_epoch=LeaderEpoch(last_epoch),
                    fetch_offset=Offset(end),
                    stable_end_offset=Offset(end if stable is None else stable),
                ),
                self.now,
            )
        )

    def report(
        self, follower: int, stable: int, *, fetch: int | None = None, epoch: int | None = None, incarnation: int = 1
    ) -> list[fx.Effect]:
        return self.do(
            self.replica.on_report(
                BrokerId(follower),
                Incarnation(incarnation),
                fx.ReportStable(
                    LeaderEpoch(self.replica.leader_epoch if epoch is None else epoch),
                    Offset(stable if fetch is None else fetch),
                    Offset(stable),
                ),
                self.now,
            )
        )

    def tick(self, seconds: float = 0.0) -> list[fx.Effect]:
        self.now += seconds
        return self.do(self.replica.on_tick(self.now))

    # --- Outgoing messages ---

    def acknowledged(self) -> list[tuple[int, int]]:
        """(request, base offset) of every acknowledgement, in order."""
        return [(e.request, e.base_offset) for e in self.out if isinstance(e, fx.Acknowledge)]

    def rejected(self) -> list[tuple[int, str]]:
        return [(e.request, e.error.code) for e in self.out if isinstance(e, fx.Reject)]

    def proposals(self) -> list[fx.ProposeIsr]:
        return [e for e in self.out if isinstance(e, fx.ProposeIsr)]

    def last_answer(self) -> fx.Answer:
        return [e.answer for e in self.out if isinstance(e, fx.AnswerFollower)][-1]


def isr_of(effect: fx.ProposeIsr) -> list[int]:
    return [broker_id for broker_id, _ in effect.proposal.isr]


def history(*starts: tuple[int, int]) -> LeaderEpochHistory:
    return LeaderEpochHistory(EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in starts)
