"""How a query that writes is known to the cluster, and which producer id each attempt at a task has. Pure.

A micro-batch is one piece of work, whoever attempts it and however often: task attempts, speculative ones, all of it
again by another driver after a crash. So all of them take their producer ids from **one block, named for the
micro-batch**: the command that commits the winners retires the block, and with it every other attempt is aborted, for
good (S13). What was published is told by a **position**, the number of the last micro-batch.

Two attempts must never have one producer id: what the second sent would be taken for the first one's sent again, and be
lost (S1). Spark's own numbers do not help: a new driver begins anew, and attempts of the old one may still run. So
every attempt has a number that nobody of this query ever had, claimed in the quorum (`claims.py`); the id is the
number's place in the block. A block holds `IDS_PER_BLOCK` ids, so the number's thousands are part of the block's
name, and no two numbers share name and place.

A batch query has no query id and is attempted by one driver only. It has a name made up by its driver, and Spark's
task attempt ids, which are unique for that driver, number its attempts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from raftlog.errors import InvalidRequest

DEFAULT_SINK = "sink"
MAX_SINK_NAME = 100
IDS_PER_BLOCK = 1_000
"""Micro-batches follow each other three a second, and each one's block is kept for half a minute: the cluster has room
for 10,000 blocks, and for 20 million ids."""

_SINK_NAME = re.compile(r"[A-Za-z0-9._-]+")


class Place(NamedTuple):
    """An attempt's producer id: which one of which block."""

    block: str
    number_in_block: int


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One piece of work of a streaming query. `query_id` is in the checkpoint: it stays over restarts."""

    query_id: str
    sink: str
    batch_id: int
    run: str = ""
    """Another one with each start of the query. No name has it: what a run begins the next one ends."""

    @property
    def position(self) -> str:
        """The name of the position that tells the last micro-batch that is published."""
        return f"spark/{self.query_id}/{self.sink}"

    @property
    def attempts(self) -> str:
        """The name of the position that tells the highest number that was claimed for an attempt."""
        return f"{self.position}/attempts"

    @property
    def work(self) -> str:
        """The name of its blocks, up to the thousands."""
        return f"{self.position}/{self.batch_id}"


@dataclass(frozen=True, slots=True)
class BatchJob:
    """One batch query that writes. `job`: nobody else's."""

    job: str

    @property
    def work(self) -> str:
        return f"spark/job/{self.job}"


def place(work: str, number: int) -> Place:
    """Of the attempt with this number. No other number of this work has the same one."""
    return Place(_block(work, number // IDS_PER_BLOCK), number % IDS_PER_BLOCK)


def blocks_between(work: str, numbers: range) -> list[str]:
    """The blocks of all attempts with these numbers, and of those between them."""
    if not numbers:
        return []
    return [_block(work, part) for part in range(numbers[0] // IDS_PER_BLOCK, numbers[-1] // IDS_PER_BLOCK + 1)]


def _block(work: str, part: int) -> str:
    return f"{work}/{part}"


def check_sink_name(name: str) -> str:
    """The name itself. Raises `InvalidRequest`."""
    if len(name) > MAX_SINK_NAME or not _SINK_NAME.fullmatch(name):
        told = f"1 to {MAX_SINK_NAME} letters, digits and . _ -"
        raise InvalidRequest("invalid_config", f"a sink's name has {told}, not {name[:MAX_SINK_NAME]!r}")
    return name
