"""The envelope in which a command travels through the log, and the encoding of commands and answers.

The envelope is a msgpack array: `[version, session or nil, term or nil, command]`.

* `session` makes a retry exactly-once: the image remembers the answers of the last commands by (session id, sequence)
  and repeats the first answer. A retry repeats all three of its fields.
* `term` is set on the controller's own decisions: such a command is refused in a log entry of another term, because its
  proposer had been deposed in the meantime.
* A command is an array that begins with its tag, version included (`"alter_isr.1"`). **A command never gains a field**:
  a node that ignored it would apply the same entry differently. A change is a new tag behind a new feature level.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from raftlog.errors import InvalidRequest, RemoteProtocolError
from raftlog.ports import Buffer

from .cluster import (
    AddPartitions,
    AdvanceTime,
    AlterIsr,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    FenceBroker,
    GrantProducerIds,
    GrantProducerIdsTo,
    NoOp,
    RegisterBroker,
    ReplaceRegistration,
    ReportRoom,
    RestoreTopic,
    SetFeatureLevel,
    UnfenceBroker,
)
from .fields import NaturalField, SessionIdField, WireStruct
from .groups import ChangeGroups, ChangeGroupsAs
from .instances import ChangeGroupsAndInstances
from .replicas import (
    AlterReassignments,
    BeginMoves,
    ElectUnclean,
    RenewLeadership,
    ReportLoss,
    ThrottleReassignments,
    UnregisterBroker,
)
from .results import CommandResult
from .security import BootstrapSecurity, ChangeSecurity
from .transactions import ChangeTransactions, ChangeTransactionsAs

ENVELOPE_VERSION = 1

MAX_COMMAND_BYTES = 6 * 1024 * 1024
"""The largest encoded command, which is a broker's registration: some 45 bytes a replica."""

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
    | ChangeSecurity
    | BootstrapSecurity
    | ChangeGroupsAs
    | ChangeTransactionsAs
    | GrantProducerIdsTo
    | RestoreTopic
    | ChangeGroupsAndInstances
)

COMMAND_TYPES: tuple[type[msgspec.Struct], ...] = Command.__args__
"""Every kind of command, for code that must handle them all."""

TAGS: frozenset[str] = frozenset(str(kind.__struct_config__.tag) for kind in COMMAND_TYPES)

_encoder = msgspec.msgpack.Encoder()


class UnknownCommand(RemoteProtocolError):
    """A well-formed command of a newer version: this node must stop and report the version."""


class ClientSession(WireStruct, frozen=True):
    """The session of a proposer and the sequence number of a proposal; a retry repeats all three fields.

    `applied_index` is how far the proposer's view was before it first proposed this command: from it the image knows
    whether a missing answer may have been evicted.
    """

    session_id: SessionIdField
    sequence: NaturalField
    applied_index: NaturalField


class Envelope(WireStruct, frozen=True):
    """A command with its session and term."""

    version: NaturalField
    session: ClientSession | None
    term: NaturalField | None
    command: Command


_envelope_decoder = msgspec.msgpack.Decoder(Envelope)
_result_decoder: msgspec.msgpack.Decoder[CommandResult] = msgspec.msgpack.Decoder(CommandResult)
_UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def encode(command: Command, *, term: int | None = None, session: ClientSession | None = None) -> bytes:
    """Encode the command in its envelope. Raises `InvalidRequest` if no node could decode it: it must not enter the
    log.
    """
    packed = _encoder.encode(Envelope(ENVELOPE_VERSION, session, term, command))
    try:
        if len(packed) > MAX_COMMAND_BYTES:
            raise ValueError(f"{len(packed)} bytes are more than a command may have")
        _envelope_decoder.decode(packed)
    except _UNDECODABLE as error:
        raise InvalidRequest("invalid_request", f"malformed command: {error}") from None
    return packed


def decode(packed: Buffer) -> Envelope:
    """Decode an envelope. Raises `UnknownCommand` for a newer version, `RemoteProtocolError` for other undecodable
    bytes.
    """
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
    """Describe the newer version of bytes that did not decode; empty if the bytes are invalid in every version."""
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
    """Encode an answer for a proposer on another node or for a snapshot."""
    return _encoder.encode(result)


def decode_result(packed: Buffer) -> CommandResult:
    """Decode an answer. Raises `RemoteProtocolError`."""
    try:
        return _result_decoder.decode(packed)
    except _UNDECODABLE as error:
        raise RemoteProtocolError(f"malformed answer to a command: {error}") from None
