"""One node with security: its doors, from the first administrator to a revoked token. S11, S12."""

from __future__ import annotations

import json
import ssl
import sys
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
import pytest_asyncio

from raftlog.broker.identity import init_data_folder
from raftlog.broker.node import node as lifecycle
from raftlog.broker.security.administration.first_administrator import FIRST_ADMINISTRATOR_FILE, AdministratorFile
from raftlog.broker.security.authentication.tokens import new_token
from raftlog.config import load_node_config
from raftlog.http2 import Http2Stream, connect
from raftlog.model import Endpoint
from raftlog.records import batch
from raftlog.wire import (
    CONTENT_TYPE,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    Response,
    decode_response,
    encode,
)
from tests.support.clusters.cluster import eventually
from tests.support.clusters.tls import SETTING, Authority, write
from tests.support.http.api_client import eventually as becomes

pytestmark = pytest.mark.integration

PASSWORD = "correct horse battery staple"


class Told(NamedTuple):
    """One answer of the API."""

    status: int
    body: Any


class Secured:
    """A running node, its administrator's token, and what a client needs."""

    def __init__(
        self, node: lifecycle.Node, folder: Path, authority: Authority, context: ssl.SSLContext, token: str
    ) -> None:
        self.node, self.folder, self.authority, self.context, self.administrator = (
            node, folder, authority, context, token,
        )  # fmt: skip

    async def ask(self, method: str, path: str, token: str | None = None, body: Any = None) -> Told:
        """Ask the API, with a bearer token if there is one."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self.context)) as session,
            session.request(method, f"https://{self.node.api}{path}", headers=headers, json=body) as answer,
        ):
            text = await answer.text()
            return Told(answer.status, json.loads(text) if text else None)

    async def administer(self, method: str, path: str, body: Any = None) -> Any:
        """Return the body of a request that an administrator may make."""
        told = await self.ask(method, path, self.administrator, body)
        assert told.status < 300, told
        return told.body

    async def allow(self, user: str, operation: str, name: str, kind: str = "topic") -> None:
        rule = {"principal": f"User:{user}", "operation": operation, "resource_type": kind, "name": name}
        await self.administer("POST", "/v1/acls", {"acls": [{**rule, "permission": "allow"}]})

    async def new_user(self, name: str) -> str:
        """Create a user and return its token."""
        await self.administer("POST", "/v1/users", {"name": name, "password": PASSWORD})
        return str((await self.administer("POST", f"/v1/users/{name}/tokens", {"description": "test"}))["token"])

    async def produce(
        self, token: str, producer_id: int, epoch: int, sequence: int, *, transactional: bool = False
    ) -> str:
        """Write a batch to the topic `orders`, and return the error; empty if it was appended."""
        topic = self.node.broker.view.topic("orders")
        assert topic is not None
        packed = batch.encode(
            [b"x"],
            base_timestamp_ms=0,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        request = ProduceRequest(1, -1, 1_000, [ProducePartition(topic.topic_id, 0, len(packed))])
        headers = {"Authorization": f"Bearer {token}", "Content-Type": CONTENT_TYPE}
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self.context)) as session,
            session.post(
                f"https://{self.node.api}/v1/produce", data=b"".join(encode(request, [packed])), headers=headers
            ) as answer,
        ):
            response = decode_response(memoryview(await answer.read()))[0]
        assert isinstance(response, ProduceResponse), response
        return response.partitions[0].error

    def audited(self) -> list[dict[str, Any]]:
        """Return the lines of the audit log."""
        path = self.folder / "data" / "audit.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest_asyncio.fixture
async def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Secured]:
    authority = Authority()
    write(tmp_path, authority, authority.for_node("c1", 0))
    data = tmp_path / "data"
    init_data_folder(str(data), cluster_id="c1", node_id=0, voters={0: Endpoint("127.0.0.1", 0)})
    token = new_token()
    (data / FIRST_ADMINISTRATOR_FILE).write_bytes(AdministratorFile.of("admin", token).encoded())
    files = SETTING
    for name in ("certificate", "key", "authority"):
        files = files.replace(f'"{name}.pem"', f'"{tmp_path}/{name}.pem"')
    listen = 'listen = { host = "127.0.0.1", port = 0 }'
    text = f'tls = {files}\napi = {{ {listen} }}\ndata = {{ {listen} }}\n[security]\nmode = "required"\n'
    interval = sys.getswitchinterval()
    monkeypatch.setattr(lifecycle, "configure_logging", lambda *_, **__: None)
    node = lifecycle.Node(load_node_config(text), str(data))
    try:
        await node.start()
        context = ssl.create_default_context(cadata=authority.pair[0].decode())
        made = Secured(node, tmp_path, authority, context, token.text.reveal())

        async def is_known() -> bool:
            return (await made.ask("GET", "/v1/identity", made.administrator)).status == 200

        await eventually(is_known, "the first administrator is known")
        yield made
    finally:
        await node.stop()
        sys.setswitchinterval(interval)


class Answers:
    """The handler of one stream of requests."""

    def __init__(self) -> None:
        self.told: list[Response] = []
        self.ended = ""

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        self.told.append(decode_response(message)[0])

    def on_ended(self, stream: Http2Stream) -> None:
        stream.end()

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        self.ended = reason or "closed"


async def test_the_first_administrator_is_made_once_and_its_file_removed_s12(secured: Secured) -> None:
    told = await secured.ask("GET", "/v1/identity", secured.administrator)
    assert (told.body["principal"], told.body["superuser"]) == ("User:admin", True)
    file = secured.folder / "data" / FIRST_ADMINISTRATOR_FILE

    async def is_removed() -> bool:  # in a thread of its own, after the administrator is known
        return not file.exists()

    await eventually(is_removed, "the first administrator's file is removed")


async def test_strangers_get_401_and_users_what_their_rules_allow_s12(secured: Secured) -> None:
    token = await secured.new_user("alice")
    creation = {"name": "orders", "partitions": 1}
    assert (await secured.ask("POST", "/v1/topics", None, creation)).status == 401
    assert (await secured.ask("POST", "/v1/topics", "rlt_" + "a" * 56, creation)).status == 401
    assert (await secured.ask("POST", "/v1/topics", token, creation)).status == 403
    assert (await secured.ask("GET", "/v1/topics", token)).body["topics"] == []
    await secured.administer("POST", "/v1/topics", creation)
    records = {"records": [{"value": "x"}]}
    assert (await secured.ask("POST", "/v1/topics/orders/records", token, records)).status == 403
    await secured.allow("alice", "write", "orders")
    assert (await secured.ask("POST", "/v1/topics/orders/records", token, records)).status == 200
    read = "/v1/topics/orders/partitions/0/records?offset=0"
    assert (await secured.ask("GET", read, token)).status == 403, "to write is not to read"
    await secured.allow("alice", "read", "orders")
    assert len((await secured.ask("GET", read, token)).body["records"]) == 1
    shown = (await secured.ask("GET", "/v1/topics", token)).body["topics"]
    assert [topic["name"] for topic in shown] == ["orders"]


async def test_a_revoked_token_and_a_removed_user_are_shut_out_s12(secured: Secured) -> None:
    token = await secured.new_user("alice")
    assert (await secured.ask("GET", "/v1/identity", token)).status == 200
    (listed,) = (await secured.administer("GET", "/v1/users/alice/tokens"))["tokens"]
    await secured.administer("DELETE", f"/v1/users/alice/tokens/{listed['id']}")
    assert (await secured.ask("GET", "/v1/identity", token)).status == 401
    await secured.administer("DELETE", "/v1/users/alice")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=secured.context)) as session:
        login = {"Authorization": "Basic " + b64encode(f"alice:{PASSWORD}".encode()).decode()}
        async with session.get(f"https://{secured.node.api}/v1/identity", headers=login) as answer:
            assert answer.status == 401


async def test_refusals_and_changes_are_in_the_audit_log_without_secrets_s12(secured: Secured) -> None:
    token = await secured.new_user("alice")
    await secured.ask("POST", "/v1/topics", token, {"name": "orders", "partitions": 1})
    await secured.ask("GET", "/v1/topics", "rlt_" + "b" * 56)

    async def is_written() -> bool:
        return len([line for line in secured.audited() if not line["allowed"]]) >= 2

    await eventually(is_written, "both refusals are in the audit log")
    refused = [line for line in secured.audited() if not line["allowed"]]
    assert {line["kind"] for line in refused} == {"authentication", "authorization"}
    assert [line["principal"] for line in refused if line["kind"] == "authorization"] == ["User:alice"]
    changed = [line["action"] for line in secured.audited() if line["allowed"]]
    assert "POST /v1/users" in changed
    text = (secured.folder / "data" / "audit.log").read_text()
    assert all(secret not in text for secret in (token, secured.administrator, PASSWORD))


async def fetched(secured: Secured, token: str | None, topic_id: bytes, max_wait_ms: int = 0) -> tuple[Answers, Any]:
    """Open a stream of fetches, ask once, and return its handler and its connection."""
    # A context of its own: the connection asks for HTTP/2 alone.
    context = ssl.create_default_context(cadata=secured.authority.pair[0].decode())
    connection = await connect(secured.node.data.host, secured.node.data.port, ssl=context)
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    answers = Answers()
    stream = connection.open_stream("/v1/fetch", headers, answers)
    request = FetchRequest(1, max_wait_ms, 1, 1 << 20, [FetchPartition(topic_id, 0, 0, 1 << 20)])
    stream.send(encode(request))
    return answers, connection


async def test_a_data_stream_serves_its_caller_only_and_ends_with_its_token_s12(secured: Secured) -> None:
    token = await secured.new_user("alice")
    await secured.administer("POST", "/v1/topics", {"name": "orders", "partitions": 1})
    topic_id = bytes.fromhex((await secured.administer("GET", "/v1/topics/orders"))["id"])

    async def told(token: str | None) -> Answers:
        answers, connection = await fetched(secured, token, topic_id)
        await becomes(lambda: bool(answers.told or answers.ended))
        connection.close()
        return answers

    for stranger in (None, "rlt_" + "c" * 56):
        answers = await told(stranger)
        assert not any(isinstance(one, FetchResponse) for one in answers.told)
    (refused,) = (await told(token)).told
    assert isinstance(refused, FetchResponse)
    assert refused.partitions[0].error == "authorization_failed"
    await secured.allow("alice", "read", "orders")
    answers, connection = await fetched(secured, token, topic_id, max_wait_ms=60_000)
    (listed,) = (await secured.administer("GET", "/v1/users/alice/tokens"))["tokens"]
    await secured.administer("DELETE", f"/v1/users/alice/tokens/{listed['id']}")
    await becomes(lambda: bool(answers.ended))
    assert not any(isinstance(one, FetchResponse) for one in answers.told)
    connection.close()


async def test_quotas_refuse_with_429_what_is_over_them_s11(secured: Secured) -> None:
    token = await secured.new_user("alice")
    await secured.allow("alice", "create", "raftlog-cluster", kind="cluster")
    await secured.administer(
        "PUT", "/v1/quotas/User:alice", {"topics_created_per_hour": 2, "partitions_created_per_hour": 5}
    )

    async def create(name: str, partitions: int) -> int:
        return (await secured.ask("POST", "/v1/topics", token, {"name": name, "partitions": partitions})).status

    assert await create("a", 6) == 429, "more partitions than an hour's worth"
    assert await create("b", 3) == 201
    assert await create("c", 3) == 429
    assert await create("d", 1) == 201
    assert await create("e", 1) == 429
    await secured.allow("alice", "alter", "d")
    added = await secured.ask("POST", "/v1/topics/d/partitions", token, {"count": 3})
    assert added.status == 429, "one of the hour's partitions is left"
    await secured.administer("PUT", "/v1/quotas/User:alice", {"metadata_commands_per_second": 1})
    await secured.allow("alice", "read", "g", kind="group")
    left = [(await secured.ask("DELETE", "/v1/groups/g/members/m", token)).status for _ in range(20)]
    assert left[0] != 429 and left[-1] == 429, "the quorum is asked at the user's rate"
    await secured.administer("PUT", "/v1/quotas/User:alice", {"requests_per_second": 1})
    statuses = [(await secured.ask("GET", "/v1/identity", token)).status for _ in range(20)]
    assert set(statuses) == {200, 429} and statuses[-1] == 429
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=secured.context)) as session,
        session.get(f"https://{secured.node.api}/v1/identity", headers={"Authorization": f"Bearer {token}"}) as answer,
    ):
        assert (answer.status, int(answer.headers["Retry-After"]) >= 1) == (429, True)
    assert (await secured.ask("GET", "/v1/identity", secured.administrator)).status == 200, "others are not limited"


async def test_a_producer_id_of_one_user_serves_no_other_user_s12(secured: Secured) -> None:
    """Ids can be guessed: without their owner, a batch with the next epoch would fence the producer that has the id."""
    alice, bob = await secured.new_user("alice"), await secured.new_user("bob")
    await secured.administer("POST", "/v1/topics", {"name": "orders", "partitions": 1})
    for name in ("alice", "bob"):
        await secured.allow(name, "write", "orders")
    hers = (await secured.ask("POST", "/v1/producers", alice)).body["producer_id"]
    his = (await secured.ask("POST", "/v1/producers", bob)).body["producer_id"]

    assert await secured.produce(alice, hers, 0, 0) == ""
    assert [await secured.produce(bob, hers, epoch, 0) for epoch in (0, 1)] == ["authorization_failed"] * 2
    assert await secured.produce(bob, 10**9, 0, 0) == "metadata_behind"
    assert await secured.produce(alice, hers, 0, 1) == "", "its owner was not fenced"
    assert await secured.produce(bob, his, 0, 0) == ""


async def test_open_transactions_and_transactional_ids_are_limited(secured: Secured) -> None:
    alice = await secured.new_user("alice")
    await secured.administer("POST", "/v1/topics", {"name": "orders", "partitions": 1})
    await secured.allow("alice", "write", "orders")
    await secured.allow("alice", "write", "*", "transactional_id")
    await secured.administer("PUT", "/v1/quotas/User:alice", {"open_transactions": 1, "transactional_ids": 2})

    async def initialize(name: str) -> Told:
        body = {"transactional_id": name, "timeout_ms": 60_000}
        return await secured.ask("POST", "/v1/transactions/initialize", alice, body)

    one, two = (await initialize("one")).body, (await initialize("two")).body
    refused = await initialize("three")
    assert (refused.status, refused.body["code"], refused.body["retriable"]) == (429, "quota_exceeded", False)

    async def write(key: Any) -> str:
        return await secured.produce(alice, key["producer_id"], key["producer_epoch"], 0, transactional=True)

    assert [await write(one), await write(two)] == ["", "throttled"]
    ended = await secured.ask("POST", "/v1/transactions/abort", alice, {"transactions": [one]})
    assert ended.status == 200, ended
    assert await write(two) == ""
