"""Changes of groups in batches: bounded, in order, and one answer for each caller."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from metadata.commands.envelope import Command, encode
from metadata.commands.groups import MAX_CHANGES_BYTES, ChangeGroups, Commit, Delete, GroupChange, OffsetToCommit
from metadata.commands.results import GroupsChanged, Refused, RefusedChange
from metadata.quorum.port import Fate, Outcome
from raftlog.broker.changes import batches as change_batches
from raftlog.broker.changes.group_batches import GroupBatches
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.model import Offset
from tests.support.metadata.cluster import TOPIC
from tests.support.partitions.manual import ManualScheduler


class Asked:
    """A submitted change, and the outcomes that its caller received."""

    def __init__(self) -> None:
        self.answers: list[int | RaftlogError] = []

    @property
    def index(self) -> int:
        (answer,) = self.answers
        assert isinstance(answer, int), answer
        return answer

    @property
    def code(self) -> str:
        (answer,) = self.answers
        assert isinstance(answer, RaftlogError), answer
        return answer.code


class Quorum:
    """A quorum that keeps its proposals until the test answers."""

    def __init__(self) -> None:
        self.proposed: list[Command] = []
        self._done: list[Callable[[Outcome], None]] = []
        self.barriers: list[Callable[[Outcome], None]] = []
        self.index = 10
        self.level = 2
        self.scheduler = ManualScheduler()
        self.batches = GroupBatches(
            self, self.when_view_reaches, lambda: self.level, self.scheduler.clock, self.scheduler
        )

    def submit(self, change: GroupChange) -> Asked:
        asked = Asked()
        self.batches.submit(change, asked.answers.append)
        return asked

    def propose(self, command: Command, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        encode(command)
        self.proposed.append(command)
        self._done.append(done)

    def read_barrier(self, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        self.barriers.append(done)

    def confirm(self) -> None:
        """Answer the oldest read: the view is up to date."""
        self.barriers.pop(0)(Outcome(Fate.APPLIED, self.index, None))

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
    """A change that no node could decode: every field has bounds."""
    offset = OffsetToCommit(TOPIC, 0, Offset(1))
    return [
        Commit("g", "", 2**63, 0, 0, (offset,)),
        Commit("g", "", 2**64, 0, 0, (offset,)),
        Commit("g", "x" * 256, 0, 0, 0, (offset,)),
        Commit("g", "\ud800", 0, 0, 0, (offset,)),
    ]


def big() -> Commit:
    """A change of about 100 KiB."""
    offsets = tuple(OffsetToCommit(TOPIC, number, Offset(1), -1, "m" * 1000) for number in range(100))
    return Commit("g", "", 0, 0, 0, offsets)


def test_changes_submitted_during_a_command_share_the_next_command() -> None:
    quorum = Quorum()
    asked = [quorum.submit(change(str(number))) for number in range(100)]
    assert quorum.sizes == [1]
    quorum.apply()
    assert asked[0].index == 11
    assert quorum.sizes == [1, 99]
    quorum.apply(RefusedChange(4, "unknown_group", "no"))
    assert asked[5].code == "unknown_group"
    assert [one.index for one in asked[6:]] == [12] * 94


def test_a_command_is_bounded() -> None:
    quorum = Quorum()
    asked = [quorum.submit(big()) for _ in range(6)]
    while len(quorum.sizes) < 4:
        quorum.apply()
    assert quorum.sizes == [1, 2, 2, 1]
    assert all(len(encode(command)) <= MAX_CHANGES_BYTES + 100 for command in quorum.proposed)
    quorum.apply()
    assert [one.index for one in asked] == [11, 12, 12, 13, 13, 14]
    huge = Commit("g", "", 0, 0, 0, big().offsets * 3)
    with pytest.raises(InvalidRequest, match="split it"):
        quorum.submit(huge)


def test_the_number_of_waiting_changes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_batches, "MAX_WAITING", 2)
    quorum = Quorum()
    asked = [quorum.submit(change(name)) for name in "abc"]
    with pytest.raises(RetriableError, match="wait"):
        quorum.submit(change("d"))
    quorum.apply()
    quorum.apply()
    assert [one.index for one in asked] == [11, 12, 12]


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome(Fate.REFUSED, detail="nobody leads"), "quorum_unavailable"),
        (Outcome(Fate.UNKNOWN, detail="the leader went"), "outcome_unknown"),
        (Outcome(Fate.APPLIED, 11, Refused("unsupported_version", "no")), "unsupported_version"),
    ],
)
def test_a_failed_command_fails_all_of_its_changes_and_later_ones_continue(outcome: Outcome, code: str) -> None:
    quorum = Quorum()
    first = quorum.submit(change("a"))
    later = quorum.submit(change("b"))
    quorum.index += 1
    quorum.answer(outcome)
    assert first.code == code
    quorum.apply()
    assert later.index


def test_a_callback_that_raises_is_logged_and_affects_no_other() -> None:
    quorum = Quorum()
    first = quorum.submit(change("a"))

    def breaks(outcome: int | RaftlogError) -> None:
        calls.append(outcome)
        raise LookupError("a bug")

    calls: list[int | RaftlogError] = []
    quorum.batches.submit(change("b"), breaks)
    third = quorum.submit(change("c"))
    quorum.apply()
    quorum.apply()
    with pytest.raises(LookupError):
        quorum.scheduler.run()
    quorum.scheduler.run()
    assert (first.index, calls, third.index) == (11, [12], 12)


def test_a_change_submitted_in_a_callback_is_in_the_next_command() -> None:
    quorum = Quorum()
    again: list[Asked] = []
    quorum.batches.submit(change("a"), lambda outcome: again.append(quorum.submit(change("b"))))
    quorum.apply()
    quorum.apply()
    assert again[0].index == 12 and quorum.sizes == [1, 1]


def test_a_change_below_its_feature_level_is_refused_and_does_not_raise_the_level() -> None:
    """An operator ends an upgrade; the first use of a new feature must not."""
    quorum = Quorum()
    quorum.level = 1
    refused = quorum.submit(change("a"))
    quorum.confirm()
    assert refused.code == "unsupported_version" and quorum.proposed == []
    assert "raftlog cluster finalize" in str(refused.answers[0])
    quorum.level = 2
    asked = quorum.submit(change("a"))
    quorum.apply()
    assert asked.index == quorum.index


def test_a_view_that_is_behind_refuses_nothing_for_good_s11() -> None:
    """Another node may have carried out the same change before, as it knew the level."""
    quorum = Quorum()
    quorum.level = 1
    waits, fails = quorum.submit(change("a")), quorum.submit(change("b"))
    assert waits.answers == []
    quorum.level = 2
    quorum.confirm()
    quorum.apply()
    assert waits.index == quorum.index
    quorum.barriers.pop(0)(Outcome(Fate.REFUSED, 0, None, "no leader"))
    assert fails.code == "quorum_unavailable"


def test_changes_that_wait_for_the_feature_level_are_bounded_s11(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_batches, "MAX_WAITING", 2)
    quorum = Quorum()
    quorum.level = 1
    waiting = [quorum.submit(change("a")) for _ in range(2)]
    with pytest.raises(RetriableError, match="too many changes"):
        quorum.submit(change("b"))
    quorum.confirm()
    quorum.confirm()
    assert [one.code for one in waiting] == ["unsupported_version"] * 2
    quorum.level = 2
    again = quorum.submit(change("c"))
    quorum.apply()
    assert again.index == quorum.index


def test_an_unreadable_change_fails_alone_s11() -> None:
    """Changes share a command: one that cannot be decoded would have all of them refused."""
    quorum = Quorum()
    first = quorum.submit(change("first"))
    for bad in unreadable():
        with pytest.raises(InvalidRequest):
            quorum.submit(bad)
    second = quorum.submit(change("second"))
    quorum.apply()
    quorum.apply()
    assert (first.index, second.index) == (11, 12)
    assert quorum.sizes == [1, 1]


def commit_of(name: str) -> Commit:
    return Commit(name, "", 0, 0, 0, (OffsetToCommit(TOPIC, 0, Offset(1)),))


def test_commits_of_many_members_are_collected_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_batches, "GATHER_SECONDS", 0.05)
    quorum = Quorum()
    asked = [quorum.submit(commit_of(f"g{n}")) for n in range(6)]
    quorum.apply()
    assert quorum.sizes == [1, 5]  # the first one came alone
    asked.append(quorum.submit(commit_of("next")))
    quorum.apply()
    assert quorum.sizes == [1, 5]
    asked.append(quorum.submit(commit_of("one more")))
    quorum.scheduler.advance(0.049)
    assert quorum.sizes == [1, 5]
    quorum.scheduler.advance(0.002)
    assert quorum.sizes == [1, 5, 2]
    quorum.apply()
    assert all(one.index for one in asked)


def test_the_commit_of_a_lone_member_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_batches, "GATHER_SECONDS", 3600.0)
    quorum = Quorum()
    for number in range(3):
        decided = quorum.submit(commit_of("g"))
        assert quorum.sizes == [1] * (number + 1)
        quorum.apply()
        assert decided.index


def test_a_few_members_that_commit_in_turn_wait_only_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_batches, "GATHER_SECONDS", 3600.0)
    quorum = Quorum()
    quorum.submit(change("first"))
    for number in range(3):
        asked = [quorum.submit(commit_of(f"g{n}")) for n in range(6)]
        if not number:
            quorum.apply()
        assert quorum.sizes == [1] + [6] * (number + 1)
        quorum.apply()
        assert all(one.index for one in asked)


def test_an_urgent_change_takes_the_collected_commits_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_batches, "GATHER_SECONDS", 3600.0)
    quorum = Quorum()
    asked = [quorum.submit(commit_of(f"g{n}")) for n in range(6)]
    quorum.apply()
    quorum.apply()
    asked.append(quorum.submit(commit_of("patient")))
    assert quorum.sizes == [1, 5]
    asked.append(quorum.submit(change("in a hurry")))
    assert quorum.sizes == [1, 5, 2]
    quorum.apply()
    assert all(one.index for one in asked)
