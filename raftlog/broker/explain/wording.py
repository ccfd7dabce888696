"""Numbers and names in sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def nodes(numbers: Iterable[int]) -> str:
    """Return `node 1`, `nodes 1 and 2`, `nodes 1, 2 and 3`, or `no node`."""
    names = [str(number) for number in numbers]
    if not names:
        return "no node"
    if len(names) == 1:
        return f"node {names[0]}"
    return f"nodes {', '.join(names[:-1])} and {names[-1]}"


def seconds(value: float) -> str:
    """Return a duration with a sensible unit."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    if value < 7_200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h"


def size(count: int) -> str:
    """Return a number of bytes with a sensible unit."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def records(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"
