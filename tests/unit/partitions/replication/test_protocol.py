"""Frames of the replication link: their bytes, their limits, the credit."""

from __future__ import annotations

import struct

import pytest

from partitions.replication import protocol as rp
from raftlog.config import MAX_BATCH_BYTES, MAX_PUSHES_IN_FLIGHT, MAX_WIRE_MESSAGE_BYTES, PUSH_MESSAGE_BYTES
from raftlog.errors import RemoteProtocolError
from raftlog.ports import FileRegion

TOPIC = bytes(range(16))


def message_of(frame: rp.FromFollower | rp.FromLeader, *body: bytes | memoryview) -> bytes:
    return b"".join(bytes(part) for part in rp.encode(frame, body) if not isinstance(part, FileRegion))


# Frozen: another layout is another version of the frame, not an edit of this table.
GOLDEN = [
    (rp.Hello("cluster", 2, 7), "94a768656c6c6f2e31a7636c75737465720207"),
    (rp.Welcome("cluster", 1, 9), "94a977656c636f6d652e31a7636c75737465720109"),
    (
        rp.SubscribeFrame([rp.Subscription(3, TOPIC, 5, 8, -1, 100, 90, 7)]),
        "92ab7375627363726962652e319198" + "03c410" + TOPIC.hex() + "0508ff645a07",
    ),
    (rp.UnsubscribeFrame([1, 300]), "92ad756e7375627363726962652e319201cd012c"),
    (rp.AckFrame(4, [rp.AckEntry(3, 100, 90, 7)]), "93a561636b2e310491" + "9403645a07"),
    (
        rp.AnswersFrame([rp.MatchedSlot(3, 80, 10), rp.RefusedSlot(4, "not_leader")]),
        "92a9616e73776572732e3192" + "94a76d61746368656403500a" + "93a7726566757365640" + "4aa6e6f745f6c6561646572",
    ),
    (
        rp.AnswersFrame([rp.DivergedSlot(3, 6, 42), rp.StartAtSlot(5, 50, 7)]),
        "92a9616e73776572732e3192" + "94a864697665726765640306" + "2a" + "94a873746172745f6174053207",
    ),
    (rp.PushFrame(2, [rp.PushEntry(3, 80, 10, 0)]), "93a6707573682e310291" + "9403500a00"),
]


@pytest.mark.parametrize(("frame", "head"), GOLDEN, ids=lambda value: type(value).__name__)
def test_bytes_of_version_1(frame: rp.FromFollower | rp.FromLeader, head: str) -> None:
    expected = bytes.fromhex(head)
    message = message_of(frame)
    assert message == struct.pack(">I", len(expected)) + expected
    if isinstance(frame, rp.Hello | rp.SubscribeFrame | rp.UnsubscribeFrame | rp.AckFrame):
        assert rp.decode_from_follower(message) == frame
        with pytest.raises(RemoteProtocolError):
            rp.decode_from_leader(message)
    else:
        assert rp.decode_from_leader(message)[0] == frame
        with pytest.raises(RemoteProtocolError):
            rp.decode_from_follower(message)


def test_bodies_are_passed_through_and_must_match_their_lengths() -> None:
    body = [b"abc", memoryview(b"defg")]
    frame = rp.PushFrame(1, [rp.PushEntry(1, 0, 0, 3), rp.PushEntry(2, 0, 0, 4)])
    parts = rp.encode(frame, body)
    assert parts[1:] == body
    found, rest = rp.decode_from_leader(message_of(frame, *body))
    assert (found, bytes(rest)) == (frame, b"abcdefg")
    with pytest.raises(RemoteProtocolError, match="announced"):
        rp.decode_from_leader(message_of(frame, *body[:1]))
    with pytest.raises(RemoteProtocolError, match="no body"):
        rp.decode_from_follower(message_of(rp.UnsubscribeFrame([])) + b"x")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0\0\0",
        b"\0\0\0\0",
        b"\0\0\0\x05abc",
        b"\xff\xff\xff\xff" + bytes(100),
        struct.pack(">I", 3) + b"\x91\xa1x",
        message_of(rp.Hello("c", 1, 1))[:-1],
        struct.pack(">I", 13) + b"\x94\xa7hello.1\xa2\xff\xff\x01\x01",
        struct.pack(">I", 13) + b"\x94\xa7hello.2\xa2ab\x01\x01",
        message_of(rp.Hello("c" * 300, 1, 1)),
        message_of(rp.AckFrame(-1, [])),
        message_of(rp.SubscribeFrame([rp.Subscription(1, b"short", 0, 0, 0, 0, 0)])),
        message_of(rp.UnsubscribeFrame(list(range(rp.MAX_ENTRIES + 1)))),
    ],
)
def test_an_invalid_frame_is_the_peers_error(message: bytes) -> None:
    for decode in (rp.decode_from_follower, rp.decode_from_leader):
        with pytest.raises(RemoteProtocolError):
            decode(message)


def test_limits_are_consistent() -> None:
    assert MAX_BATCH_BYTES <= PUSH_MESSAGE_BYTES
    assert PUSH_MESSAGE_BYTES + rp.MAX_HEAD_BYTES + 4 <= MAX_WIRE_MESSAGE_BYTES
    longest = 2**62
    widest = rp.SubscribeFrame(
        [rp.Subscription(longest, TOPIC, 2**31 - 1, 2**31 - 1, 2**31 - 1, longest, longest, longest)]
    )
    per_entry = len(message_of(widest))
    assert per_entry * rp.MAX_ENTRIES <= rp.MAX_HEAD_BYTES


def test_too_large_a_push_is_refused() -> None:
    frame = rp.PushFrame(1, [rp.PushEntry(1, 0, 0, PUSH_MESSAGE_BYTES + 1)])
    with pytest.raises(RemoteProtocolError, match="allowed"):
        rp.decode_from_leader(message_of(frame, bytes(PUSH_MESSAGE_BYTES + 1)))


def test_credit() -> None:
    credit = rp.PushCredit()
    assert [credit.take() for _ in range(MAX_PUSHES_IN_FLIGHT)] == [1, 2]
    assert not credit.open
    credit.on_ack(0)
    assert not credit.open
    credit.on_ack(1)
    assert credit.open
    assert credit.take() == 3
    for wrong in (0, 4):
        with pytest.raises(RemoteProtocolError):
            credit.on_ack(wrong)


def test_a_push_is_acknowledged_when_all_its_batches_are_stable_or_obsolete() -> None:
    ledger = rp.PushLedger()
    ledger.on_push(1, {10: 5, 11: 7})
    ledger.on_push(2, {10: 9})
    ledger.on_stable(10, 9)
    assert not ledger.owes_ack, "the first still misses slot 11"
    ledger.on_stable(11, 6)
    assert not ledger.owes_ack
    ledger.on_stable(11, 7)
    assert ledger.take_ack() == 2
    assert not ledger.owes_ack
    ledger.on_push(3, {11: 8})
    ledger.on_slot_over(11)
    assert ledger.take_ack() == 3
    ledger.on_push(4, {})
    assert ledger.take_ack() == 4, "only marks"


def test_pushes_out_of_turn_or_beyond_the_credit_are_refused() -> None:
    ledger = rp.PushLedger()
    with pytest.raises(RemoteProtocolError):
        ledger.on_push(2, {})
    ledger.on_push(1, {1: 1})
    ledger.on_push(2, {1: 2})
    with pytest.raises(RemoteProtocolError):
        ledger.on_push(3, {1: 3})
