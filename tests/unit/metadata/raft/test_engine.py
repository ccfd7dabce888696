"""The engine's guarantees, one story each, which stock pysyncobj violates (`test_stock.py`) and this one keeps."""

from __future__ import annotations

import random

import pytest
from msgspec import structs

from metadata.raft import messages, pysyncobj_engine
from metadata.raft.engine import Committed
from metadata.raft.messages import Append, AppendReply, Entry, RequestVote, Vote
from metadata.raft.pysyncobj_engine import PINNED_SOURCES, check_pysyncobj
from metadata.raft.pysyncobj_node import EngineChecks
from raftlog.config import TimingConfig
from raftlog.errors import Contradiction, DiskFailed, InvariantViolation, RemoteProtocolError
from raftlog.model import BrokerId
from tests.support.quorum.bench import REGULAR, Bench
from tests.support.quorum.world import Network, World

ELECTION_MAX = TimingConfig().election_timeout_max_ms / 1000


# --- The pin ---------------------------------------------------------------------------------------------------------


def test_the_installed_pysyncobj_is_the_pinned_one() -> None:
    check_pysyncobj()


def test_another_version_or_another_source_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pysyncobj_engine, "VERSION", "0.3.18")
    with pytest.raises(InvariantViolation, match=r"0\.3\.18"):
        Bench()
    monkeypatch.undo()
    for method in PINNED_SOURCES:
        monkeypatch.setitem(PINNED_SOURCES, method, "0" * 16)
        with pytest.raises(InvariantViolation, match=method):
            check_pysyncobj()
        monkeypatch.undo()


def test_every_override_is_pinned() -> None:
    from pysyncobj.syncobj import SyncObj

    from metadata.raft.pysyncobj_node import _SyncObj

    ours = [kind for kind in _SyncObj.__mro__ if kind.__module__.startswith("metadata.")]
    assert len(ours) == 1
    overridden = {name for kind in ours for name in vars(kind) if name in vars(SyncObj) and not name.startswith("__")}
    assert len(overridden) > 10
    assert overridden - {"_SyncObj__properies"} <= set(PINNED_SOURCES)


@pytest.mark.parametrize(
    "name", ["sendNextNodeIdx", "loadDumpFile", "parseChangeClusterRequest", "changeCluster", "doChangeCluster"]
)
def test_pysyncobj_cannot_do_on_its_own_what_it_must_not_do(name: str) -> None:
    """Its own answers, dumps and changes of the cluster: each has a hole that the overrides close."""
    from metadata.raft.pysyncobj_node import _SyncObj

    core = object.__new__(_SyncObj)
    with pytest.raises(InvariantViolation, match="raftlog forbids"):
        getattr(core, f"_SyncObj__{name}")()


