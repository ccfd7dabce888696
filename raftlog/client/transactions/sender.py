"""Sends the records of transactions: a `Sender` whose batches carry the open transaction's key, and its policy.

Where a plain producer recovers (with a new producer id if a leader has lost its state, or by resending to a topic that
was re-created), a transaction breaks: records that may be lost, duplicated or in another topic cannot be committed. A
broken transaction sends nothing more, and every waiting caller gets the error. Sequence numbers begin at 0 in every
partition with every transaction, since every transaction has its own key.

The acknowledged records are kept as one offset per partition: a commit names the end of the last acknowledged batch.
Records beyond it are not part of the commit, so a delayed write cannot ride along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from raftlog.client.cluster.api import HttpApi
from raftlog.client.producing.batch import Batch
from raftlog.client.producing.delivery import DeliveryFuture
from raftlog.client.producing.sender import Sender, SendingPolicy
from raftlog.client.settings import ProducerSettings
from raftlog.errors import InvalidRequest, RaftlogError, RemoteProtocolError
from raftlog.model import Offset, TopicId, TopicPartition
from raftlog.transactions import TransactionKey
from raftlog.wire import TransactionOutput


@dataclass(slots=True, eq=False)
class _Progress:
    """Progress of the open transaction.

    Invariant: once it is broken, none of its records is unsent or awaited.
    """

    key: TransactionKey
    tell: Callable[[RaftlogError], None]
    broken: RaftlogError | None = None
    topics: set[str] = field(default_factory=set)
    end_offsets: dict[TopicPartition, Offset] = field(default_factory=dict)


class Breaking(SendingPolicy):
    """The policy of a transactional sender: deliver everything of the open transaction, or break it."""

    mends = False

    def __init__(self) -> None:
        self.progress: _Progress | None = None
        """Progress of the open transaction; None if none is open."""

    @property
    def broken(self) -> RaftlogError | None:
        """Error that broke the open transaction."""
        return None if self.progress is None else self.progress.broken

    @property
    def key(self) -> TransactionKey | None:
        return None if self.progress is None or self.progress.broken is not None else self.progress.key

    def check(self) -> None:
        if self.broken is not None:
            raise aborted_because(self.broken)

    def delivered(
        self, batch: Batch[DeliveryFuture], base_offset: int, topic_ids: Mapping[str, bytes]
    ) -> RaftlogError | None:
        progress = self.progress
        if progress is None:
            return None
        if base_offset < 0:
            return RemoteProtocolError(f"the leader of {batch.topic}/{batch.partition} returned no offset")
        partition = TopicPartition(TopicId(topic_ids[batch.topic]), batch.partition)
        end_offset = max(progress.end_offsets.get(partition, 0), base_offset + batch.count)
        progress.end_offsets[partition] = Offset(end_offset)
        progress.topics.add(batch.topic)
        return None

    def has_written(self, topic: str) -> bool:
        return self.progress is not None and topic in self.progress.topics

    def breaks(self, error: RaftlogError) -> bool:
        progress = self.progress
        if progress is None or progress.broken is not None:
            return False
        progress.broken = error
        return True

    def tell(self, error: RaftlogError) -> None:
        if self.progress is not None:
            self.progress.tell(error)


class TransactionSender:
    """Sends one transaction after the other.

    Belongs to one event loop; `close` its `sender`.
    """

    def __init__(self, api: HttpApi, settings: ProducerSettings) -> None:
        self._policy = Breaking()
        self.sender = Sender(api, settings, self._policy)
        """The sender of their records."""

    def begin(self, key: TransactionKey, broken: Callable[[RaftlogError], None]) -> None:
        """Send under this key from now on.

        `broken` is called once, with the error, if the transaction can no longer be committed. No record of another
        transaction may be unfinished.
        """
        assert self._policy.progress is None and not self.sender.unfinished()
        self._policy.progress = _Progress(key, broken)
        self.sender.sequencer.start_over(key.producer_id, key.producer_epoch)

    def stop(self, error: RaftlogError) -> None:
        """Send nothing more of the open transaction; fail its deliveries with `error` or `outcome_unknown`."""
        self.sender.stop(error)

    def finish(self) -> TransactionOutput:
        """End the open transaction, and return its output: everything it sent, unless it is broken."""
        progress = self._policy.progress
        assert progress is not None
        self.sender.drop(InvalidRequest("transaction_aborted", "the transaction has ended"))
        self._policy.progress = None
        self.sender.failed.clear()
        return TransactionOutput.of(progress.key, progress.end_offsets)


def aborted_because(error: RaftlogError) -> InvalidRequest:
    """Return the error that reports a transaction broken by `error`."""
    aborted = InvalidRequest(
        "transaction_aborted", f"the transaction is aborted, and none of it becomes visible: {error}"
    )
    aborted.__cause__ = error
    return aborted
