"""Lists that show only what their caller may describe (S12)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

from raftlog.security.acls import Operation, ResourceType

from .call import Call

T = TypeVar("T")

CHECKS_PER_TURN = 2_000
"""The number of entries examined before the handler yields to the event loop: some milliseconds."""


async def describable(
    call: Call, kind: ResourceType, entries: Iterable[T], name_of: Callable[[T], str], *, most: int | None = None
) -> list[T]:
    """Return the first `most` entries that the caller may describe. `name_of` returns the name of an entry's
    resource."""
    found: list[T] = []
    for number, entry in enumerate(entries, 1):
        if len(found) == most:
            break
        if call.may(Operation.DESCRIBE, kind, name_of(entry)):
            found.append(entry)
        if number % CHECKS_PER_TURN == 0:
            await asyncio.sleep(0)
    return found
