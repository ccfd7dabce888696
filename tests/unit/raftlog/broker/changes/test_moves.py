"""Moves requested by an operator: command line, `Admin` and HTTP API, down to the real image, without a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from metadata.commands.cluster import AlterIsr, AlterTopic, CreateTopic, ElectLeaders, NoOp, SetFeatureLevel
from metadata.commands.envelope import Command
from metadata.commands.fields import Election, IsrMember
from metadata.commands.replicas import (
    REPLACEMENT_FEATURE_LEVEL,
    THROTTLE_FEATURE_LEVEL,
    AlterReassignments,
    BeginMoves,
    Move,
    Reassignment,
    ThrottleReassignments,
)
from metadata.commands.results import CommandResult, Refused
from metadata.view import BrokerChanged
from raftlog import Admin
from raftlog.api.moves import MoveInfo, ReassignmentInfo, ReplicaInfo
from raftlog.broker.changes.moves import ATTEMPTS, MoveAdministrator
from raftlog.cli.commands.move_progress import missing_bytes
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.model import BrokerId, Endpoint, ReplicationThrottle, TopicId, TopicPartition
from raftlog.version import FEATURE_LEVEL
from tests.support.cli_runner import Background, Result, run
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Api, running_api
from tests.support.metadata.cluster import TOPIC, Cluster


class Moving(FakeBroker):
    """The API in front of a real `MoveAdministrator` and a real image of five brokers.

    After each decided command the test does what controller and leaders would do, as long as `helped` is set.
    """

    level = FEATURE_LEVEL

    def __init__(self, partitions: int = 4) -> None:
        super().__init__()
        self.cluster = Cluster(0)
        self.helped = True
        self.decided: list[Command] = []
        self.before_deciding: list[Command] = []
        self.before_reading: list[Command] = []
        self.silent = False
        self.warnings: list[str] = []
        for broker in range(5):
            self.cluster.do(self.cluster.registration(broker, feature_level=self.level))
            self.cluster.unfence(broker)
        self.cluster.do(SetFeatureLevel(self.level))
        replicas = tuple(map(BrokerId, (0, 1, 2)))
        self.cluster.do(CreateTopic("orders", TOPIC, (replicas,) * partitions))
        self.view = self.cluster.view
        self.moves = MoveAdministrator(self.view, dict, self, self)  # type: ignore[arg-type]

    def move_to(self, port: int) -> None:
        """Each node is at the address of the API."""
        for broker in self.view.brokers():
            here = replace(broker, api=Endpoint("127.0.0.1", port))
            self.view.on_events(self.view.index, [BrokerChanged(here)])

    async def catch_up(self) -> bool:
        while self.before_reading:
            self.cluster.do(self.before_reading.pop(0))
        return True

    async def decide(self, command: Command) -> CommandResult:
        if self.silent:
            raise RetriableError("quorum_unavailable", "nobody answers")
        for other in self.before_deciding:
            self.cluster.apply(other)
        self.decided.append(command)
        result = self.cluster.apply(command)
        if self.helped and isinstance(command, AlterReassignments | ThrottleReassignments):
            self._help()
        if isinstance(result, Refused):
            raise result.error()
        return result

    def _help(self) -> None:
        image = self.cluster.image
        for tp in list(image.reassigning):
            record = image.partitions[tp]
            self.cluster.apply(BeginMoves((Move(tp.topic_id, tp.partition, record.partition_epoch),)))
            self.catch_up_one(tp.partition)
            record = image.partitions[tp]
            if record.target_replicas:
                self.elect(tp.partition, record.target_replicas[0])

    def begin(self, number: int) -> None:
        self.cluster.do(BeginMoves((Move(TOPIC, number, self.record(number).partition_epoch),)))

    def catch_up_one(self, number: int) -> None:
        record = self.record(number)
        isr = tuple(IsrMember(b, self.cluster.incarnation(b)) for b in sorted(record.replicas))
        leader = (record.leader, record.leader_incarnation, record.leader_epoch, record.partition_epoch)
        self.cluster.do(AlterIsr(TOPIC, number, *leader, isr))

    def elect(self, number: int, candidate: int) -> None:
        epoch = self.record(number).partition_epoch
        election = Election(TOPIC, number, BrokerId(candidate), self.cluster.incarnation(candidate), epoch)
        self.cluster.do(ElectLeaders((election,)))

    def record(self, number: int) -> Any:
        return self.cluster.image.partitions[TopicPartition(TOPIC, number)]

    # The administrator's logger.
    def info(self, event: str, **fields: Any) -> None: ...
    def error(self, event: str, **fields: Any) -> None: ...
    def warning(self, event: str, **fields: Any) -> None:
        self.warnings.append(event)


@pytest.fixture
def broker() -> Moving:
    return Moving()


@pytest.fixture
def api(broker: Moving) -> Iterator[Api]:
    with Background(running_api(broker)) as background:
        broker.move_to(background.cluster.port)
        yield background.cluster


def ask(api: Api, *arguments: str) -> Result:
    return run("cluster", *arguments, bootstrap=f"127.0.0.1:{api.port}")


class TestReassign:
    def test_a_plan_shows_from_and_to_and_changes_nothing(self, api: Api, broker: Moving) -> None:
        result = ask(api, "reassign", "orders/0=3,1,2", "--plan")
        assert result.table("Topic")[1] == ["orders", "0", "0,1,2", "3,1,2", "0"]
        assert broker.decided == []

    def test_a_move_is_carried_out_and_waited_for(self, api: Api, broker: Moving) -> None:
        result = ask(api, "reassign", "orders/0=3,1,2", "orders/1=0,1,4")
        assert (result.code, result.text) == (0, "2 partitions moved.\n")
        assert [broker.record(n).replicas for n in range(3)] == [(3, 1, 2), (0, 1, 4), (0, 1, 2)]
        assert broker.record(0).leader == 3

    def test_moves_under_way_are_listed_and_can_be_cancelled(self, api: Api, broker: Moving) -> None:
        broker.helped = False
        assert ask(api, "reassign", "orders/0=3,1,2", "--no-wait").text == "1 partition asked for.\n"
        listed = ask(api, "reassign", "--list").table("Topic")
        assert listed[1] == ["orders", "0", "0", "0,1,2", "3,1,2", "0,1,2", "waiting"]
        assert ask(api, "reassign", "--cancel", "orders/0").text == "1 partition cancelled.\n"
        assert ask(api, "reassign", "--list").text == "Nothing is being moved.\n"
        again = ask(api, "reassign", "--cancel", "orders/0")
        assert again.code == 1 and "not being reassigned" in again.stderr

    def test_a_plan_shows_the_move_that_it_replaces(self, api: Api, broker: Moving) -> None:
        broker.helped = False
        assert ask(api, "reassign", "orders/0=0,3,4", "orders/1=0,1,3", "--no-wait").code == 0
        broker.begin(0)
        plan = ask(api, "reassign", "orders/0=0,3,1", "orders/1=0,1,3", "--plan").table("Topic")
        assert plan[0] == ["Topic", "Partition", "From", "To", "Bytes", "Replaces", "Cancels"]
        assert plan[1][:4] + plan[1][5:] == ["orders", "0", "0,1,2,3,4", "0,3,1", "0,3,4", "4"]
        assert plan[2][:4] == ["orders", "1", "0,1,2", "0,1,3"], "asked for already"
        assert broker.record(0).target_replicas == (0, 3, 4)
        (planned,) = ask(api, "reassign", "orders/0=0,3,1", "--plan", "-o", "json").json
        assert (planned["replaces"], planned["cancels"], planned["bytes"]) == ([0, 3, 4], [4], 0)

    def test_a_move_under_way_can_be_replaced(self, api: Api, broker: Moving) -> None:
        broker.helped = False
        assert ask(api, "reassign", "orders/0=0,3,4", "--no-wait").code == 0
        broker.begin(0)
        broker.helped = True
        assert ask(api, "reassign", "orders/0=0,3,1").text == "1 partition moved.\n"
        assert broker.record(0).replicas == (0, 3, 1)

    def test_watching_ends_at_its_timeout_and_prints_the_command_to_continue(self, api: Api, broker: Moving) -> None:
        broker.helped = False
        result = ask(api, "reassign", "orders/0=3,1,2", "--timeout", "0")
        assert result.code == 1 and "reassign --list" in result.stderr

    def test_refusals_are_printed_per_partition(self, api: Api, broker: Moving) -> None:
        broker.cluster.fence(4)
        result = ask(api, "reassign", "orders/0=0,1,4", "orders/1=0,1,3")
        assert result.code == 1
        assert result.text == "1 partition moved, 1 failed.\n" and "orders/0: broker 4 is fenced" in result.stderr

    @pytest.mark.parametrize(
        "arguments",
        [
            (), ("orders",), ("orders/0",), ("orders/x=1",), ("orders/0=a",), ("orders/0=1", "orders/0=2"),
            ("--cancel", "orders/0=1"), ("--cancel", "--plan", "orders/0"),
        ],
    )  # fmt: skip
    def test_arguments_that_cannot_be_parsed_are_refused(self, api: Api, arguments: tuple[str, ...]) -> None:
        assert ask(api, "reassign", *arguments).code == 2

    def test_too_few_replicas_for_the_minimum_are_warned_of(self, api: Api, broker: Moving) -> None:
        result = ask(api, "reassign", "orders/0=0,1", "--plan")
        assert result.code == 0
        assert result.stderr == (
            "Warning: orders/0 would have 2 replicas and min.insync.replicas 2: with one of them down, acks=all fails "
            "there\n"
        )
        assert ask(api, "reassign", "orders/0=0,1,3", "--plan").stderr == ""

    @pytest.mark.parametrize("name", ["nowhere/0=1", "orders/9=1"])
    def test_unknown_topics_and_partitions_are_refused(self, api: Api, name: str) -> None:
        assert ask(api, "reassign", name).code == 1


class TestDrainAndBalance:
    def test_a_drained_broker_has_no_replicas_and_a_balanced_cluster_is_unchanged(
        self, api: Api, broker: Moving
    ) -> None:
        plan = ask(api, "drain", "0", "--plan", "-o", "json").json
        assert [(move["partition"], move["replicas"]) for move in plan] == [(n, [0, 1, 2]) for n in range(4)]
        assert broker.decided == []
        assert ask(api, "drain", "0").code == 0
        assert broker.cluster.image.replicas_of(BrokerId(0)) == []
        assert ask(api, "balance").code == 0
        held = [len(broker.cluster.image.replicas_of(BrokerId(b))) for b in range(5)]
        assert max(held) - min(held) <= 1
        assert all(broker.record(n).leader == broker.record(n).replicas[0] for n in range(4))
        assert ask(api, "balance").text == ask(api, "balance", "--plan").text == "Nothing to move.\n"

    def test_a_drain_that_is_impossible_is_refused_and_changes_nothing(self, api: Api, broker: Moving) -> None:
        result = ask(api, "drain", "0", "3", "4")
        assert result.code == 1 and "orders/0 needs 3 replicas, and only 2 live brokers would stay" in result.stderr
        assert ask(api, "drain", "9").code == 1
        assert broker.decided == []

    def test_a_drained_broker_can_be_unregistered_after_it_stopped(self, api: Api, broker: Moving) -> None:
        assert ask(api, "unregister", "4").code == 1
        broker.cluster.fence(4)
        assert ask(api, "unregister", "4").text == "Unregistered broker 4.\n"
        assert ask(api, "unregister", "4").code == 1


class TestElect:
    def test_preferred_leaders_are_elected(self, api: Api, broker: Moving) -> None:
        broker.elect(0, 1)
        broker.elect(2, 2)
        assert ask(api, "elect", "--plan").table("Topic")[1:] == [["orders", "0", "1", "0"], ["orders", "2", "2", "0"]]
        assert ask(api, "elect", "orders/2").text == "1 partition led by its preferred leader.\n"
        assert [broker.record(n).leader for n in range(4)] == [1, 0, 0, 0]
        assert ask(api, "elect").code == 0
        assert ask(api, "elect", "--plan").text == "Every partition is led by its preferred leader.\n"

    def test_a_preferred_leader_out_of_sync_is_refused(self, api: Api, broker: Moving) -> None:
        broker.elect(0, 1)
        broker.cluster.fence(0)
        result = ask(api, "elect", "orders/0")
        assert result.code == 1 and "may lead" in result.stderr

    @pytest.mark.parametrize(
        "arguments",
        [
            ("--unclean", "orders/0"), ("--unclean", "--i-accept-data-loss"), ("--i-accept-data-loss",),
            ("--candidate", "1"), ("--unclean", "--i-accept-data-loss", "orders/0", "--plan"),
        ],
    )  # fmt: skip
    def test_an_unclean_election_needs_both_options(self, api: Api, broker: Moving, arguments: tuple[str, ...]) -> None:
        assert ask(api, "elect", *arguments).code == 2
        assert broker.decided == []

    def test_an_unclean_election_is_logged_and_recorded(self, api: Api, broker: Moving) -> None:
        loudly = ("elect", "--unclean", "--i-accept-data-loss", "orders/0")
        refused = ask(api, *loudly)
        assert refused.code == 1 and "has a leader" in refused.stderr
        broker.cluster.set_isr(0, 1)
        broker.cluster.fence(0, 1)
        assert ask(api, *loudly).text == "1 partition led again; records may be lost.\n"
        assert (broker.record(0).leader, len(broker.record(0).unclean_leader_epochs)) == (2, 1)
        assert broker.warnings[-2:] == ["unclean_election", "records_may_be_lost"]
        (info, *_) = run("topic", "describe", "orders", "-o", "json", bootstrap=f"127.0.0.1:{api.port}").json
        assert info["partitions"][0]["unclean_leader_epochs"] == list(broker.record(0).unclean_leader_epochs)

    def test_the_api_requires_that_data_loss_is_accepted(self, api: Api) -> None:
        async def elect(accept: bool) -> None:
            async with Admin(f"127.0.0.1:{api.port}") as admin:
                await admin.elect_unclean([("orders", 0)], accept_data_loss=accept)

        with pytest.raises(InvalidRequest, match="to accept that"):
            asyncio.run(elect(False))


class TestWatching:
    def test_a_move_cancelled_by_another_client_is_not_reported_as_done(
        self, api: Api, broker: Moving, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def cancel() -> None:
            record = broker.record(1)
            cancelled = Reassignment(TOPIC, 1, record.partition_epoch, ())
            broker.cluster.do(AlterReassignments((cancelled,)))

        monkeypatch.setattr(broker, "_help", cancel)
        result = ask(api, "reassign", "orders/1=0,1,4")
        assert (result.code, result.text) == (1, "0 partitions moved, 1 failed.\n")
        assert "orders/1: it was cancelled or replaced: the replicas are [0, 1, 2]" in result.stderr


class TestReplicaCount:
    def test_the_replica_count_follows_the_targets(self, api: Api, broker: Moving) -> None:
        assert ask(api, "reassign", "orders/0=0,1,2,3,4", "orders/1=0,1").code == 0
        assert [len(broker.record(number).replicas) for number in range(3)] == [5, 2, 3]

    def test_fewer_replicas_than_the_minimum_are_refused_with_the_reason(self, api: Api, broker: Moving) -> None:
        broker.cluster.do(AlterTopic(TOPIC, (("min.insync.replicas", "2"),)))
        result = ask(api, "reassign", "orders/0=1")
        assert result.code == 1 and "min.insync.replicas of topic 'orders' is 2, lower that first" in result.stderr
        assert broker.record(0).replicas == (0, 1, 2)


class TestThrottle:
    def test_a_throttle_is_set_with_the_moves_and_listed(self, api: Api, broker: Moving) -> None:
        broker.helped = False
        assert ask(api, "reassign", "orders/0=3,1,2", "--throttle", "5000", "--no-wait").code == 0
        assert broker.view.throttle == ReplicationThrottle(5000, 5000)
        assert ask(api, "reassign", "--list").text.splitlines()[-2:] == [
            "leader.replication.throttled.rate:   5000",
            "follower.replication.throttled.rate: 5000",
        ]
        assert ask(api, "reassign", "orders/1=3,1,2", "--no-wait").code == 0
        assert broker.view.throttle == ReplicationThrottle(5000, 5000), "it holds for all moves"

    def test_a_throttle_is_changed_and_removed_on_its_own(self, api: Api, broker: Moving) -> None:
        broker.helped = False
        refused = ask(api, "reassign", "--throttle", "7000")
        assert refused.code != 0 and "there is no reassignment" in refused.stderr
        ask(api, "reassign", "orders/0=3,1,2", "--no-wait")
        changed = ask(api, "reassign", "--throttle", "7000")
        assert changed.text == "Moves copy at most 7000 bytes a second from and to each broker.\n"
        assert broker.view.throttle == ReplicationThrottle(7000, 7000)
        assert ask(api, "reassign", "--throttle", "0").text == "Moves have no limit.\n"
        assert not broker.view.throttle
        assert ask(api, "reassign", "--list").text.splitlines()[-1].startswith("orders")

    def test_a_repeated_request_changes_the_rate_of_moves_under_way(self, api: Api, broker: Moving) -> None:
        broker.helped = False
        for rate in (5000, 6000):
            assert ask(api, "reassign", "orders/0=3,1,2", "--throttle", str(rate), "--no-wait").code == 0
            assert broker.view.throttle == ReplicationThrottle(rate, rate)

    @pytest.mark.parametrize("command", [("drain", "2"), ("balance",)])
    def test_drain_and_balance_accept_a_throttle_that_ends_with_the_moves(
        self, api: Api, broker: Moving, command: tuple[str, ...]
    ) -> None:
        assert ask(api, *command, "--throttle", "5000").code == 0
        (asked,) = [one for one in broker.decided if isinstance(one, ThrottleReassignments)]
        assert asked.throttle == ReplicationThrottle(5000, 5000) and asked.reassignments
        assert not broker.view.throttle

    def test_a_throttle_needs_the_feature_level(self, api: Api, broker: Moving) -> None:
        broker.view.feature_level = THROTTLE_FEATURE_LEVEL - 1
        result = ask(api, "reassign", "orders/0=3,1,2", "--throttle", "5000", "--no-wait")
        assert result.code == 1 and "raftlog cluster finalize" in result.stderr
        assert broker.record(0).target_replicas == ()
        assert ask(api, "reassign", "orders/0=3,1,2").code == 0

    def test_invalid_throttles_are_refused(self, api: Api, broker: Moving) -> None:
        assert ask(api, "reassign", "--cancel", "orders/0", "--throttle", "5").code == 2
        assert ask(api, "reassign", "orders/0=3,1,2", "--throttle", "-5").code == 2
        assert ask(api, "reassign", "orders/0=9,1,2", "--throttle", "5").code != 0
        assert not broker.view.throttle


# --- The administrator by itself -------------------------------------------------------------------------------------


def wanted(numbers: Iterable[int], *target: int) -> dict[TopicPartition, tuple[BrokerId, ...] | None]:
    return {TopicPartition(TOPIC, number): tuple(map(BrokerId, target)) for number in numbers}


def test_a_change_is_retried_after_its_record_changed(broker: Moving) -> None:
    broker.before_deciding = [broker.cluster.isr_proposal(0, 1)]
    assert asyncio.run(broker.moves.reassign(wanted([0], 3, 1, 2))) == [None]
    assert len(broker.decided) == 2


def test_retries_are_bounded(broker: Moving) -> None:
    class Restless(Moving):
        async def decide(self, command: Command) -> CommandResult:
            now = self.record(0).isr
            self.cluster.set_isr(*((0, 1) if len(now) == 3 else (0, 1, 2)))
            return await super().decide(command)

    restless = Restless()
    (error,) = asyncio.run(restless.moves.reassign(wanted([0], 3, 1, 2)))
    assert error is not None and error.code == "stale_partition_epoch"
    assert len(restless.decided) == ATTEMPTS


def test_with_older_brokers_only_moves_under_way_are_refused() -> None:
    class Old(Moving):
        level = REPLACEMENT_FEATURE_LEVEL - 1

    old = Old()
    old.helped = False
    assert asyncio.run(old.moves.reassign(wanted([0], 0, 3, 4))) == [None]
    old.begin(0)
    refused, done = asyncio.run(old.moves.reassign(wanted([0, 1], 0, 3, 1)))
    assert refused is not None and refused.code == "reassignment_in_progress" and done is None
    assert old.record(0).target_replicas == (0, 3, 4) and old.record(1).target_replicas == (0, 3, 1)


def test_a_move_that_another_node_cancelled_is_requested_again(broker: Moving) -> None:
    """S7: a view that is behind still shows the target."""
    broker.helped = False
    assert asyncio.run(broker.moves.reassign(wanted([0], 3, 1, 2))) == [None]
    cancel = Reassignment(TOPIC, 0, broker.record(0).partition_epoch, ())
    broker.before_reading = [AlterReassignments((cancel,))]
    assert asyncio.run(broker.moves.reassign(wanted([0], 3, 1, 2))) == [None]
    assert broker.record(0).target_replicas == (3, 1, 2)


def test_without_an_answer_of_the_quorum_each_partition_has_an_error(broker: Moving) -> None:
    broker.silent = True
    errors = asyncio.run(broker.moves.reassign(wanted([0, 1], 3, 1, 2)))
    assert [error and error.code for error in errors] == ["quorum_unavailable"] * 2
    assert broker.decided == []


def test_many_moves_are_requested_in_commands_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftlog.broker.changes.moves.MAX_REASSIGNMENTS_PER_COMMAND", 3)
    broker = Moving(partitions=7)
    assert asyncio.run(broker.moves.reassign(wanted(range(7), 3, 1, 2))) == [None] * 7
    assert [len(command.reassignments) for command in broker.decided] == [3, 3, 1]  # type: ignore[union-attr]


def test_an_unknown_partition_is_refused(broker: Moving) -> None:
    broker.cluster.do(NoOp())
    (error,) = asyncio.run(broker.moves.reassign(wanted([9], 3, 1, 2)))
    assert error is not None and error.code == "unknown_partition"


def test_the_missing_bytes_are_those_of_added_replicas() -> None:
    left = [ReassignmentInfo("t", 0, [0, 1, 2], [1, 2], adding_replicas=[2], moving=True)]

    def held(size: int) -> list[ReplicaInfo]:
        return [ReplicaInfo("t", 0, size, 1, "follower")]

    assert missing_bytes(left, {0: held(100), 1: held(90), 2: held(30)}) == 70
    assert missing_bytes(left, {0: held(100)}) == 100
    assert MoveInfo("t", 0, [0, 1], [1, 2]).adding == [2]


class Held:
    """A replica on this node as its driver shows it."""

    def __init__(self, size: int, end: int, role: str) -> None:
        self.log = self
        self.size_bytes, self.log_end_offset = size, end
        self.replica = self
        self.offline = role == "offline"
        self.leader = role in ("leader", "offline")
        self.follower = role == "follower"


def test_a_node_lists_its_replicas(api: Api, broker: Moving) -> None:
    """They are in order and have their present state; a replica of a topic deleted in the meantime has no name."""
    roles = {3: "follower", 0: "leader", 1: "offline", 2: "idle"}
    held: Any = {TopicPartition(TOPIC, number): Held(100 + number, 7 * number, role) for number, role in roles.items()}
    held[TopicPartition(TopicId(b"gone" * 4), 0)] = Held(1, 1, "leader")
    broker.moves = MoveAdministrator(broker.view, lambda: held, broker, broker)  # type: ignore[arg-type]

    async def ask_it() -> list[ReplicaInfo]:
        async with Admin(f"127.0.0.1:{api.port}") as admin:
            return (await admin.replicas())[0]

    assert asyncio.run(ask_it()) == [
        ReplicaInfo("orders", number, 100 + number, 7 * number, roles[number]) for number in range(4)
    ]
