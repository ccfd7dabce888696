"""What travels between the interpreter and its client processes: JSON, one message a line, over the child's own pipes.

The first line to a child is `Open`; it answers with `READY` once it has imported everything, so that no operation's
time is spent on that. From then on each `Ask` is answered by one `Told`, one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

MAX_LINE_BYTES = 32 * 1024 * 1024
"""Of a message. Whoever sends more is not understood."""


class Open(msgspec.Struct, frozen=True):
    """Who a child is, for as long as it lives."""

    client: str
    """A key of `process.CLIENTS`."""
    bootstrap: list[str]
    """API addresses, that of the worker's own node first."""
    worker: int
    options: dict[str, Any] = {}
    """The plan's, and what preparing the cluster has given."""


class Ask(msgspec.Struct, frozen=True):
    """Do this as that process. Another process than before is a client made anew."""

    process: int
    f: str
    value: Any
    timeout_s: float
    hint: dict[str, Any] = {}


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of it, in the words of `history.Operation`."""

    kind: Literal["ok", "fail", "info"]
    value: Any = None
    """None, where it did not end well: what was asked."""
    error: Any = None
    rebalanced: list[str] = []


READY = Told("ok", "ready")


class OutcomeUnknown(Exception):
    """Nobody knows whether the operation took effect. Only the text counts."""


class CertainlyNot(Exception):
    """The operation took no effect, and never will."""


def encode(message: msgspec.Struct) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def rotated(bootstrap: list[str], worker: int) -> list[str]:
    """The worker's own node first: workers are shared out over the nodes, as Jepsen's are."""
    own = worker % len(bootstrap)
    return [*bootstrap[own:], *bootstrap[:own]]


def option(options: Mapping[str, Any], name: str, default: float) -> float:
    """A number among the options. Raises `ValueError` for what is none."""
    return float(options.get(name, default))
