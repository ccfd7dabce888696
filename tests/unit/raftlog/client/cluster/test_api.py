"""The client's API calls: the choice of the node, the switch to the next one, and the meaning of a lost answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from raftlog.api.topics import PartitionInfo, TopicDescription
from raftlog.client.cluster import any_node
from raftlog.client.cluster.any_node import PATIENCE, is_busy
from raftlog.client.cluster.api import HttpApi, parse_bootstrap, parse_endpoint
from raftlog.client.cluster.metadata import ClusterMetadata
from raftlog.client.cluster.refresher import MetadataRefresher
from raftlog.client.producing.producer_ids import IdentitySource
from raftlog.errors import ClientClosed, InvalidRequest, RaftlogError, RemoteProtocolError, RetriableError
from raftlog.model import Endpoint
from tests.support.client.fake_cluster import FakeCluster
from tests.support.clusters.held_port import HOST, HeldPort


class Node:
    """Answers every request as configured."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.answer: Any = {"who": "me"}
        self.status = 200
        self.hang = False
        self.slow: asyncio.Event | None = None
        """The time when `/slow` is answered."""
        self.cut = False
        """The connection is closed instead of answering."""
        self.ends = False
        """The listener is closed as well."""
        self.port = HeldPort()
        self.address = str(self.port)
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, HOST, self.port.number)
        await self._site.start()

    async def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(f"{request.method} {request.path} {(await request.read()).decode()}".strip())
        if self.hang:
            await asyncio.sleep(3600)
        if self.slow is not None and request.path == "/slow":
            await self.slow.wait()
        if self.cut:
            assert request.transport is not None
            if self.ends and self._site is not None:
                await self._site.stop()
            request.transport.abort()
        body = self.answer if isinstance(self.answer, bytes) else msgspec.json.encode(self.answer)
        return web.Response(body=body, status=self.status)


class Who(msgspec.Struct):
    who: str


def problem(code: str) -> dict[str, str]:
    return {"code": code, "detail": "as told"}


@pytest.fixture
async def nodes() -> AsyncIterator[list[Node]]:
    made = [Node(), Node(), Node()]
    for number, node in enumerate(made):
        await node.start()
        node.answer = {"who": str(number)}
    yield made
    for node in made:
        await node.close()
        node.port.release()


@pytest.fixture
async def api(nodes: list[Node]) -> AsyncIterator[HttpApi]:
    made = HttpApi([node.address for node in nodes])
    yield made
    await made.close()


def test_addresses() -> None:
    expected = [Endpoint("a", 1), Endpoint("b", 2)]
    assert parse_bootstrap("a:1, b:2,a:1,") == parse_bootstrap(["http://a:1/", "b:2"]) == expected
    assert parse_endpoint("[::1]:9640") == Endpoint("::1", 9640)
    for wrong in ("a", "a:", ":1", "a:0", "a:70000", "a:x", "a:-1"):
        with pytest.raises(InvalidRequest):
            parse_endpoint(wrong)


async def test_the_node_that_answered_is_asked_again(api: HttpApi, nodes: list[Node]) -> None:
    await nodes[0].close()
    assert (await api.get("/x", Who)).who == "1"
    assert (await api.get("/x", Who)).who == "1"
    assert [len(node.calls) for node in nodes] == [0, 2, 0]
    api.prefer_another()
    assert (await api.get("/x", Who)).who == "2"


async def test_a_late_answer_is_not_waited_for(api: HttpApi, nodes: list[Node]) -> None:
    nodes[0].hang = nodes[1].hang = True
    loop = asyncio.get_running_loop()
    before = loop.time()
    assert (await api.get("/x", Who, timeout=5)).who == "2"
    assert loop.time() - before < 2


