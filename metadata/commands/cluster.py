"""Commands about brokers, topics, partitions and the cluster as a whole.

A command is a request to change the agreed facts; nothing in it is true until the image found it so when applying it.
Every command therefore names what its proposer believed (incarnations, epochs, ids), and is refused by name where that
is no longer the case. Randomness (topic ids) and choices (replicas, leaders) are made by the proposer and carried here,
so that applying is deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from raftlog.model import (
    NO_INCARNATION,
    BrokerId,
    DirectoryId,
    Endpoint,
    Incarnation,
    ReplicaReport,
    TopicPartition,
)

from .fields import (
    BrokerIdField,
    DirectoryIdField,
    Election,
    IncarnationField,
    IsrMember,
    LeaderEpochField,
    ListeningAt,
    NaturalField,
    PackedReports,
    Part,
    PartitionEpochField,
    PartitionField,
    Report,
    TextField,
    TopicIdField,
    decode_report,
)

REGISTRATION_FEATURE_LEVEL = 5
"""From which on a registration names the one whose place it takes."""

MAX_ELECTIONS_PER_COMMAND = 512
"""One entry elects many partitions: a failover of thousands is a few entries, each of them small."""

ROOM_FEATURE_LEVEL = 5
"""From which `ReportRoom` is proposed at all."""

TIME_FEATURE_LEVEL = 5
"""From which `AdvanceTime` is proposed at all."""

MAX_STEP_MS = 600_000
"""Of one `AdvanceTime`, once there is a time: whoever proposes more is wrong about something."""

STAMP_LAG_MS = 60_000
"""A step that is longer is a leap, and no stamp from before a leap is older than the leap itself. So a stamp, which has
the time of the last step before it, lags by this at most: whatever expires is kept for so much longer."""


class RegisterBroker(Part, frozen=True, tag="register_broker.1"):
    """A started process takes its place; answered by `Registered`. Idempotent for one (directory, start number)."""

    broker_id: BrokerIdField
    directory_id: DirectoryIdField
    start_number: NaturalField
    api: ListeningAt
    data: ListeningAt
    rack: TextField
    feature_level: NaturalField
    packed_reports: tuple[msgspec.Raw, ...]
    """A `Report` of every replica found on disk, each coded on its own: a hundred thousand of them at once would hold
    up whoever reads the command. Whoever applies it reads them some at a time."""

    @staticmethod
    def of(
        broker_id: BrokerId,
        directory_id: DirectoryId,
        start_number: int,
        *,
        api: Endpoint,
        data: Endpoint,
        rack: str,
        feature_level: int,
        reports: Sequence[ReplicaReport] | PackedReports,
    ) -> RegisterBroker:
        """From the shared nouns."""
        packed = reports.packed if isinstance(reports, PackedReports) else PackedReports.of(reports).packed
        return RegisterBroker(
            broker_id=broker_id,
            directory_id=directory_id,
            start_number=start_number,
            api=ListeningAt(api.host, api.port),
            data=ListeningAt(data.host, data.port),
            rack=rack,
            feature_level=feature_level,
            packed_reports=packed,
        )

    @property
    def reports(self) -> tuple[Report, ...]:
        """All of them, read at once. Raises `RemoteProtocolError`."""
        return tuple(map(decode_report, self.packed_reports))


class ReplaceRegistration(RegisterBroker, frozen=True, tag="register_broker.2"):
    """The same, and which registration of this broker it takes the place of: the one that the quorum knew after the
    process had started. One that comes late, after another process registered, is refused whatever its directory. The
    first of all in a new cluster sets the cluster's feature level. Answered by `Registered`."""

    replaces: Annotated[Incarnation, msgspec.Meta(ge=NO_INCARNATION, le=2**62)]
    """`NO_INCARNATION` where there was none."""

    @staticmethod
    def after(registration: RegisterBroker, replaces: Incarnation) -> ReplaceRegistration:
        """The registration, in place of that one."""
        return ReplaceRegistration(
            registration.broker_id,
            registration.directory_id,
            registration.start_number,
            registration.api,
            registration.data,
            registration.rack,
            registration.feature_level,
            registration.packed_reports,
            replaces,
        )


