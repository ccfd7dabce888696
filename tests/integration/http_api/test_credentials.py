"""Credentials of requests: when they are checked, what is done with the rest of the request, and that none is shown."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import pytest_asyncio
import structlog

from http_api.web.limits import Limits
from raftlog.api.cluster import HealthInfo
from raftlog.broker.security.audit.audit import AuditLevel, AuditTrail
from raftlog.broker.security.identity_provider.access_claims import AccessClaims
from raftlog.model import TopicRecord
from raftlog.records.batch import encode as encode_batch
from raftlog.security.acls import CLUSTER, AclFilter, Operation, ResourceType
from raftlog.security.principals import Principal
from raftlog.security.secrets import Secret
from raftlog.wire import CONTENT_TYPE, FetchPartition, FetchRequest
from tests.support.client.secured_broker import Headers, SecuredBroker, basic
from tests.support.http.api_client import Answer, Api, eventually, running_api
from tests.support.http.route_rights import filled, raw
from tests.support.security.rules import allow

pytestmark = pytest.mark.integration

MIB = 1 << 20
PASSWORD = "correct horse"
RECORDS = "/v1/topics/t/records"


@pytest_asyncio.fixture
async def broker() -> SecuredBroker:
    broker = SecuredBroker(super_users=["User:root"])
    broker.add_topic("t")
    await broker.security.create_user("bob", Secret(PASSWORD), superuser=False)
    return broker


@pytest_asyncio.fixture
async def api(broker: SecuredBroker) -> AsyncIterator[Api]:
    async with running_api(broker, limits=Limits(linger_s=0.2), allowed_origins=["https://console.example"]) as running:
        yield running


class Connection:
    """One raw connection to the API."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, head: str, body: bytes = b"") -> tuple[int, str, bytes]:
        """Send a request; return status, head and body of one answer."""
        self.writer.write(f"{head}\r\nHost: localhost\r\n\r\n".encode() + body)
        return await self.answer()

    async def answer(self) -> tuple[int, str, bytes]:
        async with asyncio.timeout(10):
            got = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            length = [line.split(":")[1] for line in got.split("\r\n") if line.lower().startswith("content-length")]
            return int(got.split()[1]), got, await self.reader.readexactly(int(length[0]) if length else 0)

    async def is_closed(self) -> bool:
        async with asyncio.timeout(10):
            return await self.reader.read() == b""


@asynccontextmanager
async def connected(api: Api) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.transport.abort()


# --- The kinds -------------------------------------------------------------------------------------------------------


async def identity(api: Api, headers: Headers) -> Any:
    answer = await api.get("/v1/identity", headers=headers)
    assert answer.status == 200, answer
    return answer.document


async def test_a_caller_is_known_by_a_token_a_password_or_an_access_token(api: Api, broker: SecuredBroker) -> None:
    token = await broker.token("bob")
    assert await identity(api, token) == {
        "principal": "User:bob",
        "groups": [],
        "host": "127.0.0.1",
        "superuser": False,
        "mechanism": "token",
    }
    assert (await identity(api, basic("bob", PASSWORD)))["mechanism"] == "password"
    broker.access_tokens.valid["jwt"] = AccessClaims(Principal("bob", ("analysts",)), ends_ms=0)
    by_provider = await identity(api, {"Authorization": "Bearer jwt"})
    assert (by_provider["groups"], by_provider["mechanism"]) == (["analysts"], "access_token")
    assert (await identity(api, {"authorization": token["Authorization"].replace("Bearer", "bEARER")}))["mechanism"]


async def test_an_access_token_makes_nobody_the_user_of_its_name(api: Api, broker: SecuredBroker) -> None:
    """The identity provider has its own users: its bob may not change the quorum's."""
    broker.access_tokens.valid["jwt"] = AccessClaims(Principal("bob"), ends_ms=0)
    headers = {"Authorization": "Bearer jwt"}
    (await api.get("/v1/users/bob", headers=headers)).problem("authorization_failed")
    (await api.post("/v1/users/bob/tokens", {}, headers=headers)).problem("authorization_failed")


