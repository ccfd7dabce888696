"""Links: hello first, one direction each, the newest one counts, and strangers reach no node."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from metadata.quorum.lanes import Lanes
from metadata.quorum.links import QuorumLinks
from metadata.quorum.machine import StateMachine
from metadata.quorum.port import Fate, Outcome
from metadata.quorum.protocol import PROTOCOL_VERSION, EngineFrame, Hello, decode, encode
from metadata.raft.engine import Committed, InstalledSnapshot, Lost
from raftlog.errors import InvariantViolation
from raftlog.model import BrokerId, DirectoryId, Endpoint
from raftlog.ports import Buffer, Part
from tests.support.metadata.state_machine import apply_at_once
from tests.support.quorum.bench import configuration
from tests.support.quorum.world import identity_of


class FakeLink:
    def __init__(self, peer: int = -1) -> None:
        self.peer = peer
        self.sent: list[bytes] = []
        self.closed = False

    def send(self, parts: Sequence[Part]) -> None:
        self.sent += [bytes(part) for part in parts if isinstance(part, bytes)]

    def close(self) -> None:
        self.closed = True


class Owner:
    """The events that the links give their node."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def on_hello(self, peer: BrokerId, directory_id: DirectoryId, endpoint: Endpoint | None) -> None:
        self.heard.append(("hello", peer, directory_id[0]))

    def on_connected(self, peer: BrokerId) -> None:
        self.heard.append(("connected", peer))

    def on_disconnected(self, peer: BrokerId) -> None:
        self.heard.append(("disconnected", peer))

    def on_gone(self, peer: BrokerId) -> None:
        self.heard.append(("gone", peer))

    def on_message(self, peer: BrokerId, message: Buffer) -> None:
        self.heard.append(("message", peer, bytes(message)))


def hello_of(node: int, cluster: str = "cluster") -> memoryview:
    return memoryview(encode(Hello(PROTOCOL_VERSION, cluster, node, bytes([node] * 16))))


def links() -> tuple[QuorumLinks, Owner, list[str]]:
    dropped: list[str] = []
    made, owner = QuorumLinks(identity_of(1, 3), on_dropped=lambda peer, error: dropped.append(error.detail)), Owner()
    made.attach(owner)
    return made, owner, dropped


def test_a_dialed_link_is_used_when_the_right_node_answered() -> None:
    made, owner, dropped = links()
    link = FakeLink(peer=2)
    made.dialed.on_opened(link)
    assert len(link.sent) == 1
    made.send(BrokerId(2), b"too early")
    assert len(link.sent) == 1 and owner.heard == []
    made.dialed.on_message(link, hello_of(2))
    assert owner.heard == [("connected", 2)], "its disk is what it says on the link that it sends on"
    made.send(BrokerId(2), b"now")
    assert link.sent[1:] == [b"now"]
    made.dialed.on_closed(link)
    assert owner.heard[-1] == ("disconnected", 2)
    made.send(BrokerId(2), b"too late")
    assert link.sent[1:] == [b"now"]
    assert dropped == []


@pytest.mark.parametrize("answer", [hello_of(3), hello_of(2, "another"), memoryview(b"\xc1"), memoryview(b"")])
def test_a_dialed_link_that_leads_elsewhere_is_dropped(answer: memoryview) -> None:
    made, owner, dropped = links()
    link = FakeLink(peer=2)
    made.dialed.on_opened(link)
    made.dialed.on_message(link, answer)
    assert link.closed and len(dropped) == 1
    assert ("connected", 2) not in owner.heard and ("connected", 3) not in owner.heard
    made.dialed.on_closed(link)
    assert ("disconnected", 2) not in owner.heard


def test_a_newer_dialed_link_takes_the_place_of_the_older() -> None:
    made, owner, _ = links()
    old, new = FakeLink(peer=2), FakeLink(peer=2)
    for link in (old, new):
        made.dialed.on_opened(link)
        made.dialed.on_message(link, hello_of(2))
    assert old.closed and not new.closed
    assert [event for event in owner.heard if event[0] != "hello"] == [  # type: ignore[index]
        ("connected", 2),
        ("disconnected", 2),
        ("connected", 2),
    ]
    made.dialed.on_closed(old)
    made.send(BrokerId(2), b"on")
    assert new.sent[-1] == b"on"


