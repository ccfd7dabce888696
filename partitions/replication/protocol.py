"""The protocol between a follower and the leader's broker: every frame of the replication link, version 1.

The follower dials; one link serves all partitions that this ordered pair of brokers shares. A message is `u32
big-endian length of head | head | body`; the head is a msgpack array whose first element is the frame's name and
version, the body (of `push` only) is record batches as they lie on disk.

    follower                                   leader's broker
    hello.1   cluster, broker, incarnation  →
                                            ←  welcome.1  cluster, broker, incarnation
    subscribe.1 [slot, topic id, partition, leader epoch, last epoch, fetch offset, stable end]…  →
                                            ←  answers.1  per slot: matched, diverged, start_at or refused
                                            ←  push.1  sequence, [slot, high watermark, log start, bytes]…, batches
    ack.1     sequence, [slot, fetch offset, stable end]…  →
    unsubscribe.1  slots  →

The session is the connection. A subscription has a *slot*: a number that the follower chooses, greater than all before
it on this link, so that a frame in flight at the end of a subscription cannot refer to a later one. Frames name only
the slots with something to say; an idle partition costs nothing.

*Credit*: the leader may have `MAX_PUSHES_IN_FLIGHT` pushes unacknowledged, each with at most `PUSH_MESSAGE_BYTES` of
batches. A push is acknowledged (`ack.sequence`, cumulative) when everything in it is fsynced, or its subscriptions have
ended; the follower sends one `ack` after each of its fsync rounds, for all partitions. High watermark and log start
ride on data; if there is none, they go alone, as a push without bytes.

Fields are only ever appended, with defaults; another meaning is another version. `docs/replication-protocol.md`
specifies this for other implementations.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec

from raftlog.config import MAX_PUSHES_IN_FLIGHT, PUSH_MESSAGE_BYTES
from raftlog.errors import RemoteProtocolError
from raftlog.model import EVERY_PRODUCER_ID
from raftlog.ports import Buffer, Part
from raftlog.wire import Natural, PartitionNumber, TopicIdBytes

REPLICATION_PATH = "/raftlog.replication"
"""The name of the stream on a data listener."""

MAX_ENTRIES = 10_000
"""Bound on the slots of one frame; more go into the next."""

MAX_HEAD_BYTES = 4 * 1024 * 1024
"""Room for `MAX_ENTRIES` of the longest entries, in bytes."""

_HEAD_LENGTH = struct.Struct(">I")

Slot: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Epoch: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
BrokerNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
ClusterId: TypeAlias = Annotated[str, msgspec.Meta(max_length=256)]


# --- Both ways -------------------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, array_like=True, frozen=True, tag="hello.1"):
    """The follower's first frame: its broker and incarnation."""

    cluster_id: ClusterId
    broker_id: BrokerNumber
    incarnation: Natural


class Welcome(msgspec.Struct, array_like=True, frozen=True, tag="welcome.1"):
    """The leader's first frame, once its view shows the follower in the incarnation of the hello."""

    cluster_id: ClusterId
    broker_id: BrokerNumber
    incarnation: Natural


# --- From the follower -----------------------------------------------------------------------------------------------


class Subscription(msgspec.Struct, array_like=True, frozen=True):
    """One partition that the follower subscribes to, and the end of its own log."""

    slot: Slot
    topic_id: TopicIdBytes
    partition: PartitionNumber
    leader_epoch: Epoch
    """The follower's leader epoch. The leader answers in this epoch only, and waits until its view has reached it."""
    last_epoch: Epoch
    """The epoch of the last batch in the follower's log; -1 if the log is empty."""
    fetch_offset: Natural
    """The follower's log end: pushes begin here."""
    stable_end_offset: Natural
    """The end of what the follower has fsynced. Counts once the logs are matched."""
    stable_start_offset: Natural = 0
    """The start of the follower's log on its disk: `delete-records` waits for it."""


class SubscribeFrame(msgspec.Struct, array_like=True, frozen=True, tag="subscribe.1"):
    """Partitions to match and push."""

    subscriptions: Annotated[list[Subscription], msgspec.Meta(max_length=MAX_ENTRIES)]


class UnsubscribeFrame(msgspec.Struct, array_like=True, frozen=True, tag="unsubscribe.1"):
    """Slots whose subscriptions end."""

    slots: Annotated[list[Slot], msgspec.Meta(max_length=MAX_ENTRIES)]