async def test_a_user_looks_after_its_own_password_and_tokens(api: Api, broker: SecuredBroker) -> None:
    headers = basic("bob", PASSWORD)
    await broker.user("eve")
    assert (await api.get("/v1/users/bob", headers=headers)).document["tokens"] == 0
    made = await api.post("/v1/users/bob/tokens", {"description": "ci"}, headers=headers)
    assert made.status == 201
    assert (await identity(api, {"Authorization": f"Bearer {made.document['token']}"}))["principal"] == "User:bob"
    listed = (await api.get("/v1/users/bob/tokens", headers=headers)).document["tokens"]
    assert listed == [{key: value for key, value in made.document.items() if key != "token"}]
    assert (await api.call("DELETE", f"/v1/users/bob/tokens/{listed[0]['id']}", headers=headers)).status == 204
    (await api.get("/v1/identity", headers={"Authorization": f"Bearer {made.document['token']}"})).problem(
        "unauthenticated"
    )
    changed = await api.call("PATCH", "/v1/users/bob", json={"password": "another horse"}, headers=headers)
    assert changed.status == 200
    (await api.get("/v1/identity", headers=headers)).problem("unauthenticated")
    headers = basic("bob", "another horse")
    for path in ("/v1/users/eve", "/v1/users/eve/tokens", "/v1/users/bob%20", "/v1/users/Bob"):
        (await api.get(path, headers=headers)).problem("authorization_failed")
    for rise in ({"superuser": True}, {"superuser": False}, {"remove_password": True}):
        (await api.call("PATCH", "/v1/users/bob", json=rise, headers=headers)).problem("authorization_failed")
    (await api.call("DELETE", "/v1/users/bob", headers=headers)).problem("authorization_failed")


async def test_a_users_changes_of_its_own_credentials_are_audited(api: Api, broker: SecuredBroker) -> None:
    """No rule allows them, so the line says what does."""
    headers = basic("bob", PASSWORD)
    made = await api.post("/v1/users/bob/tokens", {}, headers=headers)
    await api.call("DELETE", f"/v1/users/bob/tokens/{made.document['id']}", headers=headers)
    await api.call("PATCH", "/v1/users/bob", json={"password": "another horse"}, headers=headers)
    found = [event for event in broker.audit.events if event.principal == "User:bob"]
    assert [event.action for event in found] == [
        "POST /v1/users/{user}/tokens",
        "DELETE /v1/users/{user}/tokens/{token}",
        "PATCH /v1/users/{user}",
    ]
    assert {(event.allowed, event.operation, event.resource_type, event.mechanism) for event in found} == {
        (True, "alter", "cluster", "password")
    }
    assert {(event.rule, event.reason) for event in found} == {("", "the user's own password and tokens")}
    assert all(AuditTrail(AuditLevel.CHANGES, 0).wants(event) for event in found)


async def test_nobody_revokes_the_token_of_another_user_by_its_id(api: Api, broker: SecuredBroker) -> None:
    eve = await broker.user("eve")
    token_id = broker.view.security.tokens_of("eve")[0].token_id
    answer = await api.call("DELETE", f"/v1/users/bob/tokens/{token_id}", headers=basic("bob", PASSWORD))
    answer.problem("unknown_token")
    assert await identity(api, eve)


async def test_a_rule_can_be_explained_for_those_whom_settings_make_superusers(api: Api, broker: SecuredBroker) -> None:
    root = await broker.user("root")
    question = {"operation": "read", "resource_type": "topic", "name": "t", "host": "10.0.0.1"}
    asked = {name: {**question, "principal": f"User:{name}"} for name in ("root", "bob")}
    told = {name: (await api.post("/v1/acls/check", body, headers=root)).document for name, body in asked.items()}
    assert (told["root"]["allowed"], told["bob"]["allowed"]) == (True, False)


