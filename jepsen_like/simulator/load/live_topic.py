"""A topic in a simulated cluster, with its producers and consumers."""

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
"""Called for each copy of one proposal; returns the function that gets the copy's outcome."""


def unheard() -> Callable[[Outcome], None]:
    """Ignore all outcomes."""
    return lambda outcome: None


@dataclass(slots=True)
class LiveTopic:
    """A topic that should exist, with its clients."""

    topic_id: TopicId
    name: str
    plan: ProducerPlan
    factor: int
    configs: tuple[tuple[str, str], ...]
    producers: dict[int, SimProducer] = field(default_factory=dict)
    """Partition → its producer or consumer."""
    consumers: dict[int, SimConsumer] = field(default_factory=dict)
    beside: bool = False
    """An additional topic that does not belong to the schedule, and is not in its way."""
    _made: bool = False
    _creations_open: int = 0
    """Proposals of its creation with an unknown outcome."""

    @property
    def compacts(self) -> bool:
        return ("cleanup.policy", "compact") in self.configs

    @property
    def may_come_again(self) -> bool:
        """Whether one more of the proposals to create the topic may still be applied: the topic must not be deleted
        before. (A broker proposes one topic id once; here it is proposed until the topic exists.)
        """
        return self._creations_open > (0 if self._made else 1)

    def creation_asked(self) -> Callable[[Outcome], None]:
        """See `Asked`."""
        self._creations_open += 1

        def answered(outcome: Outcome) -> None:
            if outcome.fate is not Fate.UNKNOWN:
                self._creations_open -= 1
                self._made |= outcome.fate is Fate.APPLIED and not isinstance(outcome.result, Refused)

        return answered
