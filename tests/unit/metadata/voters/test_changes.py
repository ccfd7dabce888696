"""The guards of a change of voters, one by one, and the reason why one voter at a time is safe."""

from __future__ import annotations

from itertools import chain, combinations

import pytest
from msgspec.structs import replace

from jepsen_like.simulator.world.disk import SimDisk
from metadata.journal.journal import Journal, prepare_journal
from metadata.journal.snapshot_file import Snapshot, load_snapshot, reconcile, save_snapshot
from metadata.raft.messages import AppendReply, PreVote, PreVoteReply, RequestVote
from metadata.voters.changes import (
    CATCH_UP_ENTRIES,
    Action,
    AskAgain,
    ChangeRefused,
    NextConfiguration,
    ObserverState,
    QuorumFacts,
    ResignFirst,
    Unchanged,
    VoterChange,
    decide,
    decide_pin,
    failures_survived,
)
from metadata.voters.configuration import (
    MAX_VOTERS,
    Configuration,
    Voter,
    decode_configuration,
    decode_entry,
    encode_configuration,
    encode_entry,
    is_single_step,
)
from raftlog.config import majority
from raftlog.errors import CODES, InvariantViolation, RemoteProtocolError
from raftlog.model import BrokerId, DirectoryId
from tests.support.quorum.bench import REGULAR, Bench, acknowledge, configuration, led, meet, voter
from tests.support.quorum.world import identity_of


def facts(*nodes: int, leader: int = 1, answering: set[int] | None = None, may_change: bool = True) -> QuorumFacts:
    """Node 9 observes and has caught up."""
    return QuorumFacts(
        leader=voter(leader),
        may_change=may_change,
        configuration=configuration(*nodes),
        pinned=configuration(*nodes),
        answering=frozenset(nodes if answering is None else answering),
        observers={9: ObserverState(voter(9), 1000, True)},
        commit_index=1000,
    )


def add(known: QuorumFacts, node: int = 9) -> object:
    return decide(known, VoterChange(Action.ADD, node))


def remove(known: QuorumFacts, node: int) -> object:
    return decide(known, VoterChange(Action.REMOVE, node))


def refusal(decision: object) -> str:
    assert isinstance(decision, ChangeRefused), decision
    assert decision.code in CODES and len(decision.detail) > 20
    return decision.code


# --- One at a time ---------------------------------------------------------------------------------------------------


def test_majorities_of_configurations_one_step_apart_share_a_voter_with_its_disk() -> None:
    """S7: counted for all sets of up to five voters, one of which may be on another disk: the changes that
    `is_single_step` allows are safe for every pair of majorities, and those that it forbids are not for some."""
    disks = [(node, 0) for node in range(1, 6)] + [(1, 1)]
    sets = [
        frozenset(chosen)
        for size in range(1, 6)
        for chosen in combinations(disks, size)
        if len({node for node, _ in chosen}) == size
    ]
    forbidden_and_unsafe = 0
    for old in sets:
        for new in sets:
            allowed = is_single_step(Configuration.of(voter(*v) for v in old), Configuration.of(voter(*v) for v in new))
            share = all(set(one) & set(other) for one in majorities(old) for other in majorities(new))
            assert share or not allowed, (old, new)
            forbidden_and_unsafe += not share and not allowed
    assert forbidden_and_unsafe > 100


def majorities(voters: frozenset[tuple[int, int]]) -> list[tuple[tuple[int, int], ...]]:
    needed = majority(len(voters))
    return list(chain.from_iterable(combinations(voters, size) for size in range(needed, len(voters) + 1)))


def test_a_replaced_disk_is_two_steps() -> None:
    old, new = configuration(1, 2, 3), Configuration.of([voter(1, 7), voter(2), voter(3)])
    assert not is_single_step(old, new)
    assert is_single_step(old, old.without(1)) and is_single_step(old.without(1), new)
    unpinned = Configuration.initial([BrokerId(1), BrokerId(2), BrokerId(3)])
    assert is_single_step(unpinned, old) and not is_single_step(old, unpinned)


def test_a_change_waits_for_the_previous_one() -> None:
    for decision in (add(facts(1, 2, 3, may_change=False)), remove(facts(1, 2, 3, may_change=False), 2)):
        assert refusal(decision) == "quorum_change_in_progress"


