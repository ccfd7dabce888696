"""Every frame of a peer is untrusted input (S11).

A message that no correct node can have sent drops its link, without any other effect, and no broken node stops another
one.
"""

from __future__ import annotations

import pytest

from metadata.commands.cluster import (
    FenceBroker,
    GrantProducerIds,
    NoOp,
    RegisterBroker,
    ReportRoom,
    UnfenceBroker,
)
from metadata.commands.envelope import encode, encode_result
from metadata.commands.results import Done
from metadata.quorum.links import is_dialable
from metadata.quorum.port import Fate
from metadata.quorum.protocol import (
    PEERS_MAX,
    ChangeVoters,
    Frame,
    Propose,
    Proposed,
    StatusAnswer,
    VotersChanged,
    decode,
)
from metadata.quorum.protocol import encode as encode_frame
from metadata.raft import messages
from metadata.raft.messages import MAX_TERM_LEAP, Append, AppendReply, Entry, PreVoteReply, SnapshotReply, Vote
from metadata.voters.changes import Action
from metadata.voters.configuration import CONFIGURATION, Configuration, encode_entry
from raftlog.errors import Contradiction, RemoteProtocolError
from raftlog.model import BrokerId, Incarnation, QuorumStatus
from tests.support.quorum.bench import REGULAR, Bench, configuration, led, meet, voter
from tests.support.quorum.cluster import ready_cluster, topic


def refused(bench: Bench, sender: int, message: messages.Message, why: str) -> None:
    """The message is refused as the sender's error, and changed nothing."""
    before = bench.engine.status(), bench.engine.leader, bench.engine.configuration
    with pytest.raises(RemoteProtocolError, match=why):
        bench.hear(sender, message)
    bench.tick(0.0)
    assert (bench.engine.status(), bench.engine.leader, bench.engine.configuration) == before


# --- Configurations ---------------------------------------------------------------------------------------------------


def following() -> Bench:
    """Voter 1 follows voter 2, whose log names three voters with their disks."""
    bench = Bench()
    meet(bench, 2, 3)
    bench.hear(2, Append(5, 1, 0, 1, (Entry(5, encode_entry(configuration(1, 2, 3))),)))
    assert bench.engine.configuration == configuration(1, 2, 3)
    return bench


@pytest.mark.parametrize(
    "leap",
    [
        (configuration(2),),
        (configuration(1, 2, 3, 4, 5),),
        (Configuration.of((voter(1), voter(2, disk=7), voter(3))),),
        (configuration(1, 2, 3, 4), configuration(2, 4)),
    ],
    ids=["two gone", "two more", "another disk", "later in one append"],
)
def test_a_change_of_voters_by_more_than_one_step_is_refused(leap: tuple[Configuration, ...]) -> None:
    """S7: two majorities on either side of such a step may have no common voter. A leader never appends one."""
    bench = following()
    entries = (Entry(5, REGULAR + b"x"), *(Entry(5, encode_entry(one)) for one in leap))
    refused(bench, 2, Append(5, 2, 5, 1, entries), "more than one step")
    refused(bench, 3, Append(9, 2, 5, 1, entries), "more than one step")
    (answer,) = bench.replies(2, Append(5, 2, 5, 1, (Entry(5, encode_entry(configuration(1, 2, 3, 4))),)))
    assert answer == AppendReply(5, True, 3, 0), "one step is taken"


def test_a_configuration_after_a_missing_entry_is_rejected_as_any_append() -> None:
    """The entries before it are unknown here: perhaps they are the steps in between."""
    bench = following()
    (answer,) = bench.replies(2, Append(5, 7, 5, 1, (Entry(5, encode_entry(configuration(2, 4))),)))
    assert answer == AppendReply(5, False, 7, 2)


def test_the_first_configuration_of_a_log_is_accepted_whatever_the_own_folder_says() -> None:
    """An observer's folder names the voters at the time of its preparation; the log begins with those of the first
    day."""
    bench = Bench()
    (answer,) = bench.replies(7, Append(5, 1, 0, 1, (Entry(5, encode_entry(configuration(7, 8, 9))),)))
    assert answer == AppendReply(5, True, 2, 0) and bench.engine.configuration == configuration(7, 8, 9)


def test_the_largest_possible_configuration_fits_into_a_snapshots_message() -> None:
    wide = Configuration.of(voter(n) for n in range(64))
    wide = Configuration.of(type(v)(v.node_id, v.directory_id, "\U0001f980" * 255, 65535) for v in wide.voters)
    packed = encode_entry(wide).removeprefix(CONFIGURATION)
    chunk = messages.SnapshotChunk(1, 5, 1, 1, 0, 0, 0, b"x", packed)
    assert messages.decode(messages.encode(chunk)) == chunk


# --- Impossible messages to a leader ----------------------------------------------------------------------------------


@pytest.mark.parametrize("success", [True, False])
@pytest.mark.parametrize("beyond", [1, 2**61])
def test_an_answer_to_a_message_that_was_never_sent_is_refused(success: bool, beyond: int) -> None:
    bench = Bench()
    bench.lead()
    index = bench.engine.status().last_index + beyond
    refused(bench, 2, AppendReply(bench.engine.term, success, index, index), "the leader's log ends")
    refused(bench, 2, SnapshotReply(bench.engine.term, index, 0, success), "the leader's log ends")
    assert bench.tick(0.11), "its heartbeats leave"


