"""A producer's settings, validated and converted to internal units and types."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.config import KIB, MAX_BATCH_BYTES, MIB
from raftlog.errors import InvalidRequest
from raftlog.model import Acks
from raftlog.records.batch import Codec

DEFAULT_BATCH_BYTES = 256 * KIB
DEFAULT_BUFFER_BYTES = 64 * MIB
DEFAULT_DELIVERY_TIMEOUT_MS = 120_000
DEFAULT_REQUEST_TIMEOUT_MS = 30_000
MAX_IN_FLIGHT = 64
DEFAULT_TRANSACTION_TIMEOUT_MS = 60_000
MIN_TRANSACTION_TIMEOUT_MS = 100
MAX_TRANSACTION_TIMEOUT_MS = 3_600_000
MAX_TRANSACTIONAL_ID = 512

_ACKS = {"all": Acks.ALL, "-1": Acks.ALL, "1": Acks.LEADER, "leader": Acks.LEADER, "0": Acks.NONE, "none": Acks.NONE}


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """A producer's settings.

    Times are in seconds.
    """

    acks: Acks
    codec: Codec
    linger: float
    batch_bytes: int
    max_in_flight: int
    buffer_bytes: int
    delivery_timeout: float
    request_timeout: float
    idempotent: bool
    transactional: bool = False
    """Whether every batch belongs to a transaction."""

    def __post_init__(self) -> None:
        _check("batch_bytes", self.batch_bytes, 1024, MAX_BATCH_BYTES)
        _check("buffer_bytes", self.buffer_bytes, 2 * MAX_BATCH_BYTES, 1 << 40)
        _check("linger_ms", self.linger, 0, 60)
        _check("max_in_flight", self.max_in_flight, 1, MAX_IN_FLIGHT)
        _check("delivery_timeout_ms", self.delivery_timeout, 0.001, 86_400)
        _check("request_timeout_ms", self.request_timeout, 0.001, 86_400)


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Settings of a producer's transactions."""

    transactional_id: str | None
    """The name under which they fence those of earlier producers; None: they fence none."""
    timeout_ms: int

    def check(self, settings: ProducerSettings) -> None:
        """Raise `InvalidRequest` if these settings do not allow transactions."""
        name = self.transactional_id
        if name is not None and not (0 < len(name) <= MAX_TRANSACTIONAL_ID and name.isprintable()):
            what = f"1 to {MAX_TRANSACTIONAL_ID} printable characters"
            raise InvalidRequest("invalid_config", f"transactional_id must have {what}, not {name[:64]!r}")
        _check("transaction_timeout_ms", self.timeout_ms, MIN_TRANSACTION_TIMEOUT_MS, MAX_TRANSACTION_TIMEOUT_MS)
        if not settings.idempotent:
            raise InvalidRequest("invalid_config", "transactions need acks=all and an idempotent producer")


def parse_acks(acks: Acks | int | str) -> Acks:
    """Parse `"all"`, 1 or 0. Raises `InvalidRequest`."""
    known = _ACKS.get(str(int(acks) if isinstance(acks, int) else acks).lower())
    if known is None:
        raise InvalidRequest("invalid_config", f"acks must be all, 1 or 0, not {acks!r}")
    return known


def parse_codec(compression: str) -> Codec:
    """Parse `"none"`, `"gzip"`, `"snappy"`, `"lz4"` or `"zstd"`. Raises `InvalidRequest`."""
    try:
        return Codec[compression.upper()]
    except KeyError:
        names = ", ".join(codec.name.lower() for codec in Codec)
        raise InvalidRequest("invalid_config", f"compression must be one of {names}, not {compression!r}") from None


def parse_idempotent(idempotent: bool | None, acks: Acks) -> bool:
    """Resolve the setting; None means True with acks=all. Raises `InvalidRequest`."""
    if idempotent and acks is not Acks.ALL:
        raise InvalidRequest("invalid_config", "an idempotent producer needs acks=all")
    return acks is Acks.ALL if idempotent is None else idempotent


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InvalidRequest("invalid_config", f"{name} must be between {low} and {high}, not {value}")