def test_an_appended_change_without_agreement_is_neither_done_nor_undone() -> None:
    """A step that may still be truncated is not reported as done, however often it is requested."""
    assert add(facts(1, 2, 9)) == Unchanged()
    assert isinstance(add(facts(1, 2, 9, may_change=False)), AskAgain)
    assert isinstance(remove(facts(1, 2, may_change=False), 9), AskAgain)


def test_a_young_leader_refuses_nothing_for_silence_and_does_safe_steps() -> None:
    young = replace(facts(1, 2, 3, answering={1, 2}), young=True)
    assert isinstance(remove(young, 2), AskAgain) and "bring back 3" in str(remove(young, 2))
    assert isinstance(add(replace(young, observers={})), AskAgain)
    assert remove(young, 3) == NextConfiguration(configuration(1, 2))


# --- Adding ----------------------------------------------------------------------------------------------------------


def test_an_observer_that_has_caught_up_becomes_a_voter_with_its_disk() -> None:
    decision = add(facts(1, 2, 3))
    assert decision == NextConfiguration(configuration(1, 2, 3, 9))


@pytest.mark.parametrize(
    "observers",
    [
        {},
        {9: ObserverState(voter(9), 1000, False)},
        {9: ObserverState(voter(9), 1000 - CATCH_UP_ENTRIES - 1, True)},
    ],
)
def test_a_new_voter_must_have_caught_up_and_answer(observers: dict[int, ObserverState]) -> None:
    assert refusal(add(replace(facts(1, 2, 3), observers=observers))) == "voter_not_caught_up"


def test_a_voter_is_not_added_if_the_new_majority_would_not_be_there() -> None:
    assert isinstance(add(facts(1, 2, 3, answering={1, 2})), NextConfiguration), "three of four"
    assert refusal(add(facts(1, 2, 3, answering={1}))) == "quorum_majority_at_risk"


def test_a_voter_is_added_once_and_never_with_another_disk() -> None:
    assert add(facts(1, 2, 9)) == Unchanged()
    assert "remove" in str(add(facts(1, 2, 9, answering={1, 2})))
    assert refusal(add(facts(1, 2, 9, answering={1, 2}))) == "invalid_request"


def test_the_size_of_a_quorum_is_bounded() -> None:
    assert refusal(add(facts(*range(1, MAX_VOTERS + 1)))) == "invalid_request"


# --- Removing --------------------------------------------------------------------------------------------------------


def test_a_lost_voter_is_removed_and_a_needed_one_is_not() -> None:
    assert remove(facts(1, 2, 3, answering={1, 2}), 3) == NextConfiguration(configuration(1, 2))
    decision = remove(facts(1, 2, 3, answering={1, 2}), 2)
    assert refusal(decision) == "quorum_majority_at_risk" and "bring back 3" in str(decision)


def test_the_leader_resigns_before_it_is_removed() -> None:
    assert remove(facts(1, 2, 3), 1) == ResignFirst(configuration(2, 3))
    assert refusal(remove(facts(1, 2, 3, answering={1, 2}), 1)) == "quorum_majority_at_risk"


def test_the_only_voter_and_strangers_are_not_removed() -> None:
    assert refusal(remove(facts(1), 1)) == "quorum_majority_at_risk"
    assert refusal(remove(facts(1, 2, 3), 9)) == "not_a_voter"


def test_the_number_of_survivable_failures() -> None:
    assert [failures_survived(voters) for voters in range(1, 8)] == [0, 0, 1, 1, 2, 2, 3]


# --- Recording disks -------------------------------------------------------------------------------------------------


def test_disks_are_recorded_once_another_voter_is_connected() -> None:
    unpinned = Configuration.initial([BrokerId(1), BrokerId(2), BrokerId(3)])
    alone = replace(facts(1, 2, 3), configuration=unpinned, pinned=unpinned.pinned({BrokerId(1): voter(1)}))
    assert decide_pin(alone) is None
    met = unpinned.pinned({BrokerId(1): voter(1), BrokerId(3): voter(3)})
    assert decide_pin(replace(alone, pinned=met)) == met
    assert decide_pin(replace(alone, pinned=met, may_change=False)) is None
    assert decide_pin(facts(1, 2, 3)) is None
    assert met.pinned({BrokerId(1): voter(1, 5)}).voter(1) == voter(1), "what is written down stays"


