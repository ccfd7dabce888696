"""What changed in transactions, for whoever keeps a copy; the image's own tables are made of the same events.

In one entry the ends of a commit (`EndsCommitted`) come before the outcome: a copy that takes an entry over piece by
piece never knows that a transaction is committed without knowing what of it is meant (S13).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from raftlog.model import Offset, ProducerId, TopicPartition
from raftlog.transactions import TransactionKey

from .transaction_records import Block, NamedProducer


@dataclass(frozen=True, slots=True)
class ProducerIdsTaken:
    """Every producer id below was granted, for whatever purpose."""

    below: ProducerId


@dataclass(frozen=True, slots=True)
class ProducerChanged:
    """A named producer is new, began again, or ended a transaction."""

    record: NamedProducer


@dataclass(frozen=True, slots=True)
class ProducerRemoved:
    """Nobody used the name for long."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class BlockChanged:
    """A block is new, retired, or some of its ids are decided."""

    record: Block


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """It expired."""

    first: ProducerId


@dataclass(frozen=True, slots=True)
class EndsCommitted:
    """Committed, and not marked yet; there may be several of these for one commit."""

    ends: Mapping[TopicPartition, Mapping[TransactionKey, Offset]]


@dataclass(frozen=True, slots=True)
class EndsForgotten:
    """Their markers are below the high watermark, or the partition is no more."""

    topic_partition: TopicPartition
    keys: Sequence[TransactionKey]


@dataclass(frozen=True, slots=True)
class PositionMoved:
    """A named counter went up."""

    name: str
    value: int


@dataclass(frozen=True, slots=True)
class PositionRemoved:
    """An operator had a named counter forgotten."""

    name: str


@dataclass(frozen=True, slots=True)
class PartsStaged:
    """So many parts of a commit to come are there; 0: they are dropped."""

    commit_id: bytes
    count: int


TransactionEvent: TypeAlias = (
    ProducerIdsTaken
    | ProducerChanged
    | ProducerRemoved
    | BlockChanged
    | BlockRemoved
    | EndsCommitted
    | EndsForgotten
    | PositionMoved
    | PositionRemoved
    | PartsStaged
)
