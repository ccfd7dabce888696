"""Options and checks that several commands share: settings as `name=value`, start positions, TLS.

The checks let commands that carry records fail at once if nothing can be done.
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
    help="Use TLS to brokers, and trust certificates of this authority (PEM file).",
)


def data_ssl(authority: str | None) -> ssl.SSLContext | None:
    """Return the TLS context for data listeners. Raises `InvalidRequest` if the file contains no certificate."""
    if authority is None:
        return None
    try:
        return ssl.create_default_context(cafile=authority)
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise InvalidRequest("invalid_request", f"{authority} contains no certificate of an authority: {why}") from None


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


async def check_partitions(bootstrap: str, topic: str, partitions: Iterable[int]) -> None:
    """Check that the topic has these partitions.

    Raises `InvalidRequest` (`unknown_topic`, `unknown_partition`), or `RetriableError` within seconds if no node
    answers (producers and consumers keep trying for longer).
    """
    from raftlog.client import Admin

    async with Admin(bootstrap) as admin:
        count = (await admin.describe_topic(topic)).partition_count
    for partition in partitions:
        if partition >= count:
            there = "only partition 0" if count == 1 else f"partitions 0 to {count - 1}"
            raise InvalidRequest("unknown_partition", f"topic {topic} has {there}, not {partition}")
