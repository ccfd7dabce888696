"""Fetch sessions: how a consumer of many partitions names only those that changed (KIP-227's idea).

A stream has at most one session, and the session goes with it. The client puts *slots* into it, each a partition and
the offset to read on from, under a number that it never uses again. A slot whose batches (or whose error) were sent is
over, and the client puts the partition in again when it wants more, in another slot; one that has nothing yet waits at
the broker, for as long as it takes, and nobody names it again. Every request is a long poll over all slots of the
session, whichever request they came with; several may be under way, and each is answered once.

What is *not* here: the same over every carrier, without a memory between requests (`fetch.1` in `wire.py`).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from .wire_types import MAX_PARTITIONS_PER_REQUEST, AbortedRange, Natural, PartitionNumber, TopicIdBytes


class SlotToFetch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Where to read on in one partition."""

    slot: Natural
    """Greater than all that this session has had."""
    topic_id: TopicIdBytes
    partition: PartitionNumber
    offset: Natural
    max_bytes: Natural
    current_leader_epoch: int = -1
    """-1: not checked. Otherwise a leader of another epoch refuses (KIP-320)."""


class SessionFetchRequest(msgspec.Struct, array_like=True, frozen=True, tag="session_fetch.1"):
    """A long poll over all slots of a session: answered when `min_bytes` are there, something failed, or time is up."""

    correlation_id: Natural
    session: Natural
    """Chosen by the client; of those of one stream no two are the same."""
    begins: bool
    """It is a new one, in place of any that the stream had. Otherwise it must be the stream's, or the answer is
    `unknown_fetch_session`, and nothing of the request is done."""
    max_wait_ms: Natural
    min_bytes: Natural
    max_bytes: Natural
    added: Annotated[list[SlotToFetch], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)] = []
    dropped: Annotated[list[Natural], msgspec.Meta(max_length=MAX_PARTITIONS_PER_REQUEST)] = []
    """Slots that are of no interest any more; those that are over already are passed over."""
    isolation: Annotated[int, msgspec.Meta(ge=0, le=1)] = 0
    """Of the session that begins, as in `fetch.1`."""


class FetchedSlot(msgspec.Struct, array_like=True, frozen=True):
    """What one slot gave. With batches or an error it is over; with neither it waits on, and its marks have moved."""

    slot: Natural
    error: str = ""
    detail: str = ""
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    leader_epoch: int = -1
    length: Natural = 0
    leader: int = -1
    aborted: list[AbortedRange] = []


class SessionFetchResponse(msgspec.Struct, array_like=True, frozen=True, tag="session_fetched.1"):
    """The slots that have something to tell; the body holds their batches in that order."""

    correlation_id: Natural
    slots: list[FetchedSlot]
