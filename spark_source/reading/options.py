"""The options of a reading query as one typed value. Pure.

They are the Kafka connector's, with its names (case-insensitive), meanings and defaults, and a few more. Unknown
options are refused, and so are options without meaning for the kind of query: silently ignoring a misspelled option
costs the user more than removing one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from spark_source.options import values
from spark_source.options.cluster import CLUSTER, ClusterOptions, cluster_of
from spark_source.options.names import BOOTSTRAP, OptionNames, wrong
from spark_source.options.values import EARLIEST, LATEST, parsed

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
    *CLUSTER,
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
    "groupidprefix": "raftlog generates no groups; with the option group, progress is committed to that group",
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

    cluster: ClusterOptions
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
    cluster = cluster_of(given)
    topics, pattern, assigned = _subscription(given)
    include_headers = parsed(given, "includeHeaders", values.boolean, False)
    maximum = parsed(given, "maxOffsetsPerTrigger", values.integer)
    minimum = parsed(given, "minOffsetsPerTrigger", values.integer)
    if maximum is not None and minimum is not None and minimum > maximum:
        raise wrong(f"option minOffsetsPerTrigger ({minimum}) is above maxOffsetsPerTrigger ({maximum})")
    return SourceOptions(
        cluster=cluster,
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=_starting(given, streaming=streaming),
        ending=_ending(given),
        fail_on_data_loss=parsed(given, "failOnDataLoss", values.boolean, True),
        max_offsets_per_trigger=maximum,
        min_offsets_per_trigger=minimum,
        max_trigger_delay_ms=parsed(given, "maxTriggerDelay", values.duration_ms, DEFAULT_MAX_TRIGGER_DELAY_MS),
        min_partitions=parsed(given, "minPartitions", values.integer),
        max_records_per_partition=parsed(given, "maxRecordsPerPartition", values.integer),
        columns=choose(parsed(given, "columns", values.names), include_headers),
        filter_pushdown=parsed(given, "filterPushdown", values.boolean, False),
        group=given.get("group"),
        fetch_timeout_ms=parsed(given, "fetchTimeoutMs", values.integer, DEFAULT_FETCH_TIMEOUT_MS),
        request_timeout_ms=_request_timeout(given),
    )


def columns_of(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns alone: Spark requests the schema before it names the kind of query. Raises as `parse`."""
    given = _NAMES.canonical(options)
    include_headers = parsed(given, "includeHeaders", values.boolean, False)
    return choose(parsed(given, "columns", values.names), include_headers)


def _subscription(
    given: _Given,
) -> tuple[tuple[str, ...] | None, str | None, dict[str, tuple[int, ...]] | None]:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if len(ways) != 1:
        found = "none" if not ways else " and ".join(ways)
        raise wrong(f"exactly one of subscribe, subscribePattern and assign must be given, not {found}")
    topics = parsed(given, "subscribe", values.names)
    assigned = parsed(given, "assign", values.assignment)
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
    retries = parsed(given, "fetchOffset.numRetries", values.integer, 0)
    interval_ms = parsed(given, "fetchOffset.retryIntervalMs", values.integer, 0)
    return parsed(given, "requestTimeoutMs", values.integer, max(DEFAULT_REQUEST_TIMEOUT_MS, retries * interval_ms))
