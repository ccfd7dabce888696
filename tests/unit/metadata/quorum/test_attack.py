"""Whatever bytes arrive, they are never unpickled, they are only refused, and the cluster continues."""

from __future__ import annotations

import os
import pickle
import random
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pysyncobj.pickle
import pytest

from metadata.commands.cluster import NoOp
from metadata.commands.envelope import encode
from metadata.quorum import protocol
from metadata.quorum.port import Fate, Outcome
from metadata.raft.messages import Append, Entry
from raftlog.errors import RaftlogError, RemoteProtocolError
from raftlog.model import BrokerId
from tests.support.quorum.cluster import QuorumCluster
from tests.support.quorum.world import World


class Unpickled(BaseException):
    """Pickle was used."""


@pytest.fixture(autouse=True)
def no_pickle(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All functions of pickle are blocked while a cluster runs."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise Unpickled

    for module, names in (
        (pickle, ("loads", "load", "dumps", "dump", "_loads", "_load", "Unpickler", "_Unpickler")),
        (pysyncobj.pickle, ("loads", "load", "dumps", "dump")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, refuse)
    yield
    monkeypatch.undo()


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("/nonexistent/owned",)


BOMBS = [
    b"cposix\nsystem\n(S'true'\ntR.",
    b"\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x04true\x94\x85\x94R\x94.",
]


def attacks(rng: random.Random) -> Iterator[bytes]:
    """Garbage, pickles, compressed pickles, and well-formed frames that contain them."""
    bodies = [*BOMBS, *(zlib.compress(bomb) for bomb in BOMBS), b"", b"\xc1", b"\x9f" * 1000]
    bodies += [rng.randbytes(rng.randrange(1, 200)) for _ in range(200)]
    bodies += [b"\x91" * 5000, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]
    for body in bodies:
        yield body
        if body:
            yield protocol.encode(protocol.EngineFrame(body))
            yield protocol.encode(protocol.Propose(1, body, False))
            yield protocol.encode(protocol.Proposed(1, "applied", 1, body))
        if body[:1] > b"\1":  # others are entries that a voter may send
            poisoned = msgspec.msgpack.encode(Append(9, 1, 0, 1, (Entry(9, body),)))
            yield protocol.encode(protocol.EngineFrame(poisoned))


def test_no_bytes_from_a_peer_reach_pickle_or_change_anything() -> None:
    cluster = QuorumCluster(1)
    leader = cluster.await_leader()
    victim = next(number for number in cluster.nodes if number != leader)
    term = cluster.node(leader).status().term
    for attack in attacks(random.Random(7)):
        for target in (leader, victim):
            try:
                cluster.node(target).on_message(BrokerId(6 - leader - victim), attack)
            except RemoteProtocolError:
                continue
            cluster.run(0.001)
    outcomes: list[Outcome] = []
    cluster.node(victim).propose(NoOp(), outcomes.append)
    cluster.run(1.0)
    assert [outcome.fate for outcome in outcomes] == [Fate.APPLIED]
    assert cluster.node(leader).status().term == term
    assert cluster.leader() == leader


def test_an_engine_under_random_bytes_raises_nothing_but_a_refusal() -> None:
    world = World(2)
    leader = world.await_leader()
    rng = random.Random(3)
    for _ in range(500):
        number = rng.randrange(1, 4)
        sender = rng.choice([peer for peer in world.nodes if peer != number])
        with pytest.raises(RemoteProtocolError):
            world.nodes[number].live().step(BrokerId(sender), rng.randbytes(rng.randrange(0, 300)))
    world.run(1.0)
    assert world.leader() == leader
    world.settle()


def test_a_whole_run_with_snapshots_and_restarts_needs_no_pickle() -> None:
    world = World(4)
    leader = world.await_leader()
    behind = next(number for number in world.nodes if number != leader)
    world.crash(behind)
    for _ in range(50):
        world.propose(leader)
        world.run(0.02)
    world.compact(leader)
    world.settle()
    world.check_acked_survive()


def test_truncated_or_changed_messages_of_a_peer_are_refused_or_harmless() -> None:
    """Prefixes of real frames, and frames with changed bytes: the node refuses, or accepts what a voter might have
    sent; it never fails in another way."""
    cluster = QuorumCluster(5)
    leader = cluster.await_leader()
    frames = [
        protocol.encode(protocol.BrokerHeartbeat(2, 1, 1, False)),
        protocol.encode(protocol.Propose(1, encode(NoOp()), True)),
        protocol.encode(protocol.StatusQuestion(1)),
    ]
    rng = random.Random(1)
    for frame in frames:
        mutants = [frame[:cut] for cut in range(len(frame))]
        mutants += [frame[:at] + rng.randbytes(1) + frame[at + 1 :] for at in range(len(frame)) for _ in range(8)]
        for mutant in mutants:
            try:
                cluster.node(leader).on_message(BrokerId(leader % 3 + 1), mutant)
            except RaftlogError as error:
                assert isinstance(error, RemoteProtocolError), error
            cluster.run(0.0005)
    outcomes: list[Outcome] = []
    cluster.node(leader).propose(NoOp(), outcomes.append)
    cluster.run(1.0)
    assert [outcome.fate for outcome in outcomes] == [Fate.APPLIED]
