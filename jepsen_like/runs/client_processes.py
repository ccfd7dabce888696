"""Handles of client processes for the interpreter: start, ask, kill.

A child that does not answer in time, ends, or sends an invalid message is `ClientGone`: it is killed, and the outcome
of its operation is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import msgspec

from jepsen_like.clients.messages import MAX_LINE_BYTES, READY, Ask, Open, Told, encode

START_SECONDS = 60.0
"""For a child to import everything, on a busy machine."""
STOP_SECONDS = 6.0

PROGRAM = (sys.executable, "-P", "-m", "jepsen_like.clients.process")
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


class ClientGone(Exception):
    """The client's process has ended, or must be killed: it sent an invalid message or did not start in time."""


class ClientPort(Protocol):
    """A client process, or its replacement in a test."""

    async def ask(self, asked: Ask) -> Told:
        """Return the outcome of an operation. Raises `ClientGone`. A caller that stops waiting must call `kill`."""
        ...

    async def stall(self, seconds: float) -> None:
        """Stop the process for some seconds, including its heartbeats, and then let it continue."""
        ...

    async def kill(self) -> None:
        """Kill the process and return when it has ended. Idempotent."""
        ...

    async def stop(self) -> None:
        """Stop the process in order, or kill it after a timeout."""
        ...


class ClientProcess:
    """A child process. Created by `start`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._decoder = msgspec.json.Decoder(Told)

    @classmethod
    async def start(
        cls, opened: Open, log: Path, program: Sequence[str] = PROGRAM, environment: Mapping[str, str] = NO_VARIABLES
    ) -> ClientProcess:
        """Return a child that is ready. `log`: the file to which its output is appended. `environment`: more variables
        than this process has. Raises `ClientGone`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *program,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=MAX_LINE_BYTES,
                # Ctrl-C at the terminal is handled by the parent.
                start_new_session=True,
                env={**os.environ, "PYTHONFAULTHANDLER": "1", **environment},
            )
        child = cls(process)
        try:
            async with asyncio.timeout(START_SECONDS):
                if await child._exchange(encode(opened)) != READY:
                    raise ClientGone("the client's process sent another message instead of being ready")
        except BaseException as error:
            await child.kill()
            if isinstance(error, TimeoutError):
                raise ClientGone(f"the client's process was not ready within {START_SECONDS:g} s") from None
            raise
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, asked: Ask) -> Told:
        return await self._exchange(encode(asked))

    async def stall(self, seconds: float) -> None:
        try:
            self._process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            self._process.send_signal(signal.SIGCONT)
        except ProcessLookupError:
            raise ClientGone("the client's process ended") from None

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._gone()

    async def stop(self) -> None:
        """Close the child's input, upon which it exits."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            await self.kill()
        else:
            await self._gone()

    async def _gone(self) -> None:
        """Wait for the end of the process and close its pipes, whose contents would keep their descriptors open."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        await self._process.wait()
        with contextlib.suppress(OSError):
            await self._process.stdin.wait_closed()

    async def _exchange(self, message: bytes) -> Told:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(message)
            await self._process.stdin.drain()
            line = await self._process.stdout.readline()
            if line.endswith(b"\n"):
                return self._decoder.decode(line)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise ClientGone(f"the client's process sent an invalid message: {error!r}") from None
        raise ClientGone("the client's process ended")
