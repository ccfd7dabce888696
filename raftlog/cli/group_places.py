"""Where a group is to go on, as the command line says it: places, durations, topics.

What is *not* here: finding the offsets (the cluster does that).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import rich_click as click

from .options import parse_from

if TYPE_CHECKING:
    from raftlog.client.admin import SeekTo

_DURATION = re.compile(
    r"P(?:([0-9]{1,9})D)?(?:T(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9}(?:\.[0-9]{1,3})?)S)?)?", re.ASCII
)
_TOPIC = re.compile(r"([^:]+)(?::([0-9]{1,10}(?:,[0-9]{1,10})*))?", re.ASCII)


def parse_place(to: str | None, shift_by: int | None, by_duration: str | None) -> tuple[SeekTo, int]:
    """Exactly one of the three → what `Admin.seek_group` takes. Raises `click.UsageError`."""
    if sum(given is not None for given in (to, shift_by, by_duration)) != 1:
        raise click.UsageError("say where to go on by one of --to, --shift-by and --by-duration")
    if shift_by is not None:
        return "shift", shift_by
    if by_duration is not None:
        return "duration", parse_duration(by_duration)
    place = parse_from(to or "")
    if isinstance(place, int):
        return "offset", place
    if place.startswith("@"):
        return "timestamp", int(place[1:])
    return ("earliest" if place == "earliest" else "latest"), 0


def parse_duration(text: str) -> int:
    """ISO 8601 without years and months, whose length is not known → milliseconds. Raises `click.UsageError`."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()) or text.endswith("T"):
        raise click.UsageError(f"{text!r} is no duration: it must be like P1DT2H, PT30M or PT1.5S")
    days, hours, minutes = (int(part or 0) for part in match.groups()[:3])
    return ((days * 24 + hours) * 60 + minutes) * 60_000 + round(float(match[4] or 0) * 1000)


def parse_topics(texts: Sequence[str]) -> dict[str, list[int] | None] | None:
    """`topic` or `topic:0,1` each → by name, None for all partitions; None where nothing was said. Raises
    `click.UsageError`."""
    found: dict[str, list[int] | None] = {}
    for text in texts:
        match = _TOPIC.fullmatch(text)
        if match is None:
            raise click.UsageError(f"--topic is TOPIC or TOPIC:0,1,..., not {text!r}")
        if match[1] in found:
            raise click.UsageError(f"topic {match[1]} is named twice")
        found[match[1]] = None if match[2] is None else [int(number) for number in match[2].split(",")]
    return found or None
