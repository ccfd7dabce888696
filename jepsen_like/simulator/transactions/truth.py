"""What must be true of transactions in a simulated cluster (S13), told independently of the code that makes them.

An *attempt* is one commit as its client named it: outputs of one or several producers, offsets of a group, a position.
What was decided is learned from the events of the metadata log, at whatever node applies an entry first.

* An attempt is committed whole: all its outputs in one entry, with the ends that it named, and its moves and its
  position with them. Each move starts where the last one ended; a position only goes up (exactly once).
* What was decided stays so: committed is never aborted afterwards, nor the other way round, and who was told of a
  refusal that aborts is never committed.
* A name is begun anew once for each process that asks for it, however often the request comes: it would fence the
  very process that it was made for.
* A `read_committed` reader is shown every record of a committed transaction below the end that was named for its
  partition, and none that is aborted, undecided or behind that end. It goes from batch to batch without a gap, so that
  what it was not shown, it was told to skip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jepsen_like.simulator.world.violation import Violation
from metadata.commands.results import TransactionAnswer
from metadata.records.events import (
    BlockChanged,
    EndsCommitted,
    OffsetsCommitted,
    PositionMoved,
    ProducerChanged,
    ProducerRemoved,
)
from metadata.records.transactions import ATTEMPT_BYTES, NamedProducer, Standing
from metadata.view import ClusterView, MetadataEvent
from raftlog.model import TopicPartition
from raftlog.records.batch import BatchHeader
from raftlog.transactions import TransactionKey
from raftlog.wire import AbortedRange

GROUP = "transformers"
POSITION = "published"

COUNTED = ("committed", "aborted", "together", "moved", "shown", "skipped", "behind", "begun", "begun again")
"""What may become of transactions and of what they wrote; names that were begun, and requests that came twice."""


@dataclass(slots=True)
class Attempt:
    """A commit, as its client named it."""

    outputs: Mapping[TransactionKey, Mapping[TopicPartition, int]]
    """The ends (exclusive) of what was acknowledged."""
    moves: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """Of the group: from, to."""
    position: tuple[int, int] | None = None
    committed_at: int = -1
    """The index of the entry."""
    refused: str = ""
    """A refusal that its client was told, after which it can never be committed."""


class TransactionTruth:
    """See the module."""

    def __init__(self) -> None:
        self.ends: dict[tuple[TransactionKey, TopicPartition], int] = {}
        """Of what is committed."""
        self.standings: dict[TransactionKey, Standing] = {}
        """Of what somebody tried to end, as soon as it was decided."""
        self.offsets: dict[TopicPartition, int] = {}
        """Of the group."""
        self.position = -1
        self.index = 0
        self.counts = dict.fromkeys(COUNTED, 0)
        self._attempts: dict[TransactionKey, list[Attempt]] = {}
        self._began: dict[TransactionKey, None] = {}
        self._names: dict[str, NamedProducer] = {}

    # --- What clients say --------------------------------------------------------------------------------------------

    def began(self, key: TransactionKey) -> None:
        """Somebody writes in this transaction."""
        self._began[key] = None

    def attempted(self, attempt: Attempt) -> None:
        """Before it is asked for."""
        for key in attempt.outputs:
            self._attempts.setdefault(key, []).append(attempt)

    def told_committed(self, attempt: Attempt) -> None:
        """A client was told so."""
        if attempt.committed_at < 0:
            raise Violation(f"S13: {attempt} was said to be committed, and is not")

    def told_aborted(self, keys: Sequence[TransactionKey]) -> None:
        """A client was told so."""
        for key in keys:
            if self.standings.get(key) is Standing.COMMITTED:
                raise Violation(f"S13: {key} was said to be aborted, and is committed")
            self.standings[key] = Standing.ABORTED

    def told_again(self, answer: TransactionAnswer | None) -> None:
        """A request to begin a name came once more, long after its first answer: this is its second."""
        self.counts["begun again"] += answer is not None and answer.code in ("", "producer_fenced")

    def told_refused(self, attempt: Attempt, code: str) -> None:
        """A client was told that it cannot be committed."""
        if attempt.committed_at >= 0:
            raise Violation(f"S13: {attempt} is committed, and was refused as {code}")
        attempt.refused = code

    # --- What the quorum decides -------------------------------------------------------------------------------------

    def applied(self, index: int, events: Sequence[MetadataEvent], view: ClusterView) -> None:
        """One node's view shows these entries now; whoever is first is heard."""
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
        raise Violation(f"S13: {key} is committed in {topic_partition} up to {end}, which nobody asked for")

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
        """What is decided stays so, as far as it is remembered."""
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
        """Its producer is two transactions further, or its block is gone: nothing of it is remembered."""
        return view.transactions.standing(key) in (Standing.FENCED, Standing.EXPIRED)

    def _changed(self, record: NamedProducer) -> None:
        """A name was begun, or ended a transaction. Its own list of who began it says which, and who."""
        before, self._names[record.transactional_id] = self._names.get(record.transactional_id), record
        if before is None or record.attempts == before.attempts:
            return
        self.counts["begun"] += 1
        last, *_ = _begun_by(record)
        if last in _begun_by(before):
            raise Violation(f"S13: {record} was begun by a request that had begun it before: {before}")

    def _check_places(self, view: ClusterView) -> None:
        """Offsets and position of the view are what the committed attempts made them."""
        if view.transactions.position(POSITION) != self.position:
            raise Violation(f"S13: the position is {view.transactions.position(POSITION)}, not {self.position}")
        shown = {one: committed.offset for one, committed in view.groups.offsets(GROUP).items()}
        for topic_partition, offset in self.offsets.items():
            if view.partition(topic_partition) is not None and shown.get(topic_partition) != offset:
                raise Violation(f"S13: the group is at {shown.get(topic_partition)} of {topic_partition}, not {offset}")

    # --- What readers see --------------------------------------------------------------------------------------------

    def shown(self, topic_partition: TopicPartition, header: BatchHeader, ranges: Sequence[AbortedRange]) -> None:
        """A `read_committed` reader comes to this batch of users' records, with these ranges to skip."""
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
    """The requests that began the name and are remembered, the last one first."""
    return [record.attempts[at : at + ATTEMPT_BYTES] for at in range(0, len(record.attempts), ATTEMPT_BYTES)]