# --- A partition gives no false success ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_a_leader_that_is_cut_off_acknowledges_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others elect a leader, write more and compact past the old leader's uncommitted entries; then everything
    heals."""
    monkeypatch.setattr(pysyncobj_engine, "TRAILING_ENTRIES", 0)
    world = World(seed)
    old = world.await_leader()
    world.isolate(old)
    uncommitted = [world.propose(old) for _ in range(100)]
    world.run(3.0)
    assert not any(world.is_acked(token) for token in uncommitted)
    assert {world.lost[token] for token in uncommitted} == {False}, "they are of unknown fate, each told once"
    new = world.await_leader()
    assert new != old
    accepted = [world.propose(new) for _ in range(150)]
    world.run(1.0)
    assert all(world.is_acked(token) for token in accepted)
    for number in world.nodes:
        if number != old:
            world.compact(number)
    world.settle()
    world.check_acked_survive()
    assert not any(world.is_acked(token) for token in uncommitted)


def test_check_quorum_ends_a_cut_off_leadership_within_an_election_timeout() -> None:
    world = World(1)
    old = world.await_leader()
    world.isolate(old)
    assert world.run(ELECTION_MAX + 0.2, until=lambda: not world.nodes[old].live().is_leader)


# --- Truncation ------------------------------------------------------------------------------------------------------


def test_a_late_resend_truncates_nothing() -> None:
    bench = Bench()
    (whole,) = bench.replies(2, bench.append(2, 5, 5, 5, 5, commit=3))
    assert whole == AppendReply(5, True, 5, 0)
    (late,) = bench.replies(2, bench.append(2, 5, 5, commit=3))
    assert late == AppendReply(5, True, 3, 0)
    assert bench.engine.status().last_index == 5
    (heartbeat,) = bench.replies(2, bench.append(2, commit=3))
    assert heartbeat == AppendReply(5, True, 1, 0)
    assert bench.engine.status().last_index == 5


def test_a_conflict_is_truncated_from_the_first_entry_that_differs() -> None:
    bench = Bench()
    bench.hear(2, bench.append(2, 5, 5, 5, 5))
    (answer,) = bench.replies(3, bench.append(2, 5, 5, 6, term=6))
    assert answer == AppendReply(6, True, 4, 0)
    assert [term for _, _, term in bench.engine.journal.entries] == [0, 5, 5, 6]


def test_a_leader_that_wants_a_committed_entry_gone_is_not_followed() -> None:
    bench = Bench()
    bench.hear(2, bench.append(2, 5, 5, 5, commit=4))
    with pytest.raises(Contradiction, match="committed"):
        bench.hear(3, bench.append(3, 6, term=6))
    assert [term for _, _, term in bench.engine.journal.entries] == [0, 5, 5, 5]
    (answer,) = bench.replies(2, bench.append(5, 5, commit=5))
    assert answer == AppendReply(5, True, 5, 0), "its own leader is followed as before"


def test_commit_follows_only_verified_entries() -> None:
    """A log with a divergent tail must not commit it because the leader's commit index is beyond."""
    bench = Bench()
    bench.hear(2, bench.append(2, 5, 5, 5, 5))
    bench.hear(3, bench.append(2, 5, term=6, commit=4))
    assert bench.engine.status().commit_index == 2


def test_a_missing_or_different_predecessor_is_rejected_with_a_hint() -> None:
    bench = Bench()
    bench.hear(2, bench.append(2, 3, 3, 5, 5))
    (missing,) = bench.replies(2, Append(5, 9, 5, 1, ()))
    assert missing == AppendReply(5, False, 9, 5)
    (different,) = bench.replies(2, Append(6, 5, 6, 1, ()))
    assert different == AppendReply(6, False, 5, 3)


@pytest.mark.parametrize("seed", range(4))
def test_lost_late_and_duplicate_appends_lose_no_acknowledged_entry(seed: int) -> None:
    world = World(seed, network=Network(drop=0.2, duplicate=0.3, late=0.3))
    world.await_leader(20.0)
    for _ in range(60):
        leader = world.leader()
        if leader is not None:
            for _ in range(20):
                world.propose(leader)
        world.run(0.05)
    world.settle()
    world.check_acked_survive()
    assert len(world.acked) > 100


# --- Answers of other terms ------------------------------------------------------------------------------------------


def test_answers_of_another_term_prove_nothing() -> None:
    bench = Bench()
    bench.lead()
    term = bench.engine.term
    bench.engine.propose(b"x", 1)
    bench.tick()
    last = bench.engine.status().last_index
    bench.hear(2, AppendReply(term - 1, True, last, 0))
    bench.hear(3, messages.SnapshotReply(term - 1, last, 0, True))
    assert bench.engine.status().commit_index < last
    with pytest.raises(RemoteProtocolError):
        bench.engine.step(BrokerId(2), b"\x94\xaeappend_reply.1\xc3\x05\x00")  # without its term
    bench.hear(2, AppendReply(term, True, last, 0))
    assert bench.engine.status().commit_index == last


def test_the_answer_to_a_stale_append_says_nothing_about_the_logs_s11() -> None:
    """A leader was deposed, its log was cut, and it leads again in the term of a voter that hears an old append of it
    only then: the answer is about entries that the leader no longer has."""
    bench = Bench()
    bench.lead()
    term, before = bench.engine.term, bench.engine.status()
    peer = Bench()
    peer.hear(2, Append(term, 1, 0, 1, ()))
    (answer,) = peer.replies(3, Append(term - 1, before.last_index + 5, 0, 1, ()))
    assert isinstance(answer, AppendReply) and answer.term == term
    bench.hear(3, answer)
    assert bench.engine.status() == before


def test_a_later_term_in_an_answer_ends_the_leadership() -> None:
    bench = Bench()
    bench.lead()
    bench.engine.propose(b"x", 7)
    bench.tick()
    bench.hear(3, AppendReply(bench.engine.term + 3, False, 1, 1))
    assert bench.engine.leader == -1
    assert [(lost.token, lost.certain) for lost in bench.lost] == [(7, False)]


