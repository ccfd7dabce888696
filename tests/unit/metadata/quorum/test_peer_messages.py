"""Every frame of a peer is input (S11): what no honest node can have said is that peer's fault. Its link is dropped,
nothing else happened, and no broken node stops another one."""

from __future__ import annotations

import pytest

from metadata.commands.cluster import FenceBroker, NoOp, UnfenceBroker
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
from raftlog.errors import InvariantViolation, RemoteProtocolError
from raftlog.model import BrokerId, Incarnation, QuorumStatus
from tests.support.quorum_bench import REGULAR, Bench, configuration, led, meet, voter
from tests.support.quorum_cluster import ready_cluster, topic


def refused(bench: Bench, sender: int, message: messages.Message, why: str) -> None:
    """The message is the sender's fault, and changed nothing."""
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
    """S7: two majorities of such a leap may share nobody. A leader never appends one; who says so is broken."""
    bench = following()
    entries = (Entry(5, REGULAR + b"x"), *(Entry(5, encode_entry(one)) for one in leap))
    refused(bench, 2, Append(5, 2, 5, 1, entries), "more than one step")
    refused(bench, 3, Append(9, 2, 5, 1, entries), "more than one step")
    (answer,) = bench.replies(2, Append(5, 2, 5, 1, (Entry(5, encode_entry(configuration(1, 2, 3, 4))),)))
    assert answer == AppendReply(5, True, 3, 0), "one step is taken"


def test_a_leap_after_an_entry_that_is_not_here_is_rejected_as_any_append() -> None:
    """What came before it is unknown here: perhaps the steps between."""
    bench = following()
    (answer,) = bench.replies(2, Append(5, 7, 5, 1, (Entry(5, encode_entry(configuration(2, 4))),)))
    assert answer == AppendReply(5, False, 7, 2)


def test_the_first_configuration_of_a_log_is_taken_whatever_the_own_folder_says() -> None:
    """An observer's folder names who voted when it was prepared; the log begins with those of the first day."""
    bench = Bench()
    (answer,) = bench.replies(7, Append(5, 1, 0, 1, (Entry(5, encode_entry(configuration(7, 8, 9))),)))
    assert answer == AppendReply(5, True, 2, 0) and bench.engine.configuration == configuration(7, 8, 9)


def test_the_largest_configuration_that_can_be_coded_fits_into_a_snapshots_message() -> None:
    wide = Configuration.of(voter(n) for n in range(64))
    wide = Configuration.of(type(v)(v.node_id, v.directory_id, "\U0001f980" * 255, 65535) for v in wide.voters)
    packed = encode_entry(wide).removeprefix(CONFIGURATION)
    chunk = messages.SnapshotChunk(1, 5, 1, 1, 0, 0, 0, b"x", packed)
    assert messages.decode(messages.encode(chunk)) == chunk


# --- A leader hears what cannot be ------------------------------------------------------------------------------------


@pytest.mark.parametrize("success", [True, False])
@pytest.mark.parametrize("beyond", [1, 2**61])
def test_an_answer_to_what_was_never_sent_is_refused(success: bool, beyond: int) -> None:
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
    with pytest.raises(InvariantViolation, match="both lead"):
        bench.hear(3, Append(bench.engine.term, 1, 0, 1, ()))


def test_only_a_voter_can_make_a_node_doubt_what_is_committed() -> None:
    bench = following()
    bench.hear(2, Append(5, 2, 5, 2, ()))
    other = Append(9, 1, 0, 1, (Entry(9, REGULAR + b"other"),))
    refused(bench, 4, other, "another history")
    with pytest.raises(InvariantViolation, match="committed"):
        bench.hear(3, other)


def test_one_message_cannot_use_up_all_terms() -> None:
    bench = Bench()
    far = MAX_TERM_LEAP + 1
    for message in (
        Append(far, 1, 0, 1, ()),
        AppendReply(far, False, 1, 1),
        PreVoteReply(far, 1, False),
        Vote(far, False),
    ):
        refused(bench, 2, message, "sent term")
    bench.hear(2, Append(far - 1, 1, 0, 1, ()))
    assert bench.engine.term == far - 1, "one that was away for long is let in"


# --- Frames -----------------------------------------------------------------------------------------------------------


def test_no_well_formed_frame_stops_a_node() -> None:
    """A line's end behind a word is another word."""
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


def test_a_status_of_as_many_nodes_as_there_can_be_is_told() -> None:
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
def test_a_host_that_no_resolver_takes_is_not_dialed(host: str, is_one: bool) -> None:
    """It raises for them, and the dialer of that peer would be gone for good."""
    assert is_dialable(host) is is_one
