"""The frames between quorum nodes on `/raftlog.quorum`: one msgpack array each, beginning with its tag and version.

A link carries frames in one direction, in order and at most once. A broken link loses the frames in flight, and
everything here is designed for that: the engine resends what it must, proposals and questions carry a request id and
a deadline at their sender, and a missing answer is an unknown outcome, never a failure.

The first frame on a link is a `Hello`, from both ends. Nothing else is processed until it has been accepted: a node
of another cluster is dropped whatever it sends.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from metadata.commands.cluster import (
    AdvanceTime,
    AlterIsr,
    FenceBroker,
    GrantProducerIds,
    RegisterBroker,
    ReportRoom,
    UnfenceBroker,
)
from metadata.commands.envelope import MAX_COMMAND_BYTES, Command
from metadata.commands.replicas import BeginMoves, RenewLeadership, ReportLoss
from metadata.raft.messages import MAX_ENGINE_MESSAGE_BYTES
from raftlog.errors import RemoteProtocolError
from raftlog.model import BrokerId, QuorumStatus
from raftlog.ports import Buffer

QUORUM_PATH = "/raftlog.quorum"
"""The path of the stream that carries these frames."""

PROTOCOL_VERSION = 1

PEERS_MAX = 1_000
"""The most nodes that one node has links with: the maximum number of brokers."""

MATCHES_MAX = PEERS_MAX + 64
"""The most nodes in a leader's status: the connected ones, and voters that are not connected."""

MAX_FRAME_BYTES = MAX_ENGINE_MESSAGE_BYTES + 1024

MAX_WALL_MS = 2**53
"""The largest wall-clock time in milliseconds: some hundred thousand years."""

_Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_NodeId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Detail: TypeAlias = Annotated[str, msgspec.Meta(max_length=1024)]
_Packed: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_COMMAND_BYTES)]


class _Frame(msgspec.Struct, array_like=True, frozen=True):
    """The base of all frames. Fields are only ever appended, with defaults: an older node ignores what it does not
    know."""


class KnownVoter(msgspec.Struct, array_like=True, frozen=True):
    """A voter and the address at which it can be dialed."""

    node_id: _NodeId
    host: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)]


class Hello(_Frame, frozen=True, tag="hello.1"):
    """The identity of this end of a link. `directory_id` names the disk: a voter that lost its disk is not the same
    voter."""

    protocol_version: _Natural
    cluster_id: Annotated[str, msgspec.Meta(max_length=64)]
    node_id: _NodeId
    directory_id: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    host: Annotated[str, msgspec.Meta(max_length=255)] = ""
    """The host of this end's data listener; empty if it is unknown."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    voters: Annotated[tuple[KnownVoter, ...], msgspec.Meta(max_length=64)] = ()
    """The voters that this end knows, as a hint of which nodes to dial: a node that was down may know none of them."""


class EngineFrame(_Frame, frozen=True, tag="engine.1"):
    """A message of the consensus engine."""

    message: Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_ENGINE_MESSAGE_BYTES)]


class BrokerHeartbeat(_Frame, frozen=True, tag="heartbeat.1"):
    """A heartbeat of one incarnation of a broker, whose metadata has reached `applied_index`.

    `stopping`: the broker asks to be fenced. `wall_ms`: its wall clock, to be compared with the others'; 0 if it
    cannot be.
    """

    broker_id: _NodeId
    incarnation: _Natural
    applied_index: _Natural
    stopping: bool
    wall_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_WALL_MS)] = 0


class HeartbeatAnswer(_Frame, frozen=True, tag="heartbeat_answer.1"):
    """The controller's answer: whether this incarnation is the registered one."""

    incarnation: _Natural
    registered: bool


class Propose(_Frame, frozen=True, tag="propose.1"):
    """A request to append this envelope if the receiver leads. `urgent`: before others that wait (registrations,
    elections, ISR changes)."""

    request_id: _Natural
    envelope: _Packed
    urgent: bool


def author(command: Command) -> int | None:
    """Return the broker in whose name a command is made, or None. No other node may propose such a command (S12)."""
    if isinstance(command, GrantProducerIds | RegisterBroker | ReportLoss | ReportRoom | RenewLeadership):
        return command.broker_id
    return command.leader if isinstance(command, AlterIsr) else None


