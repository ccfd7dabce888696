"""One request to a broker, as the connections take it (`transport.py`, `transport_http1.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raftlog.errors import RaftlogError
from raftlog.ports import Buffer
from raftlog.wire import Request, Response


@dataclass(frozen=True, slots=True)
class BrokerRequest:
    """A request to a broker, and the calls that end it: one of the two, or neither if no answer is expected."""

    path: str
    make: Callable[[int], Request]
    """Makes the head with the given correlation id."""
    timeout: float
    answered: Callable[[Response, memoryview], None]
    lost: Callable[[RaftlogError], None]
    body: Sequence[Buffer] = ()
    answer_expected: bool = True