@pytest.mark.parametrize("seed", range(40))
async def test_noise_as_a_credential_is_refused(api: Api, seed: int) -> None:
    """Whatever bytes a header may carry, and others that end the connection."""
    random = Random(seed)
    for start in (
        "",
        "Basic ",
        "Bearer ",
        "Bearer rlt_",
        "basic\t",
        "Basic " + b64encode(random.randbytes(30)).decode(),
    ):
        noise = random.randbytes(random.randrange(200)).decode("latin-1")
        if seed % 2:
            noise = "".join(character for character in noise if character.isprintable())
        head = f"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: {start}{noise}"
        received = await api.raw(f"{head}\r\n\r\n".encode("latin-1"))
        assert received.split()[1] in (b"400", b"401"), received
    await api.is_well()


# --- Where none is required ------------------------------------------------------------------------------------------


async def test_without_security_every_credential_is_ignored() -> None:
    from tests.support.client.fake_broker import FakeBroker

    broker = FakeBroker()
    broker.add_topic("t")
    async with running_api(broker) as api:
        for headers in ({}, {"Authorization": "Bearer wrong"}, [("Authorization", "a"), ("Authorization", "b")]):
            assert (await api.get("/v1/topics/t", headers=headers)).status == 200
            found = (await api.get("/v1/identity", headers=headers)).document
            assert (found["principal"], found["mechanism"]) == ("User:ANONYMOUS", "")


async def test_where_credentials_are_optional_none_is_anonymous_and_a_wrong_one_is_refused() -> None:
    broker = SecuredBroker(mode="optional")
    broker.add_topic("t")
    async with running_api(broker) as api:
        (await api.get("/v1/topics/t")).problem("authorization_failed")
        await broker.allow(allow(Operation.DESCRIBE, ResourceType.TOPIC, "t", principal="User:*"))
        assert (await api.get("/v1/topics/t")).status == 200
        assert (await api.get("/openapi.json")).status == 200
        (await api.get("/v1/topics/t", headers=basic("eve", "x"))).problem("unauthenticated")
        (await api.get("/v1/nothing")).problem("not_found")


# --- Load balancers --------------------------------------------------------------------------------------------------


async def test_load_balancers_see_no_details_and_fill_no_audit_log(api: Api, broker: SecuredBroker) -> None:
    broker.health_now = HealthInfo(True, ["disk /data of node 1 is full"])
    bob = await broker.token("bob")
    for headers in ({}, bob, basic("bob", "wrong"), {"Authorization": "Digest x"}):
        for method, path, status in (
            ("GET", "/v1/health", 503),
            ("HEAD", "/v1/health", 503),
            ("GET", "/v1/ready", 200),
            ("GET", "/v1/live", 200),
        ):
            answer = await api.call(method, path, headers=headers)
            assert answer.status == status
            assert b"disk" not in answer.body
    assert {reason.split(":")[0] for *_, reason in broker.refusals} == {"wrong_password", "malformed_credential"}
    await broker.allow(allow(Operation.DESCRIBE, ResourceType.CLUSTER, "raftlog-cluster", principal="User:bob"))
    assert b"disk" in (await api.get("/v1/health", headers=bob)).body
    broker.access_tokens.away = True
    assert (await api.get("/v1/health", headers={"Authorization": "Bearer jwt"})).document["problems"] == []


async def test_a_credential_that_cannot_be_checked_may_be_shown_again(api: Api, broker: SecuredBroker) -> None:
    broker.access_tokens.away = True
    answer = await api.get("/v1/topics", headers={"Authorization": "Bearer jwt"})
    answer.problem("identity_provider_unavailable")
    assert "WWW-Authenticate" not in answer.headers


# --- The rest of the request -----------------------------------------------------------------------------------------


async def test_a_refused_request_leaves_the_connection_usable(api: Api, broker: SecuredBroker) -> None:
    async with connected(api) as connection:
        token = (await broker.token("bob"))["Authorization"]
        for head, body in (
            ("GET /v1/topics HTTP/1.1", b""),
            (f"POST {RECORDS} HTTP/1.1\r\nContent-Length: 9", b"x" * 9),
            (f"POST {RECORDS} HTTP/1.1\r\nTransfer-Encoding: chunked", b"3\r\nabc\r\n0\r\n\r\n"),
        ):
            status, got, _ = await connection.ask(head, body)
            assert status == 401 and "Connection: close" not in got
            status, _, _ = await connection.ask(f"GET /v1/topics HTTP/1.1\r\nAuthorization: {token}")
            assert status == 200


