"""Messages between the interpreter and its client processes: JSON, one message per line, over the child's pipes.

The first line to a child is `Open`; it answers `READY` once it has imported everything, so that no operation pays for
that. Then each `Ask` is answered by one `Told`, one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

MAX_LINE_BYTES = 32 * 1024 * 1024
"""Limit of a message; longer ones are a protocol error."""


class Open(msgspec.Struct, frozen=True):
    """The identity of a child, for its whole life."""

    client: str
    """A key of `process.CLIENTS`."""
    bootstrap: list[str]
    """API addresses, that of the worker's own node first."""
    worker: int
    options: dict[str, Any] = {}
    """The plan's options, and those from preparing the cluster."""


class Ask(msgspec.Struct, frozen=True):
    """A request to execute an operation as this process. A new process number means a new client."""

    process: int
    f: str
    value: Any
    timeout_s: float
    hint: dict[str, Any] = {}


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of an operation, in the words of `history.Operation`."""

    kind: Literal["ok", "fail", "info"]
    value: Any = None
    """None after a failure: the history repeats the request."""
    error: Any = None
    rebalanced: list[str] = []


READY = Told("ok", "ready")


class OutcomeUnknown(Exception):
    """It is unknown whether the operation took effect. Only the text is used."""


class CertainlyNot(Exception):
    """The operation took no effect, and never will."""


def encode(message: msgspec.Struct) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def rotated(bootstrap: list[str], worker: int) -> list[str]:
    """Return the addresses with the worker's own node first: workers are distributed over the nodes, as in Jepsen's
    tests.
    """
    own = worker % len(bootstrap)
    return [*bootstrap[own:], *bootstrap[:own]]


def option(options: Mapping[str, Any], name: str, default: float) -> float:
    """Return a number among the options. Raises `ValueError` for other values."""
    return float(options.get(name, default))
