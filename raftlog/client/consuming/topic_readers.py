"""The readers of one topic: partitions, start offsets, leaders, and the handling of a leader's errors. A pure core.

The wanted partitions are either all, including those added later, or a given set that may change; partitions that are
being read continue. A partition that a node does not know may be new, and the node stale, so another node is asked
before that is an error. The same holds for a topic that is read by its id, if a node describes another topic of the
same name.

Most errors are transient: the reader backs off and retries, perhaps at another leader. The error that a partition is
unknown may come from a stale node: whether the topic is gone is decided by its description, which is requested each
time (`fetcher.py`). The error that the position is not in the log counts only once all prefetched data is handed out,
and if the bounds in the answer confirm it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from raftlog.api.topics import PartitionInfo, TopicDescription
from raftlog.errors import CODES, InvalidRequest, RaftlogError, error_from_code
from raftlog.model import EARLIEST

from .channels import Answer
from .reader import PartitionReader, Start

logger = logging.getLogger("raftlog.client")

UNKNOWN_TOPIC_GRACE = 2.0
SETTLED_BY_DESCRIPTION = ("unknown_topic", "unknown_partition")


class TopicReaders:
    """The readers of one topic.

    The topic is identified by its id, given at the beginning or learned from its first description.
    """

    def __init__(
        self,
        topic: str,
        partitions: Sequence[int] | None,
        start: Mapping[int, Start] | Start,
        topic_id: bytes = b"",
    ) -> None:
        """Configure what to read.

        `partitions` None: all of them, including those added later, which begin at their earliest record. `topic_id`:
        the topic to read, if known; another topic of this name is never read.
        """
        self.topic = topic
        self.topic_id = topic_id
        self.readers: dict[int, PartitionReader] = {}
        self.paused: set[int] = set()
        """Partitions that are neither requested nor handed out."""
        self.error: RaftlogError | None = None
        """The error that keeps everything from being read."""
        self._wanted = partitions
        self._start = start
        self._begun = False
        self._description: TopicDescription | None = None
        self._beyond_since: float | None = None
        """Time since which a wanted partition does not exist according to the nodes."""
        self._another_since: float | None = None
        """Time since which the nodes describe another topic than the wanted one, never yet that one.
        """

    def assign(self, starts: Mapping[int, Start], now: float) -> tuple[list[PartitionReader], bool]:
        """Read exactly these: partitions that are being read continue, the others begin at these starts.

        Returns the readers that are dropped, and whether the topic has to be described again.
        """
        self._wanted = sorted(starts)
        self._start = starts
        dropped = [self.readers.pop(partition) for partition in sorted(self.readers) if partition not in starts]
        for reader in dropped:
            reader.asked = None
        return dropped, self._description is not None and self.described(self._description, now)

    def described(self, description: TopicDescription, now: float) -> bool:
        """Update the readers from a description; return True if another node has to be asked.

        The description is never of a topic created before the one described last (`ClusterMetadata`).
        """
        if self.topic_id and self.topic_id != description.id_bytes:
            return self._is_another(now)
        self._another_since = None
        self.topic_id = description.id_bytes
        self._description = description
        count = description.partition_count
        wanted = range(count) if self._wanted is None else self._wanted
        beyond = [partition for partition in wanted if not 0 <= partition < count]
        if beyond:
            return self._is_behind(beyond[0], count, now)
        self._beyond_since = None
        for partition in wanted:
            reader = self.readers.get(partition)
            if reader is None:
                reader = self.readers[partition] = PartitionReader(self.topic, partition, self._start_of(partition))
            _set_leader(reader, description.partitions[partition])
        self._begun = True
        return False

    def _start_of(self, partition: int) -> Start:
        if isinstance(self._start, Mapping):
            return self._start.get(partition, EARLIEST)
        return EARLIEST if self._begun else self._start

    def _is_another(self, now: float) -> bool:
        """Return True if the node may be stale: no node has described the wanted topic yet."""
        if self._description is None:
            self._another_since = now if self._another_since is None else self._another_since
            if now - self._another_since < UNKNOWN_TOPIC_GRACE:
                return True
        again = f"topic {self.topic} was deleted and created again: the old offsets do not apply to it"
        self.error = InvalidRequest("unknown_topic", again)
        return False

    def _is_behind(self, beyond: int, count: int, now: float) -> bool:
        self._beyond_since = now if self._beyond_since is None else self._beyond_since
        if now - self._beyond_since < UNKNOWN_TOPIC_GRACE:
            return True
        have = f"topic {self.topic} has the partitions 0 to {count - 1}, not {beyond}"
        self.error = InvalidRequest("unknown_partition", have)
        return False


def _set_leader(reader: PartitionReader, info: PartitionInfo) -> None:
    if info.leader_epoch < reader.leader_epoch:
        return
    leader = -1 if info.leader is None else info.leader
    if (leader, info.leader_epoch) != (reader.leader, reader.leader_epoch):
        reader.leader, reader.leader_epoch = leader, info.leader_epoch
        reader.asked = None  # the open request went to a former leader
        reader.not_before = 0.0


def take_refusal(reader: PartitionReader, answer: Answer, on_out_of_range: str) -> RaftlogError:
    """Return the error in this answer, and store it in the reader if reading cannot continue.

    `on_out_of_range` other than `"error"` is the start from which to continue.
    """
    error = error_from_code(answer.error, answer.detail, answer.leader)
    if error.code == "offset_out_of_range":
        _out_of_range(reader, answer, on_out_of_range)
    elif error.code not in SETTLED_BY_DESCRIPTION and not CODES[error.code].retriable:
        reader.error = error
    return error


def _out_of_range(reader: PartitionReader, answer: Answer, otherwise: str) -> None:
    start, end = answer.log_start_offset, answer.high_watermark
    if start <= reader.fetch_offset <= end:
        return  # the broker has caught up meanwhile
    if reader.position < reader.fetch_offset:
        return  # prefetched data first; the request is repeated
    detail = f"{reader.topic}/{reader.partition}: offset {reader.fetch_offset} is not between {start} and {end}"
    if otherwise == "error":
        reader.error = InvalidRequest("offset_out_of_range", detail)
    else:
        logger.warning("%s; continuing at the %s", detail, otherwise)
        reader.seek(otherwise)
