"""Checks transactions that transform records of some topics into records of another (S13), while all of these topics
are deleted and recreated under the same names.

An *attempt* is one transaction of one application: the records that it got, the moves of its group's offsets, and the
records that it wrote. The decisions are known from the metadata log's events, at the first node that applies an entry.

* An attempt is committed atomically: its offsets move in the entry that commits its outputs, and each record that was
  acknowledged to it is below a committed end, in a life of the topic that has the record at that offset.
* The group's offsets move only by attempts, each from the last attempt's end, and over exactly the records that the
  attempt got: in each life every record is transformed once.
* An attempt that was refused is never committed.
* A read_committed reader gets no record of an attempt that is not committed; at the end (S10) it got all records that
  committed attempts wrote into existing lives, and all committed records in the lives of the input are transformed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jepsen_like.simulator.world.violation import Violation
from metadata.records.events import EndsCommitted, OffsetsCommitted
from metadata.view import MetadataEvent
from raftlog.model import TopicId, TopicPartition
from raftlog.transactions import TransactionKey

from .topic_lives import Acknowledged, LivesTruth

TRANSFORMERS = "transformers"
"""The group."""


@dataclass(slots=True, eq=False)
class Attempt:
    """See the module."""

    key: TransactionKey
    taken: dict[TopicPartition, set[int]]
    """The records that it got, by offset."""
    moves: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """The moves of the group's offsets, from (-1: nothing was committed) and to."""
    written: list[Acknowledged] = field(default_factory=list)
    committed_at: int = -1
    """Index of the entry that committed it."""
    refused: str = ""


