"""Bugs of the client library, most of them about names that stand for one topic after another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raftlog.api.topics import TopicDescription
from raftlog.client.cluster.metadata import ClusterMetadata, topic_path
from raftlog.client.consuming import fetcher
from raftlog.client.consuming.topic_consumer import TopicConsumer
from raftlog.client.consuming.topic_readers import TopicReaders
from raftlog.client.groups.reading import GroupReading
from raftlog.client.producing import sender
from raftlog.client.producing.partition_queue import PartitionQueue
from raftlog.client.producing.sequencer import Sequencer
from raftlog.errors import RaftlogError

from .patches import CLIENTS, Patch, Planted, original

_described = original(TopicReaders, "described")


class _ByArrival(ClusterMetadata):
    """Believe the latest answer, even if it describes another topic of the name."""

    def _path(self, topic: str) -> str:
        return topic_path(topic)

    def _topic_answered(self, name: str, answer: Any) -> TopicDescription | RaftlogError:
        known = self.topics.get(name)
        if known is not None and isinstance(answer, TopicDescription) and known.id != answer.id:
            del self.topics[name]
        return super()._topic_answered(name, answer)


def _opens_by_name(self: Any, topic: Any, starts: Mapping[int, int]) -> None:
    """Open the topic of this name that the contacted node knows."""
    self._readers[topic] = TopicConsumer(
        self._bootstrap,
        topic.name,
        sorted(starts),
        starts,
        settings=self._of_one_topic(),
    )


def _goes_on_in_another(self: Any, description: TopicDescription, now: float) -> bool:
    """Continue in a recreated topic at the offsets of the former one."""
    self.topic_id = b""
    again: bool = _described(self, description, now)
    return again


def _keeps_its_names(self: Any, topic: str) -> None:
    """Keep sequence numbers and leaders of the former topic."""


def _takes_back_as_new(self: Any, batch: Any) -> None:
    """Give a batch whose answer was lost, and its successors, new identities."""
    self.take_back(self.in_flight.index(batch))
    self._rename(batch.producer_id)


LIVES_BUGS = (
    Planted(
        "a_producer_believes_who_answered_last",
        "a lagging node describes a deleted topic; batches of the present one are sent again as new",
        "ClusterMetadata ignores a topic that was created before the known one",
        (Patch(sender, "ClusterMetadata", _ByArrival),),
        CLIENTS,
    ),
    Planted(
        "a_reader_believes_who_answered_last",
        "a lagging node describes a deleted topic; the reader of the present one stops permanently",
        "ClusterMetadata ignores a topic that was created before the known one",
        (Patch(fetcher, "ClusterMetadata", _ByArrival),),
        CLIENTS,
    ),
    Planted(
        "a_member_opens_topics_by_name",
        "a member reads a deleted topic at a lagging node, and commits those offsets in the present one",
        "GroupReading opens a reader of the id that was assigned",
        (Patch(GroupReading, "_open", _opens_by_name),),
        CLIENTS,
    ),
    Planted(
        "a_reader_goes_on_in_another_topic",
        "a recreated topic is read from the position in the former one",
        "TopicReaders: offsets are those of one topic id",
        (Patch(TopicReaders, "described", _goes_on_in_another),),
        CLIENTS,
    ),
    Planted(
        "names_outlive_their_topic",
        "a producer continues in a recreated topic with the sequences and leader epochs of the former one",
        "Sequencer.topic_recreated starts over",
        (Patch(Sequencer, "topic_recreated", _keeps_its_names),),
        CLIENTS,
    ),
    Planted(
        "a_lost_answer_makes_a_new_batch",
        "a batch whose answer was lost is sent again with a new identity, and appended twice",
        "PartitionQueue: a batch that may have been applied keeps its producer id and sequence",
        (Patch(PartitionQueue, "take_back_lost", _takes_back_as_new),),
        CLIENTS,
    ),
)
