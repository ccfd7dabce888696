"""The parts of commands: bounded fields, and the small records that travel inside commands.

Every field is bounded here, so that every decodable command can be applied, and bytes that no correct proposer sends
are refused before they enter the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from raftlog.errors import RemoteProtocolError
from raftlog.model import (
    BrokerId,
    DirectoryId,
    Endpoint,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    ReplicaReport,
    TopicId,
    TopicPartition,
)
from raftlog.ports import Buffer

TopicIdField: TypeAlias = Annotated[TopicId, msgspec.Meta(min_length=16, max_length=16)]
DirectoryIdField: TypeAlias = Annotated[DirectoryId, msgspec.Meta(min_length=16, max_length=16)]
SessionIdField: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
BrokerIdField: TypeAlias = Annotated[BrokerId, msgspec.Meta(ge=0, le=2**31 - 1)]
IncarnationField: TypeAlias = Annotated[Incarnation, msgspec.Meta(ge=0, le=2**62)]
LeaderEpochField: TypeAlias = Annotated[LeaderEpoch, msgspec.Meta(ge=0, le=2**31 - 1)]
PartitionEpochField: TypeAlias = Annotated[PartitionEpoch, msgspec.Meta(ge=0, le=2**62)]
NaturalField: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
PartitionField: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
PortField: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=65535)]
HostField: TypeAlias = Annotated[str, msgspec.Meta(max_length=255)]
PrincipalField: TypeAlias = Annotated[str, msgspec.Meta(max_length=255)]
"""The name of a principal; empty: none."""
TextField: TypeAlias = Annotated[str, msgspec.Meta(max_length=1024)]


class WireStruct(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    """The base of everything inside an envelope: an array without surplus fields, and without reference cycles."""


class OfPartition(WireStruct, frozen=True):
    """The base of what is about one partition."""

    topic_id: TopicIdField
    partition: PartitionField

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)


class OfIncarnation(WireStruct, frozen=True):
    """The base of what is about one incarnation of a broker."""

    broker_id: BrokerIdField
    incarnation: IncarnationField


class ListeningAt(WireStruct, frozen=True):
    """An `Endpoint` as it travels."""

    host: HostField
    port: PortField

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.host, self.port)


class Report(OfPartition, frozen=True):
    """A `ReplicaReport` as it travels. `last_epoch` is -1 for an empty log."""

    clean: bool
    last_epoch: Annotated[LeaderEpoch, msgspec.Meta(ge=-1, le=2**31 - 1)]
    stable_end_offset: Annotated[Offset, msgspec.Meta(ge=0, le=2**62)]
    cut_or_quarantined: bool

    @staticmethod
    def of(report: ReplicaReport) -> Report:
        return Report(
            topic_id=report.topic_partition.topic_id,
            partition=report.topic_partition.partition,
            clean=report.clean,
            last_epoch=report.last_epoch,
            stable_end_offset=report.stable_end_offset,
            cut_or_quarantined=report.cut_or_quarantined,
        )


_encoder = msgspec.msgpack.Encoder()
_report_decoder = msgspec.msgpack.Decoder(Report)


def decode_report(packed: Buffer) -> Report:
    """Decode one report of a registration. Raises `RemoteProtocolError`."""
    try:
        return _report_decoder.decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"malformed report of a replica: {error}") from None


class PackedReports(NamedTuple):
    """A broker's encoded replica reports.

    Encoding a hundred thousand takes a tenth of a second, best spent where the replicas are opened.
    """

    packed: tuple[msgspec.Raw, ...]

    @staticmethod
    def of(reports: Iterable[ReplicaReport]) -> PackedReports:
        """Encode reports of the model's type."""
        return PackedReports(tuple(msgspec.Raw(_encoder.encode(Report.of(report))) for report in reports))


class IsrMember(OfIncarnation, frozen=True):
    """A replica of exactly this incarnation of its broker."""


class Election(OfPartition, frozen=True):
    """Makes `candidate` the leader, if the partition is still at `partition_epoch` and it may lead now.

    With `recovery` it is the winner of a recovery election instead: the member of ISR or commit set with the greatest
    reported log, when no eligible one is live.
    """

    candidate: BrokerIdField
    incarnation: IncarnationField
    partition_epoch: PartitionEpochField
    recovery: bool = False
