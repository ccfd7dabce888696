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

from raftlog.errors import InvalidRequest, RaftlogError, RemoteProtocolError, error_from_code
from raftlog.model import (
    BrokerId,
    DirectoryId,
    Endpoint,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    ProducerId,
    ReplicaReport,
    TopicId,
    TopicPartition,
)
from raftlog.ports import Buffer

ENVELOPE_VERSION = 1

MAX_COMMAND_BYTES = 4 * 1024 * 1024
"""The registration of a broker is the largest command: some 45 bytes a replica."""

MAX_ELECTIONS_PER_COMMAND = 512
"""One entry elects many partitions: a failover of thousands is a few entries, each of them small."""

_TopicId: TypeAlias = Annotated[TopicId, msgspec.Meta(min_length=16, max_length=16)]
_DirectoryId: TypeAlias = Annotated[DirectoryId, msgspec.Meta(min_length=16, max_length=16)]
_SessionId: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
_BrokerId: TypeAlias = Annotated[BrokerId, msgspec.Meta(ge=0, le=2**31 - 1)]
_Incarnation: TypeAlias = Annotated[Incarnation, msgspec.Meta(ge=0, le=2**62)]
_LeaderEpoch: TypeAlias = Annotated[LeaderEpoch, msgspec.Meta(ge=0, le=2**31 - 1)]
_PartitionEpoch: TypeAlias = Annotated[PartitionEpoch, msgspec.Meta(ge=0, le=2**62)]
_Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Partition: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Port: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_Host: TypeAlias = Annotated[str, msgspec.Meta(max_length=255)]
_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=1024)]


class UnknownCommand(RemoteProtocolError):
    """A well-formed command of a newer version: this node must stop, and says which version it met."""