class TransformedTruth:
    """See the module. Raises `Violation`."""

    def __init__(self, lives: LivesTruth, output: str) -> None:
        self._lives = lives
        self._output = output
        self._index = 0
        self._attempts: dict[TransactionKey, Attempt] = {}
        """The attempts that have begun to commit."""
        self._wrote: dict[bytes, Attempt] = {}
        self._ends: dict[TransactionKey, dict[TopicPartition, int]] = {}
        self._offsets: dict[TopicPartition, int] = {}
        self._unsettled: list[Attempt] = []
        """Committed attempts whose records were not looked up in the logs yet."""
        self._settled: list[tuple[TopicPartition, int]] = []
        """The places of the records that committed attempts wrote."""
        self._shown: set[tuple[TopicPartition, int]] = set()

    # --- Results of applications -------------------------------------------------------------------------------------

    def writes(self, attempt: Attempt, value: bytes) -> None:
        """Called before the record is sent."""
        self._wrote[value] = attempt

    def attempted(self, attempt: Attempt) -> None:
        """Called before the commit request."""
        self._attempts[attempt.key] = attempt

    def told_committed(self, attempt: Attempt) -> None:
        self._lives.counts["transactions committed"] += 1
        if attempt.committed_at < 0:
            raise Violation(f"S13: {attempt} was reported as committed, and is not")

    def told_refused(self, attempt: Attempt, code: str) -> None:
        """The attempt can never be committed."""
        self._lives.counts[f"transactions {code}"] += 1
        attempt.refused = code
        if attempt.committed_at >= 0:
            raise Violation(f"S13: {attempt} is committed, and was refused as {code}")

    def shown(self, topic_partition: TopicPartition, offset: int, value: bytes | None) -> None:
        """A read_committed reader got this record."""
        attempt = None if value is None else self._wrote.get(value)
        if attempt is None or attempt.committed_at < 0:
            raise Violation(
                f"S13: {value!r} at {topic_partition} offset {offset} is shown, and not committed: {attempt}"
            )
        self._shown.add((topic_partition, offset))

    # --- Decisions of the quorum -------------------------------------------------------------------------------------

    def applied(self, index: int, events: Sequence[MetadataEvent]) -> None:
        """A node has applied this entry; only the first node's call counts."""
        if index <= self._index:
            return
        self._index = index
        committed: dict[TransactionKey, None] = {}
        moved: dict[TopicPartition, list[int]] = {}
        for event in events:
            if isinstance(event, EndsCommitted):
                for topic_partition, ends in event.ends.items():
                    for key, end in ends.items():
                        committed[key] = None
                        self._ends.setdefault(key, {})[topic_partition] = end
            elif isinstance(event, OffsetsCommitted) and event.group_id == TRANSFORMERS:
                for topic_partition, offset in event.offsets.items():
                    moved.setdefault(topic_partition, []).append(offset.offset)
        for key in committed:
            self._carried_out(key, index, moved)
        left = {one: offsets for one, offsets in moved.items() if offsets}
        if left:
            raise Violation(f"S13: offsets of the group moved at {index} with no transaction: {left}")

    def _carried_out(self, key: TransactionKey, index: int, moved: dict[TopicPartition, list[int]]) -> None:
        attempt = self._attempts.get(key)
        if attempt is None:
            raise Violation(f"S13: {key} is committed at {index}, without a request")
        if attempt.refused:
            raise Violation(f"S13: {attempt} was refused, and is committed")
        attempt.committed_at = index
        self._unsettled.append(attempt)
        unmoved = [one for one, offsets in attempt.taken.items() if offsets and one not in attempt.moves]
        if unmoved:
            raise Violation(f"S13: {attempt} is committed, and the offsets of {unmoved} stay where they are")
        for topic_partition, (start, end) in attempt.moves.items():
            before = self._offsets.get(topic_partition, -1)
            if before != start:
                raise Violation(f"S13: {attempt} moves {topic_partition} from {start}, it was at {before}")
            if end not in moved.get(topic_partition, ()):
                raise Violation(f"S13: {attempt} is committed without its offsets of {topic_partition}")
            moved[topic_partition].remove(end)
            self._offsets[topic_partition] = end
            records = self._lives.truth.of(topic_partition).log.records
            due = {offset for offset in range(max(start, 0), end) if offset in records}
            if due != attempt.taken.get(topic_partition, set()):
                raise Violation(f"S13: {attempt} moves {topic_partition} from {start} to {end} over {sorted(due)}")

    # --- Checks ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Look up the records of committed attempts."""
        unsettled, self._unsettled = self._unsettled, []
        for attempt in unsettled:
            places = [self._place(attempt, one) for one in attempt.written]
            if None in places:
                self._unsettled.append(attempt)
            else:
                self._settled += [place for place in places if place is not None]

    def _place(self, attempt: Attempt, one: Acknowledged) -> tuple[TopicPartition, int] | None:
        """The place of a record; None if no node has reported it yet."""
        unseen = False
        for topic_partition, end in self._ends[attempt.key].items():
            if topic_partition.partition != one.partition or end <= one.offset:
                continue
            log = self._lives.truth.of(topic_partition).log
            if log.holds(one.offset, one.value):
                return topic_partition, one.offset
            unseen = unseen or log.end_offset <= one.offset
        if not unseen:
            raise Violation(f"S13: {one} is not in what is committed of {attempt}: {self._ends[attempt.key]}")
        return None

    def missing(self) -> list[str]:
        """The records of existing lives that are not transformed, or not read (S10)."""
        found = []
        for topic_partition, known in self._lives.truth.partitions.items():
            if not self._lives.is_there(topic_partition.topic_id) or self._is_output(topic_partition):
                continue
            offset = self._offsets.get(topic_partition, 0)
            if offset < known.log.end_offset:
                found.append(f"{TRANSFORMERS} are at {offset} of {known.log.end_offset} in {topic_partition}")
        for place in self._settled:
            if place not in self._shown and self._lives.is_there(place[0].topic_id):
                found.append(f"no reader got offset {place[1]} of {place[0]}, which is committed")
        for attempt in self._unsettled:
            lives = [one for one in self._ends[attempt.key] if self._lives.is_there(one.topic_id)]
            found += [f"no node has reported what {attempt} wrote in {one}" for one in lives]
        return found

    def _is_output(self, topic_partition: TopicPartition) -> bool:
        return self._lives.made.get(TopicId(topic_partition.topic_id)) == self._output