def test_a_proposal_to_a_follower_is_certainly_lost() -> None:
    bench = Bench()
    bench.engine.propose(b"x", 3)
    bench.tick()
    assert [(lost.token, lost.certain) for lost in bench.lost] == [(3, True)]


def test_messages_of_strangers_and_of_oneself_are_ignored() -> None:
    bench = Bench()
    bench.tick(1.0)
    for sender in (0, 4):
        assert bench.replies(sender, RequestVote(9, 9, 9)) == []
    with pytest.raises(RemoteProtocolError, match="is this node"):
        bench.engine.step(BrokerId(1), messages.encode(RequestVote(9, 9, 9)))
    assert bench.engine.term == 0


def test_of_two_leaders_of_one_term_neither_is_followed() -> None:
    """Entries of one term are equal if their indexes are, so two leaders would make two logs of one (S7)."""
    bench = Bench(pinned=True)
    bench.lead()
    term = bench.engine.term
    with pytest.raises(Contradiction, match="claims to lead"):
        bench.hear(3, Append(term, 1, 0, 1, ()))
    bench.tick()
    assert (bench.engine.term, bench.engine.leader) == (term + 1, -1), "in the next term neither of them leads"


def test_a_leader_that_resigned_follows_no_other_one_of_its_term() -> None:
    bench = Bench(pinned=True)
    bench.lead()
    term = bench.engine.term
    bench.engine.resign()
    with pytest.raises(Contradiction, match="claims to lead"):
        bench.hear(3, Append(term, 1, 0, 1, ()))
    bench.tick()
    assert bench.engine.leader == -1


def test_a_follower_follows_one_leader_of_a_term() -> None:
    bench = Bench()
    bench.hear(2, bench.append(2, 5, 5))
    with pytest.raises(Contradiction, match="claims to lead"):
        bench.hear(3, Append(5, 3, 5, 3, (Entry(5, REGULAR + b"another"),)))
    bench.tick()
    assert bench.engine.status().last_index == 3 and bench.engine.term == 6
    (answer,) = bench.replies(2, bench.append(4, 5, term=5))
    assert answer == AppendReply(6, False, 0, 0), "the other leader learns of it, and the voters elect again"
    (followed,) = bench.replies(2, bench.append(4, 7, term=7))
    assert followed == AppendReply(7, True, 4, 0)


@pytest.mark.parametrize("proven", [True, False])
def test_a_claim_that_this_disk_forgot_is_believed_of_a_proven_peer_or_when_a_node_comes_back(proven: bool) -> None:
    """A forged one would take every voter out of the quorum for good (S9, S10)."""
    bench = Bench()
    bench.start(EngineChecks(peers_are_proven=proven))
    bench.hear(2, bench.append(2, 5, 5))
    claim = Append(6, 50, 6, 1, (), bytes(bench.identity.directory_id))
    bench.tick(20.0)
    if proven:
        assert bench.replies(2, claim) == [AppendReply(6, False, 50, 3, True)]
        return
    with pytest.raises(Contradiction, match="acknowledged entry 50"):
        bench.hear(2, claim)
    assert not bench.engine.forgot and bench.engine.term == 7, "in the next term no leader relies on it"
    bench.start(EngineChecks(peers_are_proven=False))
    bench.hear(2, structs.replace(claim, term=8))
    assert bench.engine.forgot, "this process may lack what the one before it acknowledged"


@pytest.mark.parametrize("proven", [True, False])
def test_a_forged_answer_excludes_no_voter_for_longer_than_its_next_own_one(proven: bool) -> None:
    """A voter that did forget says so in each answer (S9)."""
    bench = Bench(pinned=True)
    bench.start(EngineChecks(peers_are_proven=proven))
    bench.lead()
    term, last = bench.engine.term, bench.engine.status().last_index
    bench.hear(2, AppendReply(term, False, last, 1, True))
    assert bench.engine.status().forgetful == (2,)
    bench.hear(2, AppendReply(term, True, last, 0))
    assert bench.engine.status().forgetful == ((2,) if proven else ())