class _Part(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Base of everything inside an envelope: arrays without surplus."""


class ListeningAt(_Part, frozen=True):
    """An `Endpoint` as it travels."""

    host: _Host
    port: _Port

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.host, self.port)


class Report(_Part, frozen=True):
    """A `ReplicaReport` as it travels. `last_epoch` is -1 for an empty log."""

    topic_id: _TopicId
    partition: _Partition
    clean: bool
    last_epoch: Annotated[LeaderEpoch, msgspec.Meta(ge=-1, le=2**31 - 1)]
    stable_end_offset: Annotated[Offset, msgspec.Meta(ge=0, le=2**62)]
    cut_or_quarantined: bool

    @staticmethod
    def of(report: ReplicaReport) -> Report:
        topic_id, partition = report.topic_partition.topic_id, report.topic_partition.partition
        end = (report.last_epoch, report.stable_end_offset)
        return Report(topic_id, partition, report.clean, *end, report.cut_or_quarantined)


class IsrMember(_Part, frozen=True):
    """A replica of exactly this life of its broker."""

    broker_id: _BrokerId
    incarnation: _Incarnation


class Election(_Part, frozen=True):
    """Make `candidate` the leader, if the partition is still at `partition_epoch` and it may lead now.

    With `recovery` it is the winner of a recovery election instead: the member of ISR or commit set with the greatest
    reported log, when no eligible one is live.
    """

    topic_id: _TopicId
    partition: _Partition
    candidate: _BrokerId
    incarnation: _Incarnation
    partition_epoch: _PartitionEpoch
    recovery: bool = False

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)


# --- Commands --------------------------------------------------------------------------------------------------------


class RegisterBroker(_Part, frozen=True, tag="register_broker.1"):
    """A started process takes its place; answered by `Registered`. Idempotent for one (directory, start number)."""

    broker_id: _BrokerId
    directory_id: _DirectoryId
    start_number: _Natural
    api: ListeningAt
    data: ListeningAt
    rack: _Text
    feature_level: _Natural
    reports: tuple[Report, ...]
    """Every replica found on disk."""

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
        reports: Sequence[ReplicaReport],
    ) -> RegisterBroker:
        """From the shared nouns."""
        packed = tuple(Report.of(report) for report in reports)
        dial = (ListeningAt(api.host, api.port), ListeningAt(data.host, data.port))
        return RegisterBroker(broker_id, directory_id, start_number, *dial, rack, feature_level, packed)


class FenceBroker(_Part, frozen=True, tag="fence_broker.1"):
    """This life of the broker is not heard of (or stops): it leads nothing and leaves the ISRs. Answered by `Done`."""

    broker_id: _BrokerId
    incarnation: _Incarnation


class UnfenceBroker(_Part, frozen=True, tag="unfence_broker.1"):
    """This life of the broker is there and follows the metadata log: it may lead again. Answered by `Done`."""

    broker_id: _BrokerId
    incarnation: _Incarnation


class CreateTopic(_Part, frozen=True, tag="create_topic.1"):
    """A new topic with these replicas, one tuple a partition. Answered by `Done`; idempotent for one (name, id)."""

    name: _Text
    topic_id: _TopicId
    replicas: tuple[tuple[_BrokerId, ...], ...]
    configs: tuple[tuple[_Text, _Text], ...] = ()


class DeleteTopic(_Part, frozen=True, tag="delete_topic.1"):
    """The topic and its partitions are no more. Answered by `Done`."""

    topic_id: _TopicId


class AlterTopic(_Part, frozen=True, tag="alter_topic.1"):
    """Set some settings and put others back to their defaults. Answered by `Done`."""

    topic_id: _TopicId
    assign: tuple[tuple[_Text, _Text], ...]
    remove: tuple[_Text, ...] = ()


class AddPartitions(_Part, frozen=True, tag="add_partitions.1"):
    """More partitions with these replicas, if the topic still has `first_partition` of them. Answered by `Done`."""

    topic_id: _TopicId
    first_partition: _Partition
    replicas: tuple[tuple[_BrokerId, ...], ...]


class ElectLeaders(_Part, frozen=True, tag="elect_leaders.1"):
    """Elections, each decided on its own. Answered by `Elected`."""

    elections: Annotated[tuple[Election, ...], msgspec.Meta(max_length=MAX_ELECTIONS_PER_COMMAND)]


class AlterIsr(_Part, frozen=True, tag="alter_isr.1"):
    """The leader's proposal of a new ISR (KIP-497, KIP-903): all of what it believed must still hold.

    Answered by `IsrAltered`. It may be proposed again as it is when its fate is unknown: one copy at most is accepted,
    and none after a refusal. But a copy before the refused one may have been: the leader acts on a refusal only once
    its view has come to the refusal's index, and then by what the view says.
    """

    topic_id: _TopicId
    partition: _Partition
    leader: _BrokerId
    leader_incarnation: _Incarnation
    leader_epoch: _LeaderEpoch
    partition_epoch: _PartitionEpoch
    isr: tuple[IsrMember, ...]

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)


class GrantProducerIds(_Part, frozen=True, tag="grant_producer_ids.1"):
    """A block of producer ids that nobody else gets, for one life of a broker. Answered by `ProducerIdsGranted`."""

    broker_id: _BrokerId
    incarnation: _Incarnation
    count: _Natural


class SetFeatureLevel(_Part, frozen=True, tag="set_feature_level.1"):
    """Finalize a feature level that every registered broker understands. It never falls. Answered by `Done`."""

    level: _Natural


class NoOp(_Part, frozen=True, tag="no_op.1"):
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
)


class Done(_Part, frozen=True, tag="done.1"):
    """It holds now (perhaps it did before)."""


class Registered(_Part, frozen=True, tag="registered.1"):
    """This process's incarnation. It may act on partitions once its view has come to this registration."""

    incarnation: _Incarnation


class IsrAltered(_Part, frozen=True, tag="isr_altered.1"):
    """The ISR was accepted with this partition epoch."""

    partition_epoch: _PartitionEpoch


class ProducerIdsGranted(_Part, frozen=True, tag="producer_ids_granted.1"):
    """`[first, first + count)` are the asker's."""

    first: ProducerId
    count: _Natural


class Refused(_Part, frozen=True, tag="refused.1"):
    """Not carried out, for a reason by name: `code` is a key of `raftlog.errors.CODES`."""

    code: str
    detail: str

    def error(self) -> RaftlogError:
        """As an exception."""
        return error_from_code(self.code, self.detail)


class Elected(_Part, frozen=True, tag="elected.1"):
    """What became of each election, in the order of the command: None where it was carried out."""

    refusals: tuple[Refused | None, ...]


CommandResult: TypeAlias = Done | Registered | IsrAltered | ProducerIdsGranted | Elected | Refused


# --- The envelope ----------------------------------------------------------------------------------------------------


class ClientSession(_Part, frozen=True):
    """Who proposes, and which of its proposals this is; a retry repeats all three fields.

    `applied_index` is how far the proposer's own view was before it first proposed this command: from it the image
    knows whether an answer that it does not remember may be one that it has forgotten.
    """

    session_id: _SessionId
    sequence: _Natural
    applied_index: _Natural


class Envelope(_Part, frozen=True):
    """A command on its way through the log."""

    version: _Natural
    session: ClientSession | None
    term: _Natural | None
    command: Command


_encoder = msgspec.msgpack.Encoder()
_envelope_decoder = msgspec.msgpack.Decoder(Envelope)
_result_decoder: msgspec.msgpack.Decoder[CommandResult] = msgspec.msgpack.Decoder(CommandResult)
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
