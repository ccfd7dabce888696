"""Records that are sent in transactions: a `Sender` whose batches all have the open transaction's key, and its policy.

Where a plain producer mends (a new producer id when a leader has forgotten it, records sent again to a topic that was
made anew), a transaction breaks: what may be lost, doubled or elsewhere cannot be committed. From then on nothing of it
is sent, and everybody who waits is told. Sequence numbers begin at 0 in every partition with every transaction, since
every transaction has a key of its own.

What was acknowledged is kept as one offset a partition: the end of the last acknowledged batch is what a commit names
(records beyond it are not meant, so a delayed write cannot ride along).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raftlog.client.cluster.api import HttpApi
from raftlog.client.producing.batch import Batch
from raftlog.client.producing.delivery import DeliveryFuture
from raftlog.client.producing.sender import Sender
from raftlog.client.producing.settings import ProducerSettings
from raftlog.errors import InvalidRequest, RaftlogError, RemoteProtocolError
from raftlog.model import Offset, TopicId, TopicPartition
from raftlog.transactions import TransactionKey

from .api import TransactionOutput, pack_output


class _Progress:
    """How far the open transaction is. Invariant: once it is broken nothing of it is unsent or awaited."""

    def __init__(self, key: TransactionKey, broken: Callable[[RaftlogError], None]) -> None:
        self.key = key
        self.tell = broken
        self.broken: RaftlogError | None = None
        self.topics: set[str] = set()
        self.end_offsets: dict[TopicPartition, Offset] = {}


class Breaking:
    """The policy of a sender in transactions: everything of the open one, or nothing."""

    mends = False

    def __init__(self) -> None:
        self.progress: _Progress | None = None
        """Of the transaction that is open."""

    @property
    def broken(self) -> RaftlogError | None:
        """Why the open transaction cannot be committed."""
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
            return RemoteProtocolError(f"the leader of {batch.topic}/{batch.partition} told no offset")
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
    """One transaction after the other. Belongs to one loop; `close` its `sender`."""

    def __init__(self, api: HttpApi, settings: ProducerSettings) -> None:
        self._policy = Breaking()
        self.sender = Sender(api, settings, self._policy)
        """What sends their records."""

    def begin(self, key: TransactionKey, broken: Callable[[RaftlogError], None]) -> None:
        """What is sent from now on has this key. `broken` is told, once, why it cannot be committed. Nothing of
        another transaction may be unfinished."""
        assert self._policy.progress is None and not self.sender.unfinished()
        self._policy.progress = _Progress(key, broken)
        self.sender.sequencer.start_over(key.producer_id, key.producer_epoch)

    def stop(self, error: RaftlogError) -> None:
        """Nothing more of the open transaction is sent; whoever waits for a delivery is told this error, or
        `outcome_unknown`."""
        self.sender.stop(error)

    def finish(self) -> TransactionOutput:
        """The open transaction sends no more. What it wrote: everything, unless it is broken."""
        progress = self._policy.progress
        assert progress is not None
        self.sender.drop(InvalidRequest("transaction_aborted", "the transaction has ended"))
        self._policy.progress = None
        self.sender.failed.clear()
        return pack_output(progress.key, progress.end_offsets)


def aborted_because(error: RaftlogError) -> InvalidRequest:
    """What to tell of a transaction that this error has broken."""
    aborted = InvalidRequest("transaction_aborted", f"the transaction is aborted and nothing of it shows: {error}")
    aborted.__cause__ = error
    return aborted
