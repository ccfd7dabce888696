"""The remembered changes of a real cluster image, with the reasons for them, and their files."""

from __future__ import annotations

import msgspec

from metadata.records.tickets import RecoveryTicket
from metadata.view import BrokerChanged, ClusterView, MetadataEvent, PartitionChanged, TopicChanged
from raftlog.broker.explain.history import Change, ChangeHistory, merged
from raftlog.broker.explain.timeline import cluster_change
from raftlog.model import (
    BrokerId,
    DirectoryId,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionRecord,
    TopicId,
    TopicPartition,
    TopicRecord,
)
from tests.support.explained import TOPIC, broker, record

ONE, TWO, NONE = BrokerId(1), BrokerId(2), BrokerId(-1)


class World:
    """A view that is followed by a history."""

    def __init__(self) -> None:
        self.view = ClusterView()
        self.history = ChangeHistory()
        self.index = 0
        self.apply(*(BrokerChanged(broker(number)) for number in range(3)), PartitionChanged(record()))
        self.before = len(self.changes)

    def apply(self, *events: MetadataEvent) -> None:
        self.index += 1
        self.history.note(self.index, events, self.view, self.index * 1_000)
        self.view.on_events(self.index, events)

    @property
    def changes(self) -> list[Change]:
        return self.history.of(TOPIC, 0, map(BrokerId, range(3)), 100)

    def partition(
        self, now: PartitionRecord, *events: MetadataEvent, tickets: tuple[RecoveryTicket, ...] = ()
    ) -> Change:
        self.apply(*events, PartitionChanged(now, tickets))
        return self.changes[-1]


def led_by(leader: BrokerId, epoch: int, isr: tuple[int, ...] = (0, 1, 2), **more: object) -> PartitionRecord:
    members = tuple(map(BrokerId, isr))
    return record(leader=leader, leader_epoch=LeaderEpoch(epoch), isr=members, **more)


def test_a_fence_and_the_election_after_it() -> None:
    world = World()
    lost = world.partition(led_by(NONE, 8, (1, 2)), BrokerChanged(broker(0, fenced=True)))
    assert (lost.kind, lost.reason, lost.about, lost.former_leader) == ("leader", "fenced", 0, 0)
    elected = world.partition(led_by(ONE, 9, (1, 2)))
    assert (elected.reason, elected.leader, elected.leader_epoch, elected.time_ms) == ("elected", 1, 9, 3_000)
    assert [one.reason for one in world.changes if one.kind == "broker"][-1] == "fenced"


def test_a_creation_is_remembered_and_a_first_sight_is_not() -> None:
    world = World()
    topic = TopicRecord(TopicId(b"n" * 16), "new", 1, 3, created_index=2)
    new = led_by(ONE, 0)
    new = msgspec.structs.replace(new, topic_partition=TopicPartition(topic.topic_id, 0))
    world.apply(PartitionChanged(new), TopicChanged(topic))
    (created,) = world.history.of(topic.topic_id, 0, (), 10)
    assert (created.kind, created.reason, created.leader) == ("leader", "created", 1)
    late = ChangeHistory()
    late.note(50, [TopicChanged(topic), PartitionChanged(new)], ClusterView(), 1)  # an installed snapshot
    assert [one.reason for one in late.all()] == ["created"]


def test_a_restart() -> None:
    world = World()
    again = broker(0, incarnation=Incarnation(50), fenced=True)
    assert world.partition(led_by(NONE, 8), BrokerChanged(again)).reason == "restarted"


def ticket_of(broker_id: BrokerId, end: int) -> RecoveryTicket:
    return RecoveryTicket(broker_id, Incarnation(50), DirectoryId(bytes(16)), True, LeaderEpoch(7), Offset(end))


def test_restarts_of_replicas_that_cannot_vouch_s9() -> None:
    world = World()
    follower = world.partition(led_by(BrokerId(0), 7, (0, 1)), BrokerChanged(broker(2, incarnation=Incarnation(50))))
    assert (follower.kind, follower.reason, follower.about, follower.log_end) == ("isr", "unclean_restart", 2, -1)
    leader = world.partition(
        led_by(NONE, 8, (1,), not_eligible=(BrokerId(0),)),
        BrokerChanged(broker(0, incarnation=Incarnation(51))),
        tickets=(ticket_of(BrokerId(0), 600),),
    )
    assert (leader.kind, leader.reason, leader.about, leader.log_end) == ("leader", "unclean_restart", 0, 600)
    moved = broker(1, incarnation=Incarnation(52), directory_id=DirectoryId(b"d" * 16))
    last = world.partition(
        led_by(NONE, 8, (1,), not_eligible=(BrokerId(0), ONE)),
        BrokerChanged(moved),
        tickets=(ticket_of(BrokerId(0), 600), ticket_of(ONE, 0)),
    )
    assert (last.kind, last.reason, last.about, last.log_end) == ("isr", "other_folder", 1, 0)
    told = [cluster_change(one, "orders").text for one in world.changes[-2:]]
    assert told == [
        "node 1 registered: a new process of the node registered, with another data folder",
        "the ISR stays 1: node 1 came back with another data folder, without the replica that it had (its log ends at "
        "0)",
    ]


