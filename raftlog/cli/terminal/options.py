"""Options and checks that several commands share: settings as `name=value`, start positions, TLS.

The checks let commands that carry records fail at once if nothing can be done.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeAlias

import msgspec
import rich_click as click

from raftlog.config import MAX_PARTITIONS_PER_TOPIC
from raftlog.errors import InvalidRequest
from raftlog.model import EARLIEST, LATEST
from raftlog.records.header import Codec

from .command import argument, option
from .connection import FILE, Connection

COUNT = click.IntRange(0)
POSITIVE = click.IntRange(1)
NODE_NUMBER = click.IntRange(0, 2**31 - 1)
PARTITION_COUNT = click.IntRange(1, MAX_PARTITIONS_PER_TOPIC)

Name: TypeAlias = Annotated[str, argument()]
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
BatchBytes: TypeAlias = Annotated[int, POSITIVE, "Size of a full batch."]
Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]
TlsAuthority: TypeAlias = Annotated[
    str | None,
    option("The same as before the command: trust certificates of this authority (PEM file).", type=FILE),
]


def with_authority(connection: Connection, authority: str | None) -> Connection:
    """Return the connection with another authority, if one is given."""
    return connection if authority is None else msgspec.structs.replace(connection, tls_authority=authority)


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """Parse settings of the form `name=value`. Raises `BadParameter`."""
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not a setting: it must be NAME=VALUE")
        if name in settings:
            raise click.BadParameter(f"{name} is set more than once")
        settings[name] = value
    return settings


def parse_from(text: str) -> str | int:
    """Parse the start of a consumer: `earliest`, `latest`, an offset, or `@` and a time.

    The time is milliseconds since 1970 or ISO 8601 (UTC without a zone). Raises `BadParameter`.
    """
    if text in (EARLIEST, LATEST):
        return text
    if text.isascii() and text.isdecimal():
        return int(text)
    time = text.removeprefix("@")
    if time != text:
        if time.isascii() and time.isdecimal():
            return text
        try:
            moment = datetime.fromisoformat(time)
        except ValueError:
            pass
        else:
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            milliseconds = int(moment.timestamp() * 1000)
            if milliseconds >= 0:
                return f"@{milliseconds}"
    raise click.BadParameter(
        f"{text!r} is not a valid position: use earliest, latest, an offset, @MILLISECONDS or @2026-01-31T12:00:00Z"
    )


async def check_partitions(connection: Connection, topic: str, partitions: Iterable[int]) -> None:
    """Check that the topic has these partitions.

    Raises `InvalidRequest` (`unknown_topic`, `unknown_partition`), or `RetriableError` within seconds if no node
    answers (producers and consumers keep trying for longer).
    """
    from raftlog.client import Admin

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