class AckEntry(msgspec.Struct, array_like=True, frozen=True):
    """The follower's progress in one partition."""

    slot: Slot
    fetch_offset: Natural
    stable_end_offset: Natural
    stable_start_offset: Natural = 0


def check_start(entry: Subscription | AckEntry) -> None:
    """Raise `RemoteProtocolError` unless a follower's log begins where it ends or before: `delete-records` relies on
    where it begins."""
    if entry.stable_start_offset > entry.fetch_offset:
        raise RemoteProtocolError(
            f"slot {entry.slot} of a follower begins at {entry.stable_start_offset} and ends at {entry.fetch_offset}"
        )


class AckFrame(msgspec.Struct, array_like=True, frozen=True, tag="ack.1"):
    """Sent after an fsync round: all pushes up to `sequence` are done, and these partitions are stable up to here."""

    sequence: Natural
    entries: Annotated[list[AckEntry], msgspec.Meta(max_length=MAX_ENTRIES)]


# --- From the leader -------------------------------------------------------------------------------------------------


class MatchedSlot(msgspec.Struct, array_like=True, frozen=True, tag="matched"):
    """The follower's log is a prefix of the leader's; pushes follow."""

    slot: Slot
    high_watermark: Natural
    log_start_offset: Natural


class DivergedSlot(msgspec.Struct, array_like=True, frozen=True, tag="diverged"):
    """The slot ends: truncate to the leader's greatest epoch up to the follower's last; subscribe again."""

    slot: Slot
    epoch: Epoch
    end_offset: Natural


class StartAtSlot(msgspec.Struct, array_like=True, frozen=True, tag="start_at"):
    """The slot ends: nothing can be compared; start over, empty, at the leader's batch here; subscribe again."""

    slot: Slot
    first_batch_offset: Natural
    greatest_producer_id: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)] = EVERY_PRODUCER_ID
    """An upper bound of the producer ids in the leader's log."""


class RefusedSlot(msgspec.Struct, array_like=True, frozen=True, tag="refused"):
    """The slot ends: the leader does not serve this subscription now. The code is one of `raftlog.errors.CODES`."""

    slot: Slot
    code: Annotated[str, msgspec.Meta(max_length=64)]


SlotAnswer: TypeAlias = MatchedSlot | DivergedSlot | StartAtSlot | RefusedSlot


class AnswersFrame(msgspec.Struct, array_like=True, frozen=True, tag="answers.1"):
    """Answers to subscriptions."""

    answers: Annotated[list[SlotAnswer], msgspec.Meta(max_length=MAX_ENTRIES)]


class PushEntry(msgspec.Struct, array_like=True, frozen=True):
    """`length` bytes of the body, whole batches, continue this partition. 0: only the marks."""

    slot: Slot
    high_watermark: Natural
    log_start_offset: Natural
    length: Natural


class PushFrame(msgspec.Struct, array_like=True, frozen=True, tag="push.1"):
    """Batches of many partitions. `sequence` counts the pushes of this link from 1."""

    sequence: Natural
    entries: Annotated[list[PushEntry], msgspec.Meta(max_length=MAX_ENTRIES)]


FromFollower: TypeAlias = Hello | SubscribeFrame | UnsubscribeFrame | AckFrame
FromLeader: TypeAlias = Welcome | AnswersFrame | PushFrame

_encoder = msgspec.msgpack.Encoder()
_from_follower = msgspec.msgpack.Decoder(FromFollower)
_from_leader = msgspec.msgpack.Decoder(FromLeader)
_MALFORMED = (msgspec.MsgspecError, ValueError, RecursionError)
"""The errors of decoding: text that is not UTF-8 is a `ValueError`."""


def encode(frame: FromFollower | FromLeader, body: Sequence[Part] = ()) -> list[Part]:
    """Encode the message as a list of parts; the body's parts are passed through, not copied."""
    head = _encoder.encode(frame)
    return [_HEAD_LENGTH.pack(len(head)) + head, *body]


def decode_from_follower(message: Buffer) -> FromFollower:
    """Decode a follower's frame. Raises `RemoteProtocolError` for anything that is not well-formed."""
    head, body = _split(message)
    try:
        frame: FromFollower = _from_follower.decode(head)
    except _MALFORMED as error:
        raise RemoteProtocolError(f"malformed frame from a follower: {error}") from None
    if body.nbytes:
        raise RemoteProtocolError(f"a follower's frame has no body, here are {body.nbytes} bytes")
    return frame


