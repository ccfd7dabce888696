"""What the quorum orders: commands, the envelope they travel in, and the answers of the state machine.

A command is a request to change the agreed facts; nothing in it is true until `ClusterImage.apply` found it so. Every
command therefore names what its proposer believed (incarnations, epochs, ids), and is refused by name where that is
no longer the case. Randomness (topic ids) and choices (replicas, leaders) are made by the proposer and carried here,
so that applying is deterministic.

The envelope is a msgpack array: `[version, session or nil, term or nil, command]`.

* `session` makes a retry exactly-once: the image remembers the answers of the last commands by (session id, sequence)
  and gives the first answer again. A retry repeats all three of its fields.
* `term` is set on what the controller decides by itself: such a command is refused when it ends up in a log entry of
  another term, because its maker had been deposed by then.
* A command is an array that begins with its tag, version included (`"alter_isr.1"`). **A command never gains a field**:
  a node that ignored it would apply the same entry differently. A change is a new tag behind a new feature level.

What is *not* here: what a command does (`image.py` and `image_*.py`), who may propose it, and how it travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import msgspec

from raftlog.errors import InvalidRequest, RemoteProtocolError
from raftlog.model import (
    NO_INCARNATION,
    BrokerId,
    DirectoryId,
    Endpoint,
    Incarnation,
    ReplicaReport,
    TopicPartition,
)
from raftlog.ports import Buffer

from .command_parts import (
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
    SessionIdField,
    TextField,
    TopicIdField,
)
from .command_results import (
    CommandResult,
    Done,
    Elected,
    GroupsChanged,
    IsrAltered,
    ProducerIdsGranted,
    ReassignmentsAltered,
    Refused,
    RefusedChange,
    Registered,
    TransactionsChanged,
)
from .commands_losses import ReportLoss
from .commands_moves import AlterReassignments, BeginMoves, ElectUnclean, ThrottleReassignments, UnregisterBroker
from .commands_renewals import RenewLeadership
from .commands_room import ReportRoom
from .commands_time import AdvanceTime
from .groups.changes import ChangeGroups
from .groups.transaction_changes import ChangeTransactions

__all__ = [
    "COMMAND_TYPES",
    "MAX_COMMAND_BYTES",
    "MAX_ELECTIONS_PER_COMMAND",
    "TAGS",
    "AddPartitions",
    "AdvanceTime",
    "AlterIsr",
    "AlterReassignments",
    "AlterTopic",
    "BeginMoves",
    "ChangeGroups",
    "ChangeTransactions",
    "ClientSession",
    "Command",
    "CommandResult",
    "CreateTopic",
    "DeleteTopic",
    "Done",
    "ElectLeaders",
    "ElectUnclean",
    "Elected",
    "Election",
    "Envelope",
    "FenceBroker",
    "GrantProducerIds",
    "GroupsChanged",
    "IsrAltered",
    "IsrMember",
    "ListeningAt",
    "NoOp",
    "PackedReports",
    "ProducerIdsGranted",
    "ReassignmentsAltered",
    "Refused",
    "RefusedChange",
    "RegisterBroker",
    "Registered",
    "RenewLeadership",
    "ReplaceRegistration",
    "Report",
    "ReportLoss",
    "ReportRoom",
    "SetFeatureLevel",
    "ThrottleReassignments",
    "TransactionsChanged",
    "UnfenceBroker",
    "UnknownCommand",
    "UnregisterBroker",
    "decode",
    "decode_report",
    "decode_result",
    "encode",
    "encode_result",
]

ENVELOPE_VERSION = 1

MAX_COMMAND_BYTES = 6 * 1024 * 1024
"""The registration of a broker is the largest command: some 45 bytes a replica."""

REGISTRATION_FEATURE_LEVEL = 5
"""From which on a registration names the one whose place it takes."""

MAX_ELECTIONS_PER_COMMAND = 512
"""One entry elects many partitions: a failover of thousands is a few entries, each of them small."""


_encoder = msgspec.msgpack.Encoder()


class UnknownCommand(RemoteProtocolError):
    """A well-formed command of a newer version: this node must stop, and says which version it met."""


# --- Commands --------------------------------------------------------------------------------------------------------


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
        dial = (ListeningAt(api.host, api.port), ListeningAt(data.host, data.port))
        return RegisterBroker(broker_id, directory_id, start_number, *dial, rack, feature_level, packed)

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


class NoOp(Part, frozen=True, tag="no_op.1"):
    """Nothing: its index is a linearizable read's barrier (S7). Answered by `Done`."""


