"""Story commands by which logs become shorter: `delete-records`, and compaction of keyed records."""

from __future__ import annotations

from partitions.driver.driver import PartitionDriver
from partitions.driver.requests import Deleted
from partitions.log.slice import ReadBy
from partitions.manager import Produced
from raftlog.errors import RaftlogError
from raftlog.model import Acks, Offset
from raftlog.ports import Part
from raftlog.records.batch import RecordBatch, encode, split_batches
from raftlog.records.batch_filter import is_hole
from tests.support.metadata.cluster import TP

from .moves import Moves
from .wires import bytes_of

PASS_MAX = 200
"""The number of steps that a pass may take."""


class ShorterLogs(Moves):
    def do_put(self, number: str, *pairs: str, pid: str = "-1", seq: str = "-1") -> None:
        """Send one batch of keyed records, `key:value` each; `key:` is a tombstone."""
        named = [pair.partition(":") for pair in pairs]
        batch = encode(
            [value.encode() or None for _, _, value in named],
            keys=[key.encode() for key, _, _ in named],
            base_timestamp_ms=self.scheduler.clock.wall_ms(),
            producer_id=int(pid),
            producer_epoch=-1 if pid == "-1" else 0,
            base_sequence=int(seq),
        )

        def done(answer: Produced | RaftlogError) -> None:
            told = f"offset {answer.base_offset}" if isinstance(answer, Produced) else _refusal(answer)
            self.say(f"{number} answers {' '.join(pairs)}: {told}")

        self.manager(number).produce(TP, batch, Acks.ALL, done)

    def do_delete_records(self, number: str, before: str, timeout: str = "5") -> None:
        """Delete all records below an offset (or `latest`)."""

        def done(answer: Deleted | RaftlogError) -> None:
            told = f"log start {answer.log_start_offset}" if isinstance(answer, Deleted) else _refusal(answer)
            self.say(f"{number} answers delete-records {before}: {told}")

        offset = Offset(-1 if before == "latest" else int(before))
        self._driver(number).delete_records(offset, done, int(float(timeout) * 1000))

    def do_compact(self, number: str) -> None:
        """Run one whole pass, if one is due."""
        compactor = self.manager(number).compactor
        before = compactor.passes
        if not compactor.look():
            self.say("nothing is worth it")
            return
        worker = self.nodes[int(number)].worker
        assert worker is not None
        for _ in range(PASS_MAX):
            worker.begin()
            worker.end()
            self.scheduler.advance(0.05)
            if compactor.passes > before:
                return
        raise AssertionError("the pass does not end")

    def do_exchange(self, number: str) -> None:
        """Run a pass up to the rename of its first new file; the disk gets no further work."""
        driver = self._driver(number)
        compactor = self.manager(number).compactor
        assert compactor.look(), "nothing is worth it"
        segments = list(driver.log.segments.all)
        worker = self.nodes[int(number)].worker
        assert worker is not None
        for _ in range(PASS_MAX):
            if list(driver.log.segments.all) != segments:
                return
            worker.begin()
            worker.end()
            self.scheduler.run()
            if list(driver.log.segments.all) == segments:
                self.scheduler.advance(0.01)
        raise AssertionError("the pass does not come so far")

    def do_batches(self, *numbers: str) -> None:
        """Show the batches of each segment, from the log's start on."""
        for node in self.chosen(numbers):
            log = self._driver(str(node.number)).log
            shown = []
            for segment in log.segments.all:
                if segment.size:
                    piece = log.read(segment.base_offset, segment.end_offset, 1 << 24, by=ReadBy.FOLLOWER)
                    shown.append(" ".join(_shown(batch) for batch in split_batches(_joined(piece.parts))))
            self.say(f"{node.number}: " + " | ".join(shown))

    def do_starts(self, *numbers: str) -> None:
        """Show where each log begins, in memory and on its disk."""
        for node in self.chosen(numbers):
            log = self._driver(str(node.number)).log
            self.say(f"{node.number}: start={log.log_start_offset} on disk={log.stable_start_offset}")

    def _driver(self, number: str) -> PartitionDriver:
        driver = self.manager(number).driver(TP)
        assert driver is not None, f"broker {number} has no replica"
        return driver


def _refusal(error: RaftlogError) -> str:
    return f"{error.code} (applied: {error.applied.value})"


def _shown(batch: memoryview) -> str:
    found = RecordBatch(batch)
    records = " ".join(
        f"{offset}={(key or b'').decode()}:{(value or b'').decode()}"
        for offset, key, value in zip(found.offsets(), found.keys(), found.values(), strict=True)
    )
    header = found.header
    span = f"[{header.base_offset},{header.end_offset})"
    return f"{span} {records or ('hole' if is_hole(header) else 'empty')}"


def _joined(parts: list[Part]) -> bytes:
    return b"".join(bytes_of(part) for part in parts)