async def test_a_busy_node_is_not_bypassed(api: HttpApi, nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeating late requests elsewhere is how a busy cluster collapses."""
    nodes[0].slow = asyncio.Event()
    others: list[int] = []

    def busy_four_times(*_: object, **__: object) -> bool:
        others.append(len(nodes[1].calls))
        return len(others) < 5

    monkeypatch.setattr(any_node, "is_busy", busy_four_times)
    assert (await api.post("/slow", Who, timeout=60, hedge_after=0.01)).who == "1"
    assert others[:5] == [0] * 5


def test_a_node_that_answers_others_is_slow_and_one_that_answers_none_is_stopped() -> None:
    assert is_busy(silent=0.1, waited=0.3, hedge_after=0.2)
    assert not is_busy(silent=0.3, waited=0.3, hedge_after=0.2), "nobody has an answer"
    assert not is_busy(silent=0.1, waited=PATIENCE * 0.2, hedge_after=0.2), "others do, but this one has waited long"
    assert not is_busy(silent=float("inf"), waited=0.0, hedge_after=0.2), "it never answered"


async def test_a_node_that_never_answers_is_given_up_even_if_it_answers_others(api: HttpApi, nodes: list[Node]) -> None:
    nodes[0].slow = asyncio.Event()
    late = asyncio.create_task(api.post("/slow", Who, timeout=60, hedge_after=0.02))
    while not late.done():
        await api.get("/x", Who)
        await asyncio.sleep(0.005)
    assert (await late).who == "1"


async def test_retriable_problems_are_retried_elsewhere_and_others_are_not(api: HttpApi, nodes: list[Node]) -> None:
    nodes[0].status, nodes[0].answer = 503, problem("quorum_unavailable")
    assert (await api.get("/x", Who)).who == "1"
    nodes[1].status, nodes[1].answer = 404, problem("unknown_topic")
    with pytest.raises(InvalidRequest, match="unknown_topic: as told"):
        await api.get("/x", Who)
    assert nodes[2].calls == []


async def test_a_nodes_answer_is_reported_rather_than_anothers_failure(api: HttpApi, nodes: list[Node]) -> None:
    await nodes[1].close()
    await nodes[2].close()
    nodes[0].status, nodes[0].answer = 503, problem("quorum_unavailable")
    with pytest.raises(RetriableError, match="quorum_unavailable"):
        await api.get("/x", Who, timeout=0.3)
    assert len(nodes[0].calls) > 1, "it was tried again"


async def test_an_unreachable_cluster(api: HttpApi, nodes: list[Node]) -> None:
    for node in nodes:
        await node.close()
    with pytest.raises(RetriableError, match="cannot connect") as error:
        await api.get("/x", Who, timeout=0.5)
    assert error.value.code == "connection_lost" and api.last_error is not None


async def test_answers_of_another_server(api: HttpApi, nodes: list[Node]) -> None:
    nodes[0].answer = b"<html>"
    with pytest.raises(RemoteProtocolError, match="unexpected format"):
        await api.get("/x", Who)
    for node in nodes:
        node.status, node.answer = 418, b"<html>"
    with pytest.raises(RemoteProtocolError, match="answered 418"):
        await api.get("/x", Who)
    for node in nodes:
        node.status, node.answer = 500, problem("something_new")
    with pytest.raises(RaftlogError, match="something_new"):
        await api.get("/x", Who)


@pytest.mark.parametrize(
    ("cluster", "topic"),
    [({"data": "nowhere"}, {}), ({"api": ""}, {}), ({}, {"id": "no hex"}), ({}, {"partition_count": 2})],
    ids=str,
)
async def test_an_invalid_description_of_the_cluster_is_refused(
    monkeypatch: pytest.MonkeyPatch, cluster: dict[str, Any], topic: dict[str, Any]
) -> None:
    node = {"id": 1, "api": "h:1", "data": "h:2", **cluster}
    described = {"name": "t", "id": "0" * 32, "partition_count": 1, "replication_factor": 1, **topic}
    answers = {
        "/v1/cluster": {"cluster_id": "c", "nodes": [node]},
        "/v1/topics/t": {**described, "partitions": [{"partition": 0}]},
    }
    api = HttpApi("h:1")

    async def get(path: str, kind: Any, **_: Any) -> Any:
        return msgspec.convert(answers[path], kind)

    monkeypatch.setattr(api, "get", get)
    metadata = ClusterMetadata(api)
    if cluster:
        with pytest.raises(RemoteProtocolError):
            await metadata.refresh(["t"])
    else:
        assert isinstance((await metadata.refresh(["t"]))["t"], RemoteProtocolError)


async def test_an_invalid_host_is_one_that_does_not_answer() -> None:
    api = HttpApi(f"{'a' * 70}:80")
    with pytest.raises(RetriableError, match="connection_lost"):
        await api.get("/x", Who, timeout=0.1)
    await api.close()


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()], ids=repr)
async def test_a_local_shortage_is_temporary(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Resolving a name needs a thread. Periodic tasks must not end because there is none."""

    asked = asyncio.Event()
    granted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def none_left(*_: Any) -> Any:
        asked.set()
        raise error

    async with FakeCluster() as cluster, asyncio.timeout(10):
        api = HttpApi([f"localhost:{endpoint.port}" for endpoint in parse_bootstrap(cluster.bootstrap)])
        source = IdentitySource(api, lambda number, _: granted.set_result(number), lambda _: None)
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.get_running_loop(), "run_in_executor", none_left)
            with pytest.raises(RetriableError, match="connection_lost"):
                await api.get("/v1/cluster", Who, timeout=0.1)
            asked.clear()
            source.ask()
            await asked.wait()
        await granted
        await source.close()
        await api.close()


