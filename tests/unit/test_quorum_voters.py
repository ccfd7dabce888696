"""A voter that comes back without its disk: remembered by the others, followed by nobody, counted nowhere (S9)."""

from __future__ import annotations

import pytest

from jepsen_like.simulator.disk import SimDisk
from metadata import quorum_messages as messages
from metadata.journal import prepare_journal
from metadata.quorum_messages import AppendReply, PreVote, RequestVote
from metadata.quorum_voters import PATH, VoterDirectories
from raftlog.errors import InvariantViolation
from raftlog.model import BrokerId, DirectoryId
from tests.support.quorum_bench import Bench
from tests.support.quorum_world import identity_of

OLD, NEW = DirectoryId(b"o" * 16), DirectoryId(b"n" * 16)


def test_the_first_directory_of_each_voter_is_remembered_durably() -> None:
    disk = SimDisk()
    prepare_journal(disk, identity_of(1, 3))
    directories = VoterDirectories(disk, identity_of(1, 3))
    assert directories.is_the_same(BrokerId(2), OLD)
    assert directories.is_the_same(BrokerId(3), NEW)
    assert not directories.is_the_same(BrokerId(2), NEW)
    again = VoterDirectories(disk, identity_of(1, 3))
    assert not again.is_the_same(BrokerId(2), NEW)
    assert again.is_the_same(BrokerId(2), OLD)


def test_a_damaged_memory_of_the_voters_is_fatal() -> None:
    disk = SimDisk()
    prepare_journal(disk, identity_of(1, 3))
    for content in (b"", b"\xc1", b"\x93\x02\xa7cluster\x80", b"\x93\x01\xa5other\x80"):
        disk.replace(PATH, content)
        with pytest.raises(InvariantViolation):
            VoterDirectories(disk, identity_of(1, 3))


def test_a_voter_without_its_disk_follows_and_counts_nowhere() -> None:
    bench = Bench()
    bench.lead()
    term = bench.engine.term
    bench.engine.distrust(BrokerId(2), True)
    bench.engine.propose(b"x", 1)
    bench.tick()
    last = bench.engine.status().last_index
    bench.hear(2, AppendReply(term, True, last, 0))
    assert bench.engine.status().commit_index < last
    assert bench.engine.status().match_index[BrokerId(2)] == last
    assert bench.hear(2, RequestVote(term + 1, last, term)) == []
    assert bench.engine.term == term
    bench.hear(3, AppendReply(term, True, last, 0))
    assert bench.engine.status().commit_index == last


def test_what_a_voter_acknowledged_on_another_disk_is_not_what_its_own_has() -> None:
    """Voter 2 acknowledged everything on a new disk, then its old one, which is shorter, was put back."""
    bench = Bench()
    bench.lead()
    term = bench.engine.term
    bench.engine.distrust(BrokerId(2), True)
    bench.engine.propose(b"x", 1)
    bench.tick()
    last = bench.engine.status().last_index
    bench.hear(2, AppendReply(term, True, last, 0))
    bench.engine.peer_disconnected(BrokerId(2))
    bench.engine.distrust(BrokerId(2), False)
    bench.engine.peer_connected(BrokerId(2))
    bench.tick(0.2)
    bench.hear(2, AppendReply(term, False, last, last - 1))
    assert bench.engine.status().commit_index < last
    bench.hear(2, AppendReply(term, True, last, 0))
    assert bench.engine.status().commit_index == last


def test_a_hello_of_the_same_disk_again_changes_nothing() -> None:
    bench = Bench()
    bench.lead()
    last = bench.engine.status().last_index
    bench.engine.distrust(BrokerId(2), False)
    assert bench.engine.status().match_index[BrokerId(2)] == last


def test_a_vote_of_a_voter_without_its_disk_elects_nobody() -> None:
    bench = Bench()
    bench.engine.distrust(BrokerId(2), True)
    for _ in range(200):
        for peer, message in bench.tick():
            if isinstance(message, PreVote) and peer == 2:
                bench.hear(2, messages.PreVoteReply(message.term - 1, message.round, True))
    assert bench.engine.term == 0
