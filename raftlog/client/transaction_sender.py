"""The machinery of records that are sent in transactions: a `Sender` whose batches all have the open transaction's key.

Where a plain producer mends (a new producer id when a leader has forgotten it, records sent again to a topic that was
made anew), a transaction breaks: what may be lost, doubled or elsewhere cannot be committed. From then on nothing of it
is sent, and everybody who waits is told. Sequence numbers begin at 0 in every partition with every transaction, since
every transaction has a key of its own.

What was acknowledged is kept as one offset a partition: the end of the last acknowledged batch is what a commit names
(records beyond it are not meant, so a delayed write cannot ride along).

What is *not* here: keys, commits and aborts (`transaction_manager.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from raftlog.errors import InvalidRequest, RaftlogError, RemoteProtocolError, RetriableError
from raftlog.model import Offset, TopicId, TopicPartition
from raftlog.transactions import TransactionKey

from .accumulator_batch import Batch
from .api import HttpApi
from .delivery import DeliveryFuture
from .metadata import TopicDescription
from .partition_queue import Delivered, Outcome
from .producer_settings import ProducerSettings
from .sender import Sender
from .transaction_api import TransactionOutput, pack_output


class _Progress:
    """How far the open transaction is. Invariant: once it is broken nothing of it is unsent or awaited."""

    def __init__(self, key: TransactionKey, broken: Callable[[RaftlogError], None]) -> None:
        self.key = key
        self.tell = broken
        self.broken: RaftlogError | None = None
        self.topics: set[str] = set()
        self.end_offsets: dict[TopicPartition, Offset] = {}


class TransactionSender(Sender):
    """One transaction after the other. Belongs to one loop; `close` it."""

    def __init__(self, api: HttpApi, settings: ProducerSettings) -> None:
        self._progress: _Progress | None = None
        super().__init__(api, settings)

    # --- For the transaction ------------------------------------------------------------------------------------------

    def begin(self, key: TransactionKey, broken: Callable[[RaftlogError], None]) -> None:
        """What is sent from now on has this key. `broken` is told, once, why it cannot be committed. Nothing of
        another transaction may be unfinished."""
        assert self._progress is None and not self.unfinished()
        self._progress = _Progress(key, broken)
        self.sequencer.start_over(key.producer_id, key.producer_epoch)

    def stop(self, error: RaftlogError) -> None:
        """Nothing more of the open transaction is sent; whoever waits for a delivery is told this error, or
        `outcome_unknown`."""
        progress = self._progress
        if progress is not None and progress.broken is None:
            progress.broken = error
            self.drop(error)
            progress.tell(error)

    def finish(self) -> TransactionOutput:
        """The open transaction sends no more. What it wrote: everything, unless it is broken."""
        progress = self._progress
        assert progress is not None
        self.drop(InvalidRequest("transaction_aborted", "the transaction has ended"))
        self._progress = None
        self.failed.clear()
        return pack_output(progress.key, progress.end_offsets)

    @property
    def broken(self) -> RaftlogError | None:
        """Why the open transaction cannot be committed."""
        return None if self._progress is None else self._progress.broken

    def check_open(self) -> None:
        super().check_open()
        if self.broken is not None:
            raise aborted_because(self.broken)

    # --- Sender -------------------------------------------------------------------------------------------------------

    def _decide(self, outcomes: list[Outcome[DeliveryFuture]]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Delivered):
                self._delivered(outcome.batch, outcome.base_offset)
        super()._decide(outcomes)

    def _delivered(self, batch: Batch[DeliveryFuture], base_offset: int) -> None:
        progress = self._progress
        if progress is None:
            return
        if base_offset < 0:
            self.stop(RemoteProtocolError(f"the leader of {batch.topic}/{batch.partition} told no offset"))
            return
        partition = TopicPartition(TopicId(self._topic_ids[batch.topic]), batch.partition)
        end_offset = max(progress.end_offsets.get(partition, 0), base_offset + batch.count)
        progress.end_offsets[partition] = Offset(end_offset)
        progress.topics.add(batch.topic)

    def _fail(self, delivery: DeliveryFuture, error: RaftlogError) -> None:
        super()._fail(delivery, error)
        self.stop(error)

    def _ask_identity(self) -> None:
        """A batch has lost its name: its leader does not know what came before it."""
        self.stop(RetriableError("outcome_unknown", "a leader no longer knows what this transaction has written"))

    def _topic_described(self, topic: str, description: TopicDescription) -> None:
        known_id = self._topic_ids.get(topic)
        if known_id is not None and known_id != description.id_bytes and self._is_used(topic):
            again = f"topic {topic} was deleted and created again while the transaction was open"
            self.stop(InvalidRequest("unknown_topic", again))
        super()._topic_described(topic, description)
        self._name_again()

    def _fail_topic(self, topic: str, error: RaftlogError) -> None:
        if self._is_used(topic):
            self.stop(error)
        super()._fail_topic(topic, error)
        self._name_again()

    def _is_used(self, topic: str) -> bool:
        """The open transaction has records there."""
        if self._progress is None:
            return False
        waiting = self.accumulator.topics()
        return topic in self._progress.topics or topic in waiting or topic in self.sequencer.topics_unfinished()

    def _name_again(self) -> None:
        """Queues of a topic of which this transaction has nothing yet."""
        progress = self._progress
        if progress is None or progress.broken is not None:
            return
        if any(batch.attempt > 0 and batch.base_sequence < 0 for batch in self.sequencer.unfinished()):
            self._ask_identity()  # under the same name it would be taken for what came before it
        else:
            self.sequencer.grant_identity(progress.key.producer_id, progress.key.producer_epoch)


def aborted_because(error: RaftlogError) -> InvalidRequest:
    """What to tell of a transaction that this error has broken."""
    aborted = InvalidRequest("transaction_aborted", f"the transaction is aborted and nothing of it shows: {error}")
    aborted.__cause__ = error
    return aborted
