"""The options of a reading query as one typed value. Pure.

They are the Kafka connector's, with its names (case-insensitive), meanings and defaults, and a few more. Unknown
options are refused, and so are options without meaning for the kind of query: silently ignoring a misspelled option
costs the user more than removing one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from spark_source.options import values
from spark_source.options.names import BOOTSTRAP, TLS_AUTHORITY, OptionNames, bootstrap_of, wrong
from spark_source.options.values import EARLIEST, LATEST

from .columns import choose
from .starting import Where

DEFAULT_MAX_TRIGGER_DELAY_MS = 15 * 60_000
DEFAULT_FETCH_TIMEOUT_MS = 120_000
DEFAULT_REQUEST_TIMEOUT_MS = 30_000

ALIASES = {
    "kafka.bootstrap.servers": BOOTSTRAP,
    "kafka.group.id": "group",
    "kafkaConsumer.pollTimeoutMs": "fetchTimeoutMs",
}
"""Names of the Kafka connector → their names here."""

COMMON = (
    BOOTSTRAP,
    TLS_AUTHORITY,
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "columns",
    "fetchTimeoutMs",
    "requestTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "filterPushdown")
STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "group")

ADVICE = {
    "groupidprefix": "there are no generated groups here; give group= to have progress shown as that group's",
    "path": "load() takes no path; topics are named by subscribe, subscribePattern or assign",
    "topic": "topics to read are named by subscribe, subscribePattern or assign",
}
"""The reasons why some commonly used options are refused."""

_NAMES = OptionNames((*COMMON, *BATCH_ONLY, *STREAM_ONLY), ALIASES, ADVICE)

_Given: TypeAlias = Mapping[str, str]
"""Options by their canonical names."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one query. Exactly one of `topics`, `pattern` and `assigned` is set. Times in milliseconds."""

    bootstrap: str
    tls_authority: str | None
    """A file of certificates, if the data listeners use TLS."""
    topics: tuple[str, ...] | None
    pattern: str | None
    assigned: Mapping[str, tuple[int, ...]] | None
    starting: Where
    ending: Where
    fail_on_data_loss: bool
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    columns: tuple[str, ...]
    filter_pushdown: bool
    group: str | None
    fetch_timeout_ms: int
    """A task fails if it receives nothing for this time."""
    request_timeout_ms: int
    """The driver gives up a request after this time."""


