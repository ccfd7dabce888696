"""The settings of producers and consumers: each field once, with its unit, default and limits.

A field is also a keyword of the class that takes the settings: `Producer(bootstrap, linger_ms=0)` is
`Producer(bootstrap, settings=ProducerSettings(linger_ms=0))`, and keywords replace fields of given settings. A keyword
whose name ends in `_ms` also takes a `timedelta`. The tables
in `docs/client.md` and `docs/groups.md` and the types of the keywords (`keywords.pyi`) are generated from the fields.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from datetime import timedelta
from functools import cached_property
from ssl import SSLContext
from typing import Any, Self, TypeVar

from raftlog.client.credentials import Credentials
from raftlog.client.times import in_milliseconds
from raftlog.config import KIB, MAX_BATCH_BYTES, MAX_FETCH_BYTES, MAX_FETCH_WAIT_MS, MIB
from raftlog.errors import InvalidRequest
from raftlog.model import EARLIEST, LATEST, Acks
from raftlog.records.batch import Codec
from raftlog.trace_context import TraceContext

T = TypeVar("T")

MAX_BYTES = 1 << 40
MAX_MS = 86_400_000
MAX_IN_FLIGHT = 64
MIN_TRANSACTION_TIMEOUT_MS = 100
MAX_TRANSACTION_TIMEOUT_MS = 3_600_000
MAX_TRANSACTIONAL_ID = 512
READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"

_ACKS = {"all": Acks.ALL, "-1": Acks.ALL, "1": Acks.LEADER, "leader": Acks.LEADER, "0": Acks.NONE, "none": Acks.NONE}


def _between(default: T, low: float, high: float, *, whole: bool = True) -> T:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, int if whole else int | float) or not low <= value <= high:
            what = "a whole number" if whole else "a number"
            raise InvalidRequest("invalid_config", f"{name} must be {what} between {low} and {high}, not {value!r}")

    made: T = field(default=default, metadata={"check": check})
    return made


def _time(default: T, low: float, high: float = MAX_MS) -> T:
    return _between(default, low, high, whole=False)


def _one_of(default: str, *known: str) -> str:
    def check(name: str, value: Any) -> None:
        if value not in known:
            raise InvalidRequest("invalid_config", f"{name} must be one of {', '.join(known)}, not {value!r}")

    made: str = field(default=default, metadata={"check": check})
    return made


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of every client object: how it connects. Raises `InvalidRequest` for an invalid value."""

    credentials: Credentials | None = None
    """`Credentials(token=...)`, `Credentials(token_file=...)` or `Credentials(user=..., password=...)`.

    None: the token of the variable `RAFTLOG_TOKEN`, or of the file that `RAFTLOG_TOKEN_FILE` names, if one is set.
    """
    tls_authority: str | None = None
    """PEM file with the certificates of the authorities that sign the nodes' certificates.

    With it, data connections use TLS; with a credential, addresses without a scheme are `https://`, too. None: the
    system's authorities, for addresses that begin with `https://`.
    """
    tls_certificate: str | None = None
    """PEM file with the client's own certificate, and then any intermediate certificates."""
    tls_key: str | None = None
    """PEM file with the key of `tls_certificate`, without a pass phrase; None: the same file."""
    ssl: SSLContext | None = None
    """A TLS context instead of the files: `ssl.create_default_context(cafile="authority.pem")`.

    It serves one client at a time: its ALPN protocols are set.
    """
    insecure_credentials: bool = False
    """Whether a credential may be sent without TLS, or to nodes that TLS does not verify, beyond this machine."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.name.endswith("_ms") and isinstance(given := getattr(self, each.name), timedelta):
                object.__setattr__(self, each.name, in_milliseconds(given))
            if "check" in each.metadata:
                each.metadata["check"](each.name, getattr(self, each.name))
        shown: Any = self.credentials
        if shown is not None and not isinstance(shown, Credentials):
            told = "credentials must be Credentials(token=...) or Credentials(user=..., password=...), not"
            raise InvalidRequest("invalid_config", f"{told} a {type(shown).__name__}")
        if self.ssl is not None and (self.tls_authority or self.tls_certificate or self.tls_key):
            told = "give either ssl or files (tls_authority, tls_certificate, tls_key), not both"
            raise InvalidRequest("invalid_config", told)
        if self.tls_key is not None and self.tls_certificate is None:
            raise InvalidRequest("invalid_config", "tls_key needs its certificate: give tls_certificate as well")

    @property
    def connection(self) -> dict[str, Any]:
        """The settings that are common to all client objects, as keywords."""
        return {each.name: getattr(self, each.name) for each in fields(Settings)}

    @classmethod
    def of(cls, settings: Self | None, keywords: Mapping[str, Any]) -> Self:
        """Return `settings`, or the defaults, with the fields replaced that are given as keywords.

        Raises `InvalidRequest`, and `TypeError` for an unknown keyword.
        """
        return cls(**keywords) if settings is None else replace(settings, **keywords)


Constructor = TypeVar("Constructor", bound=Callable[..., Any])


def keyword_type(setting: Field[Any]) -> str:
    """Return the type of a setting as a keyword: durations may be `timedelta`."""
    plain, optional, _ = str(setting.type).partition(" | None")
    return f"{plain} | timedelta{optional}" if setting.name.endswith("_ms") else str(setting.type)


def takes(settings: type[Settings]) -> Callable[[Constructor], Constructor]:
    """Show the fields of `settings` in the signature of a function that accepts them as `**keywords`."""

    def decorate(constructor: Constructor) -> Constructor:
        shown = inspect.signature(constructor)
        own = [one for one in shown.parameters.values() if one.kind is not one.VAR_KEYWORD]
        more = [
            inspect.Parameter(
                one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=keyword_type(one)
            )
            for one in fields(settings)
        ]
        constructor.__signature__ = shown.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return constructor

    return decorate


@dataclass(frozen=True, kw_only=True)
class AdminSettings(Settings):
    """Settings of an `Admin`, and of a commit without a producer."""


@dataclass(frozen=True, kw_only=True)
class ProducerSettings(Settings):
    """Settings of a `Producer`."""

    acks: Acks | int | str = "all"
    """`"all"`, 1 (the leader's disk) or 0."""
    compression: str = _one_of("none", *(codec.name.lower() for codec in Codec))
    """`"none"`, `"gzip"`, `"snappy"`, `"lz4"` or `"zstd"`; larger batches are compressed on threads."""
    linger_ms: float = _time(5.0, 0, 60_000)
    """Time for which a batch waits for more records.

    With 0, a batch waits only while its broker has a request of this producer in flight, and 5 ms at most.
    """
    batch_bytes: int = _between(256 * KIB, KIB, MAX_BATCH_BYTES)
    """Size at which a batch is full; up to 1 MiB."""
    max_in_flight: int = _between(5, 1, MAX_IN_FLIGHT)
    """Requests in flight per broker; of one partition, at most five batches."""
    buffer_bytes: int = _between(64 * MIB, 2 * MAX_BATCH_BYTES, MAX_BYTES)
    """Memory for unacknowledged records, including Python's overhead.

    With `acks=0`, it is for unsent ones, up to 1 MiB per broker.
    """
    delivery_timeout_ms: float = _time(120_000, 1)
    """Time from the opening of a batch to its failure."""
    request_timeout_ms: float = _time(30_000, 1)
    """Longest wait of a broker for its replicas."""
    idempotent: bool | None = None
    """Whether the producer is idempotent; None: it is with `acks="all"`."""
    transactional_id: str | None = None
    """The name under which the producer's transactions fence those of earlier producers of the same name.

    Such a producer sends only in transactions.
    """
    transaction_timeout_ms: int = _between(60_000, MIN_TRANSACTION_TIMEOUT_MS, MAX_TRANSACTION_TIMEOUT_MS)
    """Time after which the cluster aborts a transaction that is still open."""
    trace_context: Callable[[], TraceContext | None] | None = None
    """Function that returns the W3C trace context of the present work, called for each record that is sent alone.

    The record carries it as its headers `traceparent` and `tracestate`, unless it has a `traceparent` of its own.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        level = self.level
        if self.idempotent and level is not Acks.ALL:
            raise InvalidRequest("invalid_config", "an idempotent producer needs acks=all")
        name = self.transactional_id
        if name is not None:
            if not (0 < len(name) <= MAX_TRANSACTIONAL_ID and name.isprintable()):
                what = f"1 to {MAX_TRANSACTIONAL_ID} printable characters"
                raise InvalidRequest("invalid_config", f"transactional_id must have {what}, not {name[:64]!r}")
            self.check_transactions()

    def check_transactions(self) -> None:
        """Raise `InvalidRequest` if these settings do not allow transactions."""
        if not self.is_idempotent:
            raise InvalidRequest("invalid_config", "transactions need acks=all and an idempotent producer")

    @cached_property
    def level(self) -> Acks:
        """The acknowledgement that each request waits for."""
        known = _ACKS.get(str(int(self.acks) if isinstance(self.acks, int) else self.acks).lower())
        if known is None:
            raise InvalidRequest("invalid_config", f"acks must be all, 1 or 0, not {self.acks!r}")
        return known

    @property
    def is_idempotent(self) -> bool:
        return self.level is Acks.ALL if self.idempotent is None else self.idempotent

    @property
    def codec(self) -> Codec:
        return Codec[self.compression.upper()]

    @property
    def linger(self) -> float:
        """`linger_ms` in seconds."""
        return self.linger_ms / 1000

    @property
    def delivery_timeout(self) -> float:
        """`delivery_timeout_ms` in seconds."""
        return self.delivery_timeout_ms / 1000


@dataclass(frozen=True, kw_only=True)
class ReadSettings(Settings):
    """Settings of everything that reads."""

    prefetch_bytes: int = _between(32 * MIB, 256 * KIB, MAX_BYTES)
    """Limit of bytes fetched ahead, for all partitions together."""
    isolation: str = _one_of(READ_COMMITTED, READ_COMMITTED, READ_UNCOMMITTED)
    """`"read_committed"`: records of committed transactions and of no transaction, up to the first open transaction.

    `"read_uncommitted"` includes records of open and aborted transactions.
    """


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings(ReadSettings):
    """Settings of a `Consumer`."""

    max_wait_ms: int = _between(500, 1, MAX_FETCH_WAIT_MS)
    """Longest wait of a broker for `min_bytes`."""
    min_bytes: int = _between(1, 0, MAX_FETCH_BYTES)
    """Number of bytes that a broker waits for; 0 means 1."""
    on_out_of_range: str = _one_of("error", "error", EARLIEST, LATEST)
    """Reaction to a position that is not, or no longer, in the log.

    `"error"`, or `"earliest"` or `"latest"` to continue at that offset.
    """

    @property
    def isolation_level(self) -> int:
        """The isolation level as requests encode it: 1 with `read_committed`, else 0."""
        return int(self.isolation == READ_COMMITTED)

    @property
    def max_wait(self) -> float:
        """`max_wait_ms` in seconds."""
        return self.max_wait_ms / 1000


@dataclass(frozen=True, kw_only=True)
class GroupConsumerSettings(ReadSettings):
    """Settings of a `GroupConsumer`; those of Kafka have Kafka's names and defaults."""

    auto_offset_reset: str = _one_of(LATEST, EARLIEST, LATEST, "error")
    """Starting position if no offset is committed, or the committed one is no longer in the log.

    `"latest"`, `"earliest"` or `"error"`.
    """
    enable_auto_commit: bool = True
    """Whether `poll` commits what was processed."""
    auto_commit_interval_ms: float = _time(5_000, 0)
    """Time between automatic commits."""
    session_timeout_ms: int = _between(45_000, 1, MAX_MS)
    """Time without a heartbeat after which the group removes the member."""
    heartbeat_interval_ms: float = _time(3_000, 0.001)
    """Time between heartbeats; less than `session_timeout_ms`."""
    max_poll_interval_ms: float = _time(300_000, 0.001)
    """Time without a `poll` after which the member leaves the group."""
    rebalance_timeout_ms: int | None = None
    """Time allowed for releasing a partition; None: `max_poll_interval_ms`."""
    instance_id: str = ""
    """Name of a static member, which keeps its partitions over a restart."""
    client_id: str = ""
    """Prefix of the member id."""
    assignor: str = "uniform"
    """Assignment strategy: `"uniform"`, `"range"` or `"cooperative-sticky"`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise InvalidRequest("invalid_config", "heartbeat_interval_ms must be shorter than session_timeout_ms")
