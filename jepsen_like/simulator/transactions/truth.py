"""Checks transactions in a simulated cluster (S13), independently of the code that implements them.

An *attempt* is one commit request: outputs of one or several producers, offsets of a group, a position. The decisions
are known from the events of the metadata log, at the first node that applies an entry.

* An attempt is committed atomically: all its outputs with their ends, its offsets and its position are in one entry.
  Each move of an offset starts at the end of the last one; a position only rises (exactly once).
* A decision is final: a committed transaction is never aborted later, nor the other way round, and an attempt with a
  final refusal is never committed.
* A transactional id is initialized once for each process that requests it, however often the request arrives: a second
  initialization would fence the very process that it was made for.
* A `read_committed` reader gets every record of a committed transaction below the partition's end in the commit, and
  none that is aborted, undecided or after that end. It advances from batch to batch without a gap, so a record that it
  did not get was skipped because of an aborted range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jepsen_like.simulator.truth.committed_log import CommittedLog
from jepsen_like.simulator.world.violation import Violation
from metadata.records.events import (
    BlockChanged,
    EndsCommitted,
    OffsetsCommitted,
    PartsStaged,
    PositionMoved,
    ProducerChanged,
    ProducerRemoved,
)
from metadata.records.transactions import NamedProducer, Standing
from metadata.view import ClusterView, MetadataEvent
from raftlog.errors import RaftlogError
from raftlog.model import TopicPartition
from raftlog.records.batch import BatchHeader
from raftlog.transactions import ATTEMPT_BYTES, TransactionKey
from raftlog.wire import AbortedRange, TransactionResponse

GROUP = "transformers"
POSITION = "published"

COUNTED = (
    "committed", "aborted", "together", "moved", "shown", "skipped", "behind", "begun", "begun again", "visible",
    "staged",
)  # fmt: skip
"""Outcomes of transactions and of their records; initializations, and repeated ones; answers that all markers are
written; parts of commits.
"""


@dataclass(slots=True)
class Attempt:
    """A commit request."""

    outputs: Mapping[TransactionKey, Mapping[TopicPartition, int]]
    """The ends (exclusive) of the acknowledged records."""
    moves: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """The moves of the group's offsets: from, to."""
    position: tuple[int, int] | None = None
    committed_at: int = -1
    """Index of the entry that committed it."""
    refused: str = ""
    """A refusal that its client got, after which it can never be committed."""


