"""Streams of events: each watcher gets what it may see, when it changes, from one computation for all who see the same
(S12)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
import pytest_asyncio

from http_api.live import feed as feeds
from http_api.live import stream as streams
from http_api.live.feed import FEED, Feed
from http_api.live.watched import seconds_of
from http_api.service.access import Usage
from metadata.view import QuotaLimits
from raftlog.security.acls import AclFilter, Operation, ResourceType
from raftlog.security.principals import Caller, Principal
from tests.support.client.secured_broker import Headers, SecuredBroker
from tests.support.http.api_client import PATIENCE_S, Api, eventually, running_api
from tests.support.security.rules import allow

pytestmark = pytest.mark.integration

ALICE = Caller(Principal("alice"), "127.0.0.1")
DESCRIBE, TOPIC = Operation.DESCRIBE, ResourceType.TOPIC


@pytest_asyncio.fixture
async def broker() -> SecuredBroker:
    made = SecuredBroker()
    made.add_topic("open")
    made.add_topic("secret")
    await made.allow(allow(DESCRIBE, TOPIC, "open"))
    return made


@pytest_asyncio.fixture
async def api(broker: SecuredBroker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    """An API that looks at documents more often than usual."""
    monkeypatch.setattr(feeds, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(feeds, "seconds_of", lambda path: None if seconds_of(path) is None else 0.02)
    async with running_api(broker) as running:
        yield running


class Watching:
    """One stream of events, read as a browser does."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._newest: dict[str, dict[str, Any]] = {}

    async def next(self) -> dict[str, Any]:
        """Return the next event's data."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                line = await self._response.content.readline()
                assert line, "the stream has ended"
                if line.startswith(b"data: "):
                    found: dict[str, Any] = msgspec.json.decode(line[6:])
                    return found

    async def until(self, path: str, status: int, fits: Callable[[Any], bool] = lambda document: True) -> Any:
        """Wait until the newest document of this path fits, and return it."""
        while True:
            known = self._newest.get(path)
            if known is not None and known["status"] == status and fits(known["document"]):
                return known["document"]
            event = await self.next()
            self._newest[event["watch"]] = event

    async def ended(self) -> None:
        """Wait for the end of the stream."""
        async with asyncio.timeout(PATIENCE_S):
            while await self._response.content.readline():
                pass


def url(*paths: str) -> str:
    return "/v1/events?" + "&".join(f"watch={quote(path, safe='')}" for path in paths)


@asynccontextmanager
async def watching(api: Api, headers: Headers, *paths: str) -> AsyncIterator[Watching]:
    async with api.session.get(url(*paths), headers=headers) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream"
        assert response.headers["Cache-Control"] == "no-store"
        yield Watching(response)


def feed_of(api: Api) -> Feed:
    return api.runner.app[FEED]


def names(document: Any) -> list[str]:
    return [one["name"] for one in document["topics"]]


async def test_documents_come_at_once_and_again_when_they_change(api: Api, broker: SecuredBroker) -> None:
    root = await broker.user("root", superuser=True)
    async with watching(api, root, "/v1/topics", "/v1/topics/later") as one:
        assert names(await one.until("/v1/topics", 200)) == ["open", "secret"]
        missing = await one.until("/v1/topics/later", 404)
        assert missing["code"] == "unknown_topic"
        looks = feed_of(api).looks
        await eventually(lambda: feed_of(api).looks > looks + 5)
        broker.add_topic("later")
        changed = {event["watch"]: event for event in (await one.next(), await one.next())}
        assert names(changed["/v1/topics"]["document"]) == ["later", "open", "secret"], "nothing was sent in between"
        assert changed["/v1/topics/later"]["document"]["name"] == "later"
    await eventually(lambda: feed_of(api).watchers == [] and feed_of(api).open_streams == 0)
    looks = feed_of(api).looks
    await asyncio.sleep(0.1)
    assert feed_of(api).looks == looks, "without a stream nothing is looked at"


async def test_a_document_needs_the_rights_of_its_own_route_at_every_look_s12(api: Api, broker: SecuredBroker) -> None:
    alice = await broker.user("alice")
    async with watching(api, alice, "/v1/topics", "/v1/topics/secret", "/v1/quorum") as one:
        assert names(await one.until("/v1/topics", 200)) == ["open"]
        refused = await one.until("/v1/topics/secret", 403)
        assert refused["code"] == "authorization_failed"
        await one.until("/v1/quorum", 403)
        await broker.allow(allow(DESCRIBE, TOPIC, "secret"))
        assert (await one.until("/v1/topics/secret", 200))["name"] == "secret"
        await broker.security.remove_rules(AclFilter(), dry_run=False)
        assert (await one.until("/v1/topics/secret", 403))["code"] == "authorization_failed"
        await one.until("/v1/topics", 200, lambda document: names(document) == [])


async def test_watchers_with_the_same_rights_share_each_look_and_others_see_their_own(
    api: Api, broker: SecuredBroker
) -> None:
    root, boss = await broker.user("root", superuser=True), await broker.user("boss", superuser=True)
    alice = await broker.user("alice")
    async with (
        watching(api, root, "/v1/topics") as first,
        watching(api, boss, "/v1/topics") as second,
        watching(api, alice, "/v1/topics") as third,
    ):
        assert names(await first.until("/v1/topics", 200)) == ["open", "secret"]
        assert names(await second.until("/v1/topics", 200)) == ["open", "secret"]
        assert names(await third.until("/v1/topics", 200)) == ["open"]
        assert sorted(feed_of(api).watchers) == [1, 2]


async def test_a_stream_ends_with_its_credential_s12(api: Api, broker: SecuredBroker) -> None:
    alice = await broker.user("alice")
    async with watching(api, alice, "/v1/topics") as one:
        await one.until("/v1/topics", 200)
        token = broker.view.security.tokens_of("alice")[0]
        await broker.security.revoke_token(token.token_id)
        await one.ended()
    (await api.get(url("/v1/topics"), headers=alice)).problem("unauthenticated")


async def test_a_stream_ends_when_the_node_stops(api: Api, broker: SecuredBroker) -> None:
    root = await broker.user("root", superuser=True)
    async with watching(api, root, "/v1/topics") as one:
        await one.until("/v1/topics", 200)
        api.context.stop_taking_requests()
        await one.ended()
        await eventually(lambda: api.context.requests_under_way == 0)
        api.context.closing = False


async def test_only_some_paths_can_be_watched(api: Api, broker: SecuredBroker) -> None:
    root = await broker.user("root", superuser=True)
    for path in (
        "/v1/users", "/v1/events?watch=/v1/topics", "/v1/topics/a/partitions/0/records", "/v1/audit", "/metrics", "/",
        "//host/v1/topics", "http://host/v1/topics", "/v1/topics/", "/v1/topics/a/b", "/v1/topics/\u00fc",
        "/v1/plots/topics/" + "x" * 2_000, "/console/app.js", "", "/v1/topics\n", "/v1/top ics",
    ):  # fmt: skip
        (await api.get(url(path), headers=root)).problem("invalid_request")
    (await api.get("/v1/events", headers=root)).problem("invalid_request")
    (await api.get(url(*(f"/v1/topics/t{n}" for n in range(17))), headers=root)).problem("invalid_request")
    (await api.get("/v1/events?watch=/v1/topics&other=1", headers=root)).problem("invalid_request")
    assert feed_of(api).open_streams == 0


async def test_streams_and_documents_are_bounded(
    api: Api, broker: SecuredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = await broker.user("root", superuser=True)
    alice = await broker.user("alice")
    async with watching(api, root, "/v1/topics", "/v1/cluster"):
        monkeypatch.setattr(feeds, "MAX_DOCUMENTS", 3)
        (await api.get(url("/v1/topics", "/v1/cluster"), headers=alice)).problem("overloaded")
        monkeypatch.setattr(feeds, "MAX_STREAMS_OF_CALLER", 1)
        (await api.get(url("/v1/topics"), headers=root)).problem("overloaded")
        async with watching(api, alice, "/v1/topics"):
            monkeypatch.setattr(feeds, "MAX_STREAMS", 2)
            (await api.get(url("/v1/topics"), headers=root)).problem("overloaded")


async def test_a_caller_watches_a_bounded_number_of_documents(
    api: Api, broker: SecuredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "MAX_DOCUMENTS_OF_CALLER", 2)
    alice, root = await broker.user("alice"), await broker.user("root", superuser=True)
    async with watching(api, alice, "/v1/topics", "/v1/cluster"):
        (await api.get(url("/v1/quorum"), headers=alice)).problem("overloaded")
        async with watching(api, alice, "/v1/topics"), watching(api, root, "/v1/quorum"):
            assert feed_of(api).open_streams == 3


async def test_looks_count_as_requests_and_wait_for_a_quota(api: Api, broker: SecuredBroker) -> None:
    alice = await broker.user("alice")
    async with watching(api, alice, "/v1/topics") as one:
        await one.until("/v1/topics", 200)
        await broker.security.put_quota("User:alice", QuotaLimits(requests_per_second=1))
        await eventually(lambda: broker.access.delay_s(ALICE, Usage.REQUESTS) > 0)
        (await api.get("/v1/topics", headers=alice)).problem("throttled")
        looks = feed_of(api).looks
        broker.add_topic("open-too")
        await broker.allow(allow(DESCRIBE, TOPIC, "open-too"))
        await asyncio.sleep(0.1)
        assert feed_of(api).looks == looks, "the clock of quotas stands still"
        broker.clock.advance(60.0)
        assert "open-too" in names(await one.until("/v1/topics", 200, lambda found: len(found["topics"]) == 2))


async def test_a_quiet_stream_has_heartbeats(api: Api, broker: SecuredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_SECONDS", 0.05)
    root = await broker.user("root", superuser=True)
    async with api.session.get(url("/v1/topics"), headers=root) as response:
        async with asyncio.timeout(PATIENCE_S):
            while await response.content.readline() != b":\n":
                pass


async def test_the_bytes_of_events_count_for_the_quota(api: Api, broker: SecuredBroker) -> None:
    root = await broker.user("root", superuser=True)
    await broker.security.put_quota("User:root", QuotaLimits(bytes_out_per_second=1))
    async with watching(api, root, "/v1/topics") as one:
        await one.until("/v1/topics", 200)
    (await api.get("/v1/topics", headers=root)).problem("throttled")
