"""What several messages have in common: numbers and names with their bounds, and aborted ranges.

What is *not* here: messages (`wire.py`, `wire_sessions.py`).
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

MAX_PARTITIONS_PER_REQUEST = 10_000

TopicIdBytes: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
GroupName: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
PartitionNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class AbortedRange(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Every transactional batch of this producer id and epoch whose base offset is in [first, end) is aborted: who
    reads committed skips it. (Control batches are skipped by everybody.)"""

    producer_id: int
    producer_epoch: int
    first_offset: int
    end_offset: int
