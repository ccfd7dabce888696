"""Sorting and encoding many records in steps of a few milliseconds."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from heapq import merge
from typing import TypeVar

import msgspec

from raftlog.security.acls import AclRule

T = TypeVar("T", str, AclRule)

PER_STEP = 1_000
"""Some milliseconds of work."""

_encoder = msgspec.msgpack.Encoder()


def sorted_in_steps(items: Iterable[T]) -> Generator[None, None, Iterator[T]]:
    """Sort many names, or records that have an order, in steps."""
    whole = list(items)
    parts = []
    for start in range(0, len(whole), PER_STEP):
        parts.append(sorted(whole[start : start + PER_STEP]))
        yield
    return merge(*parts)


def encoded_in_steps(parts: Iterable[msgspec.Struct]) -> Generator[None, None, tuple[msgspec.Raw, ...]]:
    """Encode many records in steps, each on its own."""
    packed = []
    for number, part in enumerate(parts, 1):
        packed.append(msgspec.Raw(_encoder.encode(part)))
        if number % PER_STEP == 0:
            yield
    return tuple(packed)