def test_a_node_that_cannot_have_been_elected_does_not_stop_the_leader() -> None:
    """Voter 2 gave its vote to this leader, and node 4 has none."""
    bench = led(4)
    for sender in (2, 4):
        refused(bench, sender, Append(bench.engine.term, 1, 0, 1, ()), "cannot lead")
    with pytest.raises(Contradiction, match="claims to lead"):
        bench.hear(3, Append(bench.engine.term, 1, 0, 1, ()))


def test_no_node_can_make_another_one_give_up_committed_entries() -> None:
    bench = following()
    bench.hear(2, Append(5, 2, 5, 2, ()))
    other = Append(9, 1, 0, 1, (Entry(9, REGULAR + b"other"),))
    for sender in (3, 4):
        refused(bench, sender, other, "another history")


@pytest.mark.parametrize(
    "message",
    [Append(2**62, 1, 0, 1, ()), AppendReply(2**62, False, 1, 1), PreVoteReply(2**62, 1, False), Vote(2**62, False)],
)
def test_one_message_cannot_use_up_all_terms(message: messages.Message) -> None:
    """A node enters a term that is far ahead in steps: each message of it leads one step further."""
    bench = Bench()
    bench.lead()
    term = bench.engine.term
    for step in (1, 2):
        bench.hear(2, message)
        assert bench.engine.term == term + step * MAX_TERM_LEAP and bench.engine.leader == -1


def test_a_node_that_was_away_for_long_follows_the_present_leader() -> None:
    bench = Bench()
    far = 3 * MAX_TERM_LEAP - 7
    assert [bench.replies(2, bench.append(2, 5, term=far)) for _ in range(3)] == [
        [],
        [],
        [AppendReply(far, True, 2, 0)],
    ]


# --- Frames -----------------------------------------------------------------------------------------------------------


def test_no_well_formed_frame_stops_a_node() -> None:
    """The end of a line behind a word is another word."""
    cluster, leader = ready_cluster()
    other = next(number for number in cluster.nodes if number != leader)
    envelope = encode(NoOp())
    broken: list[Frame] = [
        ChangeVoters(1, "add\n", 2, False),
        ChangeVoters(1, "remove\n", leader, True),
        Proposed(1, "applied\n", 5, encode_result(Done())),
        Proposed(1, "refused\n"),
        VotersChanged(1, "applied\n"),
        Propose(1, encode(NoOp(), term=1), False),
        Propose(1, encode(FenceBroker(BrokerId(leader), Incarnation(1))), True),
        Propose(1, encode(UnfenceBroker(BrokerId(leader), Incarnation(1))), True),
    ]
    for frame in broken:
        with pytest.raises(RemoteProtocolError):
            cluster.node(leader).on_message(BrokerId(other), encode_frame(frame))
    for harmless in (Propose(1, envelope, True), ChangeVoters(1, Action.REMOVE.value, 77, False)):
        cluster.node(leader).on_message(BrokerId(other), encode_frame(harmless))
    assert cluster.propose(leader, topic(cluster, "t", leader)).fate is Fate.APPLIED
    assert all(cluster.node(leader).image.brokers[BrokerId(n)].fenced is False for n in cluster.nodes)


@pytest.mark.parametrize("number", [2**62, 2**20 + 2])
def test_no_registration_makes_a_brokers_later_ones_impossible(number: int) -> None:
    cluster, leader = ready_cluster()
    other = next(number for number in cluster.nodes if number != leader)
    known = cluster.node(leader).image.brokers[BrokerId(other)]
    forged = RegisterBroker.of(
        known.broker_id,
        known.directory_id,
        known.start_number - 1 + number if number < 2**62 else number,
        api=known.api,
        data=known.data,
        rack="",
        feature_level=known.feature_level,
        reports=[],
    )
    with pytest.raises(RemoteProtocolError, match="registers start number"):
        cluster.node(leader).on_message(BrokerId(other), encode_frame(Propose(1, encode(forged), True)))
    cluster.run(0.5)
    assert cluster.node(leader).image.brokers[BrokerId(other)] == known


def test_a_peer_proposes_in_its_own_name_only() -> None:
    """S12: the link names the proposer."""
    cluster, leader = ready_cluster()
    one, other = (BrokerId(number) for number in cluster.nodes if number != leader)
    incarnation = cluster.node(leader).image.brokers[other].incarnation
    for command in (GrantProducerIds(other, incarnation, 1), ReportRoom(other, incarnation, True)):
        with pytest.raises(RemoteProtocolError, match="in the name of broker"):
            cluster.node(leader).on_message(one, encode_frame(Propose(1, encode(command), True)))


def test_a_status_of_the_maximum_number_of_nodes_can_be_sent() -> None:
    match = {BrokerId(node): node for node in range(PEERS_MAX + 8)}
    status = QuorumStatus(BrokerId(1), BrokerId(1), 1, 1, 1, 1, (BrokerId(1),), match)
    told = decode(encode_frame(StatusAnswer.of(1, status)))
    assert isinstance(told, StatusAnswer) and told.status == status


@pytest.mark.parametrize(
    ("host", "is_one"),
    [
        ("", True),
        ("10.0.0.7", True),
        ("::1", True),
        ("node-3.local", True),
        ("böse.example", True),
        ("a..b", False),
        ("a" * 64 + ".b", False),
        ("a\0b", False),
        ("a\nb", False),
    ],
)
def test_a_host_that_no_resolver_accepts_is_not_dialed(host: str, is_one: bool) -> None:
    """The resolver raises for it, and the dialer of that peer would end permanently."""
    assert is_dialable(host) is is_one
