"""The past of one partition's high watermark: how long ago an offset was passed.

A pure core. The age of the first record that a group has not processed is the time since the high watermark passed its
offset. No record has to be read for it, and no clock but this node's monotonic one counts. Between two samples the high
watermark is taken to have risen evenly. When the samples are full, every second one of the older half goes, so that a
long past stays known, if less precisely.
"""

from __future__ import annotations

from bisect import bisect_right

MAX_SAMPLES = 64


class LagHistory:
    """Samples of one high watermark.

    Invariant: times and offsets rise strictly from sample to sample, at most `MAX_SAMPLES`.
    """

    __slots__ = ("_latest", "_offsets", "_times")

    def __init__(self) -> None:
        self._times: list[float] = []
        self._offsets: list[int] = []
        self._latest = 0.0
        """When the high watermark was last seen."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._times)

    def observe(self, now: float, high_watermark: int) -> None:
        """Note the high watermark at a time, in monotonic seconds. One that fell begins a new past."""
        if self._offsets and high_watermark < self._offsets[-1]:
            self._times.clear()
            self._offsets.clear()
        if not self._offsets or (high_watermark > self._offsets[-1] and now > self._times[-1]):
            if self._offsets and self._latest > self._times[-1]:
                # It stood still until then: the rise began later.
                self._times[-1] = self._latest
            self._times.append(now)
            self._offsets.append(high_watermark)
            if len(self._times) > MAX_SAMPLES:
                half = MAX_SAMPLES // 2
                self._times[1:half] = self._times[1:half:2]
                self._offsets[1:half] = self._offsets[1:half:2]
        self._latest = now

    def age(self, now: float, offset: int) -> float:
        """Return the seconds since the record at `offset` came below the high watermark; 0 if it has not.

        For an offset before the first sample it is at least the returned time.
        """
        after = bisect_right(self._offsets, offset)
        if after == len(self._offsets):
            return 0.0
        if not after:
            return max(0.0, now - self._times[0])
        low, high = self._offsets[after - 1], self._offsets[after]
        share = (offset - low) / (high - low)
        passed = self._times[after - 1] + share * (self._times[after] - self._times[after - 1])
        return max(0.0, now - passed)