# --- On disk and on the wire -----------------------------------------------------------------------------------------


def test_a_configuration_survives_encoding() -> None:
    for one in (configuration(1, 2, 3), Configuration.initial([BrokerId(0)])):
        assert decode_configuration(encode_configuration(one)) == one
        assert decode_entry(encode_entry(one)) == one
    assert decode_entry(REGULAR + b"x") is None


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        encode_configuration(Configuration(2, (voter(1),))),
        encode_configuration(Configuration(1, (voter(2), voter(1)))),
        encode_configuration(Configuration(1, (voter(1), voter(1, 2)))),
        encode_configuration(Configuration(1, (Voter(BrokerId(1), DirectoryId(b"short")),))),
        encode_configuration(Configuration(1, ())),
    ],
)
def test_an_invalid_configuration_is_refused(packed: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_configuration(packed)


def journal_with(disk: SimDisk, *configurations: Configuration) -> Journal:
    identity = identity_of(1, 3)
    prepare_journal(disk, identity)
    journal = Journal(disk, identity)
    journal.set_hard_state(1, -1)
    for number, one in enumerate(configurations):
        journal.append(REGULAR, 2 + 2 * number, 1)
        journal.append(encode_entry(one), 3 + 2 * number, 1)
    journal.sync()
    return journal


def test_the_journal_knows_the_voters_at_each_index_and_drops_truncated_ones() -> None:
    disk = SimDisk()
    journal = journal_with(disk, configuration(1, 2, 3), configuration(1, 2))
    initial = Configuration.initial([BrokerId(1), BrokerId(2), BrokerId(3)])
    known = [journal.configuration_at(index) for index in range(1, 6)]
    assert known == [initial, initial, configuration(1, 2, 3), configuration(1, 2, 3), configuration(1, 2)]
    again = Journal(disk, identity_of(1, 3))
    assert again.configurations == journal.configurations
    again.truncate_from(5)
    assert again.configurations[-1] == (3, configuration(1, 2, 3))
    again.drop_before(4)
    again.close()
    assert Journal(disk, identity_of(1, 3)).configurations == [(4, configuration(1, 2, 3))]


def test_a_snapshot_carries_its_configuration_into_an_empty_log() -> None:
    disk = SimDisk()
    journal = journal_with(disk)
    save_snapshot(disk, identity_of(1, 3), Snapshot.of(90, 1, b"state", encode_configuration(configuration(2, 4))))
    reconcile(journal, load_snapshot(disk, identity_of(1, 3)))
    assert journal.configurations == [(90, configuration(2, 4))]


# --- At the engine ---------------------------------------------------------------------------------------------------


def test_a_configuration_takes_effect_when_it_is_appended() -> None:
    """The majority of four is three: entries that two have are not committed."""
    bench = led(4)
    bench.engine.append_configuration(configuration(1, 2, 3, 4), 2)
    last = bench.engine.status().last_index
    acknowledge(bench, 2)
    assert bench.engine.status().commit_index < last
    assert not bench.engine.facts().may_change
    acknowledge(bench, 4)
    assert bench.engine.status().commit_index == last and bench.engine.facts().may_change


def test_two_steps_at_once_or_a_wide_one_stop_the_leader() -> None:
    bench = led(4)
    with pytest.raises(InvariantViolation):
        bench.engine.append_configuration(configuration(1, 2), 2) or bench.engine.append_configuration(
            configuration(1, 2, 3), 3
        )
    bench = led(4, 5)
    with pytest.raises(InvariantViolation):
        bench.engine.append_configuration(configuration(1, 2, 3, 4, 5), 2)
    with pytest.raises(InvariantViolation):
        led().engine.append_configuration(configuration(2, 3), 2)


def test_no_change_before_an_entry_of_the_leaders_own_term_is_committed() -> None:
    bench = Bench()
    meet(bench, 2, 3, 4)
    bench.campaign()
    from metadata.raft.messages import Vote

    for peer in (2, 3):
        bench.hear(peer, Vote(bench.engine.term, True))
    assert not bench.engine.facts().may_change
    with pytest.raises(InvariantViolation):
        bench.engine.append_configuration(configuration(1, 2, 3), 1)
    acknowledge(bench, 2)
    assert bench.engine.facts().may_change


def test_an_observers_acknowledgement_commits_nothing() -> None:
    bench = led(4)
    bench.engine.propose(b"x", 5)
    last = bench.engine.status().last_index + 1
    acknowledge(bench, 4)
    assert bench.engine.status().last_index == last
    assert bench.engine.status().commit_index < last
    acknowledge(bench, 3)
    assert bench.engine.status().commit_index == last


def test_an_observer_gets_only_committed_entries() -> None:
    from metadata.raft.messages import Append

    bench = led(4)
    last = bench.engine.status().last_index
    bench.hear(4, AppendReply(bench.engine.term, True, last, 0))
    bench.engine.propose(b"x", 5)
    sent = [message for peer, message in bench.tick() if peer == 4 and isinstance(message, Append)]
    assert not any(message.entries for message in sent)
    acknowledge(bench, 2)
    assert bench.engine.status().commit_index == last + 1
    sent = [message for peer, message in bench.tick(0.2) if peer == 4 and isinstance(message, Append)]
    assert bench.engine.status().match_index[BrokerId(4)] == last and sent


def test_a_candidate_without_a_vote_is_ignored_unless_a_newer_log_makes_it_a_voter() -> None:
    """S9, and the remedy for a node that missed how a lost disk was replaced."""
    bench = led()
    bench.engine.resign()
    bench.tick(2.0)
    term, last = bench.engine.term, bench.engine.status().last_index
    meet(bench, 3, disk=1)
    assert bench.replies(3, PreVote(term + 1, 1, last, term)) == []
    assert bench.replies(3, RequestVote(term + 1, last, term, bench.engine.membership.index)) == []
    assert bench.replies(7, RequestVote(term + 1, last, term)) == []
    assert bench.engine.term == term
    assert bench.replies(3, PreVote(term + 1, 1, last, term, last + 1)) == [PreVoteReply(term, 1, True)]
    vote = bench.vote(3, RequestVote(term + 1, last, term, last + 1))
    assert vote is not None and vote.granted


def test_a_voter_that_did_not_answer_this_leader_does_not_count_as_connected() -> None:
    """Voter 3 died before the election: a new leader must not count on it (`quorum_majority_at_risk`)."""
    bench = led()
    known = bench.engine.facts()
    assert known.answering == {1, 2} and known.young
    assert isinstance(remove(known, 2), AskAgain)
    for _ in range(8):
        bench.tick(0.1)
        acknowledge(bench, 2)
    known = bench.engine.facts()
    assert known.answering == {1, 2} and not known.young
    assert refusal(remove(known, 2)) == "quorum_majority_at_risk"


def test_an_observers_acknowledgements_end_with_the_link_that_named_its_disk() -> None:
    """S9: the connection to it may still exist when it restarts on an empty disk, which has acknowledged nothing."""
    bench = led(4)
    acknowledge(bench, 4)
    before = bench.engine.facts().observers[4]
    assert before.match == bench.engine.status().last_index and before.answering
    bench.engine.forget(BrokerId(4))
    assert 4 not in bench.engine.facts().observers, "nobody knows on which disk it is"
    meet(bench, 4, disk=1)
    after = bench.engine.facts().observers[4]
    assert (after.match, after.answering) == (0, False)
    assert isinstance(add(replace(bench.engine.facts(), young=False), 4), ChangeRefused)


def test_a_removed_voter_keeps_its_acknowledgements() -> None:
    bench = led()
    bench.engine.forget(BrokerId(2))
    assert bench.engine.status().match_index[BrokerId(2)] == bench.engine.status().last_index
    assert 2 in bench.engine.facts().answering


def test_the_leaders_next_heartbeat_is_known_and_no_other() -> None:
    bench = Bench()
    assert bench.engine.next_heartbeat == float("inf")
    bench = led()
    assert 0.0 < bench.engine.next_heartbeat - bench.now <= 0.1
    bench.tick(0.2)
    assert bench.engine.next_heartbeat == pytest.approx(bench.now + 0.1)
    bench.engine.resign()
    assert bench.engine.next_heartbeat == float("inf")
