"""Histories: what clients asked of a system, and what they were told. Jepsen's shape, one operation a line of JSON.

An operation is written down twice: when a process *invokes* it, and when it *completes*: `ok` (it happened, this is
the answer), `fail` (it did not happen) or `info` (nobody knows: it may have happened, may happen at any later time, or
never). A process does one thing at a time. After `info` the process is gone, and what its client does next it does
under another number; a process that invokes again without having completed has crashed, too.

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
    """One line. `time` in nanoseconds since the run began; `process` is a number, or a name for what is no client (a
    nemesis); `node` is whom it was asked of."""

    index: int
    process: int | str
    kind: Kind
    f: str
    value: Any = None
    time: int = 0
    node: str = ""
    error: Any = None
    rebalanced: tuple[int | str, ...] = ()
    """Partitions that a group took from or gave to this process while the operation ran."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operation from both ends. `completion` is None where the process was never heard of again."""

    invocation: Operation
    completion: Operation | None
    called: int
    """Position of the invocation in the history."""
    returned: int
    """Position of the completion; for `info` and for none at all, behind the end of the history."""

    @property
    def kind(self) -> Kind:
        """How it ended."""
        return self.completion.kind if self.completion is not None else "info"


def calls(history: Sequence[Operation]) -> list[Call]:
    """Invocations with their completions, in the order in which they were invoked. What is no client's is left out.

    Raises `InvalidRequest` for a completion of what was never invoked.
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
                "invalid_request", f"operation {position}: process {operation.process} completes what it did not invoke"
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
    """Append operations, a line each."""
    for operation in operations:
        file.write(_encoder.encode(operation) + b"\n")


def read(lines: Iterable[bytes]) -> Iterator[Operation]:
    """Operations of a file in our own format, in order. Raises `InvalidRequest` that names the line."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield _decoder.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise InvalidRequest("invalid_request", f"line {number} is no operation: {error}") from None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Operation)