async def test_a_node_with_a_bug_does_not_stop_the_others_from_being_asked(api: HttpApi, nodes: list[Node]) -> None:
    nodes[0].status, nodes[0].answer = 500, problem("internal_error")
    assert (await api.get("/x", Who)).who == "1"
    nodes[0].status, nodes[0].answer = 404, problem("unknown_topic")
    nodes[1].status, nodes[1].answer = 404, problem("unknown_topic")
    with pytest.raises(RaftlogError, match="unknown_topic"):
        await api.get("/x", Who)


async def test_a_change_is_sent_once(api: HttpApi, nodes: list[Node]) -> None:
    await nodes[0].close()
    assert (await api.change("POST", "/x", Who, {"a": 1})).who == "1"
    assert nodes[1].calls == ['POST /x {"a":1}']
    assert await api.change("DELETE", "/x", None) is None


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT", "DELETE"])
async def test_a_change_whose_answer_is_lost_has_an_unknown_outcome(
    api: HttpApi, nodes: list[Node], method: str
) -> None:
    """Whatever HTTP says of a method: a second DELETE would be answered that there is nothing, which is not the
    outcome."""
    nodes[0].cut = True
    with pytest.raises(RetriableError) as error:
        await api.change(method, "/x", Who, {})
    assert error.value.code == "outcome_unknown"
    assert [len(node.calls) for node in nodes] == [1, 0, 0]
    nodes[0].cut, nodes[0].hang = False, True
    with pytest.raises(RetriableError) as error:
        await api.change(method, "/x", Who, {}, timeout=0.1)
    assert error.value.code == "outcome_unknown"
    assert [len(node.calls) for node in nodes] == [2, 0, 0]


async def test_a_node_that_dies_during_a_change_leaves_it_unknown(api: HttpApi, nodes: list[Node]) -> None:
    """It cannot be reached any more, but it received the request: no other node is asked."""
    nodes[0].cut = nodes[0].ends = True
    with pytest.raises(RetriableError) as error:
        await api.change("DELETE", "/x", None)
    assert error.value.code == "outcome_unknown"
    assert [len(node.calls) for node in nodes] == [1, 0, 0]


@pytest.mark.parametrize("status", [500, 502, 503, 504])
@pytest.mark.parametrize("answer", [b"<h1>upstream timed out</h1>", b'{"message": "no healthy upstream"}'])
async def test_a_proxys_answer_does_not_determine_the_nodes_outcome(
    api: HttpApi, nodes: list[Node], status: int, answer: bytes
) -> None:
    """S1: the proxy may have forwarded the request before it lost the answer."""
    nodes[0].status, nodes[0].answer = status, answer
    with pytest.raises(RetriableError) as error:
        await api.change("POST", "/v1/topics", Who)
    assert error.value.code == "outcome_unknown" and not nodes[1].calls, "sent once"
    assert (await api.get("/x", Who)).who == "1", "a question is asked elsewhere"


async def test_a_change_that_certainly_did_not_happen_is_sent_again(api: HttpApi, nodes: list[Node]) -> None:
    nodes[0].status, nodes[0].answer = 503, problem("not_controller")
    assert (await api.change("POST", "/x", Who, {})).who == "1"
    nodes[1].status, nodes[1].answer = 504, problem("request_timed_out")
    with pytest.raises(RetriableError, match="request_timed_out"):
        await api.change("POST", "/x", Who, {})
    assert nodes[2].calls == []


async def test_a_closed_client_says_so(api: HttpApi) -> None:
    await api.close()
    with pytest.raises(ClientClosed, match="shutting_down"):
        await api.get("/x", Who, timeout=0.1)


class Stuck:
    """A companion that does not end."""

    def __init__(self) -> None:
        self.closing = asyncio.Event()

    async def close(self) -> None:
        self.closing.set()
        await asyncio.Event().wait()


