"""Commits that are in flight for long: they contain a member's former state, and arrive when it owns the partition
again.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from jepsen_like.clients import group_offsets
from jepsen_like.clients.group_offsets import GroupOffsetsClient
from jepsen_like.clients.messages import CertainlyNot, OutcomeUnknown
from jepsen_like.clients.process import ClientSettings
from raftlog.api.transactions import ConsumedOffsets
from raftlog.client import GroupPartition
from raftlog.client.cluster.api import HttpApi
from raftlog.errors import InvalidRequest

OPTIONS = {"tag": "x", "topics": {"t": 1}, "late_every": 1}
ME, SOMEBODY = "me", "somebody"


class Group:
    """Reports the partition's owner, answer by answer, and accepts or refuses commits."""

    def __init__(self, *owners: str, refusal: str = "") -> None:
        self.owners, self.refusal = list(owners), refusal
        self.commits: list[tuple[Any, ...]] = []

    async def committed(self, *, timeout: float) -> list[Any]:
        owner = self.owners.pop(0) if len(self.owners) > 1 else self.owners[0]
        return [SimpleNamespace(group_partition=GroupPartition("t", 0), member_id=owner)]

    async def commit(self, offsets: Any, *who: Any, timeout: float) -> None:
        self.commits.append((offsets, *who))
        if self.refusal:
            raise InvalidRequest(self.refusal, "it was granted since")


class Consumer:
    """Owns the partition."""

    assignment = (GroupPartition("t", 0),)
    generation = 7

    async def poll(self, count: int, *, timeout: float) -> list[Any]:
        return []

    def consumed(self) -> ConsumedOffsets:
        return ConsumedOffsets("group-x", (), ME, 3, self.generation)


class Chosen:
    """The group of the client under test, through its API."""

    group: ClassVar[Group]

    def __init__(self, api: HttpApi, name: str) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> GroupOffsetsClient:
    monkeypatch.setattr(group_offsets, "GroupApi", Chosen)
    monkeypatch.setattr(group_offsets, "subscribed", lambda *where, **settings: Consumer())
    monkeypatch.setattr(group_offsets, "LATE_EVERY", 0.001)
    monkeypatch.setattr(group_offsets, "LATE_SECONDS", 0.05)
    return GroupOffsetsClient(ClientSettings(("127.0.0.1:1",), 0, 0, 1.0, OPTIONS))


async def had(client: GroupOffsetsClient, group: Group) -> Any:
    """A client whose member owned the partition at its last poll."""
    Chosen.group = group
    told = await client.invoke("poll", None, {})
    assert told.value["owned"] == ["t/0"]
    return await client.invoke("commit", ["t/0", 5], {"late": True})


async def test_it_waits_for_the_partition_and_names_the_former_member(client: GroupOffsetsClient) -> None:
    group = Group(SOMEBODY, SOMEBODY, ME)
    told = await had(client, group)
    assert (told.kind, told.value) == ("ok", ["t/0", 5])
    assert group.commits == [({GroupPartition("t", 0): 5}, ME, 3, 7)]


async def test_if_the_partition_does_not_return_nothing_is_sent(client: GroupOffsetsClient) -> None:
    group = Group(SOMEBODY)
    with pytest.raises(CertainlyNot):
        await had(client, group)
    assert not group.commits


async def test_a_refusal_does_not_determine_the_outcome_of_earlier_copies(client: GroupOffsetsClient) -> None:
    with pytest.raises(OutcomeUnknown, match="granted since"):
        await had(client, Group(ME, refusal="stale_generation"))


async def test_a_partition_that_it_never_owned_gives_no_late_commit(client: GroupOffsetsClient) -> None:
    with pytest.raises(CertainlyNot):
        await client.invoke("commit", ["t/0", 5], {"late": True})
