"""One sample in ten seconds, into the ring. All calls are made on the broker's loop.

A sample is taken at the end of its slot, a few hundred partitions in each turn of the loop, and written by a worker.
A sample is left out, as a gap in the plots, while the one before is still being written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from raftlog import slices
from raftlog.broker.loop_stalls import LoopStalls
from raftlog.broker.wiring import Broker
from raftlog.model import TopicId
from raftlog.ports import Clock, Logger, Scheduler, Timer, Worker
from raftlog.system.cluster_clock import ClusterClock

from .columns import GROUP_SERIES, NODE_SERIES, TOPIC_SERIES, Columns
from .ring import Ring
from .rows import SLOT_MS, Span, encode_row
from .sampling import Sample, Sampling

Read = Callable[[list[list[float | None]] | None, BaseException | None], None]
"""Called once on the loop: with the columns that were read, or with the error."""


class PlotSampler:
    """The samples of one node, and its ring."""

    def __init__(
        self,
        broker: Broker,
        ring: Ring,
        scheduler: Scheduler,
        worker: Worker,
        logger: Logger,
        stalls: LoopStalls | None = None,
    ) -> None:
        self._broker = broker
        self._clock: Clock = broker.clock
        self._time: ClusterClock = broker.cluster_clock
        self._ring = ring
        self._scheduler = scheduler
        self._worker = worker
        self._logger = logger
        self._stalls = stalls
        self._sampling = Sampling()
        self._columns = Columns()
        self._unsaved = False
        """Whether `columns` on disk is older than `_columns`."""
        self._timer: Timer | None = None
        self._busy = self._closed = False
        self._sampled_at = 0.0

    def load(self) -> None:
        """Read what an earlier process left. Blocks; called once, before `start`."""
        self._columns = self._ring.load()

    def start(self) -> None:
        """Begin to take samples."""
        self._sampled_at = self._clock.monotonic()
        self._arm()

    def close(self) -> None:
        """Take no further sample."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def now_ms(self) -> int:
        """Return the cluster's time in milliseconds since 1970."""
        return self._time.stamp_ms()

    def read_topic(self, topic_id: TopicId, span: Span, done: Read) -> None:
        """Read the `TOPIC_SERIES` of a topic."""
        self._read(self._columns.of_topic(topic_id.hex()), len(TOPIC_SERIES), span, done)

    def read_group(self, group_id: str, span: Span, done: Read) -> None:
        """Read the `GROUP_SERIES` of a group."""
        self._read(self._columns.of_group(group_id), len(GROUP_SERIES), span, done)

    def read_node(self, span: Span, done: Read) -> None:
        """Read the `NODE_SERIES`."""
        self._read(self._columns.of_node(), len(NODE_SERIES), span, done)

    # --- Inside ---

    def _read(self, where: tuple[range, int] | None, width: int, span: Span, done: Read) -> None:
        if where is None:
            done([[None] * span.points for _ in range(width)], None)
        else:
            columns, since = where
            self._worker.submit(lambda: self._ring.read(span, columns, since), done)

    def _arm(self) -> None:
        """Wait for the next end of a slot that is at least half a slot away: a timer may fire a little early."""
        if not self._closed:
            now = self.now_ms()
            wait_ms = ((now + SLOT_MS // 2) // SLOT_MS + 1) * SLOT_MS - now
            self._timer = self._scheduler.call_later(wait_ms / 1000, self._on_end_of_slot)

    def _on_end_of_slot(self) -> None:
        self._arm()
        if not self._busy:
            self._busy = True
            sample = Sample()
            slices.run(self._scheduler, self._steps(sample), self._failed)

    def _steps(self, sample: Sample) -> Iterator[None]:
        broker = self._broker
        yield from self._sampling.steps(broker.manager.drivers, broker.view, sample)
        self._write(sample)

    def _failed(self, error: Exception) -> None:
        self._busy = False

    def _write(self, sample: Sample) -> None:
        if self._closed:
            return
        # A clock that a step of some milliseconds delayed must not move the sample into the slot that begins.
        slot = (self.now_ms() + SLOT_MS // 2) // SLOT_MS - 1
        now = self._clock.monotonic()
        seconds, self._sampled_at = max(0.001, now - self._sampled_at), now
        self._place(sample, slot)
        row = encode_row(slot, self._values(sample, seconds))
        columns = self._columns.encode() if self._unsaved else None
        self._unsaved = False
        self._worker.submit(
            lambda: self._ring.write(slot, row, columns), partial(self._written, saving=columns is not None)
        )

    def _written(self, result: None, error: BaseException | None, *, saving: bool) -> None:
        self._busy = False
        if error is not None:
            self._unsaved = self._unsaved or saving
            self._logger.warning("plots_not_written", reason=str(error))

    def _place(self, sample: Sample, slot: int) -> None:
        """Give topics and groups their places in the ring."""
        view, topics, groups = self._broker.view, self._columns.topics, self._columns.groups
        changed = topics.leave(lambda key: view.topic_by_id(TopicId(bytes.fromhex(key))) is not None)
        changed |= groups.leave(lambda key: view.groups.group(key) is not None)
        for topic_id, count in sorted(sample.records.items(), key=lambda one: -one[1]):
            changed |= topics.take(topic_id.hex(), slot, busy=count > 0)
        for group_id, lag in sorted(sample.lags.items(), key=lambda one: -one[1]):
            changed |= groups.take(group_id, slot, busy=lag > 0)
        self._unsaved |= changed

    def _values(self, sample: Sample, seconds: float) -> dict[int, float]:
        """Return the values of the sample by column."""
        broker = self._broker
        writer = broker.manager.writer.facts()
        values = dict(
            enumerate(
                (
                    sum(sample.records.values()) / seconds,
                    sample.disk_used,
                    broker.room.free,
                    sample.leaders,
                    sample.under_replicated,
                    sum(sample.lags.values()),
                    writer.median * 1000,
                    0.0 if self._stalls is None else self._stalls.report().recent_worst * 1000,
                )
            )
        )
        found: dict[int, float] = {column: float(value) for column, value in values.items()}
        for topic_id, count in sample.records.items():
            where = self._columns.of_topic(topic_id.hex())
            if where is not None:
                columns = where[0]
                found[columns[0]], found[columns[1]] = count / seconds, float(sample.sizes.get(topic_id, 0))
        for group_id, lag in sample.lags.items():
            where = self._columns.of_group(group_id)
            if where is not None:
                found[where[0][0]] = float(lag)
        return found
