"""A voter whose disk lost fsynced data.

It is detected at its start by the journal's witness, or by the leader; then it neither votes nor counts (S9), and the
others continue (S10).
"""

from __future__ import annotations

import random

import pytest

from jepsen_like.simulator.world.disk import SimDisk
from metadata.journal.format import FORMAT_VERSION, Kind, decode, encode
from metadata.journal.journal import Journal, generation_path, prepare_journal
from metadata.journal.witness import PATH, SECTOR_BYTES, Witness, Word
from metadata.raft import messages
from metadata.raft.forgotten import PATH as FORGOTTEN
from metadata.raft.progress import Progress, State
from metadata.voters.changes import Action
from raftlog.cli import main
from raftlog.errors import DiskDamaged, DiskFailed
from tests.support.quorum.bench import Bench
from tests.support.quorum.cluster import QuorumCluster, others, ready_cluster, topic
from tests.support.quorum.crashes import die_before_fsync
from tests.support.quorum.world import identity_of

Capture = pytest.CaptureFixture[str]
IDENTITY = identity_of(1, 3)
FIRST = generation_path(0)


def filled(disk: SimDisk, groups: int = 5) -> Journal:
    prepare_journal(disk, IDENTITY)
    journal = Journal(disk, IDENTITY)
    journal.set_hard_state(3, 2)
    for index in range(2, 2 + groups):
        journal.append(b"entry %d" % index, index, 3)
        journal.sync()
    return journal


def put(disk: SimDisk, path: str, content: bytes) -> None:
    disk.replace(path, content)


# --- The witness -----------------------------------------------------------------------------------------------------


def test_a_journal_that_lost_its_end_is_never_opened() -> None:
    """Whatever is cut off, at a record's boundary or within one, or reads as zeros. S9."""
    disk = SimDisk()
    filled(disk)
    content = disk.read(FIRST)
    for left in range(len(content)):
        for rest in (b"", bytes(len(content) - left)):
            if content[:left] + rest == content:
                continue
            put(disk, FIRST, content[:left] + rest)
            with pytest.raises(DiskDamaged, match=r"journal-0000000000\.log .*the disk's fault.*quorum remove 1"):
                Journal(disk, IDENTITY)
    put(disk, FIRST, content)
    assert Journal(disk, IDENTITY).last_index == 6


def test_a_lost_vote_is_detected() -> None:
    disk = SimDisk()
    journal = filled(disk)
    before = disk.read(FIRST)
    journal.set_hard_state(4, 3)
    journal.sync()
    put(disk, FIRST, before)
    with pytest.raises(DiskDamaged, match="lost its end"):
        Journal(disk, IDENTITY)


def test_the_return_of_an_older_generation_is_detected() -> None:
    disk = SimDisk()
    journal = filled(disk)
    old = disk.read(FIRST)
    journal.drop_before(4)
    disk.remove(generation_path(1))
    put(disk, FIRST, old)
    with pytest.raises(DiskDamaged, match=r"journal-0000000001\.log is missing"):
        Journal(disk, IDENTITY)


def test_the_beginning_of_a_generation_is_witnessed_too() -> None:
    disk = SimDisk()
    filled(disk).drop_before(4)
    content = disk.read(generation_path(1))
    first = decode(content, 0)
    assert first is not None
    put(disk, generation_path(1), content[: first.end])
    with pytest.raises(DiskDamaged, match="lost its end"):
        Journal(disk, IDENTITY)


def test_a_missing_or_damaged_witness_is_no_witness() -> None:
    disk = SimDisk()
    filled(disk)
    whole = disk.read(PATH)
    for damaged in (
        b"",
        whole[:SECTOR_BYTES][:-1],
        bytes(len(whole)),
        b"x" + whole[1:SECTOR_BYTES] + b"x" * SECTOR_BYTES,
    ):
        put(disk, PATH, damaged)
        with pytest.raises(DiskDamaged, match=r"quorum/witness is damaged.*quorum remove 1"):
            Journal(disk, IDENTITY)
    disk.remove(PATH)
    with pytest.raises(DiskDamaged, match="quorum/witness is missing"):
        Journal(disk, IDENTITY)


def test_a_torn_word_leaves_the_previous_one() -> None:
    disk = SimDisk()
    journal = filled(disk)
    before = Witness(disk).word
    journal.append(b"another", 7, 3)
    journal.sync()
    whole = disk.read(PATH)
    said = [position for position in (0, SECTOR_BYTES) if whole[position : position + SECTOR_BYTES] != bytes(512)]
    latest = max(said, key=lambda position: whole[position + 8 : position + 24])
    put(disk, PATH, whole[:latest] + b"torn" + whole[latest + 4 :])
    assert Witness(disk).word == before
    assert Journal(disk, IDENTITY).last_index == 7


