"""Changes of groups on their way: batched, bounded, in order, and every asker told once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from metadata.commands.envelope import Command, encode
from metadata.commands.groups import MAX_CHANGES_BYTES, ChangeGroups, Commit, Delete, OffsetToCommit
from metadata.commands.results import GroupsChanged, Refused, RefusedChange
from metadata.quorum.port import Fate, Outcome
from raftlog.broker.changes import batches as change_batches
from raftlog.broker.changes.group_batches import GroupBatches
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.model import Offset
from tests.support.metadata_cluster import TOPIC


class Quorum:
    """Keeps what is proposed until the test answers."""

    def __init__(self) -> None:
        self.proposed: list[Command] = []
        self._done: list[Callable[[Outcome], None]] = []
        self.index = 10
        self.level = 2
        self.batches = GroupBatches(self, self.when_view_reaches, lambda: self.level)

    def propose(self, command: Command, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        encode(command)
        self.proposed.append(command)
        self._done.append(done)

    def when_view_reaches(self, index: int, callback: Callable[[], None]) -> None:
        assert index <= self.index
        callback()

    def answer(self, outcome: Outcome) -> None:
        self._done.pop(0)(outcome)

    def apply(self, *refusals: RefusedChange) -> None:
        self.index += 1
        self.answer(Outcome(Fate.APPLIED, self.index, GroupsChanged(refusals)))

    @property
    def sizes(self) -> list[int]:
        return [len(command.changes) for command in self.proposed if isinstance(command, ChangeGroups)]


def change(name: str) -> Delete:
    return Delete(name)


def unreadable() -> list[Commit]:
    """What no node could decode: every field has bounds."""
    offset = OffsetToCommit(TOPIC, 0, Offset(1))
    return [
        Commit("g", "", 2**63, 0, 0, (offset,)),
        Commit("g", "", 2**64, 0, 0, (offset,)),
        Commit("g", "x" * 256, 0, 0, 0, (offset,)),
        Commit("g", "\ud800", 0, 0, 0, (offset,)),
    ]


def big() -> Commit:
    """Some 100 KiB."""
    offsets = tuple(OffsetToCommit(TOPIC, number, Offset(1), -1, "m" * 1000) for number in range(100))
    return Commit("g", "", 0, 0, 0, offsets)


async def test_what_comes_while_one_is_under_way_goes_together() -> None:
    quorum = Quorum()
    asked = [quorum.batches.submit(change(str(number))) for number in range(100)]
    assert quorum.sizes == [1]
    quorum.apply()
    assert await asked[0] == 11
    assert quorum.sizes == [1, 99]
    quorum.apply(RefusedChange(4, "unknown_group", "no"))
    with pytest.raises(InvalidRequest, match="no"):
        await asked[5]
    assert [await future for future in asked[6:]] == [12] * 94


async def test_a_command_is_bounded() -> None:
    quorum = Quorum()
    asked = [quorum.batches.submit(big()) for _ in range(6)]
    while len(quorum.sizes) < 4:
        quorum.apply()
    assert quorum.sizes == [1, 2, 2, 1]
    assert all(len(encode(command)) <= MAX_CHANGES_BYTES + 100 for command in quorum.proposed)
    quorum.apply()
    await asyncio.gather(*asked)
    huge = Commit("g", "", 0, 0, 0, big().offsets * 3)
    with pytest.raises(InvalidRequest, match="split it"):
        quorum.batches.submit(huge)


async def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_batches, "MAX_WAITING", 2)
    quorum = Quorum()
    asked = [quorum.batches.submit(change(name)) for name in "abc"]
    with pytest.raises(RetriableError, match="wait"):
        quorum.batches.submit(change("d"))
    quorum.apply()
    quorum.apply()
    await asyncio.gather(*asked)


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome(Fate.REFUSED, detail="nobody leads"), "quorum_unavailable"),
        (Outcome(Fate.UNKNOWN, detail="the leader went"), "outcome_unknown"),
        (Outcome(Fate.APPLIED, 11, Refused("unsupported_version", "no")), "unsupported_version"),
    ],
)
async def test_a_failure_is_everybodys_and_the_next_ones_go_on(outcome: Outcome, code: str) -> None:
    quorum = Quorum()
    first = quorum.batches.submit(change("a"))
    later = quorum.batches.submit(change("b"))
    quorum.index += 1
    quorum.answer(outcome)
    with pytest.raises(RaftlogError) as caught:
        await first
    assert caught.value.code == code
    quorum.apply()
    await later


async def test_who_has_gone_is_not_told() -> None:
    quorum = Quorum()
    first = quorum.batches.submit(change("a"))
    first.cancel()
    second = quorum.batches.submit(change("b"))
    quorum.apply()
    quorum.apply()
    assert await second == 12


async def test_a_change_below_its_feature_level_is_refused_and_raises_nothing() -> None:
    """The first use of something new must not end an upgrade: an operator does."""
    quorum = Quorum()
    quorum.level = 1
    with pytest.raises(InvalidRequest, match="raftlog cluster finalize") as refused:
        quorum.batches.submit(change("a"))
    assert refused.value.code == "unsupported_version" and quorum.proposed == []
    quorum.level = 2
    asked = quorum.batches.submit(change("a"))
    quorum.apply()
    assert await asked == quorum.index


async def test_a_change_that_no_node_could_read_spoils_only_itself_s11() -> None:
    """Changes share a command: one that cannot be decoded would have all of them refused."""
    quorum = Quorum()
    first = quorum.batches.submit(change("first"))
    for bad in unreadable():
        with pytest.raises(InvalidRequest):
            quorum.batches.submit(bad)
    second = quorum.batches.submit(change("second"))
    quorum.apply()
    quorum.apply()
    assert (await first, await second) == (11, 12)
    assert quorum.sizes == [1, 1]


def commit_of(name: str) -> Commit:
    return Commit(name, "", 0, 0, 0, (OffsetToCommit(TOPIC, 0, Offset(1)),))


async def test_commits_of_many_gather_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_batches, "GATHER_SECONDS", 0.05)
    quorum = Quorum()
    asked = [quorum.batches.submit(commit_of(f"g{n}")) for n in range(6)]
    quorum.apply()
    assert quorum.sizes == [1, 5]  # the first had come alone
    asked.append(quorum.batches.submit(commit_of("next")))
    quorum.apply()
    assert quorum.sizes == [1, 5]
    asked.append(quorum.batches.submit(commit_of("one more")))
    async with asyncio.timeout(20.0):
        while len(quorum.sizes) < 3:  # noqa: ASYNC110 - nothing tells when a command is proposed
            await asyncio.sleep(0.01)
    assert quorum.sizes == [1, 5, 2]
    quorum.apply()
    await asyncio.gather(*asked)


async def test_who_commits_alone_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_batches, "GATHER_SECONDS", 3600.0)
    quorum = Quorum()
    for number in range(3):
        decided = quorum.batches.submit(commit_of("g"))
        assert quorum.sizes == [1] * (number + 1)
        quorum.apply()
        await decided


async def test_a_few_who_commit_in_a_row_wait_only_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_batches, "GATHER_SECONDS", 3600.0)
    quorum = Quorum()
    quorum.batches.submit(change("first"))
    for number in range(3):
        asked = [quorum.batches.submit(commit_of(f"g{n}")) for n in range(6)]
        if not number:
            quorum.apply()
        assert quorum.sizes == [1] + [6] * (number + 1)
        quorum.apply()
        await asyncio.gather(*asked)


async def test_a_change_in_a_hurry_takes_along_what_gathers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_batches, "GATHER_SECONDS", 3600.0)
    quorum = Quorum()
    asked = [quorum.batches.submit(commit_of(f"g{n}")) for n in range(6)]
    quorum.apply()
    quorum.apply()
    asked.append(quorum.batches.submit(commit_of("patient")))
    assert quorum.sizes == [1, 5]
    asked.append(quorum.batches.submit(change("in a hurry")))
    assert quorum.sizes == [1, 5, 2]
    quorum.apply()
    await asyncio.gather(*asked)
