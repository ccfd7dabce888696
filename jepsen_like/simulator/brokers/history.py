"""What simulated producers and consumers did and learned: the record against which the truth is checked.

Every value that is ever sent is unique, `<producer>:<number>`, tombstones apart. A send ends `ok` (with its offset),
`fail` (certainly not appended) or `info` (may have been).
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
    """What a consumer saw: (offset, value) pairs of one answer, where it was, and the bounds that came with it."""

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
    """Answered `delete-records`."""
    damaged_answers: int = 0
    """Of which a consumer took what came before the damage."""
    duplicates: int = 0
    """Batches sent again after they were acknowledged, and answered with their first offset."""

    def acknowledged(self, acks: int = -1) -> list[Send]:
        """Sends that were answered `ok` at this level."""
        return [send for send in self.sends if send.fate is Fate.OK and send.acks == acks]

    def counts(self) -> dict[str, int]:
        """How sends ended; `open` are those that never did."""
        tally = {"ok": 0, "fail": 0, "info": 0, "open": 0}
        for send in self.sends:
            tally[send.fate.value if send.fate else "open"] += 1
        return tally
