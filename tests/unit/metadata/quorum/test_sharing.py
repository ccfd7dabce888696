"""A message to many peers is built once: an append is one object, one encoding, one frame, for any number of peers."""

from __future__ import annotations

import pytest

from metadata.quorum import protocol as quorum_protocol
from metadata.quorum.node import Outgoing
from metadata.raft import messages as quorum_messages
from metadata.raft.messages import Append, AppendReply
from raftlog.model import BrokerId
from tests.support.quorum.bench import Bench, acknowledge, led, meet

OBSERVERS = tuple(range(4, 24))


def leading_many() -> Bench:
    """Voter 1 leads voters 2 and 3; twenty observers follow, and all have everything."""
    bench = led()
    meet(bench, *OBSERVERS)
    for _ in range(3):
        bench.tick(0.11)
        acknowledge(bench, 2, 3, *OBSERVERS)
    return bench


def said(bench: Bench) -> list[tuple[int, bytes]]:
    """The messages of the next tick."""
    bench.now += 0.001
    bench.engine.tick(bench.now)
    return [(int(peer), packed) for peer, packed in bench.engine.ready().messages]


def test_an_append_is_encoded_once_for_all_voters_and_once_for_all_observers(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, encode = leading_many(), quorum_messages.encode
    coded: list[quorum_messages.Message] = []

    def note(message: quorum_messages.Message) -> bytes:
        coded.append(message)
        return encode(message)

    monkeypatch.setattr(quorum_messages, "encode", note)
    bench.engine.propose(b"x" * 10_000, 7)
    to_voters = said(bench)
    assert [peer for peer, _ in to_voters] == [2, 3] and len({id(packed) for _, packed in to_voters}) == 1
    assert len(coded) == 1
    last = bench.engine.status().last_index
    coded.clear()
    bench.engine.step(BrokerId(2), encode(AppendReply(bench.engine.term, True, last, 0)))
    told = said(bench)
    assert {peer for peer, _ in told} == {2, 3, *OBSERVERS}, "voters that it is committed, observers the entry as well"
    appends = [message for message in coded if isinstance(message, Append)]
    assert sorted(len(append.entries) for append in appends) == [0, 1]
    assert len({id(packed) for _, packed in told}) == len(coded) == 2


def test_a_heartbeat_is_encoded_once() -> None:
    bench = leading_many()
    bench.now += 0.2
    beats = said(bench)
    assert len(beats) == 2 + len(OBSERVERS) and len({id(packed) for _, packed in beats}) == 1


def test_lagging_peers_get_the_entries_that_each_of_them_lacks() -> None:
    bench = leading_many()
    for number in range(3):
        bench.engine.propose(b"entry %d" % number, number)
        said(bench)
    bench.engine.peer_disconnected(BrokerId(2))
    bench.engine.peer_connected(BrokerId(2))
    bench.engine.propose(b"one more", 9)
    sent = {peer: quorum_messages.decode(packed) for peer, packed in said(bench)}
    two, three = sent[2], sent[3]
    assert isinstance(two, Append) and isinstance(three, Append)
    assert len(two.entries) == 4 and len(three.entries) == 1
    assert two.entries[-1] == three.entries[-1]


def test_a_frame_is_built_once_for_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[quorum_protocol.Frame] = []
    encode = quorum_protocol.encode

    def note(frame: quorum_protocol.Frame) -> bytes:
        frames.append(frame)
        return encode(frame)

    monkeypatch.setattr(quorum_protocol, "encode", note)
    sent: list[tuple[int, bytes]] = []
    outgoing = Outgoing(lambda peer, frame: sent.append((int(peer), frame)))
    one, other = b"one message", b"another one"
    outgoing.send_engine([(BrokerId(peer), message) for peer in (1, 2, 3) for message in (one, other)])
    assert len(frames) == 2
    assert [peer for peer, _ in sent] == [1, 1, 2, 2, 3, 3], "each peer's in order"
    decoded = [quorum_protocol.decode(frame) for _, frame in sent]
    assert [frame.message for frame in decoded if isinstance(frame, quorum_protocol.EngineFrame)] == [one, other] * 3
