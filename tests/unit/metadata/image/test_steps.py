"""Commands and snapshots that affect many partitions, applied in slices.

The result is the same, nothing of it is visible before, and other work runs in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from msgspec import Raw
from msgspec.msgpack import encode as encode_anything
from msgspec.structs import replace

from metadata.commands.cluster import AlterTopic, CreateTopic, DeleteTopic, FenceBroker, NoOp
from metadata.commands.envelope import ClientSession, Command, decode, encode
from metadata.commands.results import Done, Refused
from metadata.image import image as image_state
from metadata.image import topics as image_topics
from metadata.image.invariants import check
from metadata.quorum.machine import StateMachine
from metadata.quorum.port import Fate
from metadata.raft.engine import Committed, InstalledSnapshot
from metadata.records.events import MetadataEvent
from metadata.snapshot import encoder as snapshot
from metadata.snapshot.encoder import SnapshotEncoder, encode_snapshot
from raftlog.errors import InvariantViolation
from raftlog.model import BrokerId, TopicId
from tests.support.metadata.at_once import apply, decode_snapshot, diff
from tests.support.metadata.cluster import TOPIC, Cluster, report
from tests.support.metadata.state_machine import apply_at_once
from tests.support.quorum.cluster import incarnation_of, others, ready_cluster

PARTITIONS = 40
OTHER = TopicId(b"topic-number-002")


def no_time() -> bool:
    return False


def is_midway(machine: StateMachine) -> bool:
    return machine.behind and not machine.between_entries


@pytest.fixture
def one_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (image_state, image_topics, snapshot):
        monkeypatch.setattr(module, "PARTITIONS_PER_STEP", 1)


LARGE: list[Callable[[Cluster], Command]] = [
    lambda cluster: FenceBroker(BrokerId(1), cluster.incarnation(1)),
    lambda cluster: cluster.registration(1, [report(2, 9, cut=True)]),
    lambda cluster: CreateTopic("large", OTHER, ((BrokerId(0), BrokerId(1)),) * PARTITIONS),
    lambda cluster: DeleteTopic(TOPIC),
    lambda cluster: AlterTopic(TOPIC, (("min.insync.replicas", "1"),)),
]


@pytest.mark.parametrize("large", LARGE)
@pytest.mark.usefixtures("one_a_step")
def test_in_steps_the_result_is_the_same_as_at_once(large: Callable[[Cluster], Command]) -> None:
    """S7: the end of a time slice changes nothing."""
    cluster = Cluster(partitions=PARTITIONS)
    command = large(cluster)
    machine = StateMachine(lambda index, events: None)
    apply_at_once(machine, InstalledSnapshot(cluster.image.index, 1, encode_snapshot(cluster.image)))
    machine.give([Committed(cluster.image.index + 1, 1, encode(command))])
    steps, answers = 0, list(machine.carry_on(no_time))
    while machine.behind:
        answers += machine.carry_on(no_time)
        steps += 1
    assert steps >= PARTITIONS, "about one for each"
    result = cluster.apply(command)
    assert [answer for _, answer in answers] == [result]
    assert encode_snapshot(machine.image) == encode_snapshot(cluster.image)
    check(machine.image)


class Followed:
    """A machine, and its events."""

    def __init__(self, cluster: Cluster) -> None:
        self.told: list[tuple[int, Sequence[MetadataEvent]]] = []
        self.machine = StateMachine(lambda index, events: self.told.append((index, events)))
        apply_at_once(self.machine, InstalledSnapshot(cluster.image.index, 1, encode_snapshot(cluster.image)))
        self.told.clear()
        self.before = cluster.image.index

    def give(self, *commands: Command) -> None:
        first = self.machine.given_index + 1
        self.machine.give(Committed(first + n, 1, encode(command)) for n, command in enumerate(commands))


@pytest.mark.usefixtures("one_a_step")
def test_an_entry_is_reported_once_and_when_it_has_ended() -> None:
    cluster = Cluster(partitions=PARTITIONS)
    followed = Followed(cluster)
    machine = followed.machine
    followed.give(FenceBroker(BrokerId(1), cluster.incarnation(1)), NoOp())
    assert list(machine.carry_on(no_time)) == []
    assert machine.applied_index == followed.before and followed.told == []
    assert is_midway(machine)
    assert machine.snapshot_step(begin=True) is None, "there is no state of an index to be kept"
    answers = list(machine.carry_on(lambda: True))
    assert [(entry.index, answer) for entry, answer in answers] == [
        (followed.before + 1, Done()),
        (followed.before + 2, Done()),
    ]
    assert [index for index, _ in followed.told] == [followed.before + 1, followed.before + 2]
    assert len(followed.told[0][1]) == PARTITIONS + 1
    assert not is_midway(machine) and not machine.behind
    packed = None
    while packed is None:
        packed = machine.snapshot_step(begin=True)
    assert packed[1] == machine.applied_index


@pytest.mark.usefixtures("one_a_step")
def test_a_snapshot_is_installed_in_steps_and_may_end_waiting_commands() -> None:
    cluster = Cluster(partitions=PARTITIONS)
    followed = Followed(Cluster(partitions=3))
    machine, old = followed.machine, decode_snapshot(encode_snapshot(followed.machine.image))
    cluster.fence(1)
    cluster.do(CreateTopic("other", OTHER, ((BrokerId(0),),)))
    machine.give([InstalledSnapshot(cluster.image.index, 1, encode_snapshot(cluster.image))])
    followed.give(NoOp())
    steps = 0
    while machine.behind:
        steps += 1
        for entry, _ in machine.carry_on(no_time):
            assert machine.applied_index == entry.index
    assert steps > PARTITIONS
    assert followed.told[0] == (cluster.image.index, diff(old, decode_snapshot(encode_snapshot(cluster.image))))
    assert machine.applied_index == cluster.image.index + 1


def test_entries_out_of_order_stop_the_machine() -> None:
    machine = StateMachine(lambda index, events: None)
    machine.give([Committed(7, 1, b"")])
    with pytest.raises(InvariantViolation, match="entry 7 is applied after entry 1"):
        list(machine.carry_on(no_time))


@pytest.mark.usefixtures("one_a_step")
def test_a_snapshot_takes_a_bounded_number_of_partitions_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "ANSWERS_PER_STEP", 2)
    cluster = Cluster(partitions=PARTITIONS)
    for sequence in range(9):
        cluster.apply(NoOp(), session=ClientSession(b"s" * 16, sequence, 1))
    whole = encode_snapshot(cluster.image)
    encoder, steps = SnapshotEncoder(cluster.image), 1
    packed = encoder.step()
    while packed is None:
        packed, steps = encoder.step(), steps + 1
    assert packed == whole
    assert steps >= PARTITIONS + 9 // 2, "a topic is not packed at once, nor are the answers"


@pytest.mark.usefixtures("one_a_step")
def test_a_quorum_that_never_has_time_makes_progress_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step per round: a broker dies, is fenced and replaced, and all nodes agree (S7, S10)."""
    monkeypatch.setattr("metadata.quorum.node.APPLY_SECONDS", -1.0)
    cluster, leader = ready_cluster()
    rest = others(cluster, leader)
    replicas = tuple(BrokerId(number) for number in (rest[0], leader, rest[1]))
    created = cluster.propose(leader, CreateTopic("wide", OTHER, (replicas,) * 30))
    assert created.fate is Fate.APPLIED and created.result == Done()
    before = incarnation_of(cluster, rest[0])
    cluster.members[rest[0]].kill()
    survivors = [cluster.members[number] for number in (leader, rest[1])]

    def led_by_others() -> bool:
        return all(p.leader == leader for m in survivors for p in m.view.partitions_of(OTHER))

    cluster.run_until(led_by_others)
    for number in (leader, rest[1]):
        cluster.node(number).check_invariants()
        assert not cluster.members[number].view.alive(BrokerId(rest[0]))
    cluster.members[rest[0]].start()
    cluster.run_until(lambda: len(cluster.members[rest[0]].view.partitions_of(OTHER)) == 30)
    assert cluster.members[rest[0]].view.broker(BrokerId(rest[0])).incarnation == before  # type: ignore[union-attr]


def test_a_registration_with_an_unreadable_report_changes_nothing() -> None:
    """S11: reports are decoded in slices, and all of them before anything is changed."""
    cluster = Cluster(3)
    before = cluster.image.brokers[BrokerId(1)]
    good = cluster.registration(1, [report(2, 9)])
    bad = replace(good, packed_reports=(*good.packed_reports, Raw(encode_anything(["not", "a", "report"]))))
    result, events = apply(cluster.image, cluster.image.index + 1, 1, decode(encode(bad)))
    assert isinstance(result, Refused) and result.code == "invalid_request" and "report" in result.detail
    assert cluster.image.brokers[BrokerId(1)] == before and not events
