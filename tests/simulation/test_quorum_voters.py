"""The checks of changing voters find violations, and nothing else (S7, S9)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from jepsen_like.simulator.quorum.voters_truth import VotersTruth
from jepsen_like.simulator.world.disk import SimDisk
from jepsen_like.simulator.world.violation import Violation
from metadata.journal.journal import Journal, prepare_journal
from metadata.voters.configuration import Configuration, Voter, encode_entry
from metadata.voters.identity import QuorumIdentity
from raftlog.config import majority
from raftlog.model import BrokerId, DirectoryId


def disk(node: int, number: int = 1) -> DirectoryId:
    return DirectoryId(bytes([node, number] * 8))


def named(*nodes: int, other_disks: tuple[int, ...] = ()) -> Configuration:
    return Configuration.of(Voter(BrokerId(n), disk(n, 2 if n in other_disks else 1)) for n in nodes)


def truth() -> VotersTruth:
    return VotersTruth(range(3), {node: bytes(disk(node)) for node in range(5)})


def journal(*configurations: Configuration) -> Journal:
    """Node 0's journal, with one configuration after the other from index 2 on, of term 1."""
    simulated = SimDisk()
    identity = QuorumIdentity("simulated", BrokerId(0), disk(0), tuple(BrokerId(n) for n in range(3)))
    prepare_journal(simulated, identity)
    held = Journal(simulated, identity)
    held.set_hard_state(1, 0)
    for index, configuration in enumerate(configurations, start=2):
        held.append(encode_entry(configuration), index, 1)
    return held


def some_configurations() -> Iterator[Configuration]:
    for size in range(1, 5):
        for nodes in itertools.combinations(range(4), size):
            yield named(*nodes)
            yield named(*nodes, other_disks=nodes[-1:])


def test_two_majorities_share_a_voter_exactly_if_no_two_are_disjoint() -> None:
    judge = truth()
    for old, new in itertools.product(some_configurations(), repeat=2):
        former = [(voter.node_id, voter.directory_id) for voter in old.voters]
        latter = [(voter.node_id, voter.directory_id) for voter in new.voters]
        disjoint = any(
            not set(ours) & set(theirs)
            for ours in itertools.combinations(former, majority(len(former)))
            for theirs in itertools.combinations(latter, majority(len(latter)))
        )
        assert judge._share_a_voter(old, new) is not disjoint, (old, new)


def test_a_change_follows_a_committed_one_by_one_step() -> None:
    committed = {1: 0, 2: 1}
    truth().look_at(0, journal(named(0, 1, 2), named(0, 1, 2, 3)), committed)
    with pytest.raises(Violation, match=r"S7\.10.*the one at 3 is not committed"):
        truth().look_at(0, journal(named(0, 1, 2), named(0, 1, 2, 3), named(0, 1, 2, 3, 4)), committed)
    for second in (named(0, 3, 4), named(0, 1, 2, other_disks=(2,))):
        with pytest.raises(Violation, match=r"S7\.10.*may share no voter"):
            truth().look_at(0, journal(named(0, 1, 2), second), committed)


def test_a_leader_was_elected_by_the_voters_that_its_log_names() -> None:
    judge = truth()
    judge.voted(0, 5, 0)
    judge.voted(1, 5, 0)
    judge.voted(3, 5, 0)
    judge.check_elected(0, 5, named(0, 1, 2))
    # Node 3 was none of them, node 1 is none any more, and the vote of node 1's new disk does not count as one of the
    # old disk.
    for configuration in (named(0, 2, 4), named(0, 1, 2, 4), named(0, 1, 2, other_disks=(1,))):
        with pytest.raises(Violation, match=r"S7\.11"):
            judge.check_elected(0, 5, configuration)
    judge.disk_replaced(1, bytes(disk(1, 2)))
    judge.voted(1, 6, 0)
    judge.voted(0, 6, 0)
    with pytest.raises(Violation, match=r"S7\.11"):
        judge.check_elected(0, 6, named(0, 1, 2))
    judge.check_elected(0, 6, named(0, 1, 2, other_disks=(1,)))


def test_an_acknowledgement_counts_for_the_disk_by_which_voters_are_named() -> None:
    """Also when the disk is replaced; its successor's entries count for nothing until it is named."""
    judge, old, new = truth(), bytes(disk(2)), bytes(disk(2, 2))
    others = [(0, bytes(disk(0)))]
    judge.disk_replaced(2, new)
    assert judge.have_acknowledged(named(0, 1, 2), [*others, (2, old)])
    assert not judge.have_acknowledged(named(0, 1, 2), [*others, (2, new)])
    assert not judge.have_acknowledged(named(0, 1, 2), [(2, old), (2, old), (3, bytes(disk(3)))])
    assert judge.have_acknowledged(named(0, 1, 2, other_disks=(2,)), [*others, (2, new)])


def test_a_disk_that_was_replaced_counts_once_it_is_named() -> None:
    judge = truth()
    assert judge.have_majority(named(0, 1, 2), [0, 2])
    assert judge.have_majority(Configuration.initial(BrokerId(n) for n in range(3)), [0, 2])
    judge.disk_replaced(2, bytes(disk(2, 2)))
    assert not judge.have_majority(named(0, 1, 2), [0, 2])
    assert not judge.have_majority(Configuration.initial(BrokerId(n) for n in range(3)), [0, 2])
    assert judge.have_majority(named(0, 1, 2, other_disks=(2,)), [0, 2])


def test_a_log_begins_with_the_configuration_that_is_in_effect_there() -> None:
    judge = truth()
    held = journal(named(0, 1, 2), named(0, 1, 2, 3))
    held.sync()
    judge.on_commit(2, encode_entry(named(0, 1, 2)))
    judge.on_commit(3, encode_entry(named(0, 1, 2, 3)))
    judge.check_base(0, held)
    held.drop_before(3)
    judge.check_base(0, held)
    held.reset(3, 1)
    with pytest.raises(Violation, match=r"S7\.12"):
        judge.check_base(0, held)
