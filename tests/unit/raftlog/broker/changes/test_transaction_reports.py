"""Reports of leaders are repeated until the view shows their effect, and never sent for a leadership that ended."""

from __future__ import annotations

from collections.abc import Callable

from metadata.commands.envelope import Command
from metadata.commands.transactions import AbortOverdue, ChangeTransactions, Marked
from metadata.quorum.port import Fate
from metadata.quorum.port import Outcome as Proposed
from raftlog.broker.changes import transaction_reports
from raftlog.broker.changes.transaction_reports import TransactionReports
from raftlog.model import BrokerId
from raftlog.transactions import TransactionKey
from tests.support.metadata.transactions import ABORTED, TransactionCluster, commit, key, output, tp
from tests.support.partitions.manual import ManualScheduler


class Leader:
    """Node 0, which leads all four partitions; the test decides the outcome of each command."""

    def __init__(self) -> None:
        self.cluster = TransactionCluster()
        self.cluster.view.feature_level = 3
        self.scheduler = ManualScheduler()
        self.commands: list[Command] = []
        self._done: list[Callable[[Proposed], None]] = []
        self.reports = TransactionReports(
            BrokerId(0), self.cluster.view, self.scheduler, self._propose, lambda index, callback: callback()
        )

    def _propose(self, command: Command, done: Callable[[Proposed], None]) -> None:
        self.commands.append(command)
        self._done.append(done)

    def apply(self) -> None:
        result = self.cluster.apply(self.commands[-1])
        self._done.pop()(Proposed(Fate.APPLIED, self.cluster.image.index, result))
        self.scheduler.run()

    def answer_without_effect(self) -> None:
        """Answer that all of the command was refused."""
        self._done.pop()(Proposed(Fate.APPLIED, self.cluster.image.index))
        self.scheduler.run()

    def lose(self, fate: Fate = Fate.UNKNOWN) -> None:
        self._done.pop()(Proposed(fate, detail="lost"))
        self.scheduler.run()

    def committed(self, *numbers: int) -> TransactionKey:
        one, *_ = self.cluster.open_block(count=1)
        self.cluster.do_change(commit(output(one, dict.fromkeys(numbers, 5))))
        return one

    def written(self, number: int, *keys: TransactionKey) -> None:
        self.reports.markers_written(tp(number), keys)
        self.scheduler.run()

    @property
    def sizes(self) -> list[list[int]]:
        """For each command: the number of keys in its changes."""
        return [
            [len(change.keys) for change in command.changes if isinstance(change, Marked | AbortOverdue)]
            for command in self.commands
            if isinstance(command, ChangeTransactions)
        ]


def test_reports_during_a_command_share_the_next_command() -> None:
    leader = Leader()
    one, other = leader.committed(0, 1), leader.committed(0)
    leader.written(0, one)
    leader.written(0, other)
    leader.written(1, one)
    assert leader.sizes == [[1]]
    leader.apply()
    assert leader.sizes == [[1], [1, 1]]
    leader.apply()
    assert leader.reports.waiting == 0
    assert leader.cluster.view.transactions.ends_count == 0
    assert len(leader.commands) == 2


def test_a_lost_report_is_repeated_until_the_view_shows_it() -> None:
    leader = Leader()
    one = leader.committed(0)
    leader.written(0, one)
    for fate in (Fate.UNKNOWN, Fate.REFUSED):
        leader.lose(fate)
        leader.scheduler.advance(1.0)
    assert len(leader.commands) == 3 and leader.commands[0] == leader.commands[2]
    leader.apply()
    assert leader.reports.waiting == 0 and leader.cluster.view.transactions.ends_count == 0


def test_a_report_whose_effect_is_visible_before_its_answer_is_not_repeated() -> None:
    leader = Leader()
    one = leader.committed(0)
    leader.written(0, one)
    leader.cluster.mark(0, one)
    leader.lose()
    leader.scheduler.advance(1.0)
    assert len(leader.commands) == 1 and leader.reports.waiting == 0


def test_refused_reports_are_checked_again_after_a_pause_even_if_others_were_accepted() -> None:
    """Repeated at once, they would be refused each time."""
    leader = Leader()
    one = leader.committed(0, 1)
    for number in (0, 1):
        leader.reports.markers_written(tp(number), [one])
    leader.scheduler.run()
    assert leader.sizes == [[1, 1]]
    leader.cluster.mark(1, one)
    leader.answer_without_effect()
    assert len(leader.commands) == 1
    leader.scheduler.advance(transaction_reports.PAUSE_SECONDS)
    assert leader.sizes == [[1, 1], [1]]


def test_a_leadership_that_ended_sends_no_reports() -> None:
    """The next leader finds the decisions that are waited for, and reports them."""
    leader = Leader()
    one = leader.committed(0)
    leader.written(0, one)
    leader.cluster.fence(0)
    leader.cluster.unfence(0)
    assert leader.cluster.elect(0) == ""
    leader.apply()
    assert leader.cluster.view.transactions.unmarked(tp(0)) == [one]
    leader.scheduler.advance(1.0)
    assert len(leader.commands) == 1 and leader.reports.waiting == 0
    leader.written(0, one)
    leader.apply()
    assert leader.cluster.view.transactions.unmarked(tp(0)) == []


def test_partitions_of_other_leaders_and_deleted_ones_are_not_reported() -> None:
    leader = Leader()
    leader.reports.markers_written(tp(77), [key(0)])
    leader.written(0, key(5))
    assert leader.commands == [] and leader.reports.waiting == 0


def test_overdue_transactions_are_aborted_once() -> None:
    leader = Leader()
    open_ones = leader.cluster.open_block()
    leader.reports.overdue(tp(0), open_ones[:2])
    leader.reports.overdue(tp(1), open_ones[:1])
    leader.scheduler.run()
    assert leader.sizes == [[2]]
    leader.lose()
    leader.scheduler.advance(1.0)
    leader.apply()
    assert leader.cluster.verdict(open_ones[0], 0) == leader.cluster.verdict(open_ones[1], 0) == ABORTED
    leader.reports.overdue(tp(0), open_ones[:2])
    leader.scheduler.advance(1.0)
    assert leader.sizes == [[2], [2]] and leader.reports.waiting == 0


def test_commands_and_memory_are_bounded() -> None:
    leader = Leader()
    keys = [leader.committed(0) for _ in range(20)]
    before, transaction_reports.KEYS_PER_COMMAND = transaction_reports.KEYS_PER_COMMAND, 8
    try:
        leader.written(0, *keys)
        for _ in range(3):
            leader.apply()
        assert leader.sizes == [[8], [8], [4]]
    finally:
        transaction_reports.KEYS_PER_COMMAND = before
    leader.reports.overdue(tp(0), [key(10**6 + number) for number in range(transaction_reports.MAX_OVERDUE + 5)])
    assert leader.reports.waiting == transaction_reports.MAX_OVERDUE