def is_controllers(command: Command) -> bool:
    """Return whether only the controller makes this command, directly at the engine, so that it is never forwarded."""
    return isinstance(command, AdvanceTime | BeginMoves | FenceBroker | UnfenceBroker)


class Proposed(_Frame, frozen=True, tag="proposed.1"):
    """The outcome of a `Propose`: applied at `index` with `result`, refused (certainly not applied), or unknown."""

    request_id: _Natural
    fate: Annotated[str, msgspec.Meta(pattern=r"\A(applied|refused|unknown)\Z")]
    index: Annotated[int, msgspec.Meta(ge=-1, le=2**62)] = -1
    result: Annotated[bytes, msgspec.Meta(max_length=MAX_COMMAND_BYTES)] = b""
    detail: _Detail = ""


class StatusQuestion(_Frame, frozen=True, tag="status_question.1"):
    """A request for the receiver's `QuorumStatus`."""

    request_id: _Natural


class StatusAnswer(_Frame, frozen=True, tag="status_answer.1"):
    """A `QuorumStatus` on the wire."""

    request_id: _Natural
    node_id: _NodeId
    leader: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
    term: _Natural
    commit_index: _Natural
    applied_index: _Natural
    last_index: _Natural
    voters: Annotated[tuple[_NodeId, ...], msgspec.Meta(max_length=64)]
    match_index: Annotated[tuple[tuple[_NodeId, _Natural], ...], msgspec.Meta(max_length=MATCHES_MAX)]
    forgetful: Annotated[tuple[_NodeId, ...], msgspec.Meta(max_length=MATCHES_MAX)] = ()

    @staticmethod
    def of(request_id: int, status: QuorumStatus) -> StatusAnswer:
        """Build the frame from a `QuorumStatus`."""
        return StatusAnswer(
            request_id,
            status.node_id,
            status.leader,
            status.term,
            status.commit_index,
            status.applied_index,
            status.last_index,
            status.voters,
            tuple(sorted(status.match_index.items())),
            status.forgetful,
        )

    @property
    def status(self) -> QuorumStatus:
        return QuorumStatus(
            node_id=BrokerId(self.node_id),
            leader=BrokerId(self.leader),
            term=self.term,
            commit_index=self.commit_index,
            applied_index=self.applied_index,
            last_index=self.last_index,
            voters=tuple(BrokerId(voter) for voter in self.voters),
            match_index={BrokerId(voter): index for voter, index in self.match_index},
            forgetful=tuple(BrokerId(node) for node in self.forgetful),
        )


class ChangeVoters(_Frame, frozen=True, tag="change_voters.1"):
    """A request to add or remove one voter if the receiver leads; with `plan`, only to report the result."""

    request_id: _Natural
    action: Annotated[str, msgspec.Meta(pattern=r"\A(add|remove)\Z")]
    node_id: _NodeId
    plan: bool


class VotersChanged(_Frame, frozen=True, tag="voters_changed.1"):
    """The outcome of a `ChangeVoters`.

    `verdict` is `applied` at `index` (-1 if nothing had to change), `planned`, `refused` by `code`, `again`
    (certainly not done: retry at the next leader), or `unknown`.
    """

    request_id: _Natural
    verdict: Annotated[str, msgspec.Meta(pattern=r"\A(applied|planned|refused|again|unknown)\Z")]
    index: Annotated[int, msgspec.Meta(ge=-1, le=2**62)] = -1
    before: Annotated[tuple[_NodeId, ...], msgspec.Meta(max_length=64)] = ()
    after: Annotated[tuple[_NodeId, ...], msgspec.Meta(max_length=64)] = ()
    code: Annotated[str, msgspec.Meta(max_length=64)] = ""
    detail: _Detail = ""


Frame: TypeAlias = (
    Hello
    | EngineFrame
    | BrokerHeartbeat
    | HeartbeatAnswer
    | Propose
    | Proposed
    | StatusQuestion
    | StatusAnswer
    | ChangeVoters
    | VotersChanged
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


def encode(frame: Frame) -> bytes:
    """Encode a frame."""
    return _encoder.encode(frame)


def decode(packed: Buffer) -> Frame:
    """Decode a frame. Raises `RemoteProtocolError` for anything that is not well-formed."""
    if memoryview(packed).nbytes > MAX_FRAME_BYTES:
        raise RemoteProtocolError("a quorum frame is too large")
    try:
        return _decoder.decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"malformed quorum frame: {error}") from None
