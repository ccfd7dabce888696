"""Scrubs: checks of the replicas on a node's disk."""

from __future__ import annotations

import msgspec

from .base import OfPartition, PartitionNumber, Request, TopicName


class StartScrub(Request, frozen=True):
    """The replicas of this node to scrub; without `topic` all of them, without `partition` all of the topic."""

    topic: TopicName | None = None
    partition: PartitionNumber | None = None


class ScrubFinding(OfPartition, frozen=True):
    """A file of a replica that differs from what was written."""

    detail: str
    """File, byte, and what is wrong."""


class Scrub(msgspec.Struct, frozen=True):
    """The progress of the scrub that was requested last."""

    node_id: int
    running: bool
    replicas: int
    replicas_done: int
    total_bytes: int
    """The approximate number of bytes to read."""
    bytes_read: int
    findings: list[ScrubFinding]
