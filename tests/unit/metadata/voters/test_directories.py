"""A voter that returns without its disk: the others remember the old one, do not follow it, and do not
count it (S9).
"""

from __future__ import annotations

import random
from functools import partial

import msgspec
import pytest
from crc32c import crc32c

from jepsen_like.simulator.world.disk import SimDisk
from metadata.commands.cluster import NoOp
from metadata.commands.envelope import encode
from metadata.image.image import ClusterImage
from metadata.journal.journal import Journal, prepare_journal
from metadata.journal.snapshot_file import Snapshot, save_snapshot
from metadata.quorum import protocol
from metadata.quorum.node import QuorumNode
from metadata.quorum.protocol import EngineFrame
from metadata.raft import messages
from metadata.raft.messages import Append, AppendReply, Entry, PreVote, RequestVote
from metadata.snapshot.encoder import SnapshotEncoder
from metadata.voters.configuration import encode_configuration, encode_entry
from metadata.voters.directories import MAGIC, PATH, VoterDirectories
from raftlog.config import TimingConfig
from raftlog.errors import DiskDamaged
from raftlog.model import NO_BROKER, BrokerId, DirectoryId
from tests.support.partitions.manual import ManualClock
from tests.support.quorum.bench import REGULAR, Bench, configuration, voter
from tests.support.quorum.cluster import QuorumCluster, topic
from tests.support.quorum.world import identity_of

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


def remembered(voters: int = 3) -> SimDisk:
    """A disk that remembers voter 2 on its old disk."""
    disk = SimDisk()
    prepare_journal(disk, identity_of(1, voters))
    assert VoterDirectories(disk, identity_of(1, voters)).is_the_same(BrokerId(2), OLD)
    return disk


