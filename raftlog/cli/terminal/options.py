"""Options and checks that several commands share: settings as `name=value`, start positions, TLS.

The checks let commands that carry records fail at once if nothing can be done.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeAlias

import rich_click as click

from raftlog.config import MAX_PARTITIONS_PER_TOPIC
from raftlog.errors import InvalidRequest
from raftlog.model import EARLIEST, LATEST
from raftlog.quantities import duration_ms, setting_value
from raftlog.records.header import Codec

from .command import argument, option
from .connection import Connection
from .names import complete_groups, complete_topics
from .units import Size

COUNT = click.IntRange(0)
POSITIVE = click.IntRange(1)
NODE_NUMBER = click.IntRange(0, 2**31 - 1)
PARTITION_COUNT = click.IntRange(1, MAX_PARTITIONS_PER_TOPIC)

Name: TypeAlias = Annotated[str, argument()]
Topic: TypeAlias = Annotated[str, argument(metavar="TOPIC", shell_complete=complete_topics)]
Topics: TypeAlias = Annotated[tuple[str, ...], argument(metavar="TOPIC...", shell_complete=complete_topics)]
AnyTopics: TypeAlias = Annotated[tuple[str, ...], argument(metavar="[TOPIC]...", shell_complete=complete_topics)]
Group: TypeAlias = Annotated[str, argument(metavar="GROUP", shell_complete=complete_groups)]
Yes: TypeAlias = Annotated[bool, "Skip the confirmation."]
PlanChange: TypeAlias = Annotated[bool, "Show the result without changing anything."]
PlanDeletion: TypeAlias = Annotated[bool, "Show what would be deleted, without deleting it."]
ReplicationFactor: TypeAlias = Annotated[
    int | None, POSITIVE, "Replicas of each partition (default: the cluster chooses)."
]
Acks: TypeAlias = Annotated[
    Literal["all", "1", "0"],
    "Replicas that must have a record before it counts as sent: all in sync, the leader (1), or none (0).",
]
Compression: TypeAlias = Annotated[
    str, option("Codec of the batches.", type=click.Choice([codec.name.lower() for codec in Codec]))
]
BatchBytes: TypeAlias = Annotated[int, Size(1), "Size of a full batch."]
Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """Parse settings of the form `name=value`; times and sizes may have units. Raises `BadParameter`."""
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not a setting: it must be NAME=VALUE")
        if name in settings:
            raise click.BadParameter(f"{name} is set more than once")
        settings[name] = setting_value(name, value)
    return settings


def parse_from(text: str) -> str | int:
    """Parse the start of a consumer: `earliest`, `latest`, an offset, or a time.

    The time is `@` and milliseconds since 1970, or ISO 8601 (UTC without a zone), or a duration before now. A time
    becomes `@` and milliseconds. Raises `BadParameter`.
    """
    if text in (EARLIEST, LATEST):
        return text
    if text.isascii() and text.isdecimal():
        return int(text)
    found = parse_time(text)
    if found is not None:
        return f"@{found}"
    raise click.BadParameter(
        f"{text!r} is not a valid position: use earliest, latest, an offset, @MILLISECONDS, 2026-01-31T12:00:00Z, or "
        "2h for two hours ago"
    )


def parse_time(text: str) -> int | None:
    """Return a time in milliseconds since 1970, or None if the text is none."""
    given = text.removeprefix("@")
    if given != text and given.isascii() and given.isdecimal():
        return int(given)
    ago = duration_ms(given)
    if ago is not None:
        return max(0, int(time.time() * 1000) - ago)
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    milliseconds = int(moment.timestamp() * 1000)
    return milliseconds if milliseconds >= 0 else None


async def check_partitions(connection: Connection, topic: str, partitions: Iterable[int]) -> None:
    """Check that the topic has these partitions, and that its records can be sent and read from here.

    Raises `InvalidRequest` (`unknown_topic`, `unknown_partition`), or `RetriableError` at once if no node answers or
    its data listener and this client differ in TLS (producers and consumers keep trying for longer).
    """
    from raftlog.client import Admin

    await connection.reach(data=True)
    async with Admin(connection.bootstrap, **connection.keywords) as admin:
        count = (await admin.describe_topic(topic)).partition_count
    for partition in partitions:
        if partition >= count:
            there = "only partition 0" if count == 1 else f"partitions 0 to {count - 1}"
            raise InvalidRequest("unknown_partition", f"topic {topic} has {there}, not {partition}")


def parse_partition(text: str) -> tuple[str, int]:
    """Return the topic and number of `TOPIC/PARTITION`. Raises `click.BadParameter`."""
    topic, slash, number = text.rpartition("/")
    if not slash or not topic or not number.isascii() or not number.isdigit():
        raise click.BadParameter(f"{text!r} is not a partition: it must be TOPIC/PARTITION")
    return topic, int(number)
