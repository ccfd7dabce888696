"""Client sessions: the state that may be dropped, and that no command in flight is ever taken for an old one."""

from __future__ import annotations

import random

import pytest

from metadata.commands.cluster import GrantProducerIds, NoOp
from metadata.commands.envelope import ClientSession, decode, encode
from metadata.commands.results import CommandResult, ProducerIdsGranted, Refused
from metadata.image import client_sessions as image_sessions
from metadata.image.client_sessions import ClientSessions, Seen
from metadata.snapshot.encoder import encode_snapshot
from raftlog.model import BrokerId, ProducerId
from tests.support.metadata.at_once import apply, decode_snapshot
from tests.support.metadata.cluster import Cluster

MINE, YOURS = b"m" * 16, b"y" * 16


def answer(number: int) -> CommandResult:
    return ProducerIdsGranted(ProducerId(number), 1)


def carry_out(sessions: ClientSessions, session_id: bytes, sequence: int, applied_index: int, index: int) -> bool:
    """Execute a command as the image does. Returns whether it was new."""
    session = ClientSession(session_id, sequence, applied_index)
    first = sessions.first_answer(session)
    if first is None:
        sessions.remember(session, index, answer(index))
    return first is None


def test_ten_thousand_commands_in_flight_are_all_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All were proposed on one view; the answers to most are dropped before the last one arrives."""
    monkeypatch.setattr(image_sessions, "MAX_ANSWERS", 100)
    sessions = ClientSessions()
    assert all(carry_out(sessions, MINE, sequence, 5, 10 + sequence) for sequence in range(10_000))
    assert not any(carry_out(sessions, MINE, sequence, 5, 20_000) for sequence in range(10_000))
    forgotten = sessions.first_answer(ClientSession(MINE, 3, 5))
    assert isinstance(forgotten, Refused) and forgotten.code == "outcome_unknown"
    assert sessions.first_answer(ClientSession(MINE, 9_999, 5)) == answer(10 + 9_999)


def test_a_command_overtaken_by_everything_in_flight_is_still_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_sessions, "MAX_ANSWERS", 100)
    sessions, span = ClientSessions(), image_sessions.MAX_SPAN
    for sequence in range(1, span):
        assert carry_out(sessions, MINE, sequence, 5, 10 + sequence)
        assert carry_out(sessions, YOURS, sequence, 5, 10 + sequence)
    assert carry_out(sessions, MINE, 0, 5, 10**6), "the oldest in flight, as far behind as its proposer lets it be"
    assert not carry_out(sessions, MINE, 0, 5, 10**6 + 1)


def test_memory_is_bounded_however_many_are_never_executed() -> None:
    """A dropped number counts as executed: never twice, and at worst unknown."""
    sessions = ClientSessions()
    for sequence in range(0, 8 * image_sessions.MAX_SPAN, 2):
        assert carry_out(sessions, MINE, sequence, 5, sequence + 1)
    assert len(sessions.seen[MINE].ahead) <= 2 * image_sessions.MAX_SPAN
    assert len(sessions.answers) == image_sessions.MAX_ANSWERS
    assert not carry_out(sessions, MINE, 1, 5, 10**7)
    assert carry_out(sessions, MINE, sequence - 1, 5, 10**7), "a recent gap is still told apart"


@pytest.mark.parametrize("seed", range(20))
def test_no_order_executes_anything_twice(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with a model that remembers everything, with every bound small."""
    monkeypatch.setattr(image_sessions, "MAX_ANSWERS", 5)
    monkeypatch.setattr(image_sessions, "MAX_SESSIONS", 3)
    monkeypatch.setattr(image_sessions, "MAX_SPAN", 8)
    rng = random.Random(seed)
    sessions, done = ClientSessions(), set()
    flying: list[tuple[bytes, int, int]] = []
    newest: dict[bytes, int] = {}
    for index in range(1, 600):
        name = bytes([rng.randrange(6)]) * 16
        newest[name] = newest.get(name, -1) + 1
        flying.append((name, newest[name], rng.randrange(index)))
        name, sequence, seen_index = rng.choice(flying[-30:])
        if carry_out(sessions, name, sequence, seen_index, index):
            assert (name, sequence) not in done
            done.add((name, sequence))
    assert len(sessions.seen) <= 3 and len(sessions.answers) <= 5


def test_a_dropped_session_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_sessions, "MAX_ANSWERS", 1)
    monkeypatch.setattr(image_sessions, "MAX_SESSIONS", 2)
    sessions = ClientSessions()
    assert carry_out(sessions, MINE, 0, 0, 1)
    for number in range(2, 5):
        assert carry_out(sessions, bytes([number]) * 16, 0, number, number)
    assert not carry_out(sessions, MINE, 0, 0, 5), "it may have been carried out"
    assert carry_out(sessions, MINE, 1, 4, 6), "what it proposes from now on is new"
    assert not carry_out(sessions, MINE, 0, 0, 7), "and the old one still is not"


def test_seen_numbers_are_ranges_if_possible() -> None:
    seen = Seen()
    for sequence in (2, 0, 1, 4):
        seen.add(sequence)
    assert (seen.upto, seen.ahead) == (2, {4})


def test_sessions_are_in_snapshots() -> None:
    """S7: a node that was restored from a snapshot answers a retry as the others do."""
    cluster = Cluster()
    grant = GrantProducerIds(BrokerId(1), cluster.incarnation(1), 1)
    for sequence in (0, 1, 5):
        cluster.apply(grant, session=ClientSession(MINE, sequence, 1))
    restored = decode_snapshot(encode_snapshot(cluster.image))
    restored.sessions.answers.clear()
    cluster.image.sessions.answers.clear()
    for sequence in (0, 3, 5, 6):
        envelope = decode(encode(NoOp(), session=ClientSession(MINE, sequence, 1)))
        index = cluster.image.index + 1
        assert apply(restored, index, 1, envelope) == apply(cluster.image, index, 1, envelope)
    assert encode_snapshot(restored) == encode_snapshot(cluster.image)
