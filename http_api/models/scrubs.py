"""Bodies of `/v1/scrub`, as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Annotated

import msgspec


class StartScrub(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which replicas of this node to check now; without `topic` all of them, without `partition` all of the topic's."""

    topic: Annotated[str, msgspec.Meta(max_length=249)] | None = None
    partition: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None


class ScrubFinding(msgspec.Struct, frozen=True):
    """A file of a replica that is not what was written."""

    topic: str
    partition: int
    detail: str
    """File, byte, and what is wrong."""


class Scrub(msgspec.Struct, frozen=True):
    """How far the check that was asked for last is."""

    node_id: int
    running: bool
    replicas: int
    replicas_done: int
    total_bytes: int
    """About how many there are to read."""
    bytes_read: int
    findings: list[ScrubFinding]