async def test_each_request_of_a_connection_needs_its_own_credential(api: Api, broker: SecuredBroker) -> None:
    async with connected(api) as connection:
        token = (await broker.token("bob"))["Authorization"]
        known = f"GET /v1/identity HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n\r\n"
        unknown = "GET /v1/identity HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.writer.write((known + unknown + known + unknown).encode())
        assert [(await connection.answer())[0] for _ in range(4)] == [200, 401, 200, 401]


@pytest.mark.parametrize("framing", ["Content-Length: 50000000", "Transfer-Encoding: chunked"])
async def test_a_body_that_is_still_coming_is_not_read(api: Api, framing: str) -> None:
    """The answer does not wait for it, nothing of it is kept, and the connection is closed."""
    async with connected(api) as connection:
        body = b"5\r\nhello\r\n" if "chunked" in framing else b"hello"
        status, got, _ = await connection.ask(f"POST {RECORDS} HTTP/1.1\r\n{framing}", body)
        assert status == 401 and "Connection: close" in got
        assert api.context.held_bytes == 0
        assert await connection.is_closed()


@pytest.mark.parametrize("path", [RECORDS, "/v1/produce", "/nothing", "/v1/health"])
async def test_a_client_that_asks_first_is_not_told_to_send_its_body(
    api: Api, broker: SecuredBroker, path: str
) -> None:
    async with connected(api) as connection:
        asks = f"POST {path} HTTP/1.1\r\nContent-Length: 9\r\nContent-Type: text/plain\r\nExpect: 100-continue"
        status, got, _ = await connection.ask(asks)
        assert status == 401 and "Connection: close" in got
        assert await connection.is_closed()

    async with connected(api) as connection:
        status, got, _ = await connection.ask(
            f"{asks}\r\nAuthorization: {(await broker.token('bob'))['Authorization']}"
        )
        assert status in (403, 404, 405) and "Connection: close" in got, "those without a right are not told either"


async def test_a_caller_with_the_right_is_told_to_send_its_body(api: Api, broker: SecuredBroker) -> None:
    await broker.allow(allow(Operation.WRITE, ResourceType.TOPIC, "t", principal="User:bob"))
    async with connected(api) as connection:
        token = (await broker.token("bob"))["Authorization"]
        head = f"POST {RECORDS} HTTP/1.1\r\nAuthorization: {token}\r\nContent-Type: text/plain\r\nContent-Length: 5"
        assert (await connection.ask(f"{head}\r\nExpect: 100-Continue"))[0] == 100
        connection.writer.write(b"hello")
        status, got, _ = await connection.answer()
        assert status == 200 and "Connection: close" not in got
        assert (await connection.ask(head, b"again"))[0] == 200
        assert (await connection.ask(head.replace("1.1", "1.0") + "\r\nExpect: 100-continue", b"again"))[0] == 200
        assert broker.appended("t") == 3


async def test_the_answer_to_a_preflight_says_nothing(api: Api) -> None:
    asks = {"Origin": "https://console.example", "Access-Control-Request-Method": "GET"}
    answers = [await api.call("OPTIONS", path, headers=asks) for path in (filled("/v1/topics/{topic}"), "/nothing")]
    assert {(answer.status, answer.body) for answer in answers} == {(204, b"")}
    (await api.call("OPTIONS", "/v1/topics", headers={"Access-Control-Request-Method": "GET"})).problem(
        "unauthenticated"
    )
    (await api.call("OPTIONS", "/v1/topics", headers={**asks, "Origin": "https://evil.example"})).problem(
        "origin_not_allowed"
    )


async def test_a_page_reads_the_challenge(api: Api) -> None:
    answer = await api.get("/v1/topics", headers={"Origin": "https://console.example"})
    answer.problem("unauthenticated")
    assert "WWW-Authenticate" in answer.headers["Access-Control-Expose-Headers"]


# --- Revocation ------------------------------------------------------------------------------------------------------


