"""Counts of what passes through a topic's replicas on one node.

Plain numbers, changed once for each batch or read. All drivers of a topic share one, so that the counts go on when a
replica leaves the node.
"""

from __future__ import annotations


class TopicTraffic:
    """The counts of one topic on one node, since the node's start. They only rise."""

    __slots__ = (
        "appended_batches",
        "appended_bytes",
        "appended_records",
        "cold_reads",
        "cold_reads_of_followers",
        "fetched_bytes",
        "replicated_bytes",
    )

    def __init__(self) -> None:
        self.appended_batches = 0
        """Batches that a leader here appended for its clients."""
        self.appended_records = 0
        self.appended_bytes = 0
        self.replicated_bytes = 0
        """Bytes that a follower here appended."""
        self.fetched_bytes = 0
        """Bytes that consumers read."""
        self.cold_reads = 0
        """Reads of consumers that a worker had to load."""
        self.cold_reads_of_followers = 0

    def appended(self, records: int, nbytes: int) -> None:
        """Count one batch at a leader."""
        self.appended_batches += 1
        self.appended_records += records
        self.appended_bytes += nbytes
