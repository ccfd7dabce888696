"""The clients' answers against the committed log: acknowledgements (S1) and reads (S3)."""

from __future__ import annotations

from collections.abc import Callable

from jepsen_like.simulator.brokers.history import Fate, History, Read, Send
from jepsen_like.simulator.world.violation import Violation
from raftlog.model import TopicPartition

from .partition_truth import PartitionTruth


class ClientTruth:
    """Checks a history as it grows; raises `Violation`."""

    def __init__(self, history: History, of: Callable[[TopicPartition], PartitionTruth]) -> None:
        """`of` returns the truth of a partition."""
        self._history = history
        self._of = of
        self._open: list[Send] = []
        self._sends_seen = 0
        self._reads_seen = 0

    def check(self) -> None:
        """Check the acknowledgements and reads since the last call."""
        self._open += self._history.sends[self._sends_seen :]
        self._sends_seen = len(self._history.sends)
        for send in self._open:
            if send.fate is Fate.OK and send.acks == -1:
                self._check_acknowledged(send)
        self._open = [send for send in self._open if send.fate is None]
        for read in self._history.reads[self._reads_seen :]:
            self._check_read(read)
        self._reads_seen = len(self._history.reads)

    def check_refused(self) -> None:
        """S1: a batch that was refused is nowhere."""
        for send in self._history.sends:
            log = self._of(send.topic_partition).log
            if send.fate is Fate.FAIL and any(value in log.offsets for value in send.values if value is not None):
                raise Violation(f"S1: {send} was refused, and is committed")

    def _check_acknowledged(self, send: Send) -> None:
        truth = self._of(send.topic_partition).log
        for position, value in enumerate(send.values):
            offset = send.base_offset + position
            if not truth.holds(offset, value):
                raise Violation(
                    f"S1: {value!r} was acknowledged at {send.topic_partition} offset {offset}; committed there is "
                    f"{truth.told(offset)}"
                )

    def _check_read(self, read: Read) -> None:
        truth = self._of(read.topic_partition).log
        due = read.position
        for offset, value in read.records:
            if not truth.holds(offset, value):
                raise Violation(
                    f"S3: consumer {read.consumer} saw {value!r} at {read.topic_partition} offset {offset}; the truth "
                    f"there is {truth.told(offset)}"
                )
            while due in truth.controls:
                due += 1
            if offset >= read.high_watermark or offset < due or (offset > due and not truth.compacts):
                raise Violation(
                    f"S3: consumer {read.consumer} of {read.topic_partition} was at {due} and saw {offset}, the high "
                    f"watermark is {read.high_watermark}"
                )
            due = offset + 1
