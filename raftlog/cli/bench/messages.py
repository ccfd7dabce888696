"""The messages between the processes of a benchmark: one JSON object per line, on a child's standard streams.

A child gets its job once, and answers `Ready` when everything that must not be timed is done. Then each `Go` begins a
pass, during which the child sends `Progress`, and which it ends with `Passed`. `Failed`, or the end of its input, ends
the child. All times are of the machine's monotonic clock, which its processes share.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from raftlog.cli.terminal.connection import Access

from .histogram import Histogram

MAX_LINE_BYTES = 1024 * 1024
"""Maximum length of a line in bytes. A whole histogram takes less than a tenth of that."""


MIN_LATENCY_VALUE_BYTES = 16
"""Bytes for run and number of a record, which identify it."""


class ProduceJob(msgspec.Struct, frozen=True, tag=True):
    """Send values from a pool that is made beforehand."""

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
    """Records a second of this child; None: as fast as possible."""
    warm_up: float = 0.0
    """Seconds of load before `Ready`."""
    access: Access = Access()


class ConsumeJob(msgspec.Struct, frozen=True, tag=True):
    """Read all partitions of a topic."""

    bootstrap: str
    topic: str
    decode: Literal["lists", "arrow", "each", "none"] = "lists"
    """Conversion of each batch. `each`: every record is awaited separately; `none`: only the header is used."""
    checksum: bool = False
    """Whether to compute a checksum of every value. Needs lists."""
    access: Access = Access()


class LatencyJob(msgspec.Struct, frozen=True, tag=True):
    """Send at a fixed rate and read the records back."""

    bootstrap: str
    topic: str
    rate: float
    value_bytes: int = 100
    acks: str = "all"
    compression: str = "none"
    access: Access = Access()


class Go(msgspec.Struct, frozen=True):
    """Begin a pass, which ends at the first of both limits (None: no limit)."""

    records: int | None = None
    seconds: float | None = None
    start: dict[int, int] = {}
    """Consumers: partition → offset to start from."""
    end: dict[int, int] = {}
    """Consumers: the pass ends when every partition named here is read up to this offset."""
    salt: bool = False
    """Producers: change the values first, and answer `Ready`; the next `Go` begins the pass."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Everything is created, connected and warm."""


class Progress(msgspec.Struct, tag=True):
    """Progress since the previous message."""

    records: int = 0
    bytes: int = 0
    latency: Histogram = msgspec.field(default_factory=Histogram)


class Passed(msgspec.Struct, frozen=True, tag=True):
    """The end of a pass. Its last records were in an earlier `Progress`."""

    records: int
    bytes: int
    """Bytes of values."""
    began: float
    ended: float
    checksum: int = 0
    latency: Histogram = msgspec.field(default_factory=Histogram)
    """Producers: latency until the acknowledgement. Latency: until the record was read."""
    acknowledged: Histogram = msgspec.field(default_factory=Histogram)
    """Latency: until the acknowledgement."""
    joining: float = 0.0
    """Consumers: time of connecting before `Ready`, in seconds."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The child failed."""

    code: str
    detail: str


Job = ProduceJob | ConsumeJob | LatencyJob
Report = Ready | Progress | Passed | Failed
