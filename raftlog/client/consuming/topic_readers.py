"""The readers of one topic: which of its partitions are read, from where, who leads them, and what a reader does when a
leader gives it an error instead of batches. A pure core.

Wanted are all partitions, those to come included, or given ones, which may be changed: what is read already goes on.
A partition that a node does not know may be new, and the node behind, so another node is asked before that is an error.
The same goes for a topic that is to be read by its id, where a node describes another of the same name.

Most errors pass: the reader rests a while and asks again, perhaps somebody else. One that says that the partition is
not known may come from a node that is behind: whether the topic is gone is for its description to say, which is asked
for each time (`fetcher.py`). One that says that the position is not in the log counts only once all that was fetched
ahead is handed out, and if the bounds that come with it say so, too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from raftlog.client.cluster.metadata import PartitionInfo, TopicDescription
from raftlog.errors import CODES, InvalidRequest, RaftlogError, error_from_code
from raftlog.model import EARLIEST

from .channels import Answer
from .reader import PartitionReader, Start

logger = logging.getLogger("raftlog.client")

UNKNOWN_TOPIC_GRACE = 2.0
SETTLED_BY_DESCRIPTION = ("unknown_topic", "unknown_partition")


class TopicReaders:
    """Of one topic, which is known by its id from its first description on, or from the beginning."""

    def __init__(
        self,
        topic: str,
        partitions: Sequence[int] | None,
        start: Mapping[int, Start] | Start,
        topic_id: bytes = b"",
    ) -> None:
        """`partitions` None: all of them, also those that are added later (which begin at their earliest record).
        `topic_id`: the one to be read, where that is known; another topic of this name never is."""
        self.topic = topic
        self.topic_id = topic_id
        self.readers: dict[int, PartitionReader] = {}
        self.paused: set[int] = set()
        """Partitions that are neither asked for nor handed out."""
        self.error: RaftlogError | None = None
        """Why nothing can be read at all."""
        self._wanted = partitions
        self._start = start
        self._begun = False
        self._description: TopicDescription | None = None
        self._beyond_since: float | None = None
        """Since when a wanted partition does not exist, as far as the nodes say."""
        self._another_since: float | None = None
        """Since when the nodes describe another topic than the wanted one, which none of them has described yet."""

    def assign(self, starts: Mapping[int, Start], now: float) -> tuple[list[PartitionReader], bool]:
        """Read exactly these: what is read already goes on where it is, the others begin there. Returns the readers
        that are dropped, and whether the topic is to be described again."""
        self._wanted = sorted(starts)
        self._start = starts
        dropped = [self.readers.pop(partition) for partition in sorted(self.readers) if partition not in starts]
        for reader in dropped:
            reader.asked = None
        return dropped, self._description is not None and self.described(self._description, now)

    def described(self, description: TopicDescription, now: float) -> bool:
        """What a node says of the topic; never of one that was created before the one described last
        (`ClusterMetadata`). True where another node is to be asked."""
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
        """The node may be behind, as long as none has described the topic that is wanted."""
        if self._description is None:
            self._another_since = now if self._another_since is None else self._another_since
            if now - self._another_since < UNKNOWN_TOPIC_GRACE:
                return True
        again = f"topic {self.topic} was deleted and created again: its offsets mean other records"
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
        reader.asked = None  # whoever was asked is not the leader of now
        reader.not_before = 0.0


def take_refusal(reader: PartitionReader, answer: Answer, on_out_of_range: str) -> RaftlogError:
    """The error that this answer has. Where reading cannot go on it is the reader's, too; `on_out_of_range` other than
    `"error"` is where to go on instead."""
    error = error_from_code(answer.error, answer.detail, answer.leader)
    if error.code == "offset_out_of_range":
        _out_of_range(reader, answer, on_out_of_range)
    elif error.code not in SETTLED_BY_DESCRIPTION and not CODES[error.code].retriable:
        reader.error = error
    return error


def _out_of_range(reader: PartitionReader, answer: Answer, otherwise: str) -> None:
    start, end = answer.log_start_offset, answer.high_watermark
    if start <= reader.fetch_offset <= end:
        return  # the broker has caught up since
    if reader.position < reader.fetch_offset:
        return  # first what was fetched; the question is asked again
    detail = f"{reader.topic}/{reader.partition}: offset {reader.fetch_offset} is not between {start} and {end}"
    if otherwise == "error":
        reader.error = InvalidRequest("offset_out_of_range", detail)
    else:
        logger.warning("%s; going on at the %s", detail, otherwise)
        reader.seek(otherwise)
