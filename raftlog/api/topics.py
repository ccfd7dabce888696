"""Topics: create, list, describe, alter, grow, and delete records."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from raftlog import config

from .base import Natural, PartitionNumber, Request
from .problems import PartitionError

MAX_REPLICATION_FACTOR = 32

Setting = str | int


class CreateTopic(Request, frozen=True):
    name: str
    partitions: Annotated[int, Meta(ge=1, le=config.MAX_PARTITIONS_PER_TOPIC)] = 1
    replication_factor: Annotated[int, Meta(ge=1, le=MAX_REPLICATION_FACTOR)] | None = None
    configs: dict[str, Setting] = {}
    restored_producer_ids_below: Natural | None = None
    """Present: the topic takes batches of a backup, all of whose producer ids are below this one, until its setting
    `restoring` is removed."""


class AlterTopic(Request, frozen=True):
    assign: dict[str, Setting] = msgspec.field(default_factory=dict, name="set")
    remove: list[str] = []


class AddPartitions(Request, frozen=True):
    count: Annotated[int, Meta(ge=1, le=config.MAX_PARTITIONS_PER_TOPIC)]
    """The new total number of partitions."""


class DeleteBefore(Request, frozen=True):
    partition: PartitionNumber
    before: Natural | Literal["latest"]
    """The offset below which records are deleted; `latest` for all records that consumers may read."""


class DeleteRecords(Request, frozen=True):
    partitions: Annotated[list[DeleteBefore], Meta(min_length=1, max_length=config.MAX_PARTITIONS_PER_TOPIC)]
    timeout_ms: Annotated[int, Meta(ge=1, le=config.MAX_PRODUCE_TIMEOUT_MS)] = config.DEFAULT_PRODUCE_TIMEOUT_MS


class PartitionDeletion(msgspec.Struct, frozen=True, omit_defaults=True):
    """The new log start offset of a partition; `error` is set if nothing was deleted."""

    partition: int
    log_start_offset: int = -1
    error: PartitionError | None = None


class DeletedRecords(msgspec.Struct, frozen=True):
    topic: str
    partitions: list[PartitionDeletion]


class TopicSummary(msgspec.Struct, frozen=True):
    """One topic in a list."""

    name: str
    id: str
    partition_count: int
    replication_factor: int
    created_index: int = 0


class Topics(msgspec.Struct, frozen=True):
    topics: list[TopicSummary]


class PartitionInfo(msgspec.Struct, frozen=True):
    """One partition; `leader` is None while there is none."""

    partition: int
    leader: int | None = None
    leader_epoch: int = -1
    partition_epoch: int = -1
    replicas: list[int] = []
    isr: list[int] = []
    commit_set: list[int] = []
    not_eligible: list[int] = []
    min_insync_replicas: int = 0
    adding_replicas: list[int] = []
    """Those of `replicas` that a reassignment added."""
    removing_replicas: list[int] = []
    """Those of `replicas` that will be removed at the end of the reassignment."""
    unclean_leader_epochs: list[int] = []
    """Leader epochs that began with an operator's unclean election, so records may have been lost."""


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One topic with its partitions, in order."""

    name: str
    id: str
    """Topic id, as 32 hexadecimal digits."""
    partition_count: int
    replication_factor: int
    configs: dict[str, str] = {}
    """All settings in effect."""
    overrides: list[str] | None = None
    """Names of the settings that this topic overrides."""
    created_index: int = 0
    """Metadata index of the topic's creation: of two topics with the same name, the later one has the greater.

    0: the topic was created below feature level 5, or the node that described it does not know.
    """
    partitions: list[PartitionInfo]

    def is_older_than(self, other: TopicDescription) -> bool:
        """Whether this topic has the same name and was deleted before `other` was created."""
        return self.id != other.id and self.created_index < other.created_index

    @property
    def id_bytes(self) -> bytes:
        return bytes.fromhex(self.id)

    @property
    def max_message_bytes(self) -> int:
        """Size limit of a batch in this topic, in bytes."""
        try:
            return min(int(self.configs.get("max.message.bytes", config.MAX_BATCH_BYTES)), config.MAX_BATCH_BYTES)
        except ValueError:
            return config.MAX_BATCH_BYTES