Command: TypeAlias = (
    RegisterBroker
    | FenceBroker
    | UnfenceBroker
    | CreateTopic
    | DeleteTopic
    | AlterTopic
    | AddPartitions
    | ElectLeaders
    | AlterIsr
    | GrantProducerIds
    | SetFeatureLevel
    | NoOp
    | AlterReassignments
    | BeginMoves
    | UnregisterBroker
    | ElectUnclean
    | ReportLoss
    | RenewLeadership
    | ChangeGroups
    | ThrottleReassignments
    | ChangeTransactions
    | ReportRoom
    | AdvanceTime
    | ReplaceRegistration
)


# --- The envelope ----------------------------------------------------------------------------------------------------


class ClientSession(Part, frozen=True):
    """Who proposes, and which of its proposals this is; a retry repeats all three fields.

    `applied_index` is how far the proposer's own view was before it first proposed this command: from it the image
    knows whether an answer that it does not remember may be one that it has forgotten.
    """

    session_id: SessionIdField
    sequence: NaturalField
    applied_index: NaturalField


class Envelope(Part, frozen=True):
    """A command on its way through the log."""

    version: NaturalField
    session: ClientSession | None
    term: NaturalField | None
    command: Command


_envelope_decoder = msgspec.msgpack.Decoder(Envelope)
_result_decoder: msgspec.msgpack.Decoder[CommandResult] = msgspec.msgpack.Decoder(CommandResult)
_report_decoder = msgspec.msgpack.Decoder(Report)
_UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def encode(command: Command, *, term: int | None = None, session: ClientSession | None = None) -> bytes:
    """The command in its envelope. Raises `InvalidRequest` for what no node could decode: it must not enter the log."""
    packed = _encoder.encode(Envelope(ENVELOPE_VERSION, session, term, command))
    try:
        if len(packed) > MAX_COMMAND_BYTES:
            raise ValueError(f"{len(packed)} bytes are more than a command may have")
        _envelope_decoder.decode(packed)
    except _UNDECODABLE as error:
        raise InvalidRequest("invalid_request", f"malformed command: {error}") from None
    return packed


def decode(packed: Buffer) -> Envelope:
    """The envelope. Raises `UnknownCommand` for a newer version's, `RemoteProtocolError` for what is not one."""
    try:
        if memoryview(packed).nbytes > MAX_COMMAND_BYTES:
            raise ValueError("more bytes than a command may have")
        envelope = _envelope_decoder.decode(packed)
        if envelope.version != ENVELOPE_VERSION:
            raise ValueError(f"envelope version {envelope.version}")
    except _UNDECODABLE as error:
        newer = _newer_version(packed)
        if newer:
            raise UnknownCommand(f"{newer}; this node must be upgraded") from None
        raise RemoteProtocolError(f"malformed command: {error}") from None
    return envelope


def decode_report(packed: Buffer) -> Report:
    """One of a registration's. Raises `RemoteProtocolError`."""
    try:
        return _report_decoder.decode(packed)
    except _UNDECODABLE as error:
        raise RemoteProtocolError(f"malformed report of a replica: {error}") from None


def _newer_version(packed: Buffer) -> str:
    """What is newer than this code about bytes that did not decode; empty if they are merely wrong."""
    try:
        fields = msgspec.msgpack.decode(packed, type=list[Any])
    except _UNDECODABLE:
        return ""
    match fields:
        case [int(version), *_] if version > ENVELOPE_VERSION:
            return f"an envelope of version {version}, newer than {ENVELOPE_VERSION}"
        case [_, _, _, [str(tag), *_]] if tag not in TAGS:
            return f"unknown command {tag[:64]!r}"
    return ""


def encode_result(result: CommandResult) -> bytes:
    """The answer, to be sent to a proposer on another node or kept in a snapshot."""
    return _encoder.encode(result)


def decode_result(packed: Buffer) -> CommandResult:
    """Raises `RemoteProtocolError`."""
    try:
        return _result_decoder.decode(packed)
    except _UNDECODABLE as error:
        raise RemoteProtocolError(f"malformed answer to a command: {error}") from None


COMMAND_TYPES: tuple[type[msgspec.Struct], ...] = Command.__args__
"""Every kind of command, for whoever must handle them all."""

TAGS: frozenset[str] = frozenset(str(kind.__struct_config__.tag) for kind in COMMAND_TYPES)