def decode_from_leader(message: Buffer) -> tuple[FromLeader, memoryview]:
    """Decode a leader's frame, and return it with its body. Raises `RemoteProtocolError` if it is not well-formed."""
    head, body = _split(message)
    try:
        frame: FromLeader = _from_leader.decode(head)
    except _MALFORMED as error:
        raise RemoteProtocolError(f"malformed frame from a leader: {error}") from None
    expected = sum([entry.length for entry in frame.entries]) if isinstance(frame, PushFrame) else 0
    if expected != body.nbytes or expected > PUSH_MESSAGE_BYTES:
        raise RemoteProtocolError(f"{body.nbytes} bytes of batches, {expected} announced, {PUSH_MESSAGE_BYTES} allowed")
    return frame, body


def _split(message: Buffer) -> tuple[memoryview, memoryview]:
    view, start = memoryview(message).cast("B"), _HEAD_LENGTH.size
    size = view.nbytes
    length = _HEAD_LENGTH.unpack_from(view)[0] if size >= start else 0
    if not 0 < length <= size - start or length > MAX_HEAD_BYTES:
        raise RemoteProtocolError(f"a message of {size} bytes with a head of {length}")
    return view[start : start + length], view[start + length :]


class PushCredit:
    """The leader's side of the credit: the number of pushes in flight.

    Invariant: `acknowledged <= sent <= acknowledged + MAX_PUSHES_IN_FLIGHT`.
    """

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged = 0

    @property
    def open(self) -> bool:
        """Whether another push may be sent."""
        return self.sent - self.acknowledged < MAX_PUSHES_IN_FLIGHT

    def take(self) -> int:
        """Return the sequence of the next push."""
        assert self.open
        self.sent += 1
        return self.sent

    def on_ack(self, sequence: int) -> None:
        """Apply an acknowledgement. Raises `RemoteProtocolError` for a push never sent, or below an earlier one."""
        if not self.acknowledged <= sequence <= self.sent:
            raise RemoteProtocolError(f"push {sequence} acknowledged of {self.acknowledged} to {self.sent}")
        self.acknowledged = sequence

    def __str__(self) -> str:
        return f"pushes={self.acknowledged}/{self.sent}"


class PushLedger:
    """The follower's side of the credit: the pushes that are not done, and what each still needs.

    Invariant: `acknowledged <= handled <= received <= acknowledged + MAX_PUSHES_IN_FLIGHT`.
    """

    def __init__(self) -> None:
        self.received = 0
        self.handled = 0
        self._open: dict[int, dict[int, int]] = {}
        """Push → slot → end offset that must be stable."""
        self._acknowledged = 0

    def on_push(self, sequence: int, ends: dict[int, int]) -> None:
        """Record that a push arrived and was appended: these slots must be stable up to these ends.

        Raises `RemoteProtocolError` if the push is out of turn or beyond the credit.
        """
        if sequence != self.received + 1 or sequence > self._acknowledged + MAX_PUSHES_IN_FLIGHT:
            raise RemoteProtocolError(f"push {sequence} after {self.received}, {self._acknowledged} acknowledged")
        self.received = sequence
        self._open[sequence] = dict(ends)
        self._settle()

    def on_stable(self, slot: int, stable_end_offset: int) -> None:
        """Record that this slot's partition is fsynced up to here."""
        for ends in self._open.values():
            if ends.get(slot, stable_end_offset + 1) <= stable_end_offset:
                del ends[slot]
        self._settle()

    def on_slot_over(self, slot: int) -> None:
        """Drop this slot, of which nothing will be acknowledged any more."""
        for ends in self._open.values():
            ends.pop(slot, None)
        self._settle()

    @property
    def owes_ack(self) -> bool:
        """Whether pushes were completed since the last acknowledgement."""
        return self.handled > self._acknowledged

    def take_ack(self) -> int:
        """Return the sequence to acknowledge now."""
        self._acknowledged = self.handled
        return self.handled

    def __str__(self) -> str:
        return f"pushes={self._acknowledged}/{self.handled}/{self.received}"

    def _settle(self) -> None:
        while self.handled < self.received and not self._open[self.handled + 1]:
            self.handled += 1
            del self._open[self.handled]
