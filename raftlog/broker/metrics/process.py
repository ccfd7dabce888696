"""The numbers of the process: requests, fsyncs, threads, disk, certificates, quotas."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from partitions.files.disk_room import DiskRoom
from partitions.log.writer import LogWriter
from raftlog.broker.loop_stalls import LoopStalls
from raftlog.broker.requests.request_counts import RequestCounts
from raftlog.metrics import catalogue as names
from raftlog.metrics.measure import Family
from raftlog.system.shared_histogram import SharedHistogram
from raftlog.system.thread_times import ThreadTimes

from .partitions import Steps


class ProcessSources(msgspec.Struct, frozen=True):
    """Where the numbers are counted."""

    requests: RequestCounts
    sync_seconds: SharedHistogram
    writer: LogWriter
    room: DiskRoom
    threads: ThreadTimes
    stalls: LoopStalls | None = None
    reserved_descriptors: Callable[[], int] = lambda: 0
    data_connections: Callable[[], int] = lambda: 0
    certificates: Callable[[], Mapping[str, float]] = dict
    """The end of each certificate, in seconds since 1970."""
    quota_delays: Callable[[], Mapping[str, int]] = dict
    """Quota → charges after which a caller had to wait."""
    failed_logins: Callable[[], Mapping[str, int]] = dict
    """Mechanism → credentials that were refused."""


class ProcessNumbers:
    """Collects them. All calls are made on the broker's loop."""

    def __init__(self, sources: ProcessSources) -> None:
        self._from = sources

    def collect(self) -> Steps:
        """Yield the families, in steps."""
        found = self._from
        yield from self._requests()
        yield None
        yield Family.of(names.SYNC_SECONDS, found.sync_seconds.state())
        yield Family.of(names.COMMIT_LOGS, found.writer.logs_of_rounds.state())
        yield Family.of(names.COMMIT_BATCHES, found.writer.batches_of_jobs.state())
        yield Family.of(names.DISK_FREE, found.room.free)
        yield Family.of(names.DISK_RESERVED, found.room.reserved)
        yield Family.of(names.DISK_SHORT, int(found.room.short))
        yield Family.of(names.DESCRIPTORS_RESERVED, found.reserved_descriptors())
        yield Family.of(names.DATA_CONNECTIONS, found.data_connections())
        yield Family(names.TLS_EXPIRY, [((what,), end) for what, end in found.certificates().items()])
        yield Family(names.THROTTLED, [((quota,), count) for quota, count in found.quota_delays().items()])
        yield Family(names.FAILED_LOGINS, [((how,), count) for how, count in found.failed_logins().items()])
        yield Family(names.THREAD_CPU, [((kind,), used) for kind, used in sorted(found.threads.read().items())])
        if found.stalls is not None:
            report = found.stalls.report()
            yield Family.of(names.LOOP_STALLS, report.stalls)
            yield Family.of(names.LOOP_WORST, report.recent_worst)

    def _requests(self) -> Steps:
        counts = self._from.requests.by_kind
        requests = Family(names.REQUESTS, [])
        for kind, one in counts.items():
            requests.add(one.successes, kind, "success")
            requests.add(one.errors, kind, "error")
        yield requests
        yield Family(names.REQUEST_SECONDS, [((kind,), one.seconds.state()) for kind, one in counts.items()])
        yield Family(names.REQUEST_BYTES, [((kind,), one.received_bytes) for kind, one in counts.items()])
        yield Family(names.RESPONSE_BYTES, [((kind,), one.sent_bytes) for kind, one in counts.items()])