def test_any_damaged_byte_of_the_file_is_detected() -> None:
    """A changed directory id would make this node distrust a correct voter. S9, S11."""
    disk = remembered()
    whole = disk.read(PATH)
    for position in range(len(whole)):
        disk.replace(PATH, whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        with pytest.raises(DiskDamaged, match=r"quorum/voters is damaged.*quorum remove 1"):
            VoterDirectories(disk, identity_of(1, 3))
    for length in range(len(whole)):
        disk.replace(PATH, whole[:length])
        with pytest.raises(DiskDamaged, match="damaged"):
            VoterDirectories(disk, identity_of(1, 3))


def test_another_clusters_or_a_newer_file_is_refused() -> None:
    for version, cluster in ((3, "cluster"), (2, "another")):
        disk = SimDisk()
        prepare_journal(disk, identity_of(1, 3))
        body = msgspec.msgpack.encode([version, cluster, {2: OLD}])
        disk.replace(PATH, MAGIC + crc32c(body).to_bytes(4, "big") + body)
        with pytest.raises(DiskDamaged, match=f"format {version} and cluster"):
            VoterDirectories(disk, identity_of(1, 3))


def test_a_file_without_a_checksum_is_read_and_gets_one() -> None:
    disk = SimDisk()
    prepare_journal(disk, identity_of(1, 3))
    disk.replace(PATH, msgspec.msgpack.encode([1, "cluster", {2: OLD}]))
    assert not VoterDirectories(disk, identity_of(1, 3)).is_the_same(BrokerId(2), NEW)
    assert disk.read(PATH).startswith(MAGIC)
    assert VoterDirectories(disk, identity_of(1, 3)).is_the_same(BrokerId(2), OLD)


def node_on(disk: SimDisk) -> partial[QuorumNode]:
    return partial(
        QuorumNode,
        identity_of(1, 3),
        disk=disk,
        clock=ManualClock(),
        random=random.Random(1),
        timing=TimingConfig(),
        send=lambda peer, message: None,
        on_events=lambda index, events: None,
    )


def test_a_damaged_file_that_the_log_has_replaced_stops_no_node() -> None:
    """Once the log begins with a configuration that names all disks, the file is not read."""
    disk = remembered()
    disk.replace(PATH, b"rotten")
    start = node_on(disk)
    with pytest.raises(DiskDamaged, match="damaged"):
        start()
    journal = Journal(disk, identity_of(1, 3))
    journal.set_hard_state(1, -1)
    journal.append(encode_entry(configuration(1, 2, 3)), 2, 1)
    journal.sync()
    journal.close()
    with pytest.raises(DiskDamaged, match="damaged"):
        start()  # the entry may still be truncated
    state = SnapshotEncoder(ClusterImage())
    while (packed := state.step()) is None:
        pass
    taken = Snapshot.of(2, 1, packed, encode_configuration(configuration(1, 2, 3)))
    save_snapshot(disk, identity_of(1, 3), taken)
    journal = Journal(disk, identity_of(1, 3))
    journal.drop_before(2)
    journal.close()
    start().close()


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


def test_a_voters_acknowledgements_on_another_disk_do_not_count_for_its_own() -> None:
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


def test_a_repeated_hello_of_the_same_disk_changes_nothing() -> None:
    bench = Bench()
    bench.lead()
    last = bench.engine.status().last_index
    bench.engine.distrust(BrokerId(2), False)
    assert bench.engine.status().match_index[BrokerId(2)] == last


def test_a_vote_of_a_voter_without_its_disk_does_not_count() -> None:
    bench = Bench()
    bench.engine.distrust(BrokerId(2), True)
    for _ in range(200):
        for peer, message in bench.tick():
            if isinstance(message, PreVote) and peer == 2:
                bench.hear(2, messages.PreVoteReply(message.term - 1, message.round, True))
    assert bench.engine.term == 0


def test_a_reinitialized_voter_cannot_start_a_quorum_with_one_that_never_met_it_s9() -> None:
    """Voter 3 is not there when the quorum begins. Whatever 1 and 2 agree to, 2 may lose its disk and be prepared as a
    first voter again before 3 starts, and neither 3 nor the new 2 can tell. They must not begin another history."""
    for seed in range(3):
        cluster = QuorumCluster(seed)
        cluster.network.cut(*((3, peer) for peer in (1, 2)), *((peer, 3) for peer in (1, 2)))
        cluster.run(3.0)
        agreed = cluster.leader() is not None
        outcome = cluster.propose(1, topic(cluster, "t", 1))
        for number in (1, 2, 3):
            cluster.members[number].kill()
        cluster.members[2].replace_disk()
        cluster.network.cuts.clear()
        for number in (2, 3):
            cluster.members[number].start()
        cluster.run(5.0)
        assert all(cluster.node(number).status().leader == NO_BROKER for number in (2, 3)), (agreed, outcome)


def test_a_quorum_begins_when_all_of_its_first_voters_are_there_and_then_survives_one_s9() -> None:
    cluster = QuorumCluster(1)
    cluster.members[3].kill()
    cluster.run(5.0)
    assert cluster.leader() is None
    cluster.members[3].start()
    leader = cluster.await_leader()
    cluster.run_until(lambda: cluster.node(leader).engine.configuration.is_pinned)
    cluster.members[leader].kill()
    cluster.run_until(lambda: cluster.leader() not in (None, leader))


def test_a_voter_on_a_new_disk_does_not_count_if_the_entry_that_named_its_old_one_is_truncated() -> None:
    """S9: it sent its hello while the log named its disk, and the log drops that entry."""
    disk = SimDisk()
    prepare_journal(disk, identity_of(1, 3))
    node = node_on(disk)()
    node.on_hello(BrokerId(2), voter(2).directory_id)
    named = Entry(1, encode_entry(configuration(1, 2, 3)))
    for term, entry in ((1, named), (2, Entry(2, REGULAR + encode(NoOp())))):
        if term == 2:
            node.on_hello(BrokerId(2), voter(2, disk=1).directory_id)
        append = Append(term, 1, 0, 1, (entry,))
        node.on_message(BrokerId(3), protocol.encode(EngineFrame(messages.encode(append))))
        node.tick()
    membership = node.engine.membership
    assert not node.engine.configuration.is_pinned, "the entry was cut away"
    assert membership.is_distrusted(2) and not membership.is_distrusted(3)
    node.on_hello(BrokerId(2), voter(2).directory_id)
    assert membership.counts(2), "its own disk is back"
