"""A member's requests on data connections: which node gets them, what a lost answer means, and when the API serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from metadata.view import BrokerChanged
from raftlog.api.groups import GroupPartition, JoinGroup
from raftlog.broker.requests.data_listener import data_acceptors
from raftlog.client.cluster.api import HttpApi
from raftlog.client.groups import calls as member_calls
from raftlog.client.groups.api import GroupApi, unpack
from raftlog.client.groups.calls import MemberCalls
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.http2 import Http2Listener, Http2Stream
from raftlog.model import BrokerId, BrokerRecord, Endpoint, TopicPartition
from raftlog.wire import GROUPS_PATH, CommitOffsetsRequest, JoinGroupRequest, Request, decode_request
from tests.support.client.fake_broker import NODE, FakeBroker
from tests.support.clusters.held_port import HOST, HeldPort
from tests.support.http.api_client import Api, eventually

pytestmark = pytest.mark.integration

ASKED = JoinGroup(topics=["t"], member_id="m", client_id="app", session_timeout_ms=10_000, rebalance_timeout_ms=10_000)


class DataNode:
    """One node's data listener. All nodes are in front of the same broker in memory."""

    def __init__(self, broker: FakeBroker, number: int) -> None:
        self._broker = broker
        self.number = number
        self.port = HeldPort()
        self.requests: list[Request] = []
        self.fate = "answers"
        """The outcome of a request: "answers", "ignores", "breaks" (it is carried out, but the connection breaks)."""
        self.stopping = False
        self._listener: Http2Listener | None = None

    async def start(self, *, serves_members: bool = True) -> None:
        acceptors = data_acceptors(None, self._broker.groups, None, lambda: not self.stopping)  # type: ignore[arg-type]
        accept = acceptors[GROUPS_PATH]
        self._listener = Http2Listener(
            {GROUPS_PATH: lambda stream: Stream(self, accept(stream))} if serves_members else {}
        )
        await self._listener.start(HOST, self.port.number)

    async def stop(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.close(0.0)

    def advertise(self) -> None:
        """Make the cluster name this node's address."""
        known = self._broker.view.broker(NODE)
        assert known is not None
        record = BrokerRecord(
            broker_id=BrokerId(self.number),
            incarnation=known.incarnation,
            directory_id=known.directory_id,
            start_number=known.start_number,
            api=known.api,
            data=Endpoint(HOST, self.port.number),
            rack="",
            fenced=False,
            feature_level=known.feature_level,
        )
        self._broker._event(BrokerChanged(record))


class Stream:
    """A stream whose messages meet the node's fate."""

    def __init__(self, node: DataNode, handler: Any) -> None:
        self._node = node
        self._handler = handler

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        self._node.requests.append(decode_request(bytes(message))[0])
        if self._node.fate == "breaks":
            stream.connection.abort("the test wants it")
        if self._node.fate != "ignores":
            self._handler.on_message(stream, message)

    def on_ended(self, stream: Http2Stream) -> None:
        self._handler.on_ended(stream)

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        """The real handler would close its fetch session; there is none here."""


@pytest.fixture
def broker() -> FakeBroker:
    made = FakeBroker()
    made.add_topic("t", 4)
    return made


@pytest.fixture
async def nodes(broker: FakeBroker) -> AsyncIterator[list[DataNode]]:
    """Two nodes; the first one is asked first."""
    made = [DataNode(broker, 1), DataNode(broker, 2)]
    for node in made:
        node.advertise()
    yield made
    for node in made:
        await node.stop()
        node.port.release()


@pytest.fixture
async def calls(api: Api) -> AsyncIterator[MemberCalls]:
    http = HttpApi(f"{HOST}:{api.port}")
    yield MemberCalls(http, "g")
    await http.close()


@pytest.fixture
def no_api(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group endpoints of the HTTP API are of no use."""

    async def fails(*_: Any, **__: Any) -> None:
        raise AssertionError("the HTTP API was asked")

    for name in ("join", "heartbeat", "leave", "commit_part", "committed"):
        monkeypatch.setattr(GroupApi, name, fails)


def partition_of(broker: FakeBroker, number: int) -> GroupPartition:
    topic = broker.view.topic("t")
    assert topic is not None
    return GroupPartition("t", number, topic.topic_id.hex())


@pytest.mark.usefixtures("no_api")
async def test_a_members_life_on_a_data_connection(
    broker: FakeBroker, nodes: list[DataNode], calls: MemberCalls
) -> None:
    await nodes[0].start()
    told = await calls.join(ASKED)
    assert broker.groups.groups.by_id["g"].members["m"].client_host == HOST
    told = await calls.heartbeat("m", told.incarnation, told.generation, (), timeout=5.0)
    mine = unpack(told.assigned)
    assert [(one.topic, one.partition) for one in mine] == [("t", number) for number in range(4)]
    await calls.commit({mine[0]: 7, mine[3]: 2}, "m", told.incarnation, told.generation)
    assert {one.group_partition: one.offset for one in await calls.committed()} == {mine[0]: 7, mine[3]: 2}
    await calls.heartbeat("m", told.incarnation, told.generation, mine[:1], timeout=5.0)
    granted = broker.groups.groups.by_id["g"].members["m"].owned
    released = TopicPartition(broker.view.topics()[0].topic_id, 0)
    assert [partition for partition, index in granted.items() if index > told.generation] == [released], "granted again"
    with pytest.raises(InvalidRequest) as fenced:
        await calls.commit({mine[1]: 7}, "m", told.incarnation + 1, told.generation)
    assert fenced.value.code == "member_fenced"
    await calls.leave("m", told.incarnation, timeout=5.0)
    with pytest.raises(InvalidRequest) as unknown:
        await calls.heartbeat("m", told.incarnation, told.generation, (), timeout=5.0)
    assert unknown.value.code == "unknown_member"


@pytest.mark.usefixtures("no_api")
async def test_a_node_that_is_down_or_stopping_is_passed_over(nodes: list[DataNode], calls: MemberCalls) -> None:
    await nodes[1].start()
    told = await calls.join(ASKED)
    await nodes[0].start()
    nodes[1].stopping = True
    await calls.heartbeat("m", told.incarnation, told.generation, (), timeout=5.0)
    assert nodes[0].requests and len(nodes[1].requests) == 2
    await nodes[0].stop()
    nodes[1].stopping = False
    await calls.leave("m", told.incarnation, timeout=5.0)


@pytest.mark.usefixtures("no_api")
async def test_a_node_that_does_not_answer_is_not_waited_for(
    broker: FakeBroker, nodes: list[DataNode], calls: MemberCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_calls, "HEDGE_AFTER", 0.05)
    for node in nodes:
        await node.start()
    told = await calls.join(ASKED)
    nodes[0].fate = "ignores"
    mine = partition_of(broker, 0)
    await calls.commit({mine: 5}, "m", told.incarnation, told.generation)
    await calls.commit({mine: 6}, "m", told.incarnation, told.generation)
    commits = [[one for one in node.requests if isinstance(one, CommitOffsetsRequest)] for node in nodes]
    assert (len(commits[0]), len(commits[1])) == (1, 2), "the node that answered is asked first"


@pytest.mark.usefixtures("no_api")
async def test_a_request_that_may_be_repeated_survives_a_broken_connection(
    nodes: list[DataNode], calls: MemberCalls, broker: FakeBroker
) -> None:
    for node in nodes:
        await node.start()
    told = await calls.join(ASKED)
    nodes[0].fate = "breaks"
    await calls.commit({partition_of(broker, 0): 5}, "m", told.incarnation, told.generation)
    assert isinstance(nodes[1].requests[-1], CommitOffsetsRequest)


@pytest.mark.usefixtures("no_api")
async def test_a_join_whose_answer_is_lost_is_of_unknown_outcome_and_sent_once(
    nodes: list[DataNode], calls: MemberCalls
) -> None:
    for node in nodes:
        await node.start()
    nodes[0].fate = "breaks"
    with pytest.raises(RetriableError) as lost:
        await calls.join(ASKED)
    assert lost.value.code == "outcome_unknown"
    assert [type(one) for node in nodes for one in node.requests] == [JoinGroupRequest]


@pytest.mark.usefixtures("no_api")
async def test_a_node_that_moved_is_found(broker: FakeBroker, nodes: list[DataNode], calls: MemberCalls) -> None:
    await nodes[0].start()
    told = await calls.join(ASKED)
    await nodes[0].stop()
    moved = DataNode(broker, 1)
    await moved.start()
    moved.advertise()
    try:
        await calls.heartbeat("m", told.incarnation, told.generation, (), timeout=10.0)
        assert len(moved.requests) == 1
    finally:
        await moved.stop()
        moved.port.release()


async def test_the_api_serves_where_a_node_knows_no_members_on_data_connections(
    broker: FakeBroker, nodes: list[DataNode], calls: MemberCalls
) -> None:
    """A node of an older version, in a rolling upgrade."""
    await nodes[0].start(serves_members=False)
    told = await calls.join(ASKED)
    told = await calls.heartbeat("m", told.incarnation, told.generation, (), timeout=5.0)
    mine = unpack(told.assigned)
    await calls.commit({mine[0]: 7}, "m", told.incarnation, told.generation)
    known = {one.group_partition: one.offset for one in await calls.committed() if one.offset is not None}
    assert known == {mine[0]: 7}
    await calls.leave("m", told.incarnation, timeout=5.0)
    assert broker.groups.groups.by_id["g"].members == {}
    await nodes[0].stop()
    await nodes[0].start()
    await eventually(lambda: nodes[0]._listener is not None)
    await calls.join(ASKED)
    assert [type(one) for one in nodes[0].requests] == [JoinGroupRequest], "after the upgrade, the data connection"


async def test_the_api_serves_where_no_data_listener_can_be_reached(nodes: list[DataNode], calls: MemberCalls) -> None:
    told = await calls.join(ASKED)
    await calls.heartbeat("m", told.incarnation, told.generation, (), timeout=5.0)
    await nodes[0].start()
    async with asyncio.timeout(20.0):
        while not nodes[0].requests:
            await calls.heartbeat("m", told.incarnation, told.generation, (), timeout=5.0)
            await asyncio.sleep(0.05)


async def test_a_topic_that_is_known_by_its_name_alone_is_the_apis(
    broker: FakeBroker, nodes: list[DataNode], calls: MemberCalls
) -> None:
    await nodes[0].start()
    await calls.commit({GroupPartition("t", 1): 4})
    assert nodes[0].requests == []
    assert [(one.partition, one.offset) for one in await calls.committed()] == [(1, 4)]


@pytest.mark.usefixtures("no_api")
@pytest.mark.parametrize(
    "wrong",
    [{"member_id": "x" * 256}, {"client_id": "\ud800"}, {"session_timeout_ms": 1}, {"topics": ["t"] * 257}],
)
async def test_what_no_node_could_decode_is_refused_before_it_is_sent_s11(
    nodes: list[DataNode], calls: MemberCalls, wrong: dict[str, Any]
) -> None:
    await nodes[0].start()
    with pytest.raises(InvalidRequest) as refused:
        await calls.join(msgspec.structs.replace(ASKED, **wrong))
    assert refused.value.code == "invalid_request"
    with pytest.raises(InvalidRequest):
        await calls.commit({GroupPartition("t", 0, "00" * 16): -1})
    assert nodes[0].requests == []