def test_an_entry_with_many_events_comes_in_several_calls() -> None:
    world = World()
    world.history.note(9, [BrokerChanged(broker(2, fenced=True))], world.view, 1)
    world.history.note(9, [PartitionChanged(led_by(BrokerId(0), 7, (0, 1)))], world.view, 1)
    assert (world.changes[-1].reason, world.changes[-1].about) == ("fenced", 2)


def test_changes_of_an_older_version_are_read() -> None:
    change = Change(1, 2, TOPIC, 0, "isr", "lagged", 2, 0, 7, 0, (0, 1), (0, 1, 2), 5)
    older = msgspec.msgpack.encode(msgspec.to_builtins(change, builtin_types=(bytes,))[:-1])
    assert msgspec.msgpack.decode(older, type=Change) == msgspec.structs.replace(change, log_end=-1)


def test_changes_of_the_isr() -> None:
    world = World()
    lagged = world.partition(led_by(BrokerId(0), 7, (0, 1)))
    assert (lagged.kind, lagged.reason, lagged.about, lagged.former_isr) == ("isr", "lagged", 2, (0, 1, 2))
    assert world.partition(led_by(BrokerId(0), 7)).reason == "caught_up"
    fenced = world.partition(led_by(BrokerId(0), 7, (0, 2)), BrokerChanged(broker(1, fenced=True)))
    assert (fenced.reason, fenced.about) == ("fenced", 1)


def test_elections_of_other_kinds() -> None:
    world = World()
    assert world.partition(led_by(ONE, 8)).reason == "handed_over"
    assert world.partition(led_by(BrokerId(0), 9)).reason == "preferred"
    world.apply(BrokerChanged(broker(0, short_of_room=True)))
    assert world.partition(led_by(TWO, 10)).reason == "no_room"
    world.partition(led_by(NONE, 11, (2,), not_eligible=(TWO,)))
    assert world.partition(led_by(TWO, 12, (2,))).reason == "recovery"
    world.partition(led_by(NONE, 13, (2,)))
    assert world.partition(led_by(ONE, 14, (1,))).reason == "commit_set"
    world.partition(led_by(NONE, 15, (1,)))
    assert world.partition(led_by(TWO, 16, (2,), unclean_leader_epochs=(LeaderEpoch(16),))).reason == "unclean"


def test_a_reported_loss() -> None:
    ticket = RecoveryTicket(TWO, Incarnation(3), DirectoryId(bytes(16)), True, LeaderEpoch(-1), Offset(0))
    lost = World().partition(led_by(BrokerId(0), 8, (0, 1), not_eligible=(TWO,)), tickets=(ticket,))
    assert (lost.reason, lost.about) == ("lost_data", 2)


def test_records_without_a_change_are_not_remembered() -> None:
    world = World()
    world.apply(PartitionChanged(msgspec.structs.replace(record(), partition_epoch=99)))
    assert len(world.changes) == world.before


def test_entries_that_an_earlier_process_remembered_are_not_noted_twice() -> None:
    world = World()
    world.partition(led_by(ONE, 8))
    again = ChangeHistory()
    again.restore(world.history.all())
    view = ClusterView()
    again.note(2, [BrokerChanged(broker(1))], view, 1)
    assert again.all() == world.history.all()


def test_histories_of_several_nodes_are_merged() -> None:
    a, b = World(), World()
    a.partition(led_by(ONE, 8))
    b.partition(led_by(ONE, 8))
    b.partition(led_by(TWO, 9))
    b.history.note_quorum_leader(BrokerId(1), 3, 3_500)
    a.history.note_quorum_leader(BrokerId(1), 3, 3_900)
    found = merged([a.history.all(), b.history.all()])
    assert [one.leader_epoch for one in found if one.kind == "leader"] == [8, 9]
    assert [one.about for one in found if one.kind == "quorum"] == [1]


def test_the_timeline_of_the_cluster_has_everything_the_newest_first() -> None:
    world = World()
    world.history.note_quorum_leader(NONE, world.index, 9_000)
    world.partition(led_by(NONE, 8, (1, 2)), BrokerChanged(broker(0, fenced=True)))
    world.partition(led_by(ONE, 9, (1, 2)))
    found = [cluster_change(one, "orders" if one.topic_id else None) for one in world.history.newest_first()]
    assert [(one.kind, one.severity) for one in found[:4]] == [
        ("leader", "info"), ("leader", "critical"), ("broker", "warning"), ("quorum", "critical")
    ]  # fmt: skip
    assert [one.text for one in found[1:3]] == [
        "node 0 lost the leadership; no leader in epoch 8: node 0 sent no heartbeat in time, or announced its stop",
        "node 0 was fenced: node 0 sent no heartbeat in time, or announced its stop",
    ]
    assert (found[0].topic, found[0].partition) == ("orders", 0)
    assert (found[2].topic, found[2].partition, found[2].node) == (None, None, 0)
    assert [one.index for one in found] == sorted((one.index for one in found), reverse=True)
    assert len(found) == len(world.history.all())
