"""The operations of simulated producers and consumers: the record against which the truth is checked.

Every value that is sent is unique, `<producer>:<number>`, except tombstones. A send ends `ok` (with its offset), `fail`
(certainly not appended) or `info` (indeterminate).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from raftlog.model import TopicPartition


class Fate(enum.Enum):
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


@dataclass(slots=True)
class Send:
    """One batch sent by one producer; `values` in order."""

    producer: int
    topic_partition: TopicPartition
    values: tuple[bytes | None, ...]
    sent_at: float
    acks: int
    fate: Fate | None = None
    base_offset: int = -1


@dataclass(slots=True)
class Read:
    """One answer to a consumer: its (offset, value) pairs, the time, and the bounds that came with it."""

    consumer: int
    topic_partition: TopicPartition
    at: float
    records: tuple[tuple[int, bytes | None], ...]
    high_watermark: int
    position: int


@dataclass(slots=True)
class History:
    """All operations of a run."""

    sends: list[Send] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    searches: int = 0
    """Offsets found by time."""
    deletions: int = 0
    """Answered `delete-records` requests."""
    damaged_answers: int = 0
    """Answers of which a consumer used the part before the damage."""
    duplicates: int = 0
    """Batches that were resent after their acknowledgement, and answered with their first offset."""

    def acknowledged(self, acks: int = -1) -> list[Send]:
        """Return the sends that were answered `ok` at this level."""
        return [send for send in self.sends if send.fate is Fate.OK and send.acks == acks]

    def counts(self) -> dict[str, int]:
        """Return the number of sends by outcome; `open` are those without one."""
        tally = {"ok": 0, "fail": 0, "info": 0, "open": 0}
        for send in self.sends:
            tally[send.fate.value if send.fate else "open"] += 1
        return tally
