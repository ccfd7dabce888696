"""The peers that a node dials, and the content of hellos: a node that was offline finds the current voters (S10)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from jepsen_like.simulator.quorum.dialing import endpoint_of
from metadata.quorum import peers as quorum_dialing
from metadata.quorum.links import QuorumLinks
from metadata.quorum.peers import Peers
from metadata.quorum.protocol import PROTOCOL_VERSION, Hello, KnownVoter, decode, encode
from metadata.voters.configuration import Configuration, Voter
from raftlog.model import BrokerId, DirectoryId, Endpoint
from raftlog.ports import Buffer, Part
from tests.support.quorum.bench import configuration
from tests.support.quorum.world import identity_of

# --- Dialed peers -----------------------------------------------------------------------------------------------------


def places(*nodes: int) -> dict[BrokerId, Endpoint]:
    return {BrokerId(node): endpoint_of(BrokerId(node)) for node in nodes}


def whom() -> Peers:
    """Node 9, whose log names voters 1 to 3."""
    made = Peers(BrokerId(9), places(1, 2, 3))
    made.on_configuration(configuration(1, 2, 3))
    return made


def test_a_node_without_a_leader_follows_hellos_from_node_to_node() -> None:
    """All voters that it knew were replaced, one after the other; none of them knows all later ones."""
    lost = whom()
    assert not lost.on_told(BrokerId(2), places(2, 3, 4)) and set(lost.wanted()) == {1, 2, 3}
    assert lost.set_lost(True) and not lost.set_lost(True)
    assert set(lost.wanted()) == {1, 2, 3, 4}
    assert lost.on_told(BrokerId(4), places(4, 5, 6, 9))
    assert lost.wanted() == places(1, 2, 3, 4, 5, 6), "itself apart"
    lost.on_heard(BrokerId(6), endpoint_of(BrokerId(6)))
    lost.set_lost(False)
    assert set(lost.wanted()) == {1, 2, 3, 6}, "the leader that was found has dialed back"
    lost.set_lost(True)
    assert set(lost.wanted()) == {1, 2, 3, 4, 6}, "what 4 said is forgotten with 4, and can be asked again"


def test_the_latest_address_counts_if_no_other_node_knows_one() -> None:
    lost = whom()
    lost.set_lost(True)
    old, new = Endpoint("old", 1), Endpoint("new", 1)
    for peer, where in ((1, new), (2, old), (1, new)):
        lost.on_told(BrokerId(peer), {BrokerId(4): where, BrokerId(3): old})
    assert lost.wanted()[BrokerId(4)] == new
    assert lost.wanted()[BrokerId(3)] == endpoint_of(BrokerId(3)), "the log's word before hearsay"
    lost.on_heard(BrokerId(4), old)
    assert lost.wanted()[BrokerId(4)] == old, "its own word before all"


REGISTERED, LOGGED, CLAIMED = Endpoint("registered", 1), endpoint_of(BrokerId(3)), Endpoint("claimed", 1)


def test_the_word_of_an_unproven_peer_about_its_address_counts_least() -> None:
    """Anybody may claim to be a voter: the address that the log or the configuration names is dialed."""
    known = whom()
    known.on_heard(BrokerId(3), CLAIMED, proven=False)
    assert known.address_of(BrokerId(3)) == LOGGED
    known.on_registered(BrokerId(3), REGISTERED)
    assert known.address_of(BrokerId(3)) == known.trusted_address_of(BrokerId(3)) == REGISTERED
    known.on_registered(BrokerId(3), None)
    assert known.address_of(BrokerId(3)) == LOGGED
    known.on_heard(BrokerId(4), CLAIMED, proven=False)
    assert known.wanted()[BrokerId(4)] == CLAIMED, "an observer that is in no log yet"
    assert known.trusted_address_of(BrokerId(4)) is None


def test_a_peer_that_does_not_answer_is_dialed_at_its_next_address() -> None:
    """A voter moved, and cannot register at its new address before it is reached there."""
    known = whom()
    known.on_heard(BrokerId(3), CLAIMED, proven=False)
    known.on_failed(BrokerId(3))
    assert known.wanted()[BrokerId(3)] == CLAIMED
    known.on_heard(BrokerId(3), CLAIMED, proven=False)
    assert known.wanted()[BrokerId(3)] == CLAIMED, "it answers there"
    known.on_failed(BrokerId(3))
    assert known.wanted()[BrokerId(3)] == LOGGED
    known.on_heard(BrokerId(3), REGISTERED, proven=True)
    assert known.wanted()[BrokerId(3)] == REGISTERED, "its certificate proves it"
    known.on_failed(BrokerId(7))
    assert known.address_of(BrokerId(7)) is None


def test_a_chain_of_invented_voters_is_not_followed_endlessly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_dialing, "PEERS_MAX", 30)
    lost = whom()
    lost.set_lost(True)
    for node in range(1, 90):
        lost.on_told(BrokerId(node), places(node + 1, node + 2))
        lost.wanted()
    assert len(lost.wanted()) == 30


# --- Hellos -----------------------------------------------------------------------------------------------------------


class SaidLink:
    """A link that records the messages sent on it."""

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.said: list[Hello] = []
        self.closed = False

    def send(self, parts: Sequence[Part]) -> None:
        for part in parts:
            frame = decode(part)  # type: ignore[arg-type]
            assert isinstance(frame, Hello)
            self.said.append(frame)

    def close(self) -> None:
        self.closed = True

    @property
    def told(self) -> dict[int, tuple[str, int]]:
        return {voter.node_id: (voter.host, voter.port) for voter in self.said[-1].voters}


class Nobody:
    """A node that does nothing."""

    def on_hello(self, peer: BrokerId, directory_id: DirectoryId, endpoint: Endpoint | None) -> None: ...
    def on_connected(self, peer: BrokerId) -> None: ...
    def on_disconnected(self, peer: BrokerId) -> None: ...
    def on_message(self, peer: BrokerId, message: Buffer) -> None: ...
    def on_gone(self, peer: BrokerId) -> None: ...


def links() -> tuple[QuorumLinks, list[str]]:
    dropped: list[str] = []
    made = QuorumLinks(identity_of(1, 3), on_dropped=lambda peer, error: dropped.append(error.detail))
    made.attach(Nobody())
    return made, dropped


def greeted(made: QuorumLinks, node: int, host: str = "", voters: tuple[KnownVoter, ...] = ()) -> SaidLink:
    link = SaidLink(node)
    hello = Hello(PROTOCOL_VERSION, "cluster", node, bytes([node] * 16), host, 7 if host else 0, voters)
    made.accepted.on_message(link, memoryview(encode(hello)))
    return link


def test_a_hello_makes_no_node_dial_where_its_sender_is_not() -> None:
    """Otherwise anybody could reach through a node what only the node may reach (server-side request forgery)."""
    heard: dict[int, tuple[Endpoint | None, bool]] = {}
    made = QuorumLinks(
        identity_of(1, 3),
        on_heard=lambda peer, endpoint, *, proven: heard.update({int(peer): (endpoint, proven)}),
        source_of=lambda link: "192.0.2.9",
        trusted_address_of=lambda peer: Endpoint("log", 1) if peer == 2 else None,
    )
    met: dict[int, Endpoint | None] = {}

    class Noting(Nobody):
        def on_hello(self, peer: BrokerId, directory_id: DirectoryId, endpoint: Endpoint | None) -> None:
            met[int(peer)] = endpoint

    made.attach(Noting())
    for node in (2, 3):
        hello = Hello(PROTOCOL_VERSION, "cluster", node, bytes([node] * 16), "metadata.internal", 80)
        made.accepted.on_message(SaidLink(-1), memoryview(encode(hello)))
    source = Endpoint("192.0.2.9", 80)
    assert heard == {2: (source, False), 3: (source, False)}
    assert met == {2: Endpoint("log", 1), 3: source}, "the log names a voter's own address"
    greeted(made, 3, "proven")
    assert heard[3] == (Endpoint("proven", 7), True) and met[3] == Endpoint("proven", 7)


def test_a_hello_names_the_leader_and_the_voters_reported_addresses() -> None:
    made, _ = links()
    asking = greeted(made, 3)
    assert asking.told == {}
    made.set_voters(Configuration.of([Voter(BrokerId(1)), Voter(BrokerId(2), host="log", port=1), Voter(BrokerId(5))]))
    assert asking.told == {2: ("log", 1)}
    moved = greeted(made, 2, "moved")
    assert asking.told == moved.told == {2: ("moved", 7)}, "its own word is newer than the log's"
    assert len(moved.said) == 1
    made.set_leader(BrokerId(4))
    assert len(asking.said) == 3, "nobody knows where it is"
    greeted(made, 4, "leader")
    assert asking.told == {2: ("moved", 7), 4: ("leader", 7)}
    made.accepted.on_closed(moved)
    assert asking.told[2] == ("moved", 7), "a voter is where it was"
    said = len(asking.said)
    made.set_leader(BrokerId(2))
    assert asking.told == {2: ("moved", 7)}
    made.set_leader(BrokerId(2))
    assert len(asking.said) == said + 1, "said again where there is news, and only then"


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "a\0b"])
def test_a_peer_that_names_an_invalid_host_is_dropped_and_one_that_repeats_it_is_not(host: str) -> None:
    made, dropped = links()
    assert greeted(made, 3, host).closed and "no valid name" in dropped[0]
    told: list[dict[BrokerId, Endpoint]] = []
    there = QuorumLinks(identity_of(2, 3), on_told=lambda peer, voters: told.append(dict(voters)))
    there.attach(Nobody())
    dialed = SaidLink(3)
    known = (KnownVoter(4, host, 1), KnownVoter(5, "fine", 1))
    there.dialed.on_message(dialed, memoryview(encode(Hello(PROTOCOL_VERSION, "cluster", 3, bytes(16), voters=known))))
    assert told == [{BrokerId(5): Endpoint("fine", 1)}] and not dialed.closed