def test_a_power_loss_never_leaves_a_witness_of_missing_bytes() -> None:
    """Its words are written after the fsync of the bytes that they describe; not synced themselves, they may be
    lost."""
    for seed in range(60):
        disk, rng = SimDisk(), random.Random(seed)
        journal = filled(disk, groups=rng.randrange(6))
        if seed % 3 == 0:
            journal.mark()
        if seed % 4 == 0 and journal.last_index > 2:
            journal.drop_before(2)
        journal.append(b"staged", journal.last_index + 1, 3)
        if seed % 2:
            die_before_fsync(journal)
        synced = journal.last_index - 1
        disk.power_loss(rng)
        assert Journal(disk, IDENTITY).last_index >= synced


def test_it_costs_no_fsync_and_is_durable_when_the_node_is_idle() -> None:
    disk = SimDisk()
    journal = filled(disk)
    fsyncs = disk.fsyncs
    journal.append(b"entry", 7, 3)
    journal.sync()
    assert disk.fsyncs == fsyncs + 1
    journal.mark()
    assert disk.fsyncs == fsyncs + 2
    journal.mark()
    assert disk.fsyncs == fsyncs + 2 and not journal.unwitnessed
    disk.power_loss(random.Random(1))
    assert Witness(disk).word == Word(0, len(disk.read(FIRST)))


def test_a_journal_from_before_witnesses_gets_one() -> None:
    disk = SimDisk()
    filled(disk)
    content = disk.read(FIRST)
    record = decode(content, 0)
    assert record is not None and record.payload[1] == FORMAT_VERSION
    older = SimDisk()
    older.make_directory("quorum")
    payload = record.payload[:1] + bytes([2]) + record.payload[2:]
    header = b"".join(bytes(part) for part in encode(Kind.HEADER, payload, sequence=0, synced=0))
    put(older, FIRST, header + content[record.end :])
    assert Journal(older, IDENTITY).last_index == 6
    put(older, FIRST, older.read(FIRST)[:-1])
    with pytest.raises(DiskDamaged):
        Journal(older, IDENTITY)


def test_a_disk_that_cannot_keep_the_word_stops_the_journal() -> None:
    disk = SimDisk()
    journal = filled(disk)
    disk.fail_fsync = 1
    with pytest.raises(DiskFailed):
        journal.mark()
    with pytest.raises(DiskFailed, match="failed before"):
        journal.append(b"entry", 7, 3)


