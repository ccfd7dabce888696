"""What a broker has to do when its view of the partitions moved on, as single steps: there may be a hundred thousand.

What is *not* here: doing it, and when (`manager.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Protocol

from raftlog.model import TopicPartition

from .driver import PartitionDriver
from .partition_view import PartitionView, Touched


class Manager(Protocol):
    """Who does it. What is done for a partition is right whatever was done before."""

    def configure(self, tp: TopicPartition) -> None:
        """Its topic has other settings."""
        ...

    def remove(self, tp: TopicPartition, code: str) -> None:
        """It is not here any more."""
        ...

    def place(self, tp: TopicPartition) -> None:
        """Make what is here fit its record."""
        ...


def consequences(
    touched: Touched, view: PartitionView, drivers: Mapping[TopicPartition, PartitionDriver], manager: Manager
) -> Iterator[Callable[[], None]]:
    """The steps, in order; each is made only when it is asked for, so it sees what those before it did."""
    for topic_id in touched.topics:
        for tp in view.of_topic(topic_id):
            yield partial(manager.configure, tp)
            touched.partitions.setdefault(tp)
    for tp in touched.removed:
        yield partial(manager.remove, tp, "unknown_topic")
    for tp in touched.partitions:
        yield partial(manager.place, tp)
    # After the records: what a command decided about a broker and its partitions is not to be proposed once more.
    for broker in touched.brokers:
        for driver in list(drivers.values()):
            if drivers.get(driver.topic_partition) is driver:
                yield partial(driver.on_broker, broker)
