"""Frames in the name of a broker that somebody else sends to a data listener: one of each kind, and mutations of them.

The frames carry the present numbers of a running cluster, so that they pass the first checks. A mutation replaces
numbers by extreme ones, flips bits, cuts, or repeats what was sent before.

Left out is what only a proof of the sender (TLS) can tell from the truth (`is_credible`): commands that any broker may
rightly propose in its own name, such as its next registration or the removal of a voter; entries that a node could
apply, in an append of a later term; and what majorities are counted by.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
from crc32c import crc32c

from metadata.commands.cluster import FenceBroker, GrantProducerIds, NoOp, RegisterBroker
from metadata.commands.envelope import decode as decode_command
from metadata.commands.envelope import encode as encode_command
from metadata.commands.envelope import encode_result
from metadata.commands.results import Done
from metadata.quorum import protocol as qp
from metadata.raft import messages as raft
from partitions.replication import protocol as rp
from raftlog.errors import RemoteProtocolError
from raftlog.model import BrokerId, DirectoryId, Endpoint, Incarnation

EXTREMES = (0, 1, 2, 127, 2**15, 2**31 - 1, 2**31, 2**32, 2**53, 2**62 - 1, 2**62, 2**63 - 1, 2**64 - 1, -1, -(2**31))
ENTRY = b"\0no command"


@dataclass(frozen=True)
class Present:
    """The present numbers of a cluster."""

    cluster_id: str
    directory_id: bytes
    incarnation: int
    topic_id: bytes
    leader_epoch: int
    term: int
    last_index: int


def quorum_frames(node: int, now: Present) -> list[bytes]:
    """Return one frame of each kind, in the name of this voter."""
    term, last, following = now.term, now.last_index, now.last_index + 1
    state = b"no snapshot"
    chunk = (len(state), crc32c(state), 0, crc32c(state), state)
    broker, incarnation = BrokerId(node), Incarnation(now.incarnation)
    here = Endpoint("127.0.0.1", 1)
    forged = RegisterBroker.of(
        broker, DirectoryId(now.directory_id), 2**62, api=here, data=here, rack="", feature_level=99, reports=[]
    )
    spoken: list[raft.Message] = [
        raft.PreVote(term + 1, 1, last, term),
        raft.PreVoteReply(term, 1, True),
        raft.RequestVote(term + 1, 1, 0, last),
        raft.Vote(term, False),
        raft.Append(term, 1, 0, 1, ()),
        raft.Append(term + 1, following, term, 1, (), now.directory_id),
        raft.AppendReply(term, False, last, 1, True),
        raft.AppendReply(term + 1, False, 1, 1),
        raft.SnapshotChunk(term + 1, following + 1000, term, *chunk),
        raft.SnapshotReply(term, last, 0, False),
        raft.Resign(term),
    ]
    frames: list[qp.Frame] = [
        *(qp.EngineFrame(raft.encode(one)) for one in spoken),
        qp.BrokerHeartbeat(node, now.incarnation, last, False, 1_700_000_000_000),
        qp.BrokerHeartbeat(node, 2**62, 2**62, True, 2**53),
        qp.HeartbeatAnswer(now.incarnation, False),
        qp.Propose(1, encode_command(NoOp()), True),
        qp.Propose(2, encode_command(forged), True),
        qp.Propose(3, encode_command(FenceBroker(broker, incarnation)), True),
        qp.Propose(4, encode_command(GrantProducerIds(broker, incarnation, 1)), False),
        qp.Proposed(5, "applied", last, encode_result(Done())),
        qp.StatusQuestion(6),
        qp.StatusAnswer(7, node, node, term, last, last, last, (node,), ((node, last),)),
        qp.ChangeVoters(8, "add", 999, True),
        qp.VotersChanged(9, "refused", code="not_a_voter"),
        qp.Hello(1, now.cluster_id, node, now.directory_id, "192.0.2.1", 9),
    ]
    return [qp.encode(frame) for frame in frames]


def appends(now: Present) -> list[bytes]:
    """Return appends with entries: two that contradict what is committed, and one that no node could apply."""
    term, last = now.term, now.last_index
    spoken = [
        raft.Append(term, 1, 0, 1, (raft.Entry(term, ENTRY),)),
        raft.Append(term + 1, 1, 0, 1, (raft.Entry(term + 1, ENTRY),)),
        raft.Append(term + 2, last, term, 1, (raft.Entry(term + 2, ENTRY),)),
    ]
    return [qp.encode(qp.EngineFrame(raft.encode(one))) for one in spoken]


def is_credible(frame: bytes) -> bool:
    """Return whether a node must believe this frame of its sender: a broker's next registration, a vote, a claim to a
    complete log, an acknowledgement, or a leader's word that an entry is committed."""
    try:
        decoded = qp.decode(frame)
        if isinstance(decoded, qp.Propose):
            command = decode_command(decoded.envelope).command
            return isinstance(command, RegisterBroker) and command.start_number < 2**62
        message = raft.decode(decoded.message) if isinstance(decoded, qp.EngineFrame) else None
    except RemoteProtocolError:
        return False
    match message:
        case raft.Vote():
            return message.granted
        case raft.RequestVote():
            return message.last_term > 0
        case raft.AppendReply():
            return message.success
        case raft.SnapshotReply():
            return message.installed
        case raft.Append():
            return message.commit_index > 1
    return False


