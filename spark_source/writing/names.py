"""The names of a writing query in the cluster, and the producer id of each task attempt. Pure.

A micro-batch is one piece of work with many possible attempts: task attempts, speculative ones, and all of them again
by another driver after a crash. So all take their producer ids from **one block, named for the micro-batch**: the
command that commits the winners retires the block, which aborts every other attempt permanently (S13). A **position**,
the number of the last published micro-batch, records the progress.

Two attempts must never share a producer id: the batches of the second would be taken for resends of the first one's,
and be lost (S1). Spark's own numbers do not help, because a new driver starts from zero while attempts of the old one
may still run. So every attempt has a number that no other attempt of this query ever had, claimed in the quorum
(`claims.py`); the id is the number's place in the block. A block holds `IDS_PER_BLOCK` ids, so the number's thousands
are part of the block's name, and no two numbers share name and place.

A batch query has no query id and runs on one driver only. The driver chooses its name, and Spark's task attempt ids,
which are unique for that driver, number its attempts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

DEFAULT_SINK = "sink"
IDS_PER_BLOCK = 1_000
"""Micro-batches follow each other three a second, and each one's block is kept for half a minute: the cluster has room
for 10,000 blocks, and for 20 million ids."""


class Place(NamedTuple):
    """An attempt's producer id: its block, and its place in it."""

    block: str
    number_in_block: int


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One piece of work of a streaming query. `query_id` is in the checkpoint: it stays over restarts."""

    query_id: str
    sink: str
    batch_id: int
    run: str = ""
    """Different for each start of the query. It is not part of any name, so that the next run can finish this one's
    work."""

    @property
    def position(self) -> str:
        """Return the name of the position of the last published micro-batch."""
        return f"spark/{self.query_id}/{self.sink}"

    @property
    def attempts(self) -> str:
        """Return the name of the position of the highest claimed attempt number."""
        return f"{self.position}/attempts"

    @property
    def work(self) -> str:
        """Return the name of its blocks without the thousands."""
        return f"{self.position}/{self.batch_id}"


@dataclass(frozen=True, slots=True)
class BatchJob:
    """One writing batch query. `job`: a unique name."""

    job: str

    @property
    def work(self) -> str:
        return f"spark/job/{self.job}"


def place(work: str, number: int) -> Place:
    """Return the place of the attempt with this number, which no other number of this work has."""
    return Place(_block(work, number // IDS_PER_BLOCK), number % IDS_PER_BLOCK)


def blocks_between(work: str, numbers: range) -> list[str]:
    """Return the blocks of all attempts with these numbers, and of those between them."""
    if not numbers:
        return []
    return [_block(work, part) for part in range(numbers[0] // IDS_PER_BLOCK, numbers[-1] // IDS_PER_BLOCK + 1)]


def _block(work: str, part: int) -> str:
    return f"{work}/{part}"
