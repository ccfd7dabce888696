"""A member's state in its group, in front of a broker in memory: joining, staying, losing partitions, joining again,
leaving.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import pytest

from metadata.commands.groups import Fence
from raftlog.api.groups import GroupPartition, JoinGroup
from raftlog.client.cluster.api import HttpApi
from raftlog.client.consuming.topic_consumer import TopicConsumer
from raftlog.client.groups import missing, reading
from raftlog.client.groups.api import GroupApi, unpack
from raftlog.client.groups.calls import MemberCalls
from raftlog.client.groups.consumer import GroupConsumer
from raftlog.client.groups.member import Member
from raftlog.client.groups.membership import GroupMembership
from raftlog.client.groups.starts import find_starts
from raftlog.errors import ClientClosed, InvalidRequest, RetriableError
from raftlog.model import TopicPartition
from raftlog.ports import Answer
from raftlog.records.batch import encode
from raftlog.wire import JoinGroupRequest, MemberHeartbeatRequest, MembershipResponse
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import PATIENCE_S, Api, eventually

pytestmark = pytest.mark.integration

WANTED = JoinGroup(topics=["t"], client_id="app", session_timeout_ms=10_000, rebalance_timeout_ms=10_000)


@pytest.fixture
async def broker() -> FakeBroker:
    made = FakeBroker()
    topic = made.add_topic("t", 4)
    for partition in range(4):
        made.logs[TopicPartition(topic.topic_id, partition)].append(encode([b"a"] * 10, base_timestamp_ms=0))
    return made


@pytest.fixture
async def calls(api: Api) -> AsyncIterator[HttpApi]:
    made = HttpApi(f"127.0.0.1:{api.port}")
    yield made
    await made.close()


@pytest.fixture
async def member(calls: HttpApi) -> AsyncIterator[Callable[..., GroupMembership]]:
    made: list[GroupMembership] = []

    def make(**other: Any) -> GroupMembership:
        membership = GroupMembership(
            GroupApi(calls, "g"), msgspec.structs.replace(WANTED, **other), heartbeat_interval=0.02
        )
        made.append(membership)
        membership.member.poll_began(0.0)  # Its program waits forever.
        membership.start()
        return membership

    yield make
    for membership in made:
        await membership.close()


def numbers(membership: GroupMembership) -> list[int]:
    current = membership.current
    return [] if current is None else sorted(one.partition for one in unpack(current.assigned))


async def test_members_share_partitions_and_give_them_up(
    broker: FakeBroker, member: Callable[..., GroupMembership]
) -> None:
    a = member()
    await eventually(lambda: numbers(a) == [0, 1, 2, 3])
    b = member()
    await eventually(lambda: len(numbers(a)) == 2)
    assert numbers(b) == []
    assert a.current is not None
    a.release(unpack(a.current.revoking))
    await eventually(lambda: len(numbers(b)) == 2)
    assert sorted(numbers(a) + numbers(b)) == [0, 1, 2, 3]
    await b.close()
    await eventually(lambda: numbers(a) == [0, 1, 2, 3])
    await a.close()
    assert broker.groups.groups.by_id["g"].members == {}


async def test_a_removed_member_joins_again_and_knows_that_it_lost_everything(
    broker: FakeBroker, member: Callable[..., GroupMembership]
) -> None:
    a = member()
    await eventually(lambda: numbers(a) == [0, 1, 2, 3])
    (known,) = broker.groups.groups.by_id["g"].members.values()
    broker.groups.change(Fence("g", known.member_id, known.incarnation, 1, 0))
    await eventually(lambda: a.session == 1 and numbers(a) == [0, 1, 2, 3])
    (again,) = broker.groups.groups.by_id["g"].members.values()
    assert again.member_id == known.member_id and again.incarnation > known.incarnation


async def test_a_static_member_stays_when_it_closes(broker: FakeBroker, member: Callable[..., GroupMembership]) -> None:
    a = member(instance_id="i")
    await eventually(lambda: numbers(a) == [0, 1, 2, 3])
    epoch = broker.groups.groups.by_id["g"].epoch
    await a.close()
    assert len(broker.groups.groups.by_id["g"].members) == 1
    b = member(instance_id="i")
    await eventually(lambda: numbers(b) == [0, 1, 2, 3])
    assert broker.groups.groups.by_id["g"].epoch == epoch


async def test_of_two_processes_with_one_instance_id_the_first_stops(member: Callable[..., GroupMembership]) -> None:
    a = member(instance_id="i")
    await eventually(lambda: bool(numbers(a)))
    b = member(instance_id="i")
    await eventually(lambda: a.error is not None)
    assert "another process" in str(a.error)
    assert a.changed.is_set()
    await eventually(lambda: numbers(b) == [0, 1, 2, 3])
    assert b.error is None


async def test_a_group_that_cannot_be_joined_ends_the_membership(member: Callable[..., GroupMembership]) -> None:
    a = member(pattern="(")
    await eventually(lambda: a.error is not None)
    assert isinstance(a.error, InvalidRequest)


async def test_a_cluster_that_does_not_answer_is_retried(
    broker: FakeBroker, member: Callable[..., GroupMembership], monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(request: MemberHeartbeatRequest, answer: Answer[MembershipResponse]) -> None:
        answer(RetriableError("not_coordinator", "nobody leads"))

    a = member(session_timeout_ms=3_000)
    await eventually(lambda: bool(numbers(a)))
    with monkeypatch.context() as patched:
        patched.setattr(broker.groups, "heartbeat", silent)
        await eventually(lambda: a.last_error is not None)
    await eventually(lambda: a.last_error is None)
    assert (a.session, a.error) == (0, None)


async def test_an_internal_error_is_raised_by_poll(
    member: Callable[..., GroupMembership], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Member, "joined", lambda self, answer, now: 1 / 0)
    a = member()
    await eventually(lambda: a.error is not None)
    assert "ZeroDivisionError" in str(a.error)


async def test_the_starting_position_of_a_member(broker: FakeBroker, calls: HttpApi) -> None:
    group = GroupApi(calls, "g")
    topic = broker.view.topic("t")
    assert topic is not None
    p0, p1 = (GroupPartition("t", number, topic.topic_id.hex()) for number in range(2))
    await group.commit({p0: 4})
    known = {one.group_partition: one for one in await group.committed()}
    assert await find_starts(calls, [p0, p1], known, "earliest") == {p0: 4, p1: 0}
    assert await find_starts(calls, [p0, p1], known, "latest") == {p0: 4, p1: 10}
    with pytest.raises(InvalidRequest) as caught:
        await find_starts(calls, [p0, p1], known, "error")
    assert caught.value.code == "offset_out_of_range"


async def test_invalid_arguments_of_a_consumer() -> None:
    for settings in (
        {},
        {"topics": ["t"], "auto_offset_reset": "now"},
        {"topics": ["t"], "heartbeat_interval_ms": 45_000},
    ):
        with pytest.raises(InvalidRequest):
            GroupConsumer("127.0.0.1:1", "g", **settings)


class Reading(TopicConsumer):
    """A reader of one topic that says which partitions it reads."""

    open: ClassVar[dict[str, list[int]]] = {}
    """Topic → its partitions."""

    def __init__(self, bootstrap: str, topic: str, partitions: Sequence[int], *others: Any, **named: Any) -> None:
        super().__init__(bootstrap, topic, partitions, *others, **named)
        self._name = topic
        self.open[topic] = sorted(partitions)

    def assign(self, starts: Mapping[int, int]) -> None:
        super().assign(starts)
        self.open[self._name] = sorted(starts)

    async def close(self) -> None:
        self.open.pop(self._name, None)
        await super().close()


async def test_cancelled_calls_leave_nothing_half_done(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever a poll is cancelled: assigned partitions are read, revoked ones are not."""
    monkeypatch.setattr(reading, "TopicConsumer", Reading)
    told: list[str] = []

    async def assigned(partitions: list[GroupPartition]) -> None:
        told.append("assigned")
        await asyncio.sleep(0.01)

    times: dict[str, Any] = {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 20}
    consumer = GroupConsumer(f"127.0.0.1:{api.port}", "g", ["t"], on_assigned=assigned, **times)
    node = HttpApi(f"127.0.0.1:{api.port}")
    other = GroupMembership(GroupApi(node, "g"), WANTED, heartbeat_interval=0.02)
    try:
        for wanted in (4, 2):
            patience = 0.001
            while len(consumer.assignment) != wanted:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(consumer.poll(timeout=1.0), patience)
                patience = patience * 1.3 if patience < 0.05 else 0.001
                await asyncio.sleep(0)  # a reader without partitions begins to close
                mine = sorted(partition.partition for partition in consumer.assignment)
                assert Reading.open == ({"t": mine} if mine else {})
            other.start()
        assert told
    finally:
        await other.close()
        await node.close()
        await consumer.close()


