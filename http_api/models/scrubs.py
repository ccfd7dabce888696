"""JSON bodies of `/v1/scrub`: schemas of `openapi.json`."""

from __future__ import annotations

from typing import Annotated

import msgspec


class StartScrub(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The replicas of this node to scrub; without `topic` all of them, without `partition` all of the topic."""

    topic: Annotated[str, msgspec.Meta(max_length=249)] | None = None
    partition: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None


class ScrubFinding(msgspec.Struct, frozen=True):
    """A file of a replica that differs from what was written."""

    topic: str
    partition: int
    detail: str
    """File, byte, and what is wrong."""


class Scrub(msgspec.Struct, frozen=True):
    """The progress of the scrub that was requested last."""

    node_id: int
    running: bool
    replicas: int
    replicas_done: int
    total_bytes: int
    """The approximate number of bytes to read."""
    bytes_read: int
    findings: list[ScrubFinding]
