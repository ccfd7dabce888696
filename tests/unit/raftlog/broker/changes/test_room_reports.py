"""A broker whose disk is almost full reports that, and gives its leaderships to members with room (S10)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from metadata.commands.cluster import ROOM_FEATURE_LEVEL, ElectLeaders, ReportRoom, SetFeatureLevel
from metadata.commands.envelope import Command
from metadata.commands.results import Done
from metadata.quorum.port import Fate, Outcome
from metadata.snapshot.encoder import encode_snapshot
from partitions.files.disk_room import DiskRoom
from raftlog.broker.changes.offline_leaders import OfflineLeaders
from raftlog.broker.changes.room_reports import LOOK_AGAIN_SECONDS, RoomReports
from raftlog.model import BrokerId, Incarnation, TopicPartition
from raftlog.ports import Space
from raftlog.version import FEATURE_LEVEL
from tests.support.metadata.at_once import decode_snapshot
from tests.support.metadata.cluster import TOPIC, Cluster
from tests.support.partitions.manual import ManualScheduler
from tests.support.partitions.replication_cluster import QuietLogger

HERE = BrokerId(0)
FULL, ROOMY = Space(0, 100_000), Space(100_000, 100_000)


class Node:
    """Broker 0 of three, which leads all of three partitions."""

    def __init__(self, *, level: int = FEATURE_LEVEL) -> None:
        self.cluster = Cluster(3, partitions=3, feature_level=FEATURE_LEVEL)
        self.cluster.do(SetFeatureLevel(level))
        self.room, self.scheduler = DiskRoom(1 << 30), ManualScheduler()
        self.proposed: list[tuple[Command, Callable[[Outcome], None]]] = []
        view = self.cluster.view
        self.leaders = OfflineLeaders(
            HERE,
            view,
            self.scheduler,
            self.propose,
            lambda tp: False,
            lambda tp: False,
            lambda: self.incarnation(HERE),
            QuietLogger(),
        )
        self.reports = RoomReports(
            HERE, view, self.room, self.scheduler, self.propose, lambda: self.incarnation(HERE), self.give_up
        )

    def incarnation(self, broker: BrokerId) -> Incarnation:
        record = self.cluster.view.broker(broker)
        assert record is not None
        return record.incarnation

    def propose(self, command: Command, done: Callable[[Outcome], None]) -> None:
        self.proposed.append((command, done))

    def give_up(self) -> None:
        for number in range(3):
            record = self.cluster.view.partition(TopicPartition(TOPIC, number))
            if record is not None and record.leader == HERE:
                self.leaders.give_up(record.topic_partition)

    def disk(self, space: Space) -> None:
        before = self.room.short
        self.room.begin_look()
        self.room.looked(space)
        if self.room.short != before:
            self.reports.on_room()

    def goes_on(self, seconds: float = 3 * LOOK_AGAIN_SECONDS) -> list[type]:
        """Let time pass and apply the proposals; return what they were."""
        kinds: list[type] = []
        for _ in range(int(seconds / 0.5)):
            self.scheduler.advance(0.5)
            while self.proposed:
                command, done = self.proposed.pop(0)
                result = self.cluster.do(command)
                kinds.append(type(command))
                done(Outcome(Fate.APPLIED, self.cluster.image.index, result))
                self.scheduler.run()
        return kinds

    def led_by(self) -> list[int]:
        records = [self.cluster.view.partition(TopicPartition(TOPIC, number)) for number in range(3)]
        return [record.leader for record in records if record is not None]


@pytest.fixture
def node() -> Node:
    node = Node()
    assert node.led_by() == [0, 0, 0]
    return node


def test_leaderships_go_to_a_member_with_room_and_stay_there(node: Node) -> None:
    node.cluster.do(ReportRoom(BrokerId(1), node.incarnation(BrokerId(1)), True))
    node.disk(FULL)
    assert node.goes_on() == [ReportRoom, ElectLeaders]
    assert node.led_by() == [2, 2, 2]
    assert node.goes_on() == []


def test_a_leader_stays_until_a_member_has_room(node: Node) -> None:
    for other in (BrokerId(1), BrokerId(2)):
        node.cluster.do(ReportRoom(other, node.incarnation(other), True))
    node.disk(FULL)
    assert node.goes_on() == [ReportRoom]
    assert node.led_by() == [0, 0, 0]
    node.cluster.do(ReportRoom(BrokerId(1), node.incarnation(BrokerId(1)), False))
    assert node.goes_on() == [ElectLeaders]
    assert node.led_by() == [1, 1, 1]


def test_regained_room_is_reported_once(node: Node) -> None:
    node.disk(FULL)
    node.goes_on()
    node.disk(ROOMY)
    assert node.goes_on() == [ReportRoom]
    assert not node.cluster.image.brokers[HERE].short_of_room
    assert node.goes_on() == []
    assert node.led_by() != [0, 0, 0], "nobody hands anything back for this"


def test_a_lost_report_is_repeated(node: Node) -> None:
    node.disk(FULL)
    node.scheduler.run()
    command, done = node.proposed.pop()
    assert isinstance(command, ReportRoom)
    done(Outcome(Fate.UNKNOWN, detail="no answer"))
    assert node.goes_on() == [ReportRoom, ElectLeaders]


def test_below_the_feature_level_there_are_no_reports_and_no_elections() -> None:
    """Otherwise leaderships would move between brokers whose lack of room is unknown to the others."""
    node = Node(level=ROOM_FEATURE_LEVEL - 1)
    node.disk(FULL)
    assert node.goes_on() == []
    node.cluster.do(SetFeatureLevel(FEATURE_LEVEL))
    assert node.goes_on() == [ReportRoom, ElectLeaders]


def test_an_earlier_incarnation_reports_nothing_and_a_new_one_begins_with_room(node: Node) -> None:
    before = node.incarnation(HERE)
    node.disk(FULL)
    node.goes_on()
    assert node.cluster.image.brokers[HERE].short_of_room
    node.cluster.restart(HERE)
    assert not node.cluster.image.brokers[HERE].short_of_room
    assert node.cluster.refusal(ReportRoom(HERE, before, True)) == "stale_incarnation"


def test_a_snapshot_contains_the_brokers_without_room(node: Node) -> None:
    assert node.cluster.do(ReportRoom(BrokerId(1), node.incarnation(BrokerId(1)), True)) == Done()
    again = decode_snapshot(encode_snapshot(node.cluster.image))
    assert [broker_id for broker_id, record in again.brokers.items() if record.short_of_room] == [1]
    assert encode_snapshot(again) == encode_snapshot(node.cluster.image)
