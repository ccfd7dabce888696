"""Bugs of the client library, most of them about names that mean one topic after another.

What is *not* here: bugs of what the quorum decides about groups (`group_bugs.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from http_api import middleware
from raftlog.client import fetcher, group_api, sender
from raftlog.client.consumer import Consumer
from raftlog.client.group_api import GroupPartition
from raftlog.client.group_reading import GroupReading
from raftlog.client.metadata import ClusterMetadata, TopicDescription, topic_path
from raftlog.client.partition_queue import PartitionQueue
from raftlog.client.sequencer import Sequencer
from raftlog.client.topic_readers import TopicReaders
from raftlog.config import MIB
from raftlog.errors import RaftlogError

from .patches import CLIENTS, Patch, Planted, original

_described = original(TopicReaders, "described")
_read = original(GroupReading, "_read")


class _ByArrival(ClusterMetadata):
    """What came last is so, whichever topic of the name it is about."""

    def _path(self, topic: str) -> str:
        return topic_path(topic)

    def _topic_answered(self, name: str, answer: Any) -> TopicDescription | RaftlogError:
        known = self.topics.get(name)
        if known is not None and isinstance(answer, TopicDescription) and known.id != answer.id:
            del self.topics[name]
        return super()._topic_answered(name, answer)


def _opens_by_name(self: Any, topic: Any, starts: Mapping[int, int]) -> None:
    """Whichever topic has the name, as the node that is asked says."""
    self._readers[topic] = Consumer(
        self._bootstrap,
        topic.name,
        sorted(starts),
        starts,
        prefetch_bytes=MIB,
        on_out_of_range=self._on_out_of_range,
        isolation=self._isolation,
    )


def _goes_on_in_another(self: Any, description: TopicDescription, now: float) -> bool:
    """A topic that was made again is read on where the former one was."""
    self.topic_id = b""
    again: bool = _described(self, description, now)
    return again


def _keeps_its_names(self: Any, topic: str) -> None:
    """Sequences and leaders of the former topic are taken for those of the new one."""


def _takes_back_as_new(self: Any, batch: Any) -> None:
    """A batch whose answer was lost, and what follows it, gets another name."""
    self.take_back(self.in_flight.index(batch))
    self._rename(batch.producer_id)


async def _counts_what_is_fetched(self: Any, topic: Any, reader: Any, max_records: int, timeout: float) -> None:
    """Positions are after what came, not after what was handed out."""
    await _read(self, topic, reader, max_records, timeout)
    for partition, record in self._ahead:
        if partition in self.positions:
            self.positions[partition] = max(self.positions[partition], record.offset + 1)


def _commits_by_name(partition: GroupPartition, offset: int) -> dict[str, Any]:
    """Whichever topic has the name when the commit arrives."""
    return {"topic": partition.topic, "partition": partition.partition, "offset": offset}


async def _knows_by_itself(request: Any, context: Any) -> None:
    """A node says of topics what its own view has, however old that is."""


def _hands_out_what_it_lost(self: Any, partitions: Iterable[GroupPartition]) -> None:
    """What was fetched ahead of a partition that is another member's by now is handed out all the same."""
    for partition in partitions:
        self.positions.setdefault(partition, 0)


LIVES_BUGS = (
    Planted(
        "a_producer_believes_who_answered_last",
        "a node that is behind describes a deleted topic; what was sent to the present one is sent again as new",
        "ClusterMetadata: a topic that was created before the known one is not believed",
        (Patch(sender, "ClusterMetadata", _ByArrival),),
        CLIENTS,
    ),
    Planted(
        "a_reader_believes_who_answered_last",
        "a node that is behind describes a deleted topic; the reader of the present one stops for ever",
        "ClusterMetadata: a topic that was created before the known one is not believed",
        (Patch(fetcher, "ClusterMetadata", _ByArrival),),
        CLIENTS,
    ),
    Planted(
        "a_member_opens_topics_by_name",
        "a member reads a deleted topic at a node that is behind, and commits that in the present one",
        "GroupReading opens a reader of the id that was assigned",
        (Patch(GroupReading, "_open", _opens_by_name),),
        CLIENTS,
    ),
    Planted(
        "a_reader_goes_on_in_another_topic",
        "a topic is made again, and read on from where the former one was read to",
        "TopicReaders: offsets are those of one topic id",
        (Patch(TopicReaders, "described", _goes_on_in_another),),
        CLIENTS,
    ),
    Planted(
        "names_outlive_their_topic",
        "a producer goes on in a topic that was made again with the sequences and leader epochs of the former one",
        "Sequencer.topic_recreated begins anew",
        (Patch(Sequencer, "topic_recreated", _keeps_its_names),),
        CLIENTS,
    ),
    Planted(
        "a_lost_answer_makes_a_new_batch",
        "a batch whose answer was lost is sent again under another name, and appended again",
        "PartitionQueue: a batch that may have been applied keeps its name",
        (Patch(PartitionQueue, "take_back_lost", _takes_back_as_new),),
        CLIENTS,
    ),
    Planted(
        "what_is_fetched_counts_as_handed_out",
        "a member commits what it fetched ahead; where it crashes nobody is handed that",
        "GroupReading moves a position when a record is handed out",
        (Patch(GroupReading, "_read", _counts_what_is_fetched),),
        CLIENTS,
    ),
    Planted(
        "a_group_commits_by_name",
        "an offset of a deleted topic is committed in the one that has its name now",
        "GroupApi names topics by their ids",
        (Patch(group_api, "_to_commit", _commits_by_name),),
        CLIENTS,
    ),
    Planted(
        "nodes_speak_for_themselves",
        "a node that is behind says that there is no such topic",
        "the API asks the quorum before it says that a topic is not there, or is another one",
        (Patch(middleware, "_know_topic", _knows_by_itself),),
        CLIENTS,
    ),
    Planted(
        "what_was_fetched_outlives_its_partition",
        "records of a partition that was taken away are handed out",
        "GroupReading forgets what was fetched ahead of it",
        (Patch(GroupReading, "_forget_ahead", _hands_out_what_it_lost),),
        CLIENTS,
    ),
)