async def poll(api: Api, headers: Headers, path: str = "/v1/topics/t/partitions/0/records") -> asyncio.Task[Answer]:
    """Begin a long poll, and return it once it waits."""
    waiting = api.broker.fetches_waiting
    polling = asyncio.ensure_future(api.get(f"{path}?max_wait_ms=60000&min_bytes=1000000", headers=headers))
    await eventually(lambda: api.broker.fetches_waiting > waiting)
    return polling


async def test_a_long_poll_ends_with_its_credential(api: Api, broker: SecuredBroker) -> None:
    await broker.allow(allow(Operation.READ, ResourceType.TOPIC, "t", principal="User:bob"))
    token, other = await broker.token("bob"), await broker.token("bob")
    polls = [await poll(api, headers) for headers in (token, other, basic("bob", PASSWORD))]
    assert broker.sessions.open_of_users == 3
    first = next(one for one in broker.view.security.tokens_of("bob") if one.token_id in token["Authorization"])
    await broker.security.revoke_token(first.token_id)
    (await polls[0]).problem("unauthenticated")
    assert not polls[1].done() and not polls[2].done()
    await broker.security.remove_user("bob")
    for polling in polls[1:]:
        (await polling).problem("unauthenticated")
    assert broker.sessions.open_of_users == 0 and broker.fetches_cancelled == 3


async def test_a_long_poll_of_batches_ends_with_its_credential(api: Api, broker: SecuredBroker) -> None:
    await broker.allow(allow(Operation.READ, ResourceType.TOPIC, "t", principal="User:bob"))
    topic = broker.view.topic("t")
    assert topic is not None
    message = FetchRequest(0, 60_000, 1_000_000, 1_000_000, [FetchPartition(topic.topic_id, 0, 0, 1_000_000)])
    headers = await broker.token("bob")
    polling = asyncio.ensure_future(api.post("/v1/fetch", raw(message), CONTENT_TYPE, headers=headers))
    await eventually(lambda: broker.fetches_waiting == 1)
    await broker.security.remove_user("bob")
    (await polling).problem("unauthenticated")


async def test_an_upload_ends_with_its_credential(api: Api, broker: SecuredBroker) -> None:
    """Nothing of it is appended, though rules still allow it: they name the user, and not its token."""
    await broker.allow(allow(Operation.WRITE, ResourceType.TOPIC, "t", principal="User:bob"))
    token = (await broker.token("bob"))["Authorization"]
    async with connected(api) as connection:
        head = f"POST {RECORDS} HTTP/1.1\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked"
        connection.writer.write(f"{head}\r\nHost: localhost\r\nAuthorization: {token}\r\n\r\n5\r\nhello\r\n".encode())
        await eventually(lambda: api.context.held_bytes == 5)
        await broker.security.revoke_token(broker.view.security.tokens_of("bob")[0].token_id)
        status, got, _ = await connection.answer()
        assert status == 401 and "Connection: close" in got
        assert await connection.is_closed()
    assert broker.appended("t") == 0
    await eventually(lambda: api.context.held_bytes == 0)


async def lose_rule(broker: SecuredBroker, operation: Operation, loss: str) -> None:
    """Remove the rule that lets bob use topic t, or deny it."""
    if loss == "removed":
        await broker.security.remove_rules(AclFilter(name="t"), dry_run=False)
    else:
        await broker.allow(allow(operation, ResourceType.TOPIC, "t", principal="User:bob", deny=True))


@pytest.mark.parametrize("loss", ["removed", "denied"])
async def test_a_long_poll_ends_with_its_rule(api: Api, broker: SecuredBroker, loss: str) -> None:
    await broker.allow(
        allow(Operation.READ, ResourceType.TOPIC, "t", principal="User:bob"),
        allow(Operation.READ, ResourceType.TOPIC, "t", principal="User:eve"),
        allow(Operation.READ, ResourceType.GROUP, "g", principal="User:bob"),
    )
    polling = await poll(api, await broker.token("bob"))
    await broker.security.remove_rules(AclFilter(name="g"), dry_run=False)
    assert not polling.done()
    await lose_rule(broker, Operation.READ, loss)
    (await polling).problem("authorization_failed")
    assert broker.fetches_cancelled == 1
    assert sum(not event.allowed for event in broker.audit.events) == 1, "a request is refused once"
    await broker.security.remove_rules(AclFilter(), dry_run=False)
    assert sum(not event.allowed for event in broker.audit.events) == 1


