"""Every route and verb, of the router and of the OpenAPI document: no answer without a credential, none without a right
(S12)."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urljoin

import msgspec
import pytest
import pytest_asyncio

from http_api.app import CONSOLE_ROUTES, MESSAGE_ROUTES, REST_PROXY_ROUTES, ROUTES, VIEWER_ROUTES
from http_api.rest_proxy import document as rest_proxy
from http_api.routes.cluster import OPENAPI
from http_api.web.middleware import ALWAYS_ANSWERED
from metadata.records.events import RulesChanged
from raftlog.api.timeline import ClusterChange
from raftlog.errors import InvalidRequest
from raftlog.security.acls import OPERATIONS_OF, AclFilter, Operation, ResourceType
from raftlog.wire import TRANSACTIONS_PATH
from tests.support.client.secured_broker import Headers, SecuredBroker, basic
from tests.support.http.api_client import Answer, Api, eventually, is_documented, running_api, running_listener
from tests.support.http.http2_client import Http2Client, http2_client
from tests.support.http.route_rights import Case, Right, cases, content_type_of, filled, ways_to
from tests.support.security.rules import allow

pytestmark = pytest.mark.integration

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
DOCUMENTED = {
    (method.upper(), path)
    for document in (OPENAPI, rest_proxy.OPENAPI)
    for path, item in msgspec.json.decode(document)["paths"].items()
    for method in item
    if method.upper() in METHODS
}
ROUTED = {(method, path) for method, path, _ in (*ROUTES, *REST_PROXY_ROUTES, *MESSAGE_ROUTES)}
SHELL = {(method, path) for method, path, _ in (*CONSOLE_ROUTES, *VIEWER_ROUTES)}
"""Files without data, which a browser needs before its user can sign in (`http_api/console/`, `http_api/viewer/`)."""
PATHS = sorted({path for _, path in ROUTED | DOCUMENTED | SHELL})
STRANGE_PATHS = (
    "/v1", "/v2/topics", "/v1/topics/", "/topics/", "/brokers/1", "/topics/t/partitions/0/x",
    "/v3", "/v3/clusters/fake-cluster/nothing", "/v1/health/", "/V1/health", "/v1/health/x",
    "/v1/users/a/b", "/v1/topics/t/secrets", "/v1/topics/%00", "/v1/topics/..%2f..%2fhealth", "/favicon.ico",
    "/raftlog.forward", "/v1/" + "x" * 4_000,
)  # fmt: skip
REQUEST_ID = {"X-Request-Id": "the-same"}


class Idle:
    """Moves, scrubs and explanations of a broker that has none."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*arguments: object) -> Any:
            raise InvalidRequest("invalid_request", "nothing to do")

        return refuse


class NothingToExplain(Idle):
    """Explanations of a broker that remembers no change."""

    def changes(self) -> Iterator[ClusterChange]:
        return iter(())


class Counting(SecuredBroker):
    """A broker that counts what requests cost it."""

    catch_ups = 0

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.moves = self.scrubs = Idle()
        self.explain = NothingToExplain()

    def _catch_up(self) -> bool:
        self.catch_ups += 1
        return super()._catch_up()


@pytest_asyncio.fixture
async def broker() -> Counting:
    broker = Counting()
    await broker.user("bob", password="a long password")
    return broker


class Http2Api(Api):
    """The same API at the data listener, called over HTTP/2."""

    client: Http2Client

    async def call(self, method: str, path: str, **options: Any) -> Answer:
        headers, body = options.pop("headers", {}), options.pop("data", None)
        assert not options, options
        answer = await self.client.request(method, path, headers, body)
        if answer.status == 308:
            answer = await self.client.request(method, urljoin(path, answer.headers["Location"]), headers, body)
        assert is_documented(method, path, answer.status), f"{method} {path}: {answer.status} is not in openapi.json"
        return answer


