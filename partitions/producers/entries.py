"""The memory that a partition has of one idempotent producer. Pure."""

from __future__ import annotations

from typing import NamedTuple

from raftlog.model import Offset, ProducerEpoch, Sequence
from raftlog.records.batch import BatchHeader

SEQUENCES = 2**31
"""Sequences count 0 … 2**31 - 1 and wrap to 0."""

PRODUCER_BYTES = 260
BATCH_BYTES = 210
"""Measured memory, in bytes, of a known producer and of each of its batches."""

DROPPED_BEYOND = 2
"""The multiple of the bound that a replica keeps of what its leader accepted.

Leaders refuse new producers at the bound, so a state beyond it means that this replica has been in service for less
time than its leader.
"""


def sequence_after(sequence: int, count: int = 1) -> Sequence:
    """Return the sequence `count` records further on."""
    return Sequence((sequence + count) % SEQUENCES)


def last_sequence(header: BatchHeader) -> Sequence:
    """Return the sequence of the batch's last record."""
    return sequence_after(header.base_sequence, header.last_offset_delta)


class AppendedBatch(NamedTuple):
    """An appended batch: the data for the answer to a resend."""

    base_sequence: Sequence
    last_sequence: Sequence
    base_offset: Offset
    end_offset: Offset
    max_timestamp: int
    """Milliseconds; the append time if the topic uses that."""


class ProducerEntry(NamedTuple):
    """One producer's epoch and its last batches, oldest first. Invariant: 1 to 5 batches, all of this epoch."""

    epoch: ProducerEpoch
    batches: tuple[AppendedBatch, ...]
    appended_at_ms: int = 0
    """The time of the last append, in milliseconds of this replica's service."""
    from_first: bool = True
    """Whether everything that the producer ever appended here is known; else a later epoch may have been forgotten."""

    @property
    def size_bytes(self) -> int:
        return PRODUCER_BYTES + BATCH_BYTES * len(self.batches)

    @property
    def next_sequence(self) -> Sequence:
        return sequence_after(self.batches[-1].last_sequence)
