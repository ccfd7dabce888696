"""The options of a writing query as one typed value. Pure.

As for reading queries (`spark_source/reading/options.py`): Kafka's names and meanings if Kafka has the option, and
unknown options are refused. Options that Spark itself adds to a sink's are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raftlog.config import check_topic_name
from raftlog.errors import InvalidRequest
from spark_source.options import values
from spark_source.options.names import BOOTSTRAP, TLS_AUTHORITY, OptionNames, bootstrap_of, wrong

from .names import DEFAULT_SINK, check_sink_name

DEFAULT_STREAM_TRANSACTION_TIMEOUT_MS = 5 * 60_000
DEFAULT_BATCH_TRANSACTION_TIMEOUT_MS = 15 * 60_000
"""Longer than a stream's: a batch query writes everything in one transaction."""
LEAST_TRANSACTION_TIMEOUT_MS = 1_000
GREATEST_TRANSACTION_TIMEOUT_MS = 3_600_000
DEFAULT_DELIVERY_TIMEOUT_MS = 120_000
DEFAULT_REQUEST_TIMEOUT_MS = 120_000
GREATEST_TIMEOUT_MS = 86_400_000

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

ALIASES = {
    "kafka.bootstrap.servers": BOOTSTRAP,
    "kafka.compression.type": "compression",
    "kafka.delivery.timeout.ms": "deliveryTimeoutMs",
    "kafka.transaction.timeout.ms": "transactionTimeoutMs",
}
KNOWN = (
    BOOTSTRAP,
    TLS_AUTHORITY,
    "topic",
    "includeHeaders",
    "exactlyOnce",
    "sinkName",
    "transactionTimeoutMs",
    "compression",
    "deliveryTimeoutMs",
    "requestTimeoutMs",
)
OF_SPARK = ("checkpointLocation", "queryName")
"""Spark's own options, which it passes on."""
_EVERY_REPLICA = "a write is acknowledged when every in-sync replica has it on disk, and that is no option here"
ADVICE = {
    "path": "start() and save() take no path; topics are named by the option topic or the column topic",
    "subscribe": "that is for reading; topics to write to are named by the option topic or the column topic",
    "kafka.acks": _EVERY_REPLICA,
    "kafka.enable.idempotence": "it is always so",
    "kafka.transactional.id": "the sink has transactions by itself: exactlyOnce",
}

_NAMES = OptionNames((*KNOWN, *OF_SPARK), ALIASES, ADVICE)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one writing query. Times in milliseconds."""

    bootstrap: str
    tls_authority: str | None
    """A file of certificates, if the data listeners use TLS."""
    topic: str | None
    """None if the column `topic` names it for each row."""
    include_headers: bool
    """Whether the rows must have headers."""
    exactly_once: bool
    sink_name: str
    transaction_timeout_ms: int
    """The time after which the cluster aborts uncommitted writes of a micro-batch or a batch query."""
    compression: str
    delivery_timeout_ms: int
    """A task fails if a record is not acknowledged for this time."""
    request_timeout_ms: int
    """The time for which the driver retries a decision."""


def parse(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parse the options. Raises `InvalidRequest` (`invalid_config`, `invalid_topic_name`) with the option and the
    accepted values."""
    given = _NAMES.canonical(options)
    bootstrap = bootstrap_of(given)
    exactly_once = _boolean(given, "exactlyOnce", True)
    if "transactionTimeoutMs" in given and not exactly_once:
        raise wrong("option transactionTimeoutMs has no meaning with exactlyOnce=false: there are no transactions")
    if "sinkName" in given and not (streaming and exactly_once):
        raise wrong("option sinkName is for streaming queries with exactlyOnce: it names their progress")
    default = DEFAULT_STREAM_TRANSACTION_TIMEOUT_MS if streaming else DEFAULT_BATCH_TRANSACTION_TIMEOUT_MS
    return SinkOptions(
        bootstrap=bootstrap,
        tls_authority=given.get(TLS_AUTHORITY),
        topic=check_topic_name(given["topic"]) if "topic" in given else None,
        include_headers=_boolean(given, "includeHeaders", False),
        exactly_once=exactly_once,
        sink_name=_sink_name(given),
        transaction_timeout_ms=_milliseconds(
            given, "transactionTimeoutMs", default, LEAST_TRANSACTION_TIMEOUT_MS, GREATEST_TRANSACTION_TIMEOUT_MS
        ),
        compression=_codec(given),
        delivery_timeout_ms=_milliseconds(given, "deliveryTimeoutMs", DEFAULT_DELIVERY_TIMEOUT_MS),
        request_timeout_ms=_milliseconds(given, "requestTimeoutMs", DEFAULT_REQUEST_TIMEOUT_MS),
    )


def _boolean(given: Mapping[str, str], name: str, default: bool) -> bool:
    return values.boolean(name, given[name]) if name in given else default


def _milliseconds(
    given: Mapping[str, str], name: str, default: int, least: int = 1, greatest: int = GREATEST_TIMEOUT_MS
) -> int:
    return values.integer(name, given[name], least, greatest) if name in given else default


def _codec(given: Mapping[str, str]) -> str:
    codec = given.get("compression", "none").lower()
    if codec not in CODECS:
        values.refused("compression", given["compression"], f"one of {', '.join(CODECS)}")
    return codec


def _sink_name(given: Mapping[str, str]) -> str:
    try:
        return check_sink_name(given.get("sinkName", DEFAULT_SINK))
    except InvalidRequest as error:
        raise wrong(f"option sinkName: {error.detail}") from None
