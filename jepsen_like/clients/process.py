"""A client process: it reads operations from standard input, runs them with the public client, and writes their
outcomes.

    python -P -m jepsen_like.clients.process

The outcome of a failed operation is decided here, in one place, by the client's own statement (`RaftlogError.applied`):
`fail` only if the operation certainly has no effect, now or later, and `info` for everything else: a timeout, a
malformed answer, an unexpected exception. After `info` the client is abandoned with its requests in flight, like that
of a crashed program, and closes concurrently with the next operation. If it does not close, the process exits.

The process exits at the end of its standard input, so that it never outlives its parent.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from raftlog.errors import Applied, RaftlogError

from .messages import MAX_LINE_BYTES, READY, Ask, CertainlyNot, Open, OutcomeUnknown, Told, encode

CLOSE_SECONDS = 3.0
"""Time for clients to close their connections when their process ends."""
STUCK_SECONDS = 30.0
"""An abandoned client may wait for a cluster that does not answer, but no longer than this."""
EXIT_STUCK = 70

CLIENTS = {
    "log": "LogClient",
    "registers": "RegistersClient",
    "topic_set": "TopicSetClient",
    "topics": "TopicsClient",
    "group_offsets": "GroupOffsetsClient",
    "positions": "PositionsClient",
    "topic_lives": "TopicLivesClient",
    "rest": "RestClient",
}
"""Module of this folder → its client class."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings of one client."""

    bootstrap: tuple[str, ...]
    """API addresses, that of its own node first."""
    worker: int
    process: int
    timeout: float
    """Seconds for each operation."""
    options: Mapping[str, Any]


class Client(Protocol):
    """The client of one process of the history. Belongs to one event loop, and executes one operation at a time."""

    async def invoke(self, f: str, value: Any, hint: Mapping[str, Any]) -> Told:
        """Execute the operation. Raises a `RaftlogError`, `OutcomeUnknown` or `CertainlyNot`."""
        ...

    async def close(self) -> None: ...


def made(opened: Open) -> Callable[[ClientSettings], Client]:
    """Return the factory of this child's clients."""
    module = importlib.import_module(f"{__package__}.{opened.client}")
    make: Callable[[ClientSettings], Client] = getattr(module, CLIENTS[opened.client])
    return make


class ClientHost:
    """Runs one client after the other.

    An abandoned client is closed concurrently with the next operations, as the requests of a crashed program are still
    in flight; one that does not close is stuck.
    """

    def __init__(self, opened: Open, make: Callable[[ClientSettings], Client], *, stuck: Callable[[], None]) -> None:
        """`stuck`: called when a client has not closed within `STUCK_SECONDS` after it was abandoned."""
        self._opened = opened
        self._make = make
        self._stuck = stuck
        self._client: Client | None = None
        self._process = -1
        self._leaving: set[asyncio.Task[None]] = set()

    async def do(self, asked: Ask) -> Told:
        """Execute the operation and return its outcome, within its timeout. Never raises: every error becomes an
        outcome.
        """
        if asked.process != self._process:
            self._let_go(None)
            self._process = asked.process
        doing = asyncio.create_task(self._told(asked))
        try:
            done, _ = await asyncio.wait({doing}, timeout=asked.timeout_s)
        except asyncio.CancelledError:
            self._let_go(doing)
            raise
        told = doing.result() if done else Told("info", error="timed out")
        if told.kind == "info":
            self._let_go(None if done else doing)
        return told

    async def close(self) -> None:
        """Abandon the client, and wait briefly for all abandoned clients."""
        self._let_go(None)
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=CLOSE_SECONDS)
        for task in self._leaving:
            task.cancel()

    async def _told(self, asked: Ask) -> Told:
        try:
            return await self._invoke(asked)
        except OutcomeUnknown as error:
            return Told("info", error=str(error))
        except CertainlyNot as error:
            return Told("fail", error=str(error))
        except RaftlogError as error:
            return outcome_of(error)
        except Exception as error:  # noqa: BLE001  a bug of the client, reported and judged (`checkers/stats.py`)
            traceback.print_exc()
            return Told("info", error={"exception": repr(error)})

    async def _invoke(self, asked: Ask) -> Told:
        if self._client is None:
            opened = self._opened
            settings = ClientSettings(
                tuple(opened.bootstrap), opened.worker, asked.process, asked.timeout_s, opened.options
            )
            self._client = self._make(settings)
        return await self._client.invoke(asked.f, asked.value, asked.hint)

    def _let_go(self, doing: asyncio.Task[Told] | None) -> None:
        client, self._client = self._client, None
        self._process = -1
        if client is not None or doing is not None:
            leaving = asyncio.create_task(self._leave(client, doing))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def _leave(self, client: Client | None, doing: asyncio.Task[Told] | None) -> None:
        """Cancel the client's operation, and then close the client."""
        ending = asyncio.create_task(_ended(client, doing))
        _, late = await asyncio.wait({ending}, timeout=STUCK_SECONDS)
        if late:
            ending.print_stack()
            ending.cancel()
            self._stuck()


async def _ended(client: Client | None, doing: asyncio.Task[Told] | None) -> None:
    if doing is not None:
        doing.cancel()
        await asyncio.wait({doing})
    if client is not None:
        try:
            await client.close()
        except RaftlogError as error:
            sys.stderr.write(f"closing a client: {error}\n")


def outcome_of(error: RaftlogError) -> Told:
    """Return the outcome that an error reports."""
    return Told("fail" if error.applied is Applied.NO else "info", error=str(error))


async def serve(reader: asyncio.StreamReader, write: Callable[[bytes], Awaitable[None]]) -> None:
    """Serve requests until the end of the input."""
    first = await reader.readline()
    if not first:
        return
    opened = msgspec.json.decode(first, type=Open)
    host = ClientHost(opened, made(opened), stuck=_end_at_once)
    await write(encode(READY))
    decoder = msgspec.json.Decoder(Ask)
    while line := await reader.readline():
        await write(encode(await host.do(decoder.decode(line))))
    await host.close()


def _end_at_once() -> None:
    """Exit; the interpreter notices that the process ended by itself, and reports it as an anomaly."""
    sys.stderr.write(f"a client did not end within {STUCK_SECONDS:g} s\n")
    os._exit(EXIT_STUCK)


async def _main(answers: int) -> None:
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def write(message: bytes) -> None:
        # The interpreter reads each answer before the next request, so this does not block for long.
        view = memoryview(message)
        while view:
            view = view[os.write(answers, view) :]

    try:
        await serve(reader, write)
    finally:
        transport.close()


def main() -> None:
    # Anything printed goes to the log: the answers have a descriptor that no other code knows.
    answers = os.dup(1)
    os.dup2(2, 1)
    gc.freeze()
    asyncio.run(_main(answers))


if __name__ == "__main__":
    main()
