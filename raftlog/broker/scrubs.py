"""The scrubber as the HTTP API sees it. See `http_api/service_scrubs.py`."""

from __future__ import annotations

from collections.abc import Collection

from http_api.service_scrubs import ScrubProgress
from partitions.scrubber import Scrubber
from raftlog.model import TopicPartition


class Scrubs:
    """Of this broker; lives on its loop."""

    def __init__(self, scrubber: Scrubber) -> None:
        self._scrubber = scrubber

    def scrub_now(self, wanted: Collection[TopicPartition]) -> None:
        self._scrubber.scrub_now(wanted)

    def scrub_progress(self) -> ScrubProgress:
        run = self._scrubber.run
        findings = [(found.topic_partition, str(found.finding)) for found in run.findings]
        return ScrubProgress(run.running, run.wanted, run.done, run.total_bytes, run.bytes_read, findings)
