"""Requests by way of the API count as a connection: its end is reported once, after the last answer."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.client.cluster.broker_request import BrokerRequest
from raftlog.client.cluster.transport_http1 import CONGESTED_BYTES, ApiConnection
from raftlog.errors import CODES, Applied, RaftlogError, RemoteProtocolError, RetriableError
from raftlog.model import Endpoint
from raftlog.ports import Buffer
from raftlog.wire import OffsetsRequest, OffsetsResponse, Response, encode


class Api:
    """Answers each request when a test lets it."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[bytes]] = []

    async def once(self, path: str, message: bytes, content_type: str, timeout: float) -> Buffer:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.asked.append(answer)
        return await answer


class World:
    def __init__(self) -> None:
        self.api = Api()
        self.told: list[str] = []
        self.over: list[ApiConnection] = []
        self.connection = ApiConnection(
            1,
            Endpoint("127.0.0.1", 1),
            self.api,
            lambda: self.told.append("drained"),
            self.over.append,  # type: ignore[arg-type]
        )

    def ask(self, body: bytes = b"") -> None:
        def answered(response: Response, rest: memoryview) -> None:
            assert not self.over, "the end comes last"
            self.told.append(f"answered {response.correlation_id}")

        def lost(error: RaftlogError) -> None:
            assert not self.over, "the end comes last"
            self.told.append(error.code)

        self.connection.request(
            BrokerRequest("/v1/fetch", lambda number: OffsetsRequest(number, []), 5.0, answered, lost, [body])
        )

    def answer(self, number: int) -> None:
        self.api.asked[number].set_result(b"".join(encode(OffsetsResponse(number, []))))  # type: ignore[arg-type]


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_end_of_a_retired_connection_is_reported_after_its_last_answer() -> None:
    world = World()
    world.ask()
    world.ask()
    await turns()
    world.connection.retire()
    assert not world.connection.usable
    with pytest.raises(RetriableError) as refused:
        world.ask()
    assert refused.value.code == "connection_lost"
    world.answer(1)
    await turns()
    assert world.told == ["answered 1"] and not world.over
    world.answer(0)
    await turns()
    assert world.told == ["answered 1", "answered 0"] and world.over == [world.connection]
    world.connection.retire()
    world.connection.close("again")
    await turns()
    assert world.over == [world.connection], "once"


async def test_an_idle_connection_that_is_retired_ends_in_a_later_turn() -> None:
    world = World()
    world.ask()
    await turns()
    world.answer(0)
    await turns()
    assert world.told == ["answered 0"] and not world.over and world.connection.oldest_sent_at is None
    world.connection.retire()
    assert not world.over
    await turns()
    assert world.over == [world.connection]


async def test_a_closed_connection_drops_its_requests_in_flight_and_ends() -> None:
    world = World()
    world.ask()
    await turns()
    world.connection.close("the client is closed")
    await turns()
    assert world.told == ["connection_lost"] and world.over == [world.connection]


async def test_an_unreadable_answer_leaves_the_outcome_unknown() -> None:
    """S1: the batch of such an answer may be in the log."""
    world = World()
    world.ask()
    await turns()
    world.api.asked[0].set_exception(RemoteProtocolError("the answer is longer than any"))
    await turns()
    assert world.told == ["protocol_error"], "lost"
    assert CODES["protocol_error"].applied is Applied.UNKNOWN
    world.connection.close("over")
    await turns()


async def test_many_waiting_requests_are_congestion_whose_end_is_reported() -> None:
    world = World()
    for _ in range(3):
        world.ask(b"x" * (512 * 1024))
    await turns()
    assert world.connection.congested
    world.answer(0)
    await turns()
    assert world.told == ["answered 0"] and world.connection.congested, "two are a MiB, with their heads"
    world.answer(1)
    await turns()
    assert world.told == ["answered 0", "answered 1", "drained"] and not world.connection.congested
    world.connection.close("over")
    await turns()


async def test_a_bug_in_a_request_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.ask()
    await turns()
    world.api.asked[0].set_exception(KeyError("nobody foresaw this one"))
    await turns()
    assert world.told == ["connection_lost"]
    [logged] = [record for record in caplog.records if record.name == "raftlog.client"]
    assert logged.exc_info is not None and logged.exc_info[0] is KeyError


async def test_an_answer_that_breaks_its_receiver_still_reports_the_end() -> None:
    heard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context["exception"]))
    world, bug = World(), KeyError("nobody foresaw this one")

    def broken(response: Response, rest: memoryview) -> None:
        raise bug

    world.connection.request(
        BrokerRequest(
            "/v1/fetch",
            lambda number: OffsetsRequest(number, []),
            5.0,
            answered=broken,
            lost=lambda error: None,
            body=[bytes(CONGESTED_BYTES)],
        )
    )
    await turns()
    world.connection.retire()
    world.answer(0)
    await turns()
    assert heard == [bug]
    assert (world.told, world.over) == (["drained"], [world.connection])
