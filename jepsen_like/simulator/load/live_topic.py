"""A topic that exists in a simulated cluster, with the producers and consumers that use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from metadata.commands.results import Refused
from metadata.quorum.port import Fate, Outcome
from raftlog.model import TopicId

from .consumers import SimConsumer
from .producers import ProducerPlan, SimProducer

Asked: TypeAlias = Callable[[], Callable[[Outcome], None]]
"""Called for each proposal of the same; gives who is to be told its outcome."""


def unheard() -> Callable[[Outcome], None]:
    """Nobody."""
    return lambda outcome: None


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
    _made: bool = False
    _creations_open: int = 0
    """Proposals to make it of which nobody knows what became of them."""

    @property
    def compacts(self) -> bool:
        return ("cleanup.policy", "compact") in self.configs

    @property
    def may_come_again(self) -> bool:
        """Whether one more of the proposals to make it may be carried out: it must not be deleted before. (A broker
        proposes a topic of one id once; here it is asked for until it is there.)"""
        return self._creations_open > (0 if self._made else 1)

    def creation_asked(self) -> Callable[[Outcome], None]:
        """See `Asked`."""
        self._creations_open += 1

        def answered(outcome: Outcome) -> None:
            if outcome.fate is not Fate.UNKNOWN:
                self._creations_open -= 1
                self._made |= outcome.fate is Fate.APPLIED and not isinstance(outcome.result, Refused)

        return answered
