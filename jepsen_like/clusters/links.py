"""Directed links between nodes, as faults are made on them: what both layouts have in common.

A link is a text, `n1>n2`: what n1 sends to n2. To cut it takes away that direction only. TCP needs both directions, so
a connection over it stalls; but who learns of it, and when, differs from one direction to the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


def link(source: str, target: str) -> str:
    return f"{source}>{target}"


def ends(name: str) -> tuple[str, str]:
    """Who sends, and to whom."""
    source, _, target = name.partition(">")
    return source, target


def all_links(nodes: Iterable[str]) -> list[str]:
    """In both directions of each pair."""
    named = list(nodes)
    return [link(source, target) for source in named for target in named if source != target]


class Links(Protocol):
    """The links of one cluster. Every call raises `CommandFailed` where the machine refuses."""

    async def cut(self, names: Iterable[str]) -> None:
        """These from now on, and no others. Counting begins anew."""
        ...

    async def stopped(self) -> dict[str, int]:
        """What each cut link has kept from arriving: packets, or bytes where there are no packets."""
        ...

    async def heal(self) -> None:
        """No link is cut. Safe to call again."""
        ...

    async def close(self) -> None: ...
