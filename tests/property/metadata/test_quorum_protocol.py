"""Frames and messages: encoding and decoding are inverse; anything else is refused, and only in one way."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.quorum import protocol
from metadata.raft import messages
from raftlog.errors import RemoteProtocolError
from raftlog.model import BrokerId, QuorumStatus

natural = st.integers(0, 2**62)
small = st.integers(1, 2**31 - 1)

MESSAGES = st.one_of(
    st.builds(messages.PreVote, natural, natural, natural, natural),
    st.builds(messages.PreVoteReply, natural, natural, st.booleans()),
    st.builds(messages.RequestVote, natural, natural, natural),
    st.builds(messages.Vote, natural, st.booleans()),
    st.builds(messages.AppendReply, natural, st.booleans(), natural, natural),
    st.builds(messages.SnapshotReply, natural, natural, natural, st.booleans()),
    st.builds(
        lambda terms, commit: messages.Append(
            max(terms), 7, min(terms), commit, tuple(messages.Entry(term, b"\0x") for term in sorted(terms))
        ),
        st.lists(small, min_size=1, max_size=20),
        natural,
    ),
)
FRAMES = st.one_of(
    st.builds(protocol.Hello, natural, st.text(max_size=64), small, st.binary(min_size=16, max_size=16)),
    st.builds(protocol.EngineFrame, st.binary(min_size=1, max_size=500)),
    st.builds(protocol.BrokerHeartbeat, small, natural, natural, st.booleans()),
    st.builds(protocol.HeartbeatAnswer, natural, st.booleans()),
    st.builds(protocol.Propose, natural, st.binary(min_size=1, max_size=500), st.booleans()),
    st.builds(protocol.Proposed, natural, st.sampled_from(["applied", "refused", "unknown"]), st.integers(-1, 2**62)),
    st.builds(protocol.StatusQuestion, natural),
)


@given(MESSAGES)
def test_engine_messages_survive_encoding(message: messages.Message) -> None:
    assert messages.decode(messages.encode(message)) == message


@given(FRAMES)
def test_frames_survive_encoding(frame: protocol.Frame) -> None:
    assert protocol.decode(protocol.encode(frame)) == frame


def test_a_status_survives_encoding() -> None:
    status = QuorumStatus(
        BrokerId(1), BrokerId(2), 3, 4, 5, 6, (BrokerId(1), BrokerId(2)), {BrokerId(1): 6, BrokerId(2): 5}
    )
    frame = protocol.decode(protocol.encode(protocol.StatusAnswer.of(9, status)))
    assert isinstance(frame, protocol.StatusAnswer) and frame.status == status and frame.request_id == 9


@given(st.binary(max_size=400))
@settings(max_examples=300)
def test_garbage_is_refused_in_one_way(packed: bytes) -> None:
    for decode in (messages.decode, protocol.decode):
        try:
            decode(packed)
        except RemoteProtocolError:
            continue


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.binary() | st.text(), st.lists))
@settings(max_examples=300)
def test_well_formed_msgpack_of_another_shape_is_refused_in_one_way(value: Any) -> None:
    packed = msgspec.msgpack.encode(value)
    for decode in (messages.decode, protocol.decode):
        with pytest.raises(RemoteProtocolError):
            decode(packed)


@pytest.mark.parametrize(
    "message",
    [
        messages.Append(3, 7, 2, 1, (messages.Entry(2, b"\0"), messages.Entry(1, b"\0"))),
        messages.Append(3, 7, 2, 1, (messages.Entry(1, b"\0"),)),
        messages.Append(3, 7, 2, 1, (messages.Entry(4, b"\0"),)),
        messages.Append(3, 7, 4, 1, ()),
        messages.Append(3, 0, 0, 1, ()),
        messages.SnapshotChunk(3, 0, 0, 0, 0, 0, 0, b""),
        messages.SnapshotChunk(3, 5, 4, 1, 0, 0, 0, b""),
        messages.SnapshotChunk(3, 5, 2, 4, 0, 3, 0, b"xx"),
    ],
)
def test_a_message_that_contradicts_itself_is_refused(message: messages.Message) -> None:
    with pytest.raises(RemoteProtocolError):
        messages.decode(messages.encode(message))


@pytest.mark.parametrize(
    "array",
    [
        ["vote.1", -1, True],
        ["vote.1", 2**63, True],
        ["vote.1", 1],
        ["vote.1", 1, 1],
        ["vote.1", 1, True, True],
        ["vote.2", 1, True],
        ["append_reply.1", True, 5, 0],
        ["append.1", 1, 1, 0, 1, [[1, b""]]],
        ["append.1", 1, 1, 0, 1, [[1, "text"]]],
    ],
)
def test_wrong_numbers_types_and_lengths_are_refused(array: list[object]) -> None:
    with pytest.raises(RemoteProtocolError):
        messages.decode(msgspec.msgpack.encode(array))


def test_a_frame_that_is_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(RemoteProtocolError, match="too large"):
        messages.decode(bytes(messages.MAX_ENGINE_MESSAGE_BYTES + 1))
    with pytest.raises(RemoteProtocolError, match="too large"):
        protocol.decode(bytes(protocol.MAX_FRAME_BYTES + 1))
