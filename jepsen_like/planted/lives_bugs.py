"""Bugs of the client library, most of them about names that mean one topic after another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raftlog.client.cluster.metadata import ClusterMetadata, TopicDescription, topic_path
from raftlog.client.consuming import fetcher
from raftlog.client.consuming.consumer import Consumer
from raftlog.client.consuming.topic_readers import TopicReaders
from raftlog.client.groups.reading import GroupReading
from raftlog.client.producing import sender
from raftlog.client.producing.partition_queue import PartitionQueue
from raftlog.client.producing.sequencer import Sequencer
from raftlog.config import MIB
from raftlog.errors import RaftlogError

from .patches import CLIENTS, Patch, Planted, original

_described = original(TopicReaders, "described")


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
)
