"""One partition as a consumer reads it: positions, what was fetched ahead, what an answer may look like. A pure core.

Who reads committed (`isolation` 1) is sent nothing that is not decided, and told which batches are aborted: those are
dropped whole, before anybody decodes them (S13). Control batches are dropped for everybody. Positions move over both.

Three offsets. `position` is the next one that the user gets; `fetch_offset` the next one to ask the leader for; between
them lie the batches fetched ahead. Both only rise, except by `seek`. Every answer is held against what was asked: whole
batches with a right CRC, one after the other, none beginning below the end of the one before it, the first one reaching
beyond `fetch_offset`. So a record is never handed out twice or out of order, whichever broker answers, and how often.

Each question has a number; an answer counts only if it is that of the last question, and a `seek` or a new leader makes
the last question nobody's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TypeAlias

from raftlog.errors import CorruptBatch, InvalidRequest, RaftlogError
from raftlog.model import EARLIEST, LATEST
from raftlog.records.batch import BatchHeader, check_crc, split_batches
from raftlog.wire import TIMESTAMP_EARLIEST, TIMESTAMP_LATEST, AbortedRange

from .records import ConsumedBatch

Start: TypeAlias = str | int
"""`"earliest"`, `"latest"`, an offset, or `"@1700000000000"`: the first record at or after that time."""

CORRUPT_ATTEMPTS = 3
"""A batch that comes with a wrong CRC is asked for again this often: the damage may lie on the way."""


READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
_ISOLATION = {READ_UNCOMMITTED: 0, READ_COMMITTED: 1}


def parse_isolation(isolation: str) -> int:
    """As requests have it. Raises `InvalidRequest`."""
    if isolation not in _ISOLATION:
        known = f"{READ_COMMITTED} or {READ_UNCOMMITTED}"
        raise InvalidRequest("invalid_config", f"isolation must be {known}, not {isolation!r}")
    return _ISOLATION[isolation]


def parse_start(start: Start) -> Start:
    """The start, if it is one. Raises `InvalidRequest`."""
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
        "invalid_request", f"{start!r} is no place to start: 'earliest', 'latest', an offset or '@' and milliseconds"
    )


def query_timestamp(start: str) -> int:
    """What to ask the offsets API for."""
    return {EARLIEST: TIMESTAMP_EARLIEST, LATEST: TIMESTAMP_LATEST}.get(start) or int(start[1:])


class PartitionReader:
    """Invariant: while `looking_for` is None, `position <= fetch_offset`; `buffered` and the batch that is being handed
    out cover the range between them apart from what holds no records. Where there are neither, the two are equal."""

    __slots__ = (
        "_corrupt", "_handing_out", "_questions", "asked", "buffered", "buffered_bytes", "error", "failures",
        "fetch_offset", "high_watermark", "leader", "leader_epoch", "log_start_offset", "looking_for", "not_before",
        "partition", "position", "readable_end", "served", "topic", "version",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, start: Start) -> None:
        self.topic = topic
        self.partition = partition
        self.version = 0
        """Rises with each `seek`: what was taken before it is not the user's any more."""
        self.asked: int | None = None
        """Number of the question that is open."""
        self._questions = 0
        self.position = -1
        self.fetch_offset = -1
        self.looking_for: str | None = None
        """A start whose offset has to be asked for first."""
        self.buffered: deque[ConsumedBatch] = deque()
        self.buffered_bytes = 0
        self.high_watermark = -1
        """-1 until a leader has told it."""
        self.readable_end = -1
        """The end of what this reader may read: the high watermark, or the last stable offset. -1: not known yet."""
        self.log_start_offset = -1
        self.error: RaftlogError | None = None
        """Why reading cannot go on; `seek` clears it."""
        self._corrupt = 0
        self._handing_out = False
        """A batch was taken, and the user does not have all of it."""
        # The fetcher's.
        self.leader = -1
        self.leader_epoch = -1
        self.failures = 0
        self.not_before = 0.0
        self.served = 0
        """When it got batches last, counted in answers."""
        self.seek(start)

    def seek(self, start: Start) -> None:
        """Go on from there. What was fetched ahead is dropped."""
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
        """The offset that `looking_for` meant."""
        self.looking_for = None
        self.position = self.fetch_offset = offset

    def ask(self) -> int:
        """A question about `fetch_offset` is sent; returns its number."""
        self._questions += 1
        self.asked = self._questions
        return self.asked

    def answered(self, number: int) -> bool:
        """Whether the answer to that question still counts; then none is open any more."""
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
        """Take in the leader's answer. Raises `CorruptBatch`: of an answer that contradicts itself nothing is taken, of
        one with a damaged batch what came before that."""
        self.high_watermark = max(self.high_watermark, high_watermark)
        self.readable_end = max(self.readable_end, readable_end)
        self.log_start_offset = log_start_offset
        ranges = _by_transaction(aborted)
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
            if not header.is_control and not _is_aborted(header, ranges):
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
        """Offsets may have holes; they never overlap, and only the first batch may begin below `fetch_offset`."""
        expected = self.fetch_offset
        for number, header in enumerate(headers):
            if header.end_offset <= expected or (header.base_offset < expected and number):
                raise CorruptBatch(
                    f"{self.topic}/{self.partition}: a batch of offsets {header.base_offset} to {header.last_offset} "
                    f"came where {expected} should follow"
                )
            expected = header.end_offset

    def corrupt(self, error: RaftlogError) -> None:
        """An answer made no sense; after a few of them reading stops."""
        self._corrupt += 1
        if self._corrupt >= CORRUPT_ATTEMPTS:
            self.error = error

    def take(self) -> ConsumedBatch | None:
        """The next batch fetched ahead. The position stays until it is handed out."""
        if not self.buffered:
            return None
        batch = self.buffered.popleft()
        self.buffered_bytes -= batch.size_bytes
        self._handing_out = True
        return batch

    def handed_out(self, end_offset: int) -> None:
        """The user has everything below `end_offset`, which is within a batch that was taken."""
        self.position = end_offset

    def finished(self, batch: ConsumedBatch) -> None:
        """The user has all of this batch, which was the last one taken."""
        self._handing_out = False
        self.position = batch.end_offset if self.buffered else self.fetch_offset

    def unreadable(self, batch: ConsumedBatch, error: RaftlogError) -> None:
        """The batch that was taken cannot be read, though its CRC is right: asking again is no use, and nothing after
        it is handed out."""
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
        """Records between position and the end of what may be read, holes counted; None until both are known."""
        if self.readable_end < 0 or self.position < 0:
            return None
        return max(0, self.readable_end - self.position)

    def __str__(self) -> str:
        return (
            f"{self.topic}/{self.partition} leader={self.leader} epoch={self.leader_epoch} position={self.position} "
            f"fetch_offset={self.fetch_offset} hw={self.high_watermark} buffered={self.buffered_bytes}"
        )


_Ranges: TypeAlias = dict[tuple[int, int], list[tuple[int, int]]]


def _by_transaction(aborted: Iterable[AbortedRange]) -> _Ranges:
    ranges: _Ranges = {}
    for one in aborted:
        ranges.setdefault((one.producer_id, one.producer_epoch), []).append((one.first_offset, one.end_offset))
    return ranges


def _is_aborted(header: BatchHeader, ranges: _Ranges) -> bool:
    if not ranges or not header.is_transactional:
        return False
    of_transaction = ranges.get((header.producer_id, header.producer_epoch), ())
    return any(first <= header.base_offset < end for first, end in of_transaction)
