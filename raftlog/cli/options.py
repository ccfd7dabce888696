"""What several commands take: settings as `name=value`, places to start reading."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import rich_click as click

from raftlog.model import EARLIEST, LATEST


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
