"""Histories: the operations that clients invoked, and their completions. Jepsen's shape, one JSON line per event.

An operation has two lines: when a process *invokes* it, and when it *completes*: `ok` (it happened, with this answer),
`fail` (it did not happen) or `info` (indeterminate: it may have happened, may happen at any later time, or never). A
process executes one operation at a time. After `info` the process has ended, and its client continues under another
number; a process that invokes again without a completion has crashed, too.

Sources: Jepsen's history model; Herlihy and Wing 1990 (an operation takes effect between invocation and response).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, TypeAlias

import msgspec

from raftlog.errors import InvalidRequest

Kind: TypeAlias = Literal["invoke", "ok", "fail", "info"]


class Operation(msgspec.Struct, frozen=True, rename={"kind": "type"}, omit_defaults=True):
    """One line. `time` is in nanoseconds since the run began; `process` is a number, or the name of an actor that is
    not a client (a nemesis); `node` received the request.
    """

    index: int
    process: int | str
    kind: Kind
    f: str
    value: Any = None
    time: int = 0
    node: str = ""
    error: Any = None
    rebalanced: tuple[int | str, ...] = ()
    """Partitions that a group revoked from or assigned to this process while the operation ran."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operation with both ends. `completion` is None if there is no second line of it."""

    invocation: Operation
    completion: Operation | None
    called: int
    """Position of the invocation in the history."""
    returned: int
    """Position of the completion; the end of the history for `info` or a missing completion."""

    @property
    def kind(self) -> Kind:
        """The outcome."""
        return self.completion.kind if self.completion is not None else "info"


def calls(history: Sequence[Operation]) -> list[Call]:
    """Return invocations with their completions, in the order of the invocations, leaving out notes.

    Raises `InvalidRequest` for a completion without an invocation.
    """
    found: list[Call] = []
    open_calls: dict[int, int] = {}
    end = len(history)
    for position, operation in enumerate(history):
        if not isinstance(operation.process, int):
            continue
        if operation.kind == "invoke":
            open_calls[operation.process] = len(found)
            found.append(Call(operation, None, position, end))
            continue
        number = open_calls.pop(operation.process, None)
        if number is None:
            raise InvalidRequest(
                "invalid_request",
                f"operation {position}: process {operation.process} completes an operation that it did not invoke",
            )
        invocation = found[number].invocation
        if invocation.f != operation.f:
            raise InvalidRequest(
                "invalid_request",
                f"operation {position}: process {operation.process} completes {operation.f}, invoked {invocation.f}",
            )
        returned = end if operation.kind == "info" else position
        found[number] = Call(invocation, operation, found[number].called, returned)
    return found


def write(file: BinaryIO, operations: Iterable[Operation]) -> None:
    """Append operations, one line each."""
    for operation in operations:
        file.write(_encoder.encode(operation) + b"\n")


def read(lines: Iterable[bytes]) -> Iterator[Operation]:
    """Yield the operations of a file in our own format. Raises `InvalidRequest`, which names the line."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield _decoder.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise InvalidRequest("invalid_request", f"line {number} is not an operation: {error}") from None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Operation)
