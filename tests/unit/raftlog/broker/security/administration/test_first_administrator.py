"""The first administrator: from the file in a data folder into the quorum, once. S12."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from metadata.commands.cluster import SetFeatureLevel
from metadata.commands.envelope import Command
from metadata.commands.results import CommandResult, Refused
from metadata.commands.security import SECURITY_FEATURE_LEVEL, ChangeSecurity, PutUser
from raftlog.broker.changes.proposer import Proposer
from raftlog.broker.security.administration import first_administrator
from raftlog.broker.security.administration.first_administrator import (
    FIRST_ADMINISTRATOR_FILE,
    AdministratorFile,
    FirstAdministrator,
    read_first_administrator,
)
from raftlog.broker.security.authentication.tokens import NewToken, new_token
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.system.disk import LocalDisk
from tests.support.http.api_client import eventually
from tests.support.metadata.cluster import Cluster


class Quorum:
    """A proposer whose commands are applied at once, after the given errors."""

    def __init__(self, level: int = SECURITY_FEATURE_LEVEL) -> None:
        self.cluster = Cluster(1, feature_level=SECURITY_FEATURE_LEVEL)
        if level:
            self.cluster.do(SetFeatureLevel(level))
        self.errors: list[tuple[bool, RetriableError]] = []
        """Whether the command is applied all the same, and the error."""
        self.proposed = 0

    async def decide(self, command: Command) -> CommandResult:
        self.proposed += 1
        applies, error = self.errors.pop(0) if self.errors else (True, None)
        if not applies:
            assert error is not None
            raise error
        result = self.cluster.apply(command)
        if error is not None:
            raise error
        if isinstance(result, Refused):
            raise result.error()
        return result


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_administrator, "RETRY_SECONDS", 0.0)


@pytest.fixture
def token() -> NewToken:
    return new_token()


@pytest.fixture
def folder(tmp_path: Path, token: NewToken) -> Path:
    (tmp_path / FIRST_ADMINISTRATOR_FILE).write_bytes(AdministratorFile.of("admin", token).encoded())
    return tmp_path


def starting(folder: Path, quorum: Quorum) -> FirstAdministrator:
    disk = LocalDisk(str(folder))
    found = read_first_administrator(disk, str(folder))
    assert found is not None
    proposer = cast(Proposer, quorum)
    return FirstAdministrator(found, disk, quorum.cluster.view, proposer, structlog.get_logger())


async def test_the_administrator_is_made_and_the_file_removed(folder: Path, token: NewToken) -> None:
    quorum = Quorum()
    first = starting(folder, quorum)
    assert "user 'admin'" in first.problems()[0]
    with capture_logs() as logs:
        await first.run()
    user = quorum.cluster.view.security.user("admin")
    assert user is not None and user.superuser and not user.argon2
    record = quorum.cluster.view.security.token(token.token_id)
    assert record is not None and record.digest == token.digest and record.principal_name == "admin"
    assert first.problems() == [] and not os.listdir(folder)
    assert read_first_administrator(LocalDisk(str(folder)), "f") is None
    assert token.text.reveal() not in repr(logs) and token.digest.hex() not in repr(logs)


async def test_a_quorum_that_does_not_answer_is_asked_again(folder: Path, token: NewToken) -> None:
    """An answer that was lost, of a command that was carried out, is no refusal."""
    quorum = Quorum()
    quorum.errors = [
        (False, RetriableError("quorum_unavailable", "no leader")),
        (True, RetriableError("outcome_unknown", "lost")),
    ]
    first = starting(folder, quorum)
    with capture_logs() as logs:
        await first.run()
    assert quorum.proposed == 3 and first.problems() == []
    assert [line["event"] for line in logs] == [*["first_administrator_waits"] * 2, "first_administrator_made"]


async def test_a_second_administrator_is_refused_for_good(folder: Path, token: NewToken) -> None:
    quorum = Quorum()
    quorum.cluster.do(ChangeSecurity((PutUser("root", True, None, "", 0),)))
    first = starting(folder, quorum)
    with capture_logs() as logs:
        await first.run()
    assert quorum.cluster.view.security.user("admin") is None
    assert quorum.cluster.view.security.token(token.token_id) is None
    assert "its token is void" in first.problems()[0] and not os.listdir(folder)
    assert [line["event"] for line in logs] == ["first_administrator_refused"]


async def test_older_nodes_are_never_sent_the_command(folder: Path) -> None:
    quorum = Quorum(level=0)
    first = starting(folder, quorum)
    running = asyncio.create_task(first.run())
    await eventually(lambda: "raftlog cluster finalize" in first.problems()[0])
    assert quorum.proposed == 0 and (folder / FIRST_ADMINISTRATOR_FILE).exists()
    quorum.cluster.do(SetFeatureLevel(SECURITY_FEATURE_LEVEL))
    await asyncio.wait_for(running, 10)
    assert quorum.cluster.view.security.user("admin") is not None


def changed(**fields: Any) -> Callable[[bytes], bytes]:
    return lambda content: msgspec.json.encode(msgspec.json.decode(content) | fields)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda content: content[:-20], "damaged"),
        (lambda content: b"", "damaged"),
        (lambda content: content + b" " * 5000, "more than 4096 bytes"),
        (lambda content: b"[" * 4000, "damaged"),
        (changed(token_sha256="ab"), "damaged"),
        (changed(token_id="A" * 12), "damaged"),
        (changed(user="*"), "reserved"),
        (changed(user="a\nb"), "U[+]000A"),
        (changed(superuser=False), "unknown field"),
        (changed(format_version=2), "supports 1"),
    ],
)
def test_a_damaged_file_is_refused_s11(folder: Path, damage: Callable[[bytes], bytes], why: str) -> None:
    path = folder / FIRST_ADMINISTRATOR_FILE
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InvalidRequest, match=why):
        read_first_administrator(LocalDisk(str(folder)), str(folder))


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / FIRST_ADMINISTRATOR_FILE).write_bytes(content)
    with pytest.raises(InvalidRequest):
        read_first_administrator(LocalDisk(str(folder)), str(folder))


def test_the_file_has_this_format() -> None:
    """Golden: nodes of later versions read it."""
    content = AdministratorFile(1, "admin", "abcdefghijkl", "00" * 32).encoded()
    assert msgspec.json.decode(content) == {
        "format_version": 1,
        "user": "admin",
        "token_id": "abcdefghijkl",
        "token_sha256": "00" * 32,
    }
