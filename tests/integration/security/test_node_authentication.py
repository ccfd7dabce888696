"""The authentication of a node with its real threads and libraries. S11, S12."""

from __future__ import annotations

import asyncio
import base64
import gc
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from metadata.records.events import TokenChanged, TokenRemoved, UserChanged, UserRemoved
from metadata.records.security import TokenRecord, UserRecord
from metadata.view import ClusterView
from raftlog.broker.security.authentication.authentication import Authentication
from raftlog.broker.security.authentication.node_authentication import NodeAuthentication
from raftlog.broker.security.authentication.tokens import new_token
from raftlog.broker.security.passwords import passwords
from raftlog.broker.security.passwords.passwords import new_material
from raftlog.broker.security.unauthenticated import Unauthenticated
from raftlog.config import OidcConfig, SecurityConfig
from raftlog.security.presented import Presented
from raftlog.security.secrets import Secret
from raftlog.system.clock import SystemClock
from raftlog.system.futures import future_of
from raftlog.system.priority import BACKGROUND_NICE
from tests.support.security.authenticated_world import basic, bearer, header
from tests.support.security.identity_provider import AUDIENCE, ISSUER, IdentityProvider

pytestmark = pytest.mark.integration

PASSWORD = "correct horse battery"


class Node:
    """The authentication of one node, with a view that a test feeds."""

    def __init__(self, folder: Path) -> None:
        self.view = ClusterView()
        self.provider = IdentityProvider()
        self.jwks = folder / "keys.json"
        self.jwks.write_bytes(self.provider.published("ec"))
        self.refusals: list[tuple[str, ...]] = []
        clock = SystemClock()
        oidc = OidcConfig(issuer=ISSUER, audience=AUDIENCE, jwks=str(self.jwks))
        self.authentication = NodeAuthentication(
            SecurityConfig(mode="required", oidc=oidc),
            "c1",
            self.view,
            clock,
            clock.wall_ms,
            lambda certificate: False,
            lambda *refusal: self.refusals.append(refusal),
        )
        self.authentication.start()

    def apply(self, *events: Any) -> None:
        self.view.on_events(self.view.index + 1, events)

    async def put_user(self, name: str, password: str) -> None:
        material = new_material(Secret(password))
        index = self.view.index + 1
        self.apply(UserChanged(UserRecord(name, False, material.scram, material.argon2, index, index)))

    async def authenticate(self, presented: Presented) -> Authentication:
        return await future_of(lambda answer: self.authentication.ask(presented, answer))

    async def refused(self, presented: Presented) -> str:
        with pytest.raises(Unauthenticated):
            await self.authenticate(presented)
        return self.refusals[-1][3]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    yield made
    await made.authentication.close()


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has a nice value of its own on Linux only")
async def test_passwords_are_checked_at_a_lower_priority_than_the_nodes_work(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    matches, found = passwords.matches, []

    def watched(phc: str, secret: bytes) -> bool:
        found.append(os.getpriority(os.PRIO_PROCESS, 0))
        return matches(phc, secret)

    before = os.getpriority(os.PRIO_PROCESS, 0)
    monkeypatch.setattr(passwords, "matches", watched)
    await node.put_user("alice", PASSWORD)
    assert (await node.authenticate(basic("alice", PASSWORD))).user == "alice"
    assert found == [max(before, BACKGROUND_NICE)] and os.getpriority(os.PRIO_PROCESS, 0) == before


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_each_credential_of_a_user(node: Node) -> None:
    await node.put_user("alice", PASSWORD)
    token = new_token()
    node.apply(TokenChanged(TokenRecord(token.token_id, token.digest, "alice", "", 0, 1)))
    authenticate = node.authenticate
    now = int(time.time())
    jwt = node.provider.token(exp=now + 300, iat=now)
    for presented, mechanism in (
        (basic("alice", PASSWORD), "password"),
        (bearer(token), "token"),
        (header(None, certificate="alice"), "certificate"),
        (bearer(jwt), "access_token"),
        (bearer(jwt, certificate="alice"), "access_token"),
    ):
        found = await authenticate(presented)
        assert (found.caller.principal.name, found.caller.mechanism) == ("alice", mechanism)
    assert await node.refused(basic("alice", "wrong")) == "wrong_password"
    assert await node.refused(basic("nobody", PASSWORD)) == "unknown_user"


async def test_many_requests_at_once_share_one_check(node: Node) -> None:
    await node.put_user("alice", PASSWORD)
    found = await asyncio.gather(*(node.authenticate(basic("alice", PASSWORD)) for _ in range(200)))
    assert {one.caller.principal.name for one in found} == {"alice"}


async def test_a_stream_of_a_removed_user_ends_within_a_second_s12(node: Node) -> None:
    await node.put_user("alice", PASSWORD)
    found = await node.authenticate(basic("alice", PASSWORD))
    ended: asyncio.Future[Unauthenticated] = asyncio.get_running_loop().create_future()
    node.authentication.sessions.open(found, ended.set_result)
    node.apply(UserRemoved("alice"))
    await asyncio.wait_for(ended, 1.0)
    assert await node.refused(basic("alice", PASSWORD)) == "unknown_user"


async def test_a_new_signing_key_is_accepted_without_a_restart(node: Node) -> None:
    now = int(time.time())
    text = node.provider.token("rsa", "RS256", exp=now + 300, iat=now)
    assert "no key of the provider fits" in await node.refused(bearer(text))
    node.jwks.write_bytes(node.provider.published())
    accepted: list[str] = []

    async def attempt() -> None:
        try:
            accepted.append((await node.authenticate(bearer(text))).caller.principal.name)
        except Unauthenticated:
            await asyncio.sleep(0.05)

    async with asyncio.timeout(30):
        while not accepted:
            await attempt()
    assert accepted == ["alice"]


async def test_no_secret_is_in_logs_reports_errors_or_representations_s12(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await node.put_user("alice", PASSWORD)
    token = new_token()
    node.apply(TokenChanged(TokenRecord(token.token_id, token.digest, "alice", "", 0, 1)))
    now = int(time.time())
    jwt, foreign = node.provider.token(exp=now + 300, iat=now), IdentityProvider().token(exp=now + 300, iat=now)
    wrong = "a wrong password"
    secrets = [PASSWORD, wrong, token.text.reveal()[17:], jwt.split(".")[2], foreign.split(".")[2]]
    secrets += [base64.b64encode(f"alice:{word}".encode()).decode() for word in (PASSWORD, wrong)]
    shown: list[str] = []
    with capture_logs() as logs:
        for presented in (basic("alice", PASSWORD), bearer(token), bearer(jwt)):
            found = await node.authenticate(presented)
            shown += [repr(presented), str(presented), repr(found)]
        node.apply(TokenRemoved(token.token_id))
        for presented in (basic("alice", wrong), basic("nobody", wrong), bearer(token), bearer(foreign)):
            with pytest.raises(Unauthenticated) as caught:
                await node.authenticate(presented)
            shown += [repr(presented), str(caught.value), repr(caught.value), repr(vars(caught.value))]
        node.jwks.write_bytes(b"nonsense")
        await until(lambda: bool(node.authentication.problems()))
    shown += [repr(logs), caplog.text, repr(node.refusals), repr(node.authentication.problems())]
    shown += [repr(node.view.security.user("alice")), repr(vars(node.authentication))]
    assert len(node.refusals) == 4 and logs
    for secret in secrets:
        assert not [text for text in shown if secret in text]


def test_a_node_without_security_loads_no_library_of_it() -> None:
    probe = (
        "import sys, raftlog.broker.node.node, raftlog.broker.security.authentication.node_authentication\n"
        "print(sorted({'argon2', 'joserfc'} & {name.partition('.')[0] for name in sys.modules}))"
    )
    found = subprocess.run([sys.executable, "-P", "-c", probe], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


async def test_a_closed_node_leaves_no_thread_behind(tmp_path: Path) -> None:
    import threading

    before = {thread.name for thread in threading.enumerate()}
    made = Node(tmp_path)
    await made.authentication.close()
    gc.collect()
    assert {thread.name for thread in threading.enumerate()} - before <= {"asyncio_0", "asyncio_1"}