async def test_a_cancelled_close_leaves_no_session_open(api: HttpApi, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = []
    close = aiohttp.ClientSession.close

    async def closed(session: aiohttp.ClientSession) -> None:
        sessions.append(session)
        await close(session)

    monkeypatch.setattr(aiohttp.ClientSession, "close", closed)
    await api.get("/x", Who)
    api.companions[Stuck] = stuck = Stuck()
    ending = asyncio.create_task(api.close())
    await stuck.closing.wait()
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert [session.closed for session in sessions] == [True]


# --- The description of the cluster ----------------------------------------------------------------------------------


async def test_nodes_that_the_cluster_names_are_asked_too() -> None:
    async with FakeCluster(nodes=3) as cluster:
        api = HttpApi(cluster.nodes[2].api_address)
        await ClusterMetadata(api).refresh([])
        await cluster.nodes[2].kill()
        metadata = ClusterMetadata(api)
        await metadata.refresh([])
        assert sorted(metadata.nodes) == [1, 2, 3]
        assert str(metadata.data_endpoint(3)) == cluster.nodes[3].data_address
        assert metadata.data_endpoint(9) is None
        await api.close()


async def test_former_addresses_of_nodes_make_room_for_current_ones(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise nodes whose addresses change with every start could eventually not be reached."""
    monkeypatch.setattr("raftlog.client.cluster.api.MAX_ADDRESSES", 4)
    api = HttpApi(nodes[0].address)
    bootstrap, others = parse_endpoint(nodes[0].address), [parse_endpoint(node.address) for node in nodes[1:]]
    for number in range(5):
        api.learn([Endpoint(f"10.0.0.{number}", 1), Endpoint(f"10.0.1.{number}", 1)])
        assert Endpoint(f"10.0.1.{number}", 1) in api.addresses and len(api.addresses) <= 4
    api.learn([*others, *others])
    assert {bootstrap, *others} <= set(api.addresses) and len(api.addresses) == 4
    nodes[0].hang = nodes[1].hang = True
    asking = asyncio.create_task(api.get("/x", Who))
    await asyncio.sleep(0)
    api.learn([Endpoint(f"10.0.2.{number}", 1) for number in range(9)])
    assert bootstrap in api.addresses and len(api.addresses) == 4 and others[1] not in api.addresses
    assert (await asking).who == "2", "a node that answers after it was forgotten"
    await api.close()


async def test_the_description_never_goes_back() -> None:
    async with FakeCluster(nodes=2) as cluster:
        cluster.create_topic("t", partitions=2)
        api = HttpApi(cluster.bootstrap)
        metadata = ClusterMetadata(api)
        assert metadata.leader("t", 0) == (-1, -1)
        await metadata.refresh(["t"])
        cluster.move_leader("t", 0, 2)
        await metadata.refresh(["t"])
        assert metadata.leader("t", 0) == (2, 2)
        partition = cluster.topics["t"].partitions[0]
        partition.leader, partition.leader_epoch = 1, 1
        cluster.move_leader("t", 1, 1)
        await metadata.refresh(["t"])
        assert (metadata.leader("t", 0), metadata.leader("t", 1)) == ((2, 2), (1, 2))
        cluster.create_topic("t")
        await metadata.refresh(["t"])
        assert (metadata.leader("t", 0), metadata.leader("t", 1)) == ((1, 1), (-1, -1))
        await api.close()


async def test_missing_topics_and_inconsistent_descriptions() -> None:
    async with FakeCluster() as cluster:
        api = HttpApi(cluster.bootstrap)
        metadata = ClusterMetadata(api)
        cluster.create_topic("t").partitions[0].number = 5
        answers = await metadata.refresh(["t", "nothing"])
        kinds = {name: type(answer) for name, answer in answers.items()}
        assert kinds == {"t": RemoteProtocolError, "nothing": InvalidRequest}
        await api.close()


async def test_two_clusters_are_not_mixed() -> None:
    async with FakeCluster() as cluster:
        api = HttpApi(cluster.bootstrap)
        metadata = ClusterMetadata(api)
        metadata.cluster_id = "another"
        with pytest.raises(RemoteProtocolError, match="two clusters"):
            await metadata.refresh([])
        await api.close()


def test_a_description_contains_the_maximum_batch_size() -> None:
    def described(**configs: str) -> TopicDescription:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        return TopicDescription(
            name="t",
            id="00" * 16,
            partition_count=1,
            replication_factor=1,
            configs=named,
            partitions=[PartitionInfo(0)],
        )

    assert described().max_message_bytes == 1 << 20
    assert described(max_message_bytes="2048").max_message_bytes == 2048
    assert described(max_message_bytes="many").max_message_bytes == 1 << 20


async def test_refreshing_continues_until_it_works_and_changes_the_node() -> None:
    async with FakeCluster(nodes=2) as cluster:
        cluster.create_topic("t")
        for node in cluster.nodes.values():
            node.api_problem = {"code": "quorum_unavailable", "status": 503, "detail": "no leader"}
        api = HttpApi(cluster.bootstrap)
        seen: list[object] = []
        failures: list[RaftlogError] = []
        done = asyncio.Event()

        def refreshed(answers: object) -> None:
            seen.append(answers)
            done.set()

        metadata = ClusterMetadata(api)
        refresher = MetadataRefresher(api, metadata, refreshed, failures.append)
        refresher.ask(["t"])
        refresher.ask(["t", "u"])
        await asyncio.sleep(0.1)
        assert not seen
        for node in cluster.nodes.values():
            node.api_problem = None
        async with asyncio.timeout(5):
            await done.wait()
        assert list(seen[0]) == ["t", "u"]  # type: ignore[call-overload]
        first = api.addresses[0]
        for _ in range(6):
            done.clear()
            refresher.ask(["t"])
            await done.wait()
        assert {first, api.addresses[0]} <= set(api.addresses)
        await refresher.close()
        await api.close()