@pytest.mark.parametrize("loss", ["removed", "denied"])
async def test_an_upload_ends_with_its_rule(api: Api, broker: SecuredBroker, loss: str) -> None:
    await broker.allow(allow(Operation.WRITE, ResourceType.TOPIC, "t", principal="User:bob"))
    token = (await broker.token("bob"))["Authorization"]
    async with connected(api) as connection:
        head = f"POST {RECORDS} HTTP/1.1\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked"
        connection.writer.write(f"{head}\r\nHost: localhost\r\nAuthorization: {token}\r\n\r\n5\r\nhello\r\n".encode())
        await eventually(lambda: api.context.held_bytes == 5)
        await lose_rule(broker, Operation.WRITE, loss)
        status, _, _ = await connection.answer()
        assert status == 403
        assert await connection.is_closed()
    assert broker.appended("t") == 0
    await eventually(lambda: api.context.held_bytes == 0)


@pytest.mark.parametrize("loss", ["removed", "denied"])
@pytest.mark.parametrize("path", ["records", "batches", "consumer"])
async def test_an_answer_to_a_slow_client_ends_with_its_rule(
    api: Api, broker: SecuredBroker, path: str, loss: str
) -> None:
    """Another topic that the caller may still read does not save it."""
    broker.add_topic("u")
    await broker.allow(
        allow(Operation.READ, ResourceType.TOPIC, "t", principal="User:bob"),
        allow(Operation.READ, ResourceType.TOPIC, "u", principal="User:bob"),
        allow(Operation.READ, ResourceType.GROUP, "g", principal="User:bob"),
    )
    async with slow_reader(api, broker, path) as connection:
        await broker.security.remove_rules(AclFilter(name="g"), dry_run=False)
        assert api.context.requests_under_way == 1
        await lose_rule(broker, Operation.READ, loss)
        # It has not read yet: nothing that it does is needed.
        await eventually(lambda: api.context.requests_under_way == 0, patience_s=2.0)
        await cut_short(connection)
    assert broker.sessions.open_of_users == 0


async def test_batches_are_sent_whole_while_the_rules_of_other_topics_change(api: Api, broker: SecuredBroker) -> None:
    """Of two topics that it names, the caller may read one: the refusal of the other is in the answer already."""
    secret = broker.add_topic("secret")
    await broker.allow(
        allow(Operation.READ, ResourceType.TOPIC, "t", principal="User:bob"),
        allow(Operation.READ, ResourceType.GROUP, "g", principal="User:bob"),
    )
    async with slow_reader(api, broker, "batches", secret) as connection:
        await broker.security.remove_rules(AclFilter(name="g"), dry_run=False)
        async with asyncio.timeout(10):
            assert len(await connection.reader.readexactly(14 * MIB)) == 14 * MIB
    assert [event.resource for event in broker.audit.events if not event.allowed] == ["secret"]


async def test_an_answer_that_is_short_and_not_taken_ends_with_its_rule(api: Api, broker: SecuredBroker) -> None:
    """Many short answers to requests in a row, none of which is read."""
    await broker.allow(allow(Operation.READ, ResourceType.TOPIC, "t", principal="User:bob"))
    broker.append("t", encode_batch([b"x" * 200_000], base_timestamp_ms=0))
    token = (await broker.token("bob"))["Authorization"]
    head = (
        f"GET /v1/topics/t/partitions/0/records?max_bytes={MIB} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}"
    )
    async with connected(api) as connection:
        connection.writer.write(f"{head}\r\n\r\n".encode() * 100)
        sessions = broker.sessions
        await eventually(lambda: api.context.requests_under_way == 0 and sessions.open_of_users == 1)
        await broker.security.remove_rules(AclFilter(name="t"), dry_run=False)
        await eventually(lambda: sessions.open_of_users == 0 and api.connections == 0, patience_s=2.0)