def test_messages_count_after_the_hello_and_under_its_name() -> None:
    made, owner, dropped = links()
    link = FakeLink()
    made.accepted.on_opened(link)
    made.accepted.on_message(link, hello_of(3))
    assert len(link.sent) == 1, "the hello is answered"
    made.accepted.on_message(link, memoryview(b"frame"))
    assert owner.heard[-1] == ("message", 3, b"frame")
    newer = FakeLink()
    made.accepted.on_message(newer, hello_of(3))
    assert link.closed
    made.accepted.on_message(link, memoryview(b"late"))
    assert ("message", 3, b"late") not in owner.heard
    made.accepted.on_closed(link)
    made.accepted.on_message(newer, memoryview(b"more"))
    assert owner.heard[-1] == ("message", 3, b"more")
    assert dropped == []


@pytest.mark.parametrize(
    "first", [memoryview(encode(EngineFrame(b"x"))), hello_of(1), hello_of(2, "another"), memoryview(b"")]
)
def test_a_foreign_accepted_link_is_dropped(first: memoryview) -> None:
    made, owner, dropped = links()
    link = FakeLink()
    made.accepted.on_opened(link)
    made.accepted.on_message(link, first)
    assert link.closed and len(dropped) == 1 and link.sent == []
    assert owner.heard == []


def test_hellos_name_the_voters_and_are_repeated_when_these_change() -> None:
    """A node that was offline may know none of the current voters. The nodes that it dials name them."""
    made, _, _ = links()
    link = FakeLink()
    made.accepted.on_message(link, hello_of(3))
    made.set_voters(configuration(1, 2, 4))
    made.set_voters(configuration(1, 2, 4))
    said = [decode(message) for message in link.sent]
    assert all(isinstance(hello, Hello) for hello in said) and len(said) == 2
    told: list[tuple[int, dict[BrokerId, Endpoint]]] = []
    there = QuorumLinks(identity_of(3, 3), on_told=lambda peer, voters: told.append((peer, dict(voters))))
    owner = Owner()
    there.attach(owner)
    dialed = FakeLink(peer=1)
    for message in link.sent:
        there.dialed.on_message(dialed, memoryview(message))
    assert told == [(1, {}), (1, {BrokerId(n): Endpoint(f"node-{n}", 1) for n in (1, 2, 4)})]
    assert owner.heard == [("connected", 1)] and not dialed.closed, "it is the same link"


# --- Two small parts -------------------------------------------------------------------------------------------------


def test_the_state_machine_accepts_no_gap_and_nothing_twice() -> None:
    for indexes in ((3,), (2, 2), (2, 4)):
        machine = StateMachine(lambda index, events: None)
        with pytest.raises(InvariantViolation):
            for index in indexes:
                apply_at_once(machine, Committed(index, 1, b""))
    machine = StateMachine(lambda index, events: None)
    with pytest.raises(InvariantViolation, match="cannot be read"):
        apply_at_once(machine, InstalledSnapshot(9, 1, b"nonsense"))


def test_lanes_bring_each_outcome_to_its_proposer() -> None:
    entered: list[tuple[bytes, int]] = []
    outcomes: dict[str, Outcome] = {}
    lanes = Lanes(lambda envelope, token: entered.append((envelope, token)))
    for name, urgent in (("a", False), ("b", True), ("c", False)):
        lanes.submit(name.encode(), urgent, lambda outcome, name=name: outcomes.__setitem__(name, outcome))  # type: ignore[misc]
    assert lanes
    lanes.drain()
    assert not lanes
    assert [envelope for envelope, _ in entered] == [b"b", b"a", b"c"]
    tokens = dict(entered)
    lanes.lost(Lost(tokens[b"a"], certain=True))
    lanes.lost(Lost(tokens[b"b"], certain=False))
    lanes.applied(Committed(7, 1, b"c", tokens[b"c"]), None)
    lanes.applied(Committed(8, 1, b"another node's", None), None)
    assert {name: outcome.fate for name, outcome in outcomes.items()} == {
        "a": Fate.REFUSED,
        "b": Fate.UNKNOWN,
        "c": Fate.APPLIED,
    }