def parse(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse the options. Raises `InvalidRequest` (`invalid_config`) with the option and the accepted values."""
    given = _NAMES.canonical(options)
    foreign = [name for name in given if name in (BATCH_ONLY if streaming else STREAM_ONLY)]
    if foreign:
        kind = "batch" if streaming else "streaming"
        raise wrong(f"option {foreign[0]} has no meaning in this query: it is for {kind} queries")
    bootstrap = bootstrap_of(given)
    topics, pattern, assigned = _subscription(given)
    include_headers = _maybe(given, "includeHeaders", values.boolean) or False
    maximum = _maybe(given, "maxOffsetsPerTrigger", values.integer)
    minimum = _maybe(given, "minOffsetsPerTrigger", values.integer)
    if maximum is not None and minimum is not None and minimum > maximum:
        raise wrong(f"option minOffsetsPerTrigger ({minimum}) is above maxOffsetsPerTrigger ({maximum})")
    delay = _maybe(given, "maxTriggerDelay", values.duration_ms)
    fetch_timeout = _maybe(given, "fetchTimeoutMs", values.integer)
    pushdown = _maybe(given, "filterPushdown", values.boolean)
    fail = _maybe(given, "failOnDataLoss", values.boolean)
    return SourceOptions(
        bootstrap=bootstrap,
        tls_authority=given.get(TLS_AUTHORITY),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=_starting(given, streaming=streaming),
        ending=_ending(given),
        fail_on_data_loss=True if fail is None else fail,
        max_offsets_per_trigger=maximum,
        min_offsets_per_trigger=minimum,
        max_trigger_delay_ms=DEFAULT_MAX_TRIGGER_DELAY_MS if delay is None else delay,
        min_partitions=_maybe(given, "minPartitions", values.integer),
        max_records_per_partition=_maybe(given, "maxRecordsPerPartition", values.integer),
        columns=choose(_maybe(given, "columns", values.names), include_headers),
        filter_pushdown=bool(pushdown),
        group=given.get("group"),
        fetch_timeout_ms=DEFAULT_FETCH_TIMEOUT_MS if fetch_timeout is None else fetch_timeout,
        request_timeout_ms=_request_timeout(given),
    )


def columns_of(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns alone: Spark asks for the schema before it names the kind of query. Raises as `parse`."""
    given = _NAMES.canonical(options)
    include_headers = _maybe(given, "includeHeaders", values.boolean) or False
    return choose(_maybe(given, "columns", values.names), include_headers)


def _subscription(
    given: _Given,
) -> tuple[tuple[str, ...] | None, str | None, dict[str, tuple[int, ...]] | None]:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if len(ways) != 1:
        found = "none" if not ways else " and ".join(ways)
        raise wrong(f"exactly one of subscribe, subscribePattern and assign says what is read, not {found}")
    topics = _maybe(given, "subscribe", values.names)
    assigned = _maybe(given, "assign", values.assignment)
    return topics, given.get("subscribePattern"), assigned


def _starting(given: _Given, *, streaming: bool) -> Where:
    strategy = given.get("startingOffsetsByTimestampStrategy", "error").lower()
    if strategy not in ("error", "latest"):
        values.refused("startingOffsetsByTimestampStrategy", strategy, "error or latest")
    by_time = _by_time(given, "starting", strategy == "error")
    if by_time is not None:
        return by_time
    text = given.get("startingOffsets", "latest" if streaming else "earliest")
    if text.lower() == "earliest":
        return Where("startingOffsets", everywhere=EARLIEST)
    if text.lower() == "latest":
        if not streaming:
            raise wrong("option startingOffsets: a batch query cannot begin at the latest offset")
        return Where("startingOffsets", everywhere=LATEST)
    offsets = values.offsets_by_partition("startingOffsets", text, EARLIEST)
    if not streaming and any(LATEST in partitions.values() for partitions in offsets.values()):
        raise wrong("option startingOffsets: a batch query cannot begin at the latest offset (-1)")
    return Where("startingOffsets", offsets=offsets)


def _ending(given: _Given) -> Where:
    by_time = _by_time(given, "ending", error_without_match=False)
    if by_time is not None:
        return by_time
    text = given.get("endingOffsets", "latest")
    if text.lower() == "latest":
        return Where("endingOffsets", everywhere=LATEST)
    if text.lower() == "earliest":
        raise wrong("option endingOffsets: a query cannot end at the earliest offset")
    return Where("endingOffsets", offsets=values.offsets_by_partition("endingOffsets", text, LATEST))


def _by_time(given: _Given, end: str, error_without_match: bool) -> Where | None:
    one, many = f"{end}Timestamp", f"{end}OffsetsByTimestamp"
    if one in given:
        timestamp_ms = values.integer(one, given[one], 0)
        return Where(one, timestamp_ms=timestamp_ms, error_without_match=error_without_match)
    if many in given:
        timestamps = values.timestamps_by_partition(many, given[many])
        return Where(many, timestamps=timestamps, error_without_match=error_without_match)
    return None


def _request_timeout(given: _Given) -> int:
    """Return the request timeout. Kafka counts attempts; an election takes longer than its three attempts of 10 ms, so
    they are a minimum here."""
    retries = _maybe(given, "fetchOffset.numRetries", values.integer) or 0
    interval_ms = _maybe(given, "fetchOffset.retryIntervalMs", values.integer) or 0
    asked = _maybe(given, "requestTimeoutMs", values.integer)
    return asked if asked is not None else max(DEFAULT_REQUEST_TIMEOUT_MS, retries * interval_ms)


def _maybe(given: _Given, name: str, parse_value: Callable[[str, str], values.T]) -> values.T | None:
    return parse_value(name, given[name]) if name in given else None
