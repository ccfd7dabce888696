"""`Consumer`: reads one topic, and is the entry to consumer groups."""

from __future__ import annotations

from typing import Final

from raftlog.client.consuming.topic_consumer import TopicConsumer
from raftlog.client.groups.consumer import GroupConsumer


class Consumer(TopicConsumer):
    """Reads one topic.

    A consumer belongs to one event loop. `close` it, or use it with `async with`.
    """

    subscribe: Final = GroupConsumer
    """`Consumer.subscribe(bootstrap, group, topics)` shares the topics with the other members of its group, and
    continues at the group's committed offsets."""
