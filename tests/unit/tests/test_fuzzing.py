"""The fuzzer's captures and mutations: valid, bounded, and the same for the same seed."""

from __future__ import annotations

import random

import pytest

from http_api.app import MESSAGE_ROUTES, ROUTES
from raftlog.http2.events import MessageReceived, RequestReceived
from tests.support.clusters.forged import Present
from tests.support.fuzzing.captures import PORTS, Capture, captures
from tests.support.fuzzing.mutations import CHANGES, MOST_BYTES, mutate
from tests.support.fuzzing.runs import CANARY
from tests.support.http.http2_peer import RawPeer, only

NOW = Present("cluster", bytes(16), 3, b"\x07" * 16, 1, 5, 40)


def found(port: str, *, plain: bool = False) -> list[Capture]:
    return captures(port, NOW, host="127.0.0.1:1", authorization="Bearer x", plain=plain)


@pytest.mark.parametrize("port", ["data", "peers"])
def test_a_capture_is_a_valid_conversation(port: str) -> None:
    for capture in found(port):
        peer, messages = RawPeer(handshake=False), 0
        for piece in capture.pieces:
            peer.feed(piece)
            events = peer.events()
            for request in only(events, RequestReceived):
                peer.core.respond(request.stream)
            messages += len(only(events, MessageReceived))
        assert not peer.core.failed, capture.name
        assert messages == len(capture.pieces) - 3


def test_every_route_is_captured() -> None:
    names = {capture.name for capture in found("api")}
    assert {f"{method} {path}" for method, path, _ in (*ROUTES, *MESSAGE_ROUTES)} <= names


@pytest.mark.parametrize("port", PORTS)
def test_the_same_seed_gives_the_same_bytes_within_the_bound(port: str) -> None:
    all_of_them = found(port)
    first, second = (
        [mutate(capture, all_of_them, rng) for capture in all_of_them * 5]
        for rng in (random.Random(1), random.Random(1))
    )
    assert first == second
    assert all(sum(map(len, pieces)) <= MOST_BYTES for pieces in first)
    changed = sum(pieces != list(capture.pieces) for pieces, capture in zip(first, all_of_them * 5, strict=True))
    assert 0.5 < changed / len(first) < 1.0, "most are changed, and some are as they were"


def test_each_change_changes_something() -> None:
    all_of_them = found("data")
    for change in set(CHANGES):
        rng = random.Random(2)
        pieces = list(all_of_them[0].pieces)
        assert any(change(pieces, all_of_them, rng) != pieces for _ in range(20)), change


@pytest.mark.parametrize("port", PORTS)
def test_no_capture_names_the_canary(port: str) -> None:
    assert not any(CANARY.encode() in b"".join(capture.pieces) for capture in found(port, plain=True))