async def test_the_outcome_of_a_change_is_told_to_a_caller_that_loses_its_right_by_it(
    api: Api, broker: SecuredBroker
) -> None:
    headers = await broker.user("eve")
    rules = [allow(Operation.ALTER, ResourceType.CLUSTER, CLUSTER.name, principal="User:eve")]
    rules += [allow(Operation.READ, ResourceType.TOPIC, f"t{number}", principal="User:eve") for number in range(200)]
    await broker.allow(*rules)
    answer = await api.post("/v1/acls/delete", {"principal": "User:eve"}, headers=headers)
    assert len(answer.document["acls"]) == 201 and len(answer.body) > 1024, answer
    (await api.post("/v1/acls/delete", {}, headers=headers)).problem("authorization_failed")


@asynccontextmanager
async def slow_reader(api: Api, broker: SecuredBroker, path: str, *more: TopicRecord) -> AsyncIterator[Connection]:
    """Yield a connection of bob's that has read the head of a long answer with topic t's records, and nothing else."""
    for _ in range(20):
        broker.append("t", encode_batch([b"x" * 900_000], base_timestamp_ms=0))
    topic = broker.view.topic("t")
    assert topic is not None
    token = (await broker.token("bob"))["Authorization"]
    head = f"GET /v1/topics/t/partitions/0/records?max_bytes={16 * MIB} HTTP/1.1\r\nAuthorization: {token}"
    body = b""
    if path == "consumer":
        head = await a_consumer(api, broker, token)
    if path == "batches":
        topics = [one.topic_id for one in (topic, *more)]
        body = raw(FetchRequest(0, 0, 1, 16 * MIB, [FetchPartition(one, 0, 0, 16 * MIB) for one in topics]))
        head = f"POST /v1/fetch HTTP/1.1\r\nAuthorization: {token}\r\nContent-Type: {CONTENT_TYPE}"
        head = f"{head}\r\nContent-Length: {len(body)}"
    async with connected(api) as connection:
        connection.writer.write(f"{head}\r\nHost: localhost\r\n\r\n".encode() + body)
        await connection.reader.readuntil(b"\r\n\r\n")
        await eventually(lambda: broker.sessions.open_of_users == 1)
        yield connection


async def a_consumer(api: Api, broker: SecuredBroker, token: str) -> str:
    """Create a consumer of the REST Proxy's API; return the head of the request for its records."""
    await broker.allow(allow(Operation.READ, ResourceType.GROUP, "c", principal="User:bob"))
    headers, v2 = {"Authorization": token}, "application/vnd.kafka.v2+json"
    settings = {"name": "i", "format": "binary", "auto.offset.reset": "earliest"}
    assert (await api.post("/consumers/c", settings, v2, headers=headers)).status == 200
    assigned = {"partitions": [{"topic": "t", "partition": 0}]}
    assert (await api.post("/consumers/c/instances/i/assignments", assigned, v2, headers=headers)).status == 204
    path = f"/consumers/c/instances/i/records?max_bytes={16 * MIB}"
    accept = "Accept: application/vnd.kafka.binary.v2+json"
    return f"GET {path} HTTP/1.1\r\nAuthorization: {token}\r\n{accept}"


async def cut_short(connection: Connection) -> None:
    """Check that the rest of a long answer does not come."""
    with pytest.raises(ConnectionError):
        async with asyncio.timeout(10):
            assert len(await connection.reader.read()) < 14 * MIB
            raise ConnectionResetError("ended without the whole answer")


@pytest.mark.parametrize("path", ["records", "batches", "consumer"])
async def test_an_answer_to_a_slow_client_ends_with_its_credential(api: Api, broker: SecuredBroker, path: str) -> None:
    await broker.allow(allow(Operation.READ, ResourceType.TOPIC, "t", principal="User:bob"))
    async with slow_reader(api, broker, path) as connection:
        await broker.security.remove_user("bob")
        await cut_short(connection)
    await eventually(lambda: broker.sessions.open_of_users == 0 and api.context.requests_under_way == 0)