def replication_hello(node: int, now: Present) -> bytes:
    """Return the first frame of a link in this follower's name."""
    return b"".join(bytes(part) for part in rp.encode(rp.Hello(now.cluster_id, node, now.incarnation)))  # type: ignore[arg-type]


def replication_frames(now: Present) -> list[bytes]:
    """Return one frame of each kind that a follower sends."""
    ends = (now.leader_epoch, 0, 0)
    frames: list[rp.FromFollower] = [
        rp.SubscribeFrame([rp.Subscription(1, now.topic_id, 0, now.leader_epoch, *ends)]),
        rp.SubscribeFrame([rp.Subscription(2, now.topic_id, 0, 2**31 - 1, 2**31 - 1, 2**62, 2**62, 2**62)]),
        rp.SubscribeFrame([rp.Subscription(3, bytes(16), 2**31 - 1, 0, -1, 0, 0)]),
        rp.AckFrame(1, [rp.AckEntry(1, 0, 0)]),
        rp.AckFrame(2**62, [rp.AckEntry(1, 2**62, 2**62, 2**62)]),
        rp.UnsubscribeFrame([1, 2, 2**62]),
        rp.Hello(now.cluster_id, 1, now.incarnation),
    ]
    return [b"".join(bytes(part) for part in rp.encode(frame)) for frame in frames]  # type: ignore[arg-type]


def mutated(frame: bytes, rng: random.Random) -> bytes:
    """Return the frame with one or several changes."""
    changes: Sequence[Callable[[bytes, random.Random], bytes]] = (_with_extremes, _with_extremes, _flipped, _cut)
    for _ in range(rng.choice((1, 1, 2, 5))):
        frame = rng.choice(changes)(frame, rng)
    return frame


def _with_extremes(frame: bytes, rng: random.Random) -> bytes:
    """Replace a number by an extreme one, in the frame or in the message within it."""
    start = 4 if frame[:2] == b"\0\0" else 0
    try:
        changed = msgpack.packb(_replaced(msgpack.unpackb(frame[start:], strict_map_key=False), rng))
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
        return frame  # It was changed before, and is no message any more.
    return (len(changed).to_bytes(4, "big") if start else b"") + bytes(changed)


def _replaced(value: Any, rng: random.Random) -> Any:
    if isinstance(value, list) and value:
        place = rng.randrange(len(value))
        return [*value[:place], _replaced(value[place], rng), *value[place + 1 :]]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((*EXTREMES, value - 1, value + 1))
    if isinstance(value, bytes) and value[:1] >= b"\x90":
        return _with_extremes(value, rng)
    return value


def _flipped(frame: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(frame)) if frame else 0
    return frame[:place] + bytes([frame[place] ^ (1 << rng.randrange(8))]) + frame[place + 1 :] if frame else frame


def _cut(frame: bytes, rng: random.Random) -> bytes:
    return frame[: rng.randrange(len(frame) + 1)]