@pytest_asyncio.fixture(params=["HTTP/1.1", "HTTP/2"])
async def api(broker: Counting, request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    async with running_api(broker) as running:
        if request.param == "HTTP/1.1":
            yield running
            return
        over = Http2Api(broker, running.runner, running.port, running.session)
        async with running_listener(running) as port, http2_client(port) as over.client:
            yield over


def is_open(method: str, path: str) -> bool:
    return (method in ("GET", "HEAD") and path in ALWAYS_ANSWERED) or (method, path) in SHELL


def refused(answer: Answer, method: str) -> bytes:
    """Check that an answer is the one refusal of all requests without a valid credential, and return its body."""
    assert answer.status == 401, (method, answer)
    assert answer.headers.getall("WWW-Authenticate") == [  # type: ignore[attr-defined]
        'Bearer realm="raftlog"', 'Basic realm="raftlog", charset="UTF-8"'
    ]  # fmt: skip
    if method != "HEAD":
        answer.problem("unauthenticated")
    return answer.body


def test_the_table_of_rights_has_every_route() -> None:
    assert set(cases(bytes(16))) == ROUTED
    assert {(method, path) for method, path in ROUTED if path != TRANSACTIONS_PATH} == DOCUMENTED


CREDENTIALS: dict[str, list[tuple[str, str]]] = {
    "none": [],
    "an unknown token": [("Authorization", "Bearer rlt_abcdefghijkl_" + "A" * 43)],
    "half a token": [("Authorization", "Bearer rlt_abc")],
    "an unknown access token": [("Authorization", "Bearer eyJhbGciOiJub25lIn0.e30.")],
    "an empty bearer": [("Authorization", "Bearer")],
    "a wrong password": [*basic("bob", "another password").items()],
    "an unknown name": [*basic("eve", "a long password").items()],
    "a reserved name": [*basic("ANONYMOUS", "x").items()],
    "broken base64": [("Authorization", "Basic !!!")],
    "another scheme": [("Authorization", 'Digest username="bob"')],
    "an empty header": [("Authorization", "")],
    "two headers": [*basic("bob", "a long password").items(), *basic("bob", "a long password").items()],
}


@pytest.mark.parametrize("credential", CREDENTIALS)
async def test_nothing_is_answered_without_a_valid_credential(api: Api, broker: Counting, credential: str) -> None:
    broker.add_topic("t")
    headers = [*REQUEST_ID.items(), *CREDENTIALS[credential]]
    costs = broker.catch_ups
    bodies: dict[str, set[bytes]] = {}
    for path in (*PATHS, *STRANGE_PATHS):
        for method in METHODS if credential in ("none", "a wrong password") else ("GET", "POST", "PROPFIND"):
            answer = await api.call(method, filled(path), headers=headers)
            if is_open(method, path):
                assert answer.status == 200, (method, path)
            elif method == "HEAD":
                assert refused(answer, method) == b""
            else:
                bodies.setdefault(answer.headers["Content-Type"], set()).add(refused(answer, method))
    assert [len(found) for found in bodies.values()] == [1, 1, 1], "every cause and path of an API have the same answer"
    assert broker.catch_ups == costs, "nothing was asked of the quorum"


async def test_all_causes_have_the_same_answer(api: Api) -> None:
    answers = [await api.get("/v1/topics", headers=[*REQUEST_ID.items(), *one]) for one in CREDENTIALS.values()]
    assert len({refused(answer, "GET") for answer in answers}) == 1
    others = [[(k, v) for k, v in answer.headers.items() if k.lower() != "date"] for answer in answers]
    assert len({tuple(sorted(one)) for one in others}) == 1


BODIES: dict[str, bytes] = {
    "noise": os.urandom(200),
    "broken JSON": b'{"name": ',
    "another shape": b"[1, 2]",
    "nesting": b"[" * 100_000,
    "large": b" " * 2_000_000,
}


@pytest.mark.parametrize("body", BODIES)
async def test_bodies_are_not_looked_at_before_the_decision(api: Api, broker: Counting, body: str) -> None:
    nobody = await broker.user("nobody")
    topic = broker.add_topic("t")
    table = cases(topic.topic_id)
    for (method, path), case in table.items():
        if method == "HEAD" or is_open(method, path):
            continue
        for content_type in ("application/json", "text/html", content_type_of(case.body)):
            given = {**REQUEST_ID, "Content-Type": content_type}
            where = f"{filled(path)}?topic_id=1&unknown=1"
            refused(await api.call(method, where, headers=given, data=io.BytesIO(BODIES[body])), method)
            if isinstance(case.needs, str) or case.names_in_body:
                continue
            told = await api.call(method, where, headers={**given, **nobody}, data=io.BytesIO(BODIES[body]))
            told.problem("authorization_failed")
    assert broker.produced == []
    await api.is_well()


def shows_nothing(document: Any) -> bool:
    """Return whether a list is empty."""
    if isinstance(document, dict) and "data" in document:
        return document["data"] == []
    return not document or set(map(str, document.values())) <= {"[]", "False", "0"}


async def test_a_caller_without_rights_learns_nothing(api: Api, broker: Counting) -> None:
    nobody = {**REQUEST_ID, **await broker.user("nobody")}

    async def all_answers() -> dict[tuple[str, str], Answer]:
        topic = broker.view.topic("t")
        table = cases(topic.topic_id if topic is not None else bytes(16))
        return {key: await send(api, key, case, nobody) for key, case in table.items()}

    costs = broker.catch_ups
    absent = await all_answers()
    for key, case in cases(bytes(16)).items():
        answer = absent[key]
        if isinstance(case.needs, tuple):
            document = answer.problem("authorization_failed")
            assert document["detail"].startswith("User:nobody may not "), key
            assert "exist" not in document["detail"]
        elif case.needs == "list":
            assert shows_nothing(answer.document), key
        elif case.needs == "stream":
            answer.problem("invalid_request")
        elif case.needs == "everybody":
            told = {"live": True} if key[1] == "/v1/live" else {"ready": True, "problems": []}
            assert answer.status == 200 and (key[0] == "HEAD" or answer.document == told)
        else:
            assert answer.status == 200, key
    lists = sum(case.needs == "list" for case in cases(bytes(16)).values())
    assert broker.catch_ups - costs <= lists, "only lists may cost a round trip to the quorum"

    broker.add_topic("t")
    await api.post("/v1/groups/g/offsets", {"offsets": [{"topic": "t", "partition": 0, "offset": 0}]}, headers=nobody)
    await broker.security.create_user("carol", None, superuser=True)
    present = await all_answers()
    for key in absent:
        if key != ("POST", "/v1/cluster/feature-level") and absent[key].status == 403:
            assert absent[key].body == present[key].body, f"{key} tells whether something exists"


@pytest.mark.parametrize("method", METHODS)
async def test_other_methods_and_paths_are_not_found_by_those_who_are_known(
    api: Api, broker: Counting, method: str
) -> None:
    nobody = await broker.user("nobody")
    for path in PATHS:
        if (method, path) in ROUTED | SHELL:
            continue
        answer = await api.call(method, filled(path), headers=nobody)
        # `/v1/transactions/commit` is also the path of a transactional id of that name.
        is_a_name = method == "GET" and path.startswith("/v1/transactions/") and path.count("/") == 3
        assert answer.status == (403 if is_a_name else 405), (method, path)
    for path in STRANGE_PATHS:
        assert (await api.call(method, path, headers=nobody)).status in (403, 404, 405), (method, path)


async def send(api: Api, key: tuple[str, str], case: Case, headers: Headers) -> Answer:
    method, path = key
    options: dict[str, Any] = {}
    if case.body is not None:
        headers = {**headers, "Content-Type": content_type_of(case.body)}
        options["data"] = case.body if isinstance(case.body, bytes) else msgspec.json.encode(case.body)
    return await api.call(method, f"{filled(path)}{'?' if case.query else ''}{case.query}", headers=headers, **options)


EVERY_RIGHT: list[Right] = [
    (operation, kind) for kind in ResourceType for operation in OPERATIONS_OF[kind] if operation is not Operation.ALL
]


@pytest.mark.parametrize("key", [key for key, case in cases(bytes(16)).items() if isinstance(case.needs, tuple)])
async def test_a_route_needs_its_rights_and_no_others(api: Api, broker: Counting, key: tuple[str, str]) -> None:
    topic = broker.add_topic("t")
    case = cases(topic.topic_id)[key]
    assert isinstance(case.needs, tuple)

    for number, missing in enumerate(case.needs):
        name = f"without-{number}"
        headers = await broker.user(name)
        others = [right for right in EVERY_RIGHT if right not in ways_to(missing)]
        await broker.allow(*(allow(*right, named(right), principal=f"User:{name}") for right in others))
        answer = await send(api, key, case, headers)
        if answer.status == 200:  # Other topics, or the operation on any of them, let the request itself through.
            assert b"authorization_failed" in answer.body, (key, missing)
        else:
            answer.problem("authorization_failed")
    assert broker.produced == [] or broker.appended("t") == 0

    headers = await broker.user("entitled")
    await broker.allow(*(allow(*right, named(right), principal="User:entitled") for right in case.needs))
    answer = await send(api, key, case, headers)
    assert answer.status not in (401, 403, 500), (key, answer)
    assert b"authorization_failed" not in answer.body


UPLOADS = [
    key
    for key, case in cases(bytes(16)).items()
    if case.body is not None and isinstance(case.needs, tuple) and not case.names_in_body
]
"""The routes that decide by the path, and read a body afterwards."""


@pytest.mark.parametrize("key", UPLOADS)
async def test_a_right_lost_while_the_body_arrives_is_missed_s12(
    api: Api, broker: Counting, key: tuple[str, str]
) -> None:
    topic = broker.add_topic("t")
    case = cases(topic.topic_id)[key]
    assert isinstance(case.needs, tuple)
    headers = await broker.user("carol")
    await broker.allow(*(allow(*right, named(right), principal="User:carol") for right in case.needs))
    body = case.body if isinstance(case.body, bytes) else msgspec.json.encode(case.body)
    rest = asyncio.Event()

    async def upload() -> AsyncIterator[bytes]:
        yield body[:1]
        await rest.wait()
        yield body[1:]

    headers = {**headers, "Content-Type": content_type_of(case.body)}
    asked = asyncio.ensure_future(api.call(key[0], filled(key[1]), headers=headers, data=upload()))
    await eventually(lambda: api.context.held_bytes == 1)
    index = broker.view.index
    await broker.allow(allow(Operation.READ, ResourceType.TOPIC, "another"))
    await broker.security.remove_rules(AclFilter(), dry_run=False)
    assert broker.view.index > index + 1
    index = broker.view.index
    rest.set()
    (await asked).problem("authorization_failed")
    assert (broker.view.index, broker.produced) == (index, []), "it was carried out"


@pytest.mark.parametrize("key", [("GET", "/v1/users"), ("DELETE", "/v1/users/{user}/tokens/{token}")])
async def test_a_right_that_is_gone_once_the_view_is_up_to_date_is_missed_s12(
    api: Api, broker: Counting, key: tuple[str, str]
) -> None:
    """This node is behind: what it has yet to learn is that the caller has lost its right."""
    headers = await broker.user("carol")
    await broker.user("bob-too")
    token = broker.view.security.tokens_of("bob-too")[0]
    await broker.allow(allow(Operation.ALTER, ResourceType.CLUSTER, "raftlog-cluster", principal="User:carol"))

    def learn() -> bool:
        for rule in broker.view.security.rules():
            broker.view.on_events(broker.view.index + 1, [RulesChanged((), (rule,))])
        return True

    broker._catch_up = learn  # type: ignore[method-assign]
    answer = await api.call(key[0], filled(key[1], user="bob-too", token=token.token_id), headers=headers)
    answer.problem("authorization_failed")
    assert broker.view.security.token(token.token_id) == token


def named(right: Right) -> str:
    return "raftlog-cluster" if right[1] is ResourceType.CLUSTER else "*"