async def test_requests_that_end_are_no_longer_watched(api: Api, broker: SecuredBroker) -> None:
    await broker.allow(allow(Operation.READ, ResourceType.TOPIC, "t", principal="User:bob"))
    headers = await broker.token("bob")
    assert (await api.get("/v1/topics/t/partitions/0/records", headers=headers)).status == 200
    polling = await poll(api, headers)
    polling.cancel()
    await eventually(lambda: broker.sessions.open_of_users == 0)


async def test_a_removed_rule_counts_for_the_next_request(api: Api, broker: SecuredBroker) -> None:
    await broker.allow(allow(Operation.READ, ResourceType.TOPIC, "t", principal="User:bob"))
    headers = await broker.token("bob")
    assert (await api.get("/v1/topics/t", headers=headers)).status == 200
    await broker.security.remove_rules(AclFilter(), dry_run=False)
    (await api.get("/v1/topics/t", headers=headers)).problem("authorization_failed")


# --- Secrets ---------------------------------------------------------------------------------------------------------


async def test_no_credential_is_logged_or_shown(api: Api, broker: SecuredBroker) -> None:
    """Not in what requests that are malformed, refused, broken or served make the node say."""
    secret, password = "Sup3rSecretText", "Sup3rSecretPassword"
    token = (await broker.token("bob"))["Authorization"]
    hidden = (secret, password, token.removeprefix("Bearer "), basic("bob", password)["Authorization"].split()[1])
    with structlog.testing.capture_logs() as lines:
        shown: list[object] = []
        for head in (
            f"GET /v1/topics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\x00",
            f"GET /v1/topics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}{'x' * 9_000}",
            f"GET /v1/topics HTTP/1.1\r\nHost: x\r\nAuthorization Bearer {secret}",
            f"GET /v1/topics HTTP/1.1\r\nHost: x\r\nAuthorization : Bearer {secret}",
            f"GET /v1/topics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\n {secret}",
            f"Authorization: Bearer {secret}",
            f"Bearer {secret} HTTP/1.1\r\nHost: x",
        ):
            shown.append(await api.raw(f"{head}\r\n\r\n".encode("latin-1")))
        for headers in (
            {"Authorization": token},
            {"Authorization": f"Bearer {secret}"},
            {"Authorization": f"{secret} x"},
            basic("bob", password),
            basic("bob", "wrong"),
        ):
            shown.append((await api.get("/v1/topics", headers=headers)).body)
        broker.fail["health"] = RuntimeError("broken")
        shown.append((await api.get("/v1/health", headers={"Authorization": token})).body)
        root = await broker.user("root")
        for body in ({"name": "eve", "password": password}, {"name": 5, "password": password}, {"password": password}):
            shown.append((await api.post("/v1/users", body, headers=root)).body)
        shown.append((await api.post("/v1/users", b'{"name": "' + password.encode(), headers=root)).body)
        shown.append((await api.call("PATCH", "/v1/users/bob", json={"password": password}, headers=root)).body)
    said = repr(lines) + repr(shown) + repr(broker.refusals) + repr(broker.audit.events)
    for text in hidden:
        assert text not in said


async def test_a_new_token_is_shown_once_and_never_stored_by_caches(api: Api, broker: SecuredBroker) -> None:
    answer = await api.post("/v1/users/bob/tokens", {}, headers=basic("bob", PASSWORD))
    assert answer.headers["Cache-Control"] == "no-store"
    text = answer.document["token"]
    for path in ("/v1/users/bob/tokens", "/v1/users/bob"):
        assert text not in (await api.get(path, headers=basic("bob", PASSWORD))).body.decode()


async def test_a_failure_of_the_quorum_is_no_refusal(api: Api, broker: SecuredBroker) -> None:
    root = await broker.user("root")
    broker.quorum_answers = False
    (await api.get("/v1/users", headers=root)).problem("quorum_unavailable")
    (await api.post("/v1/users", {"name": "eve"}, headers=root)).problem("quorum_unavailable")
