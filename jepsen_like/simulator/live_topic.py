"""A topic of a simulated cluster that is to be there, and whoever uses it.

What is *not* here: what is done to topics (`cluster_operations.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raftlog.model import TopicId

from .consumers import SimConsumer
from .producers import ProducerPlan, SimProducer


@dataclass(slots=True)
class LiveTopic:
    """A topic that is to be there, and whoever uses it."""

    topic_id: TopicId
    name: str
    plan: ProducerPlan
    factor: int
    configs: tuple[tuple[str, str], ...]
    producers: dict[int, SimProducer] = field(default_factory=dict)
    """By partition."""
    consumers: dict[int, SimConsumer] = field(default_factory=dict)
    beside: bool = False
    """Made beside what the schedule makes, and in the way of none of it."""

    @property
    def compacts(self) -> bool:
        return ("cleanup.policy", "compact") in self.configs
