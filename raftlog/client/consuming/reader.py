"""One partition as a consumer reads it: positions, prefetched batches, and checks of answers. A pure core.

With `read_committed` (`isolation` 1), the leader sends only decided data, and says which batches are aborted: those are
dropped undecoded (S13). Control batches are always dropped. Positions move past both.

There are three offsets. `position` is the next one to hand out; `fetch_offset` is the next one to request from the
leader; between them lie the prefetched batches. Both only increase, except by `seek`. Every answer is checked against
the request: whole batches with a valid CRC, in order, none beginning below the end of the one before it, the first one
reaching beyond `fetch_offset`. So a record is never handed out twice or out of order, whichever broker answers, and
however often.

Each request has a number. An answer counts only if it belongs to the last request; a `seek` or a new leader invalidates
the last request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field
from typing import TypeAlias

from raftlog.errors import CorruptBatch, InvalidRequest, RaftlogError
from raftlog.model import EARLIEST, LATEST
from raftlog.records.batch import BatchHeader, check_crc, split_batches
from raftlog.wire import TIMESTAMP_EARLIEST, TIMESTAMP_LATEST, AbortedBatches, AbortedRange

from .records import ConsumedBatch

Start: TypeAlias = str | int
"""`"earliest"`, `"latest"`, an offset, or `"@1700000000000"`: the first record at or after that time."""

CORRUPT_ATTEMPTS = 3
"""Attempts at a batch that arrives with a wrong CRC: the damage may have happened in transit."""


def parse_start(start: Start) -> Start:
    """Validate a start, and return it normalized. Raises `InvalidRequest`."""
    if isinstance(start, int) and not isinstance(start, bool) and 0 <= start < 2**62:
        return start
    if isinstance(start, str):
        if start in (EARLIEST, LATEST):
            return start
        if start.startswith("@") and start[1:].isdecimal():
            return start
        if start.isdecimal():
            return int(start)
    raise InvalidRequest(
        "invalid_request",
        f"{start!r} is not a start: use 'earliest', 'latest', an offset, a datetime, or '@' and milliseconds",
    )


def query_timestamp(start: str) -> int:
    """Return the timestamp that the offsets API expects for this start."""
    return {EARLIEST: TIMESTAMP_EARLIEST, LATEST: TIMESTAMP_LATEST}.get(start) or int(start[1:])


@dataclass(slots=True, eq=False)
class PartitionReader:
    """Reads one partition.

    Invariant: while `looking_for` is None, `position <= fetch_offset`; `buffered` and the batch that is being handed
    out cover the range between them, except for offsets without records. If there is neither, the two are equal.
    """

    topic: str
    partition: int
    start: InitVar[Start]
    version: int = 0
    """Counts seeks: data taken before a seek must not be handed out."""
    asked: int | None = None
    """Number of the open request."""
    _questions: int = 0
    position: int = -1
    fetch_offset: int = -1
    looking_for: str | None = None
    """Start whose offset has to be looked up first."""
    buffered: deque[ConsumedBatch] = field(default_factory=deque)
    buffered_bytes: int = 0
    high_watermark: int = -1
    """The leader's high watermark; -1 until an answer has arrived."""
    readable_end: int = -1
    """End of what this reader may read: the high watermark or the last stable offset; -1: not known yet."""
    log_start_offset: int = -1
    error: RaftlogError | None = None
    """The error that stopped reading; `seek` clears it."""
    _corrupt: int = 0
    _handing_out: bool = False
    """Whether a batch was taken and not completely handed out."""
    # Fields of the fetcher:
    leader: int = -1
    leader_epoch: int = -1
    failures: int = 0
    not_before: float = 0.0
    served: int = 0
    """The fetcher's answer count when this reader last got batches."""

    def __post_init__(self, start: Start) -> None:
        self.seek(start)

    def seek(self, start: Start) -> None:
        """Continue at `start`; prefetched data is dropped."""
        start = parse_start(start)
        self.version += 1
        self._drop_ahead()
        self.error = None
        self._corrupt = 0
        if isinstance(start, int):
            self.looking_for = None
            self.position = self.fetch_offset = start
        else:
            self.looking_for = start
            self.position = self.fetch_offset = -1

    def found(self, offset: int) -> None:
        """Set the offset that `looking_for` stood for."""
        self.looking_for = None
        self.position = self.fetch_offset = offset

    def ask(self) -> int:
        """Open a request at `fetch_offset`, and return its number."""
        self._questions += 1
        self.asked = self._questions
        return self.asked

    def answered(self, number: int) -> bool:
        """Close the request if it is still open; return whether its answer counts."""
        if self.asked != number:
            return False
        self.asked = None
        return True

    def accept(
        self,
        body: memoryview,
        high_watermark: int,
        log_start_offset: int,
        readable_end: int,
        aborted: Iterable[AbortedRange] = (),
    ) -> None:
        """Accept the leader's answer.

        Raises `CorruptBatch`: nothing is taken of an answer that contradicts itself; of one with a damaged batch,
        everything before that batch is taken.
        """
        self.high_watermark = max(self.high_watermark, high_watermark)
        self.readable_end = max(self.readable_end, readable_end)
        self.log_start_offset = log_start_offset
        dropped = AbortedBatches(aborted)
        sound: list[tuple[memoryview, BatchHeader]] = []
        damage: CorruptBatch | None = None
        try:
            for batch in split_batches(body):
                sound.append((batch, check_crc(batch)))
        except CorruptBatch as error:
            damage = error
        self._check_order([header for _, header in sound])
        for batch, header in sound:
            start = max(self.fetch_offset, header.base_offset)
            self.fetch_offset = header.end_offset
            if not header.is_control and header not in dropped:
                self.buffered.append(
                    ConsumedBatch(self.topic, self.partition, start, batch, header, self.high_watermark)
                )
                self.buffered_bytes += header.total_bytes
        if not self.buffered and not self._handing_out:
            self.position = self.fetch_offset
        if damage is not None:
            raise damage
        self._corrupt = 0

    def _check_order(self, headers: list[BatchHeader]) -> None:
        """Check that batches do not overlap (gaps are fine), and that only the first begins below `fetch_offset`."""
        expected = self.fetch_offset
        for number, header in enumerate(headers):
            if header.end_offset <= expected or (header.base_offset < expected and number):
                raise CorruptBatch(
                    f"{self.topic}/{self.partition}: a batch of offsets {header.base_offset} to {header.last_offset} "
                    f"came where {expected} should follow"
                )
            expected = header.end_offset

    def corrupt(self, error: RaftlogError) -> None:
        """Record an invalid answer; after `CORRUPT_ATTEMPTS` of them, stop reading."""
        self._corrupt += 1
        if self._corrupt >= CORRUPT_ATTEMPTS:
            self.error = error

    def take(self) -> ConsumedBatch | None:
        """Take the next prefetched batch. The position stays until it is handed out."""
        if not self.buffered:
            return None
        batch = self.buffered.popleft()
        self.buffered_bytes -= batch.size_bytes
        self._handing_out = True
        return batch

    def handed_out(self, end_offset: int) -> None:
        """Record that everything below `end_offset`, within the batch that was taken, was handed out."""
        self.position = end_offset

    def finished(self, batch: ConsumedBatch) -> None:
        """Record that the batch taken last was completely handed out."""
        self._handing_out = False
        self.position = batch.end_offset if self.buffered else self.fetch_offset

    def unreadable(self, batch: ConsumedBatch, error: RaftlogError) -> None:
        """Stop at a batch that cannot be decoded although its CRC is valid.

        A retry would not help, and nothing after the batch is handed out.
        """
        self._drop_ahead()
        self.position = self.fetch_offset = batch.start_offset
        self.error = error

    def _drop_ahead(self) -> None:
        self.buffered.clear()
        self.buffered_bytes = 0
        self.asked = None
        self._handing_out = False

    @property
    def lag(self) -> int | None:
        """Offsets between position and readable end, gaps included; None until both are known."""
        if self.readable_end < 0 or self.position < 0:
            return None
        return max(0, self.readable_end - self.position)

    def __str__(self) -> str:
        return (
            f"{self.topic}/{self.partition} leader={self.leader} epoch={self.leader_epoch} position={self.position} "
            f"fetch_offset={self.fetch_offset} hw={self.high_watermark} buffered={self.buffered_bytes}"
        )