def test_the_error_blames_the_disk_and_not_raftlog(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def damaged(**options: object) -> None:
        disk = SimDisk()
        filled(disk)
        disk.remove(PATH)
        Journal(disk, IDENTITY)

    monkeypatch.setattr(main.cli, "main", damaged)
    with pytest.raises(SystemExit):
        main.main()
    told = capsys.readouterr().err
    assert told.startswith("Error: quorum/witness is missing") and "the disk's fault" in told
    assert "raftlog quorum remove 1" in told and "bug" not in told and "try again" not in told


# --- Detection by the leader -----------------------------------------------------------------------------------------


def content_of(disk: SimDisk) -> dict[str, bytes]:
    return {path: disk.read(path) for path in disk.files()}


def put_back(disk: SimDisk, content: dict[str, bytes]) -> None:
    """Restore all files: no checksum and no witness shows it."""
    for path in disk.files():
        if path not in content:
            disk.remove(path)
    for path, held in content.items():
        put(disk, path, held)


def with_a_forgetful_voter(seed: int = 1) -> tuple[QuorumCluster, int, int]:
    """(cluster, leader, the voter whose disk went back in time while it was down)."""
    cluster, leader = ready_cluster(seed)
    victim = others(cluster, leader)[0]
    member = cluster.members[victim]
    old = content_of(member.disk)
    for number in range(10):
        assert cluster.propose(leader, topic(cluster, f"topic-{number}", leader)).result is not None
    cluster.run(0.2)
    member.kill()
    put_back(member.disk, old)
    member.start()
    cluster.run(1.0)
    assert cluster.leader() == leader
    return cluster, leader, victim


def test_a_leader_detects_that_a_voter_forgot_and_all_nodes_continue() -> None:
    """Otherwise it would never be in contact again: its rejections would look late. S9, S10."""
    cluster, leader, victim = with_a_forgetful_voter()
    assert cluster.node(leader).status().forgetful == (victim,)
    assert cluster.node(victim).status().forgetful == (victim,)
    (bystander,) = set(others(cluster, leader)) - {victim}
    assert cluster.node(bystander).status().forgetful == ()
    applied = cluster.propose(victim, topic(cluster, "proposed-there", leader))
    assert applied.result is not None
    cluster.run_until(lambda: cluster.members[victim].view.topic("proposed-there") is not None)


def test_a_forgetful_voter_neither_votes_nor_counts_and_remembers_that_over_restarts() -> None:
    cluster, leader, victim = with_a_forgetful_voter()
    (bystander,) = set(others(cluster, leader)) - {victim}
    assert cluster.members[victim].disk.exists(FORGOTTEN)
    cluster.members[bystander].kill()
    cluster.run(1.0)
    assert not cluster.node(leader).engine.is_leader, "one voter of three is no majority"
    cluster.members[victim].kill()
    cluster.members[victim].start()
    cluster.run(2.0)
    assert cluster.node(victim).status().forgetful == (victim,)
    assert cluster.leader() is None, "it gives nobody its vote, and asks for none"
    cluster.members[bystander].start()
    led = cluster.await_leader()
    assert led != victim
    cluster.run(0.5)
    assert cluster.node(led).status().forgetful == (victim,), "the next leader is told"


def test_a_forgetful_voter_is_replaced_by_the_documented_steps() -> None:
    cluster, leader, victim = with_a_forgetful_voter()
    assert cluster.change(leader, Action.REMOVE, victim).verdict == "applied"
    refused = cluster.change(leader, Action.ADD, victim)
    assert (refused.verdict, refused.code) == ("refused", "invalid_request")
    assert "server init --observer" in refused.detail
    member = cluster.members[victim]
    member.kill()
    member.replace_disk()
    member.start()
    cluster.run(1.0)
    assert cluster.change(leader, Action.ADD, victim).verdict == "applied"
    cluster.run(0.5)
    assert cluster.node(leader).status().forgetful == cluster.node(victim).status().forgetful == ()
    (bystander,) = set(others(cluster, leader)) - {victim}
    cluster.members[bystander].kill()
    assert cluster.propose(leader, topic(cluster, "after", leader)).result is not None, "it counts again"


def test_a_new_disk_is_not_blamed_for_the_old_ones_acknowledgements() -> None:
    """The leader names a disk's acknowledgements to the node that answers, perhaps before it learns that the disk is
    another."""
    for seed in range(4):
        cluster, leader = ready_cluster(seed)
        victim = others(cluster, leader)[0]
        member = cluster.members[victim]
        member.kill()
        member.replace_disk()
        member.start()
        cluster.run(1.0)
        assert not member.disk.exists(FORGOTTEN)
        assert cluster.node(leader).status().forgetful == ()


def test_a_disks_loss_is_detected_by_its_name_and_not_by_a_late_rejection() -> None:
    bench = Bench()
    bench.hear(2, bench.append(2, 5, 5, 5))
    own = bytes(bench.identity.directory_id)
    known = messages.Append(6, 9, 5, 1, (), own)
    for other in (b"", b"o" * 16):
        (answer,) = bench.replies(2, messages.Append(6, 9, 5, 1, (), other))
        assert answer == messages.AppendReply(6, False, 9, 4)
        assert not bench.disk.exists(FORGOTTEN)
    (answer,) = bench.replies(2, messages.Append(6, 4, 5, 1, (), own))
    assert answer == messages.AppendReply(6, True, 4, 0), "it has what it said"
    (answer,) = bench.replies(2, known)
    assert answer == messages.AppendReply(6, False, 9, 4, True)
    assert b"entry 9" in bench.disk.read(FORGOTTEN)
    for again in (False, True):
        if again:
            bench.start()
        said = [message for _ in range(100) for _, message in bench.tick()]
        assert not any(isinstance(message, messages.PreVote | messages.RequestVote) for message in said)
        vote = bench.vote(3, messages.RequestVote(30 + again, 100, 29))
        assert vote is not None and not vote.granted
        (answer,) = bench.replies(3, messages.PreVote(40, 1, 100, 29))
        assert answer == messages.PreVoteReply(30 + again, 1, False)
    bench.engine.check_invariants()


def test_a_disk_that_cannot_record_its_loss_sends_nothing_more() -> None:
    bench = Bench()
    bench.hear(2, bench.append(2, 5, 5, 5))
    bench.disk.fail_fsync = 1
    with pytest.raises(DiskFailed):
        bench.replies(2, messages.Append(6, 9, 5, 1, (), bytes(bench.identity.directory_id)))


def test_the_progress_of_a_forgetful_voter_starts_again() -> None:
    progress = Progress(match=0, next=31)
    progress.on_sent(30, 0, 0)
    progress.on_success(30)
    progress.on_rejected(30, 12)
    assert (progress.state, progress.match) == (State.REPLICATE, 30), "late"
    progress.on_rejected(30, 12, forgot=True)
    assert (progress.state, progress.match, progress.next) == (State.PROBE, 0, 13)
    progress.on_rejected(12, 40, forgot=True)
    assert 0 <= progress.match < progress.next <= 13
