"""The ports of a story's brokers: work that waits, a disk that loses data, a quorum whose log is read late."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from metadata.commands.envelope import Command as QuorumCommand
from metadata.commands.results import CommandResult
from metadata.records.events import BrokerChanged, MetadataEvent, PartitionChanged, ThrottleChanged, TopicChanged
from metadata.records.events import TopicRemoved as TopicIsGone
from partitions.manager import MetadataChange, TopicRemoved
from raftlog.errors import RaftlogError
from tests.support.metadata.cluster import Cluster
from tests.support.partitions.manual import ManualScheduler


class LogQuorum(Cluster):
    """A cluster image that keeps its log of events, so that each broker may read it at any later time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.log: list[list[MetadataChange]] = []
        self.events_of: list[list[MetadataEvent]] = []
        """The changes of the same entries, as views receive them."""
        super().__init__(*args, **options)

    def apply(self, command: QuorumCommand, **options: Any) -> CommandResult:
        result = super().apply(command, **options)
        self.log.append([change for event in self.events for change in _as_change(event)])
        self.events_of.append(list(self.events))
        return result


def _as_change(event: MetadataEvent) -> list[MetadataChange]:
    match event:
        case BrokerChanged(record) | TopicChanged(record) | PartitionChanged(record):
            return [record]
        case ThrottleChanged(throttle):
            return [throttle]
        case TopicIsGone(topic_id, _):
            return [TopicRemoved(topic_id)]
    return []


class StoryWorker:
    """A worker whose work waits until it is begun, and whose results wait until they are delivered; both keep their
    order."""

    def __init__(self, scheduler: ManualScheduler) -> None:
        self._scheduler = scheduler
        self.waiting: deque[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = deque()
        self.begun: deque[Callable[[], None]] = deque()

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self.waiting.append((work, done))

    def begin(self) -> int:
        count = len(self.waiting)
        for _ in range(count):
            work, done = self.waiting.popleft()
            try:
                result, error = work(), None
            except (RaftlogError, OSError) as raised:
                result, error = None, raised
            self.begun.append(lambda done=done, result=result, error=error: done(result, error))
        return count

    def end(self) -> int:
        count = len(self.begun)
        for _ in range(count):
            self._scheduler.call_soon(self.begun.popleft())
        self._scheduler.run()
        return count


class NothingSurvives(random.Random):
    """Nothing that was not fsynced survives, including names whose folder was not."""

    def random(self) -> float:
        return 0.99

    def randrange(self, *args: Any) -> int:  # type: ignore[override]
        return 0


class StoryLogger:
    """Logs only the events that a story should show."""

    def __init__(self, say: Callable[[str], None], node: int) -> None:
        self._say = say
        self._node = node

    def info(self, event: str, **fields: object) -> None:
        pass

    def warning(self, event: str, **fields: object) -> None:
        self._say(f"{self._node} warns: {event} {fields.get('reason', fields.get('detail', ''))}")

    def error(self, event: str, **fields: object) -> None:
        self._say(f"{self._node} ERROR: {event} {fields.get('reason', '')}")


class LifeScheduler:
    """Timers of a dead process never fire."""

    def __init__(self, scheduler: ManualScheduler, alive: Callable[[], bool]) -> None:
        self._scheduler = scheduler
        self._alive = alive

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.call_later(0.0, callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        return self._scheduler.call_later(delay, lambda: callback() if self._alive() else None)
