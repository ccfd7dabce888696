"""A log of keyed records and markers, compacted by hand, with its owner's transaction state."""

from __future__ import annotations

from collections.abc import Sequence

from jepsen_like.simulator.world.disk import SimDisk
from partitions.compaction.run import CleanedSegment, Finished
from partitions.producers.control_batches import control_of
from partitions.producers.state import ProducerStates
from partitions.producers.transactions import key_of
from raftlog.model import Offset
from raftlog.records.batch import ControlKind, RecordBatch, encode_control, parse_header, stamp
from raftlog.transactions import TransactionKey
from tests.support.partitions.storage import recover_log

from .compaction import COMPACTED, append_records
from .storage import PATH, read_batches, settle
from .transaction_logs import batch_of


class Transactional:
    """A log of keyed records and markers, and the state of its transactions."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.disk.make_directory("partitions")
        self.states = ProducerStates()
        self.log, _ = recover_log(self.disk, PATH, COMPACTED, clean_shutdown=False, producers=self.states)

    def append(self, data: bytes) -> None:
        buffers = stamp(data, self.log.log_end_offset, 0)
        batch = b"".join(buffers)
        header = parse_header(batch)
        self.log.append(header, buffers)
        self.states.append(header, control_of(header, batch))

    def write(self, one: TransactionKey, keys: Sequence[bytes], value: bytes, sequence: int = 0) -> None:
        self.append(batch_of(one, *[value] * len(keys), sequence=sequence, keys=list(keys)))

    def plain(self, name: bytes, value: bytes | None) -> None:
        append_records(self.log, [(name, value)])

    def end(self, kind: ControlKind, one: TransactionKey, named: int = -1) -> None:
        self.append(encode_control(kind, [(*one, named)], base_timestamp_ms=1_000))

    def stable(self) -> Offset:
        return self.states.transactions.last_stable_offset(self.log.stable_end_offset)

    def compact(self) -> bool:
        plan = self.log.compaction_plan(self.stable(), 10_000)
        if plan is None:
            return False
        run = self.log.compaction_run(plan, 10_000, self.states.transactions.aborted)
        while not isinstance(piece := run.next_piece(), Finished):
            if isinstance(piece, CleanedSegment):
                assert self.log.replace_segment(piece)
        run.clear_away()
        assert self.log.compacted(run, piece.end)
        self.states.transactions.forget_compacted(piece.end)
        settle(self.log)
        return True

    def shape(self) -> list[str]:
        """Each batch: a marker, or its number of records."""
        found = []
        for data in read_batches(self.log, self.log.log_start_offset):
            header = RecordBatch(data).header
            found.append("marker" if header.is_control else f"{header.record_count}/{header.last_offset_delta + 1}")
        return found

    def reopened(self) -> ProducerStates:
        """The state of a reader that starts at the log's beginning."""
        states = ProducerStates()
        for data in read_batches(self.log, Offset(0)):
            header = parse_header(data)
            states.replay(header, control_of(header, data))
        return states

    def committed(self, states: ProducerStates | None = None) -> list[tuple[bytes | None, bytes | None]]:
        """(key, value) that a `read_committed` reader sees, with the live state or another one."""
        transactions = (states or self.states).transactions
        stable = transactions.last_stable_offset(self.log.stable_end_offset)
        found: list[tuple[bytes | None, bytes | None]] = []
        for batch in map(RecordBatch, read_batches(self.log, self.log.log_start_offset)):
            header = batch.header
            aborted = header.is_transactional and transactions.aborted.covers(key_of(header), header.base_offset)
            if header.end_offset <= stable and not aborted:
                found += zip(batch.keys(), batch.values(), strict=True)
        return found