class FenceBroker(Part, frozen=True, tag="fence_broker.1"):
    """This life of the broker is not heard of (or stops): it leads nothing and leaves the ISRs. Answered by `Done`."""

    broker_id: BrokerIdField
    incarnation: IncarnationField


class UnfenceBroker(Part, frozen=True, tag="unfence_broker.1"):
    """This life of the broker is there and follows the metadata log: it may lead again. Answered by `Done`."""

    broker_id: BrokerIdField
    incarnation: IncarnationField


class ReportRoom(Part, frozen=True, tag="report_room.1"):
    """This life of the broker takes no batches from clients (`short`), or takes them again. Answered by `Done`, also
    where it was known."""

    broker_id: BrokerIdField
    incarnation: IncarnationField
    short: bool


class CreateTopic(Part, frozen=True, tag="create_topic.1"):
    """A new topic with these replicas, one tuple a partition. Answered by `Done`; idempotent for one (name, id)."""

    name: TextField
    topic_id: TopicIdField
    replicas: tuple[tuple[BrokerIdField, ...], ...]
    configs: tuple[tuple[TextField, TextField], ...] = ()


class DeleteTopic(Part, frozen=True, tag="delete_topic.1"):
    """The topic and its partitions are no more. Answered by `Done`."""

    topic_id: TopicIdField


class AlterTopic(Part, frozen=True, tag="alter_topic.1"):
    """Set some settings and put others back to their defaults. Answered by `Done`."""

    topic_id: TopicIdField
    assign: tuple[tuple[TextField, TextField], ...]
    remove: tuple[TextField, ...] = ()


class AddPartitions(Part, frozen=True, tag="add_partitions.1"):
    """More partitions with these replicas, if the topic still has `first_partition` of them. Answered by `Done`."""

    topic_id: TopicIdField
    first_partition: PartitionField
    replicas: tuple[tuple[BrokerIdField, ...], ...]


class ElectLeaders(Part, frozen=True, tag="elect_leaders.1"):
    """Elections, each decided on its own. Answered by `Elected`."""

    elections: Annotated[tuple[Election, ...], msgspec.Meta(max_length=MAX_ELECTIONS_PER_COMMAND)]


class AlterIsr(Part, frozen=True, tag="alter_isr.1"):
    """The leader's proposal of a new ISR (KIP-497, KIP-903): all of what it believed must still hold.

    Answered by `IsrAltered`. It may be proposed again as it is when its fate is unknown: one copy at most is accepted,
    and none after a refusal. But a copy before the refused one may have been: the leader acts on a refusal only once
    its view has come to the refusal's index, and then by what the view says.
    """

    topic_id: TopicIdField
    partition: PartitionField
    leader: BrokerIdField
    leader_incarnation: IncarnationField
    leader_epoch: LeaderEpochField
    partition_epoch: PartitionEpochField
    isr: tuple[IsrMember, ...]

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)


class GrantProducerIds(Part, frozen=True, tag="grant_producer_ids.1"):
    """A block of producer ids that nobody else gets, for one life of a broker. Answered by `ProducerIdsGranted`."""

    broker_id: BrokerIdField
    incarnation: IncarnationField
    count: NaturalField


class SetFeatureLevel(Part, frozen=True, tag="set_feature_level.1"):
    """Finalize a feature level that every registered broker understands. It never falls. Answered by `Done`."""

    level: NaturalField


class AdvanceTime(Part, frozen=True, tag="advance_time.1"):
    """The controller of `term` read `from_ms` in the image and moves the cluster's time to `to_ms`, which may be the
    same. Answered by `Done`; refused in an entry of another term, and where the time is not what it was: so a copy that
    comes late, or another controller's, changes nothing."""

    term: NaturalField
    from_ms: NaturalField
    """0: there is no time yet; then `to_ms` is what a majority of the voters' wall clocks say."""
    to_ms: NaturalField
    agreed_ms: NaturalField
    """What a majority of the voters' wall clocks say; 0 where no majority agrees."""


class NoOp(Part, frozen=True, tag="no_op.1"):
    """Nothing: its index is a linearizable read's barrier (S7). Answered by `Done`."""
