"""What the processes of a benchmark say to each other: one JSON object a line, on a child's standard streams.

A child is told its job once and says `Ready` when all that the clock must not see is done. Then each `Go` begins a
pass, during which the child sends `Progress`, and which it ends with `Passed`. `Failed` ends it; so does the end of its
input. All moments are of the machine's monotonic clock, which its processes share.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .histogram import HistogramState

MAX_LINE_BYTES = 1024 * 1024
"""A whole histogram takes less than a tenth of that."""


MIN_LATENCY_VALUE_BYTES = 16
"""Run and number of a record, by which it is known again."""


class ProduceJob(msgspec.Struct, frozen=True, tag=True):
    """Send values of a pool made beforehand."""

    bootstrap: str
    topic: str
    pool_records: int
    value_bytes: int = 100
    send: Literal["one", "many"] = "many"
    acks: str = "all"
    compression: str = "none"
    batch_bytes: int = 256 * 1024
    linger_ms: float = 5.0
    rate: float | None = None
    """Records a second of this child; None: as fast as it goes."""
    warm_up: float = 0.0
    """Seconds of load before `Ready`."""


class ConsumeJob(msgspec.Struct, frozen=True, tag=True):
    """Read all partitions of a topic."""

    bootstrap: str
    topic: str
    decode: Literal["lists", "arrow", "each", "none"] = "lists"
    """What is made of each batch. `each`: records, every one of them awaited by itself; `none`: its header is
    believed."""
    checksum: bool = False
    """Look at every value. Needs lists."""


class LatencyJob(msgspec.Struct, frozen=True, tag=True):
    """Send at a fixed rate and read it back."""

    bootstrap: str
    topic: str
    rate: float
    value_bytes: int = 100
    acks: str = "all"
    compression: str = "none"


class Go(msgspec.Struct, frozen=True):
    """Begin a pass: as many records as there are below both limits (None: no limit)."""

    records: int | None = None
    seconds: float | None = None
    start: dict[int, int] = {}
    """Consumers: partition → where to go first."""
    end: dict[int, int] = {}
    """Consumers: the pass ends when every partition named here is read up to there."""
    salt: bool = False
    """Producers: make other values first, and say `Ready` again; the next `Go` begins."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """All is made, connected and warm."""


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Since the last one."""

    records: int
    bytes: int
    latency: HistogramState = HistogramState()


class Passed(msgspec.Struct, frozen=True, tag=True):
    """A pass is over; its last records were in a `Progress` before."""

    records: int
    bytes: int
    """Of values."""
    began: float
    ended: float
    checksum: int = 0
    latency: HistogramState = HistogramState()
    """Producers: until the acknowledgement. Latency: until the record was read."""
    acknowledged: HistogramState = HistogramState()
    """Latency: until the acknowledgement."""
    joining: float = 0.0
    """Consumers: seconds of connecting, before `Ready`."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The child gave up."""

    code: str
    detail: str


Job = ProduceJob | ConsumeJob | LatencyJob
Report = Ready | Progress | Passed | Failed
