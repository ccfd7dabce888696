"""The partitions of one request that its caller may not use, and the watch over topics that are being read (S12)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from raftlog.broker.security.access.access import Access
from raftlog.errors import RaftlogError
from raftlog.security.acls import Operation
from raftlog.security.principals import Caller

from .leaders import Answer, Asked, failed

T = TypeVar("T")


class Refusals(Generic[Asked]):
    """The refused partitions of one request, by position. The others are served, and the answers merged."""

    def __init__(self, asked: Sequence[Asked], refused: Mapping[int, RaftlogError]) -> None:
        self._asked: Sequence[Asked] = asked
        self._refused = refused

    @classmethod
    def of(
        cls, access: Access, caller: Caller, operation: Operation, asked: Sequence[Asked], action: str
    ) -> Refusals[Asked]:
        """Return the refusals of partitions on whose topics the caller may not carry out the operation."""
        topics = access.refused_topics(caller, operation, dict.fromkeys(one.topic_id for one in asked), action)
        if not topics:
            return cls(asked, {})
        return cls(asked, {at: topics[one.topic_id] for at, one in enumerate(asked) if one.topic_id in topics})

    def add(self, refused: Mapping[int, RaftlogError]) -> None:
        """Refuse more partitions, by position; those that are refused already keep their error."""
        self._refused = {**refused, **self._refused}

    def __bool__(self) -> bool:
        """Return whether any partition is refused."""
        return bool(self._refused)

    def __contains__(self, position: int) -> bool:
        return position in self._refused

    @property
    def allowed(self) -> list[Asked]:
        """The partitions that are not refused."""
        return self.without(self._asked)

    def without(self, items: Sequence[T]) -> list[T]:
        """Return those of one item a partition whose partitions are not refused."""
        return [item for at, item in enumerate(items) if at not in self._refused]

    def merged(self, kind: type[Answer], answers: Iterable[Answer]) -> list[Answer]:
        """Return the answers of all partitions in the order of the request."""
        left = iter(answers)
        refused = self._refused
        return [failed(kind, one, refused[at]) if at in refused else next(left) for at, one in enumerate(self._asked)]


class WatchedTopics:
    """The topics that one caller is reading. `on_revoked` is called once, when it may no longer read one of them."""

    def __init__(
        self,
        access: Access,
        caller: Caller,
        on_revoked: Callable[[], None],
        has_unsent: Callable[[], bool] = lambda: False,
    ) -> None:
        """`has_unsent` returns whether the peer has not taken every answer: those hold records of topics whose reading
        has ended."""
        self._has_unsent = has_unsent
        self._ended: set[bytes] = set()
        """Topics whose reading has ended since every answer was taken."""
        self._access = access
        self._caller = caller
        self._on_revoked = on_revoked
        self._reading: Counter[bytes] = Counter()
        self._unsubscribe = access.subscribe(self._check_again)

    def begin(self, topics: Iterable[bytes]) -> None:
        """Count the topics of one more reading."""
        self._reading.update(topics)

    def end(self, topics: Iterable[bytes]) -> None:
        """End a reading that `begin` counted. Its answer is about to be sent."""
        ended = Counter(topics)
        self._reading -= ended
        if not self._has_unsent():
            self._ended.clear()
        self._ended.update(ended)

    def close(self) -> None:
        """End the watch over the rules."""
        self._unsubscribe()

    def _check_again(self) -> None:
        if not self._has_unsent():
            self._ended.clear()
        reading = list(dict.fromkeys((*self._reading, *self._ended)))
        if reading and self._access.refused_topics(self._caller, Operation.READ, reading, "fetch"):
            # Its reading takes a while to end, in which the rules may change again.
            self.close()
            self._on_revoked()