def test_an_entry_of_an_unknown_kind_is_refused_before_anything_changes() -> None:
    bench = Bench()
    with pytest.raises(RemoteProtocolError):
        bench.hear(2, Append(5, 1, 0, 1, (Entry(5, b"\x02cposix\nsystem\n"),)))
    assert bench.engine.term == 0 and bench.engine.status().last_index == 1


def test_a_command_that_no_node_could_apply_does_not_enter_the_log() -> None:
    """It would stop every node that applies it, at each of its starts."""

    def refuse(command: bytes) -> None:
        if command == b"bad":
            raise RemoteProtocolError("malformed command")

    bench = Bench()
    bench.start(EngineChecks(refuse))
    with pytest.raises(RemoteProtocolError, match="malformed command"):
        bench.hear(2, Append(5, 1, 0, 1, (Entry(5, REGULAR + b"good"), Entry(5, REGULAR + b"bad"))))
    assert bench.engine.term == 0 and bench.engine.status().last_index == 1
    (answer,) = bench.replies(2, Append(5, 1, 0, 1, (Entry(5, REGULAR + b"good"),)))
    assert answer == AppendReply(5, True, 2, 0)


# --- Durable before it is reported -----------------------------------------------------------------------------------


def test_a_single_voter_reports_nothing_before_it_is_synced() -> None:
    world = World(1, size=1)
    world.await_leader()
    node = world.nodes[1]
    token = world.propose(1)
    node.disk.fail_fsync = 1
    with pytest.raises(DiskFailed):
        world.advance(1)
    assert not world.is_acked(token)
    node.engine = None
    node.disk.power_loss(random.Random(0))
    world.start(1)
    world.settle()
    assert not world.is_acked(token)


@pytest.mark.parametrize("seed", range(10))
def test_a_single_voters_acknowledged_entry_survives_a_power_loss(seed: int) -> None:
    world = World(seed, size=1)
    world.await_leader()
    for _ in range(20):
        world.propose(1)
        world.run(world.rng.uniform(0.0, 0.03))
    world.nodes[1].disk.crash_countdown = world.rng.randrange(1, 3)
    world.propose(1)
    world.run(0.1)
    assert not world.nodes[1].up
    world.settle()
    world.check_acked_survive()
    assert len(world.acked) > 5


# --- Applying --------------------------------------------------------------------------------------------------------


def test_each_committed_entry_is_handed_out_once_and_in_order() -> None:
    """A command that its state machine cannot apply must stop the caller; it is not handed out again."""
    bench = Bench()
    bench.hear(2, bench.append(2, 5, 5, 5, commit=3))
    first = list(bench.applied)
    assert [entry.index for entry in first] == [2, 3]
    assert [entry.command for entry in first if isinstance(entry, Committed)] == [b"2/5", b"3/5"]
    bench.tick(0.1)
    assert bench.applied == []
    bench.hear(2, bench.append(5, commit=4))
    assert [entry.index for entry in bench.applied] == [4]


# --- Speed of a single commit ----------------------------------------------------------------------------------------


def test_a_commit_waits_for_no_timer() -> None:
    """Appends, answers and the new commit index are sent with the next sync, not with the heartbeat."""
    world = World(5, network=Network(latency=(0.001, 0.001)))
    leader = world.await_leader()
    world.run(0.5)
    token = world.propose(leader)
    began = world.now
    world.advance(leader)
    assert world.run(0.02, until=lambda: world.is_acked(token))
    assert world.now - began < 0.004
    index = world.acked[-1].index
    assert world.run(0.02, until=lambda: all(node.applied_index >= index for node in world.nodes.values()))
    assert world.now - began < 0.006


def test_an_entry_of_an_earlier_term_is_not_committed_by_counting() -> None:
    """Raft's Figure 8: only an entry of the leader's own term, counted on a majority, commits the entries before it."""
    bench = Bench(pinned=True)
    bench.hear(2, bench.append(2, 5, 5, 5))
    bench.tick(1.0)
    bench.campaign()
    term = bench.engine.term
    bench.hear(2, Vote(term, True))
    last = bench.engine.status().last_index
    bench.hear(2, AppendReply(term, True, last - 1, 0))
    assert bench.engine.status().commit_index == 1, "entries of term 5 are on a majority, and not committed"
    bench.hear(2, AppendReply(term, True, last, 0))
    assert bench.engine.status().commit_index == last
