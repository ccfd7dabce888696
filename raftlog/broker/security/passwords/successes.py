"""The times of recent successes, bounded in number and age. A pure core."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")


class Successes(Generic[K]):
    """Key → time of the last success. When there is no room, the oldest is forgotten first.

    Invariant: `_times` is in the order of the times.
    """

    def __init__(self, most: int, seconds: float) -> None:
        """Keep at most `most` keys, for `seconds` each."""
        self._most = most
        self._seconds = seconds
        self._times: OrderedDict[K, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._times)

    def note(self, key: K, now: float) -> None:
        """Take note of a success. `now` is a monotonic time in seconds."""
        self._times[key] = now
        self._times.move_to_end(key)
        while self._times:
            oldest, time = next(iter(self._times.items()))
            if now - time < self._seconds and len(self._times) <= self._most:
                break
            del self._times[oldest]

    def is_within(self, key: K, seconds: float, now: float) -> bool:
        """Return whether the key had a success less than `seconds` ago."""
        time = self._times.get(key)
        return time is not None and now - time < min(seconds, self._seconds)
