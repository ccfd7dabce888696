"""The inner parts of clients under test: each is seen by its own public face, and made by the client itself."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from raftlog.client import producer
from raftlog.client.consuming import topic_consumer
from raftlog.client.consuming.fetcher import Fetcher
from raftlog.client.groups import consumer as group_consumer
from raftlog.client.groups.calls import MemberCalls
from raftlog.client.producing.sender import Sender
from raftlog.errors import RetriableError
from tests.support.recorded import recorded


@pytest.fixture
def fetchers(monkeypatch: pytest.MonkeyPatch) -> list[Fetcher]:
    """The fetchers of the consumers that the test makes, in the order in which they begin to read."""
    return recorded(monkeypatch, topic_consumer, "Fetcher")


@pytest.fixture
def senders(monkeypatch: pytest.MonkeyPatch) -> list[Sender]:
    """The senders of the producers that the test makes, in the order in which they begin to send."""
    return recorded(monkeypatch, producer, "Sender")


class MortalCalls(MemberCalls):
    """The calls of a group member, none of which arrives after the death of its process."""

    latest: ClassVar[MortalCalls]
    """The calls of the member that was made last."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.dead = False
        MortalCalls.latest = self

    async def join(self, *arguments: Any) -> Any:
        self._check_life()
        return await super().join(*arguments)

    async def heartbeat(self, *arguments: Any, **named: Any) -> Any:
        self._check_life()
        return await super().heartbeat(*arguments, **named)

    async def leave(self, *arguments: Any, **named: Any) -> None:
        self._check_life()
        await super().leave(*arguments, **named)

    async def commit(self, *arguments: Any, **named: Any) -> None:
        self._check_life()
        await super().commit(*arguments, **named)

    def _check_life(self) -> None:
        if self.dead:
            raise RetriableError("connection_lost", "the process is dead")


@pytest.fixture
def mortal_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let group members that the test makes die without leaving or committing (`MortalCalls`)."""
    monkeypatch.setattr(group_consumer, "MemberCalls", MortalCalls)
