"""Directed links between nodes and the faults on them: the interface of both layouts.

A link is a text, `n1>n2`: the traffic from n1 to n2. A cut takes away that direction only. TCP needs both directions,
so a connection over a cut link stalls; but which end notices, and when, depends on the direction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


def link(source: str, target: str) -> str:
    return f"{source}>{target}"


def ends(name: str) -> tuple[str, str]:
    """Return the sender and the receiver of a link."""
    source, _, target = name.partition(">")
    return source, target


def all_links(nodes: Iterable[str]) -> list[str]:
    """Return the links in both directions of every pair."""
    named = list(nodes)
    return [link(source, target) for source in named for target in named if source != target]


class Links(Protocol):
    """The links of one cluster. Every method raises `CommandFailed` if the machine refuses."""

    async def cut(self, names: Iterable[str]) -> None:
        """Cut these links and mend all others; reset the counters."""
        ...

    async def stopped(self) -> dict[str, int]:
        """Return what each cut link has kept from arriving: packets, or bytes in layouts without packets."""
        ...

    async def heal(self) -> None:
        """Mend all links. Idempotent."""
        ...

    async def close(self) -> None: ...