async def test_a_join_in_flight_at_the_end_leaves_no_member_behind(
    broker: FakeBroker, member: Callable[..., GroupMembership], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, held = asyncio.Event(), list[tuple[JoinGroupRequest, str, Answer[MembershipResponse], str]]()
    join = broker.groups.join

    def slow(
        request: JoinGroupRequest, client_host: str, answer: Answer[MembershipResponse], principal: str = ""
    ) -> None:
        held.append((request, client_host, answer, principal))
        asked.set()

    monkeypatch.setattr(broker.groups, "join", slow)
    a = member()
    async with asyncio.timeout(PATIENCE_S):
        await asked.wait()
    closing = asyncio.create_task(a.close())
    await asyncio.sleep(0)
    join(*held[0])
    await closing
    assert broker.groups.groups.by_id["g"].members == {}


async def test_a_callback_that_raises_does_not_keep_a_partition(api: Api, broker: FakeBroker, calls: HttpApi) -> None:
    """Records that the program could not finish are not committed, and are read again by the next owner."""

    def fails(partitions: list[GroupPartition]) -> None:
        raise ValueError("mine")

    settings: dict[str, Any] = {"heartbeat_interval_ms": 20, "auto_offset_reset": "earliest"}
    consumer = GroupConsumer(f"127.0.0.1:{api.port}", "g", ["t"], on_revoked=fails, **settings)
    other = GroupMembership(GroupApi(calls, "g"), WANTED, heartbeat_interval=0.02)
    other.member.poll_began(0.0)
    try:
        while len(consumer.assignment) < 4:
            await consumer.poll(timeout=0.05)
        other.start()
        with pytest.raises(ValueError, match="mine"):
            while True:
                await consumer.poll(timeout=0.05)
        assert len(consumer.assignment) == 2
        await eventually(lambda: len(numbers(other)) == 2)
        await consumer.poll(timeout=0.05)
        mine = {partition.partition for partition in consumer.assignment}
        assert mine | set(numbers(other)) == {0, 1, 2, 3}
    finally:
        await other.close()
        with contextlib.suppress(ValueError):
            await consumer.close()
    assert broker.groups.groups.by_id["g"].members == {}, "it has left all the same"


async def test_a_closed_consumer_says_so(api: Api) -> None:
    consumer = GroupConsumer(f"127.0.0.1:{api.port}", "g", ["t"])
    await asyncio.gather(consumer.close(), consumer.close())
    with pytest.raises(ClientClosed, match="shutting_down"):
        await consumer.poll()


@pytest.mark.parametrize(("topics", "pattern"), [(["tea", "t"], ""), ([], "tea.*")])
async def test_a_member_says_why_it_reads_nothing(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, topics: list[str], pattern: str
) -> None:
    monkeypatch.setattr(missing, "LOOK_AFTER", 0.0)
    told = "there is no topic 'tea'; it will be read once it is created" if topics else "no topic matches 'tea.*'"
    first = GroupConsumer(f"127.0.0.1:{api.port}", "g", [name for name in topics if name != "t"], pattern=pattern)
    async with first, asyncio.timeout(PATIENCE_S):
        while not any(told in record.getMessage() for record in caplog.records):
            assert await first.poll(timeout=0.05) == []
        for _ in range(5):
            await first.poll(timeout=0.02)
        assert sum(told in record.getMessage() for record in caplog.records) == 1


async def test_a_poll_ends_in_time_while_the_committed_offsets_are_awaited(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = GroupConsumer(f"127.0.0.1:{api.port}", "g", ["t"], auto_offset_reset="earliest")
    answers, asked, committed = asyncio.Event(), 0, GroupApi.committed

    async def late(group: GroupApi) -> Any:
        nonlocal asked
        asked += 1
        await answers.wait()
        return await committed(group)

    for kind in (GroupApi, MemberCalls):
        monkeypatch.setattr(kind, "committed", late)
    loop = asyncio.get_running_loop()
    async with consumer, asyncio.timeout(PATIENCE_S):
        while not asked:
            await consumer.poll(timeout=0.1)
        for timeout in (0.0, 0.2, 0.2):
            begun = loop.time()
            assert await consumer.poll(timeout=timeout) == []
            assert loop.time() - begun < timeout + 3
        assert asked == 1, "the lookup goes on between polls"
        answers.set()
        while not await consumer.poll(timeout=0.5):
            pass
        assert asked == 1


async def test_a_member_reads_batches_and_commits_what_it_has_processed(api: Api, calls: HttpApi) -> None:
    """S8: as with records, a batch counts as processed when the program requests the next one."""
    address = f"127.0.0.1:{api.port}"
    consumer = GroupConsumer(address, "g", ["t"], auto_offset_reset="earliest", auto_commit_interval_ms=0)
    seen = 0
    async with asyncio.timeout(PATIENCE_S):
        async for batch in consumer.batches():
            seen += len(batch)
            assert batch.to_arrow().num_rows == len(batch.to_pandas()) == len(batch) == 10
            if seen == 40:
                break
        assert sum(consumer.positions.values()) == 40
        await consumer.close(processed=False)
    committed = {one.partition: one.offset for one in await GroupApi(calls, "g").committed()}
    assert sum(offset for offset in committed.values() if offset is not None) == 30, "the last one is read again"


async def test_a_member_with_partitions_looks_for_no_topics(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(missing, "LOOK_AFTER", 0.05)
    consumer = GroupConsumer(f"127.0.0.1:{api.port}", "g", ["t"], auto_offset_reset="earliest")
    async with consumer, asyncio.timeout(PATIENCE_S):
        while not await consumer.poll(timeout=0.5):
            pass
        await consumer.poll(timeout=0.1)
        first = consumer.assignment[0]
        await consumer.commit({(first.topic, first.partition): 1})
        assert (await consumer.committed())[first] == 1
        await consumer.commit({GroupPartition(first.topic, first.partition): 2})
        assert (await consumer.committed())[first] == 2
    assert not [record for record in caplog.records if "reads nothing" in record.getMessage()]