class TransactionTruth:
    """See the module."""

    def __init__(self) -> None:
        self.ends: dict[tuple[TransactionKey, TopicPartition], int] = {}
        """The ends of committed transactions."""
        self.standings: dict[TransactionKey, Standing] = {}
        """The decided transactions among those that a client tried to end."""
        self.offsets: dict[TopicPartition, int] = {}
        """The group's offsets."""
        self.position = -1
        self.index = 0
        self.counts = dict.fromkeys(COUNTED, 0)
        self._attempts: dict[TransactionKey, list[Attempt]] = {}
        self._began: dict[TransactionKey, None] = {}
        self._names: dict[str, NamedProducer] = {}

    # --- Results of clients -------------------------------------------------------------------------------------------

    def began(self, key: TransactionKey) -> None:
        """An application writes in this transaction."""
        self._began[key] = None

    def attempted(self, attempt: Attempt) -> None:
        """Called before the request is sent."""
        for key in attempt.outputs:
            self._attempts.setdefault(key, []).append(attempt)

    def told_committed(self, attempt: Attempt) -> None:
        """A client got the answer that the attempt is committed."""
        if attempt.committed_at < 0:
            raise Violation(f"S13: {attempt} was reported as committed, and is not")

    def told_aborted(self, keys: Sequence[TransactionKey]) -> None:
        """A client got the answer that the transactions are aborted."""
        for key in keys:
            if self.standings.get(key) is Standing.COMMITTED:
                raise Violation(f"S13: {key} was reported as aborted, and is committed")
            self.standings[key] = Standing.ABORTED

    def told_visible(self, attempt: Attempt, logs: Mapping[TopicPartition, CommittedLog]) -> None:
        """A client got the answer that every partition has its marker. `logs`: those that still exist."""
        self.counts["visible"] += 1
        for ends in attempt.outputs.values():
            for topic_partition, end in ends.items():
                log = logs.get(topic_partition)
                if log is not None and not any(marker >= end for marker in log.controls):
                    raise Violation(f"S13: {attempt} was reported as visible, and has no marker in {topic_partition}")

    def told_again(self, outcome: TransactionResponse | RaftlogError | None) -> None:
        """Record the second answer to an initialization, whose copy came long after the first answer."""
        fenced = isinstance(outcome, RaftlogError) and outcome.code == "producer_fenced"
        self.counts["begun again"] += fenced or isinstance(outcome, TransactionResponse)

    def told_refused(self, attempt: Attempt, code: str) -> None:
        """A client got a final refusal of the attempt."""
        if attempt.committed_at >= 0:
            raise Violation(f"S13: {attempt} is committed, and was refused as {code}")
        attempt.refused = code

    # --- Decisions of the quorum -------------------------------------------------------------------------------------

    def applied(self, index: int, events: Sequence[MetadataEvent], view: ClusterView) -> None:
        """A node's view has reached this entry; only the first node's call counts."""
        if index <= self.index:
            return
        self.index = index
        fresh: dict[int, Attempt] = {}
        for event in events:
            if isinstance(event, EndsCommitted):
                for topic_partition, ends in event.ends.items():
                    for key, end in ends.items():
                        self._committed(key, topic_partition, end, fresh)
            elif isinstance(event, ProducerChanged):
                self._changed(event.record)
            elif isinstance(event, PartsStaged):
                self.counts["staged"] += event.count > 0
            elif isinstance(event, ProducerRemoved):
                self._names.pop(event.transactional_id, None)
        for attempt in fresh.values():
            self._carried_out(attempt, index)
        if any(isinstance(event, ProducerChanged | BlockChanged) for event in events):
            self._note_standings(view)
        if fresh or any(isinstance(event, OffsetsCommitted | PositionMoved) for event in events):
            self._check_places(view)

    def _committed(
        self, key: TransactionKey, topic_partition: TopicPartition, end: int, fresh: dict[int, Attempt]
    ) -> None:
        known = self.ends.setdefault((key, topic_partition), end)
        if known != end:
            raise Violation(f"S13: {key} is committed in {topic_partition} up to {known}, and again up to {end}")
        for attempt in self._attempts.get(key, ()):
            if attempt.outputs[key].get(topic_partition) == end:
                if attempt.committed_at < 0:
                    fresh[id(attempt)] = attempt
                return
        raise Violation(f"S13: {key} is committed in {topic_partition} up to {end}, without a request")

    def _carried_out(self, attempt: Attempt, index: int) -> None:
        attempt.committed_at = index
        if attempt.refused:
            raise Violation(f"S13: {attempt} was refused as {attempt.refused}, and is committed")
        self.counts["committed"] += 1
        self.counts["together"] += len(attempt.outputs) > 1
        for key, ends in attempt.outputs.items():
            missing = [one for one, end in ends.items() if self.ends.get((key, one)) != end]
            if missing:
                raise Violation(f"S13: {key} is committed without {missing}: half of {attempt}")
            if self.standings.get(key) is Standing.ABORTED:
                raise Violation(f"S13: {key} was aborted, and is committed at {index}")
            self.standings[key] = Standing.COMMITTED
        for topic_partition, (start, end) in attempt.moves.items():
            if self.offsets.get(topic_partition, -1) != start:
                raise Violation(f"S13: {attempt} moves {topic_partition} from {start}, it was at {self.offsets}")
            self.offsets[topic_partition] = end
            self.counts["moved"] += 1
        if attempt.position is not None:
            current, new = attempt.position
            if self.position != current:
                raise Violation(f"S13: {attempt} moves the position from {current}, it was at {self.position}")
            self.position = new

    def _note_standings(self, view: ClusterView) -> None:
        """A decision is final, as long as it is remembered."""
        for key in self._began:
            now, before = view.transactions.standing(key), self.standings.get(key)
            if now not in (Standing.COMMITTED, Standing.ABORTED):
                continue
            if before is None:
                self.standings[key] = now
                self.counts["aborted"] += now is Standing.ABORTED
            elif before is not now:
                raise Violation(f"S13: {key} was {before.value}, and is {now.value} at {self.index}")
        for key in [key for key in self._began if key in self.standings and self._is_settled(key, view)]:
            del self._began[key]

    def _is_settled(self, key: TransactionKey, view: ClusterView) -> bool:
        """Whether the transaction is no longer remembered: its producer is two transactions further, or its block has
        expired.
        """
        return view.transactions.standing(key) in (Standing.FENCED, Standing.EXPIRED)

    def _changed(self, record: NamedProducer) -> None:
        """A transactional id was initialized, or ended a transaction. Its record's list of initializations
        tells which.
        """
        before, self._names[record.transactional_id] = self._names.get(record.transactional_id), record
        if before is None or record.attempts == before.attempts:
            return
        self.counts["begun"] += 1
        last, *_ = _begun_by(record)
        if last in _begun_by(before):
            raise Violation(f"S13: {record} was begun by a request that had begun it before: {before}")

    def _check_places(self, view: ClusterView) -> None:
        """The view's offsets and position are those of the committed attempts."""
        if view.transactions.position(POSITION) != self.position:
            raise Violation(f"S13: the position is {view.transactions.position(POSITION)}, not {self.position}")
        shown = {one: committed.offset for one, committed in view.groups.offsets(GROUP).items()}
        for topic_partition, offset in self.offsets.items():
            if view.partition(topic_partition) is not None and shown.get(topic_partition) != offset:
                raise Violation(f"S13: the group is at {shown.get(topic_partition)} of {topic_partition}, not {offset}")

    # --- Results of readers -------------------------------------------------------------------------------------------

    def shown(self, topic_partition: TopicPartition, header: BatchHeader, ranges: Sequence[AbortedRange]) -> None:
        """A `read_committed` reader reaches this batch of records, with these aborted ranges to skip."""
        if not header.is_transactional:
            return
        key = TransactionKey(header.producer_id, header.producer_epoch)  # type: ignore[arg-type]
        skipped = any(
            (one.producer_id, one.producer_epoch) == key and one.first_offset <= header.base_offset < one.end_offset
            for one in ranges
        )
        end = self.ends.get((key, topic_partition), -1)
        meant = header.base_offset < end
        self.counts["skipped" if skipped else "shown"] += 1
        self.counts["behind"] += skipped and end >= 0
        if meant and skipped:
            raise Violation(f"S13: {header} of {key} in {topic_partition} is committed up to {end}, and hidden")
        if not meant and not skipped:
            standing = self.standings.get(key, Standing.UNDECIDED).value
            raise Violation(f"S13: {header} of {key} in {topic_partition} is shown, it is {standing} up to {end}")


def _begun_by(record: NamedProducer) -> list[bytes]:
    """The remembered initializations of the id, the last one first."""
    return [record.attempts[at : at + ATTEMPT_BYTES] for at in range(0, len(record.attempts), ATTEMPT_BYTES)]
