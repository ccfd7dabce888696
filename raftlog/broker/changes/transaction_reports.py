"""Reports of this node's leaders about transactions to the quorum: written markers, and overdue transactions.

Reports that arrive while a command is in flight go into the next one. A report is kept and retried until this node's
view shows that it was accepted, so nothing is lost that a commit waits for. It is dropped if this node no longer leads
the partition in that leader epoch: the next leader reports again what is still needed. Leaders repeat reports of
overdue transactions, so those may be dropped if there are too many.

Nothing here depends on asyncio, sockets or threads: the simulator runs this class unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

from metadata.commands.transactions import (
    TRANSACTIONS_FEATURE_LEVEL,
    AbortOverdue,
    ChangeTransactions,
    Marked,
    TransactionChange,
)
from metadata.quorum.port import Fate, Outcome, Propose
from metadata.records.transactions import Standing
from metadata.view import ClusterView
from raftlog.model import BrokerId, LeaderEpoch, TopicPartition
from raftlog.ports import Scheduler
from raftlog.transactions import TransactionKey

KEYS_PER_COMMAND = 2_000
"""Maximum number of keys in a command: some milliseconds of work."""
CHANGES_PER_COMMAND = 250
MAX_OVERDUE = 10_000
"""Maximum number of overdue transactions kept here. Leaders report dropped ones again."""
PAUSE_SECONDS = 0.25
"""Pause before a report is retried, in seconds."""

WhenViewReaches = Callable[[int, Callable[[], None]], None]


class TransactionReports:
    """The reports of one node, bounded by the commits that wait for markers (`MAX_ENDS`) and by `MAX_OVERDUE`."""

    def __init__(
        self,
        node_id: BrokerId,
        view: ClusterView,
        scheduler: Scheduler,
        propose: Propose,
        when_view_reaches: WhenViewReaches,
    ) -> None:
        self._node_id = node_id
        self._view = view
        self._scheduler = scheduler
        self._propose = propose
        self._when_view_reaches = when_view_reaches
        self._marked: dict[TopicPartition, tuple[LeaderEpoch, dict[TransactionKey, None]]] = {}
        self._overdue: dict[TransactionKey, None] = {}
        self._busy = False
        """Whether a command is in flight or a turn is scheduled."""

    def markers_written(self, topic_partition: TopicPartition, keys: Sequence[TransactionKey]) -> None:
        """Report commits whose marker in the partition is below its high watermark, or that need none there."""
        epoch = self._own_epoch(topic_partition)
        if epoch is None:
            return
        known = self._marked.get(topic_partition)
        if known is None or known[0] != epoch:
            known = self._marked[topic_partition] = (epoch, {})
        known[1].update(dict.fromkeys(keys))
        self._wake(0.0)

    def overdue(self, topic_partition: TopicPartition, keys: Sequence[TransactionKey]) -> None:
        """Report transactions that are open for longer than allowed."""
        for key in islice(keys, max(0, MAX_OVERDUE - len(self._overdue))):
            self._overdue[key] = None
        self._wake(0.0)

    @property
    def waiting(self) -> int:
        """Number of reports that the view does not show yet."""
        return len(self._overdue) + sum(len(keys) for _, keys in self._marked.values())

    # --- Inside ------------------------------------------------------------------------------------------------------

    def _own_epoch(self, topic_partition: TopicPartition) -> LeaderEpoch | None:
        record = self._view.partition(topic_partition)
        return record.leader_epoch if record is not None and record.leader == self._node_id else None

    def _wake(self, seconds: float) -> None:
        if self._busy or not (self._marked or self._overdue):
            return
        self._busy = True
        if seconds:
            self._scheduler.call_later(seconds, self._turn)
        else:
            self._scheduler.call_soon(self._turn)

    def _turn(self) -> None:
        try:
            self._report()
        except BaseException:
            self._again(PAUSE_SECONDS)  # the loop reports it
            raise

    def _report(self) -> None:
        changes = tuple(self._changes())
        if not changes or self._view.feature_level < TRANSACTIONS_FEATURE_LEVEL:
            self._busy = False
            return
        self._propose(ChangeTransactions(changes), lambda outcome: self._answered(changes, outcome))

    def _changes(self) -> Iterator[TransactionChange]:
        """Yield the next changes that are still needed, and drop the others."""
        room = KEYS_PER_COMMAND
        transactions = self._view.transactions
        for topic_partition in list(islice(self._marked, CHANGES_PER_COMMAND)):
            epoch, keys = self._marked[topic_partition]
            if self._own_epoch(topic_partition) != epoch:
                keys.clear()
            some = _next(keys, room, partial(self._is_waited_for, topic_partition))
            if not some:
                del self._marked[topic_partition]
                continue
            room -= len(some)
            yield Marked(topic_partition.topic_id, topic_partition.partition, epoch, tuple(some))
            if room <= 0:
                return
        open_still = (Standing.UNDECIDED, Standing.UNKNOWN)
        some = _next(self._overdue, room, lambda key: transactions.standing(key) in open_still)
        if some:
            yield AbortOverdue(tuple(some))

    def _is_waited_for(self, topic_partition: TopicPartition, key: TransactionKey) -> bool:
        return self._view.transactions.end_offset(key, topic_partition) is not None

    def _answered(self, changes: tuple[TransactionChange, ...], outcome: Outcome) -> None:
        if outcome.fate is Fate.APPLIED:
            self._when_view_reaches(outcome.index, lambda: self._settled(changes))
        else:
            self._again(PAUSE_SECONDS)

    def _settled(self, changes: tuple[TransactionChange, ...]) -> None:
        """Check the result: the view no longer shows accepted reports as awaited; refused ones are retried later."""
        refused = True  # unless nothing raises
        try:
            refused = self._take_off(changes)
        finally:
            self._again(PAUSE_SECONDS if refused else 0.0)

    def _take_off(self, changes: tuple[TransactionChange, ...]) -> bool:
        """Return whether any of the changes was refused."""
        refused = False
        for change in changes:
            if isinstance(change, AbortOverdue):
                for key in change.keys:
                    self._overdue.pop(key, None)
            elif isinstance(change, Marked):
                name = change.topic_partition
                refused |= any(self._view.transactions.end_offset(key, name) is not None for key in change.keys)
        return refused

    def _again(self, seconds: float) -> None:
        self._busy = False
        self._wake(seconds)


def _next(
    keys: dict[TransactionKey, None], most: int, counts: Callable[[TransactionKey], bool]
) -> list[TransactionKey]:
    """Return the first keys that still count, and drop those before them."""
    found: list[TransactionKey] = []
    while keys and not found:
        for key in list(islice(keys, most)):
            if counts(key):
                found.append(key)
            else:
                del keys[key]
    return found
