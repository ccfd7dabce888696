"""What several commands take: settings as `name=value`, places to start reading.

What commands that carry records look at first, so that they fail at once where nothing can be done.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from datetime import UTC, datetime

import rich_click as click

from raftlog.errors import InvalidRequest
from raftlog.model import EARLIEST, LATEST

tls_authority_option = click.option(
    "--tls-authority",
    envvar="RAFTLOG_TLS_AUTHORITY",
    type=click.Path(dir_okay=False),
    help="Speak TLS to brokers, and trust whom this authority (PEM) has signed.",
)


def data_ssl(authority: str | None) -> ssl.SSLContext | None:
    """For connections to data listeners. Raises `InvalidRequest` where the file holds no certificate."""
    if authority is None:
        return None
    try:
        return ssl.create_default_context(cafile=authority)
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise InvalidRequest("invalid_request", f"{authority} holds no certificate of an authority: {why}") from None


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """`name=value` each → a dictionary. Raises `BadParameter`."""
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is no setting: it must be NAME=VALUE")
        if name in settings:
            raise click.BadParameter(f"{name} is set twice")
        settings[name] = value
    return settings


def parse_from(text: str) -> str | int:
    """`earliest`, `latest`, an offset, `@` and milliseconds since 1970, or `@` and a time as ISO 8601 has it (UTC where
    it names no zone) → where a consumer starts. Raises `BadParameter`."""
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
        f"{text!r} is no place to start: earliest, latest, an offset, @MILLISECONDS or @2026-01-31T12:00:00Z"
    )


async def check_partitions(bootstrap: str, topic: str, partitions: Iterable[int]) -> None:
    """Raises `InvalidRequest` (`unknown_topic`, `unknown_partition`), or `RetriableError` within seconds where no node
    answers (producers and consumers keep trying for longer)."""
    from raftlog.client import Admin

    async with Admin(bootstrap) as admin:
        count = (await admin.describe_topic(topic)).partition_count
    for partition in partitions:
        if partition >= count:
            there = "only partition 0" if count == 1 else f"partitions 0 to {count - 1}"
            raise InvalidRequest("unknown_partition", f"topic {topic} has {there}, not {partition}")
