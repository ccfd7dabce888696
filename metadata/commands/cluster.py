"""Commands about brokers, topics, partitions and the cluster as a whole.

A command is a request to change the agreed facts; it has no effect until the image validates and applies it. Every
command therefore names what its proposer assumed (incarnations, epochs, ids), and is refused with a code if that no
longer holds. Random values (topic ids) and choices (replicas, leaders) are made by the proposer and carried here, so
that applying is deterministic.
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
    OfIncarnation,
    OfPartition,
    PackedReports,
    PartitionEpochField,
    PartitionField,
    PrincipalField,
    Report,
    TextField,
    TopicIdField,
    WireStruct,
    decode_report,
)

REGISTRATION_FEATURE_LEVEL = 5
"""The level from which a registration names the registration that it replaces."""

MAX_ELECTIONS_PER_COMMAND = 512
"""Elections in one command: a failover of thousands is a few entries, each of them small."""

ROOM_FEATURE_LEVEL = 5
"""The level from which `ReportRoom` may be proposed."""

TIME_FEATURE_LEVEL = 5
"""The level from which `AdvanceTime` may be proposed."""

RESTORE_FEATURE_LEVEL = 7
"""The level from which `RestoreTopic` may be proposed, and topics have the setting `restoring`."""

MAX_RESTORED_PRODUCER_ID = 2**60
"""Bound on the producer ids of a backup, so that enough are left to grant."""

MAX_STEP_MS = 600_000
"""The longest step of one `AdvanceTime` after the first; a longer one indicates a faulty proposer."""

STAMP_LAG_MS = 60_000
"""The bound on how far a stamp lags, in milliseconds; expiring data is kept for this much longer.

A longer step is a leap, and no stamp from before a leap is older than the leap itself. A stamp has the time of the last
step before it, so it lags by this at most.
"""


class RegisterBroker(WireStruct, frozen=True, tag="register_broker.1"):
    """Registers a started process as the broker; answered by `Registered`. Idempotent for one (directory, start
    number).
    """

    broker_id: BrokerIdField
    directory_id: DirectoryIdField
    start_number: NaturalField
    api: ListeningAt
    data: ListeningAt
    rack: TextField
    feature_level: NaturalField
    packed_reports: tuple[msgspec.Raw, ...]
    """A `Report` of every replica found on disk, each coded on its own.

    Decoding a hundred thousand of them at once would stall the reader of the command, so the image decodes them in
    slices.
    """

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
        """Build the message from the model's types."""
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
        """Decode all reports at once. Raises `RemoteProtocolError`."""
        return tuple(map(decode_report, self.packed_reports))


class ReplaceRegistration(RegisterBroker, frozen=True, tag="register_broker.2"):
    """A registration that names the one it replaces: the one that the quorum knew after the process had started.

    A registration that arrives late, after another process registered, is refused whatever its directory. The first one
    in a new cluster sets the cluster's feature level. Answered by `Registered`.
    """

    replaces: Annotated[Incarnation, msgspec.Meta(ge=NO_INCARNATION, le=2**62)]
    """The replaced incarnation; `NO_INCARNATION` if there was none."""

    @staticmethod
    def after(registration: RegisterBroker, replaces: Incarnation) -> ReplaceRegistration:
        """Return the registration as a replacement of that incarnation."""
        return ReplaceRegistration(**msgspec.structs.asdict(registration), replaces=replaces)


class FenceBroker(OfIncarnation, frozen=True, tag="fence_broker.1"):
    """Fences an incarnation that is silent or stops: it leads nothing and leaves the ISRs. Answered by `Done`."""


class UnfenceBroker(OfIncarnation, frozen=True, tag="unfence_broker.1"):
    """Unfences an incarnation that is live and follows the metadata log: it may lead again. Answered by `Done`."""


class ReportRoom(OfIncarnation, frozen=True, tag="report_room.1"):
    """Reports that an incarnation is short of room and takes no batches from clients, or takes them again.

    Answered by `Done`, even if nothing changes.
    """

    short: bool


