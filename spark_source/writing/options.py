"""The options of a writing query as one typed value. Pure.

As for reading queries (`spark_source/reading/options.py`): Kafka's names and meanings if Kafka has the option, and
unknown options are refused. Options that Spark itself adds to a sink's are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from raftlog.config import check_topic_name
from spark_source.options import values
from spark_source.options.cluster import CLUSTER, ClusterOptions, cluster_of
from spark_source.options.names import BOOTSTRAP, OptionNames, wrong
from spark_source.options.values import parsed

from .names import DEFAULT_SINK

DEFAULT_STREAM_TRANSACTION_TIMEOUT_MS = 5 * 60_000
DEFAULT_BATCH_TRANSACTION_TIMEOUT_MS = 15 * 60_000
"""Longer than a stream's: a batch query writes everything in one transaction."""
LEAST_TRANSACTION_TIMEOUT_MS = 1_000
GREATEST_TRANSACTION_TIMEOUT_MS = 3_600_000
DEFAULT_DELIVERY_TIMEOUT_MS = 120_000
DEFAULT_REQUEST_TIMEOUT_MS = 120_000
GREATEST_TIMEOUT_MS = 86_400_000

MAX_SINK_NAME = 100
_SINK_NAME = re.compile(r"[A-Za-z0-9._-]+")

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

ALIASES = {
    "kafka.bootstrap.servers": BOOTSTRAP,
    "kafka.compression.type": "compression",
    "kafka.delivery.timeout.ms": "deliveryTimeoutMs",
    "kafka.transaction.timeout.ms": "transactionTimeoutMs",
}
KNOWN = (
    *CLUSTER,
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
_EVERY_REPLICA = "a write is always acknowledged when every in-sync replica has it on disk"
ADVICE = {
    "path": "start() and save() take no path; topics are named by the option topic or the column topic",
    "subscribe": "that is for reading; topics to write to are named by the option topic or the column topic",
    "kafka.acks": _EVERY_REPLICA,
    "kafka.enable.idempotence": "the sink's producers are always idempotent",
    "kafka.transactional.id": "the sink manages its transactions itself: see exactlyOnce",
}

_TRANSACTION_TIMEOUT = partial(
    values.integer, least=LEAST_TRANSACTION_TIMEOUT_MS, greatest=GREATEST_TRANSACTION_TIMEOUT_MS
)
_TIMEOUT = partial(values.integer, greatest=GREATEST_TIMEOUT_MS)
_NAMES = OptionNames((*KNOWN, *OF_SPARK), ALIASES, ADVICE)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one writing query. Times in milliseconds."""

    cluster: ClusterOptions
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
    cluster = cluster_of(given)
    exactly_once = parsed(given, "exactlyOnce", values.boolean, True)
    if "transactionTimeoutMs" in given and not exactly_once:
        raise wrong("option transactionTimeoutMs has no meaning with exactlyOnce=false: there are no transactions")
    if "sinkName" in given and not (streaming and exactly_once):
        raise wrong("option sinkName is for streaming queries with exactlyOnce: it names their progress")
    default = DEFAULT_STREAM_TRANSACTION_TIMEOUT_MS if streaming else DEFAULT_BATCH_TRANSACTION_TIMEOUT_MS
    return SinkOptions(
        cluster=cluster,
        topic=check_topic_name(given["topic"]) if "topic" in given else None,
        include_headers=parsed(given, "includeHeaders", values.boolean, False),
        exactly_once=exactly_once,
        sink_name=_sink_name(given),
        transaction_timeout_ms=parsed(given, "transactionTimeoutMs", _TRANSACTION_TIMEOUT, default),
        compression=_codec(given),
        delivery_timeout_ms=parsed(given, "deliveryTimeoutMs", _TIMEOUT, DEFAULT_DELIVERY_TIMEOUT_MS),
        request_timeout_ms=parsed(given, "requestTimeoutMs", _TIMEOUT, DEFAULT_REQUEST_TIMEOUT_MS),
    )


def _codec(given: Mapping[str, str]) -> str:
    codec = given.get("compression", "none").lower()
    if codec not in CODECS:
        values.refused("compression", given["compression"], f"one of {', '.join(CODECS)}")
    return codec


def _sink_name(given: Mapping[str, str]) -> str:
    name = given.get("sinkName", DEFAULT_SINK)
    if len(name) > MAX_SINK_NAME or not _SINK_NAME.fullmatch(name):
        told = f"1 to {MAX_SINK_NAME} letters, digits and . _ -"
        raise wrong(f"option sinkName: a sink's name has {told}, not {name[:MAX_SINK_NAME]!r}")
    return name