class CreateTopic(WireStruct, frozen=True, tag="create_topic.1"):
    """A new topic with these replicas, one tuple a partition. Answered by `Done`; idempotent for one (name, id)."""

    name: TextField
    topic_id: TopicIdField
    replicas: tuple[tuple[BrokerIdField, ...], ...]
    configs: tuple[tuple[TextField, TextField], ...] = ()


class RestoreTopic(CreateTopic, frozen=True, tag="create_topic.2"):
    """A new topic that takes batches with their own offsets, until its setting `restoring` is removed.

    Producer ids below `producer_ids_below` are never granted from now on; 0: the batches have none. Refused if some
    of them were granted before: batches of two producers must never seem to come from one (S1). Needs
    `RESTORE_FEATURE_LEVEL`. Answered as `CreateTopic`.
    """

    producer_ids_below: NaturalField = 0


class DeleteTopic(WireStruct, frozen=True, tag="delete_topic.1"):
    """Deletes the topic and its partitions. Answered by `Done`."""

    topic_id: TopicIdField


class AlterTopic(WireStruct, frozen=True, tag="alter_topic.1"):
    """Sets some settings and restores others to their defaults. Answered by `Done`."""

    topic_id: TopicIdField
    assign: tuple[tuple[TextField, TextField], ...]
    remove: tuple[TextField, ...] = ()


class AddPartitions(WireStruct, frozen=True, tag="add_partitions.1"):
    """More partitions with these replicas, if the topic still has `first_partition` of them. Answered by `Done`."""

    topic_id: TopicIdField
    first_partition: PartitionField
    replicas: tuple[tuple[BrokerIdField, ...], ...]


class ElectLeaders(WireStruct, frozen=True, tag="elect_leaders.1"):
    """Elections, each decided on its own. Answered by `Elected`."""

    elections: Annotated[tuple[Election, ...], msgspec.Meta(max_length=MAX_ELECTIONS_PER_COMMAND)]


class AlterIsr(OfPartition, frozen=True, tag="alter_isr.1"):
    """The leader's proposal of a new ISR (KIP-497, KIP-903): everything that the leader assumed must still hold.

    Answered by `IsrAltered`. If its outcome is unknown, the leader may propose it again unchanged: at most one copy is
    accepted, and none after a refusal. But a copy before the refused one may have been accepted: the leader acts on a
    refusal only once its view has reached the refusal's index, and then by what the view says.
    """

    leader: BrokerIdField
    leader_incarnation: IncarnationField
    leader_epoch: LeaderEpochField
    partition_epoch: PartitionEpochField
    isr: tuple[IsrMember, ...]


class GrantProducerIds(OfIncarnation, frozen=True, tag="grant_producer_ids.1"):
    """Grants a block of producer ids exclusively to one incarnation of a broker. Answered by `ProducerIdsGranted`."""

    count: NaturalField


class GrantProducerIdsTo(GrantProducerIds, frozen=True, tag="grant_producer_ids.2"):
    """The same for producers of one principal, to which the ids belong. Needs `SECURITY_FEATURE_LEVEL`."""

    principal: PrincipalField


class SetFeatureLevel(WireStruct, frozen=True, tag="set_feature_level.1"):
    """Finalizes a feature level that every registered broker understands. It never falls. Answered by `Done`."""

    level: NaturalField


class AdvanceTime(WireStruct, frozen=True, tag="advance_time.1"):
    """Advances the cluster's time from `from_ms`, which the controller of `term` read in the image, to `to_ms`, perhaps
    equal.

    Answered by `Done`. Refused in an entry of another term, or if the time is not `from_ms`: so a late copy, or another
    controller's command, changes nothing.
    """

    term: NaturalField
    from_ms: NaturalField
    """The time that the controller read, in milliseconds. 0: there is none yet, and `to_ms` is the voters' majority
    time.
    """
    to_ms: NaturalField
    agreed_ms: NaturalField
    """The wall clock time of a majority of the voters, in milliseconds; 0 if no majority agrees."""


class NoOp(WireStruct, frozen=True, tag="no_op.1"):
    """Changes nothing: its index serves as the barrier of a linearizable read (S7). Answered by `Done`."""
