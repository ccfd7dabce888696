"""Client processes of the operating system, as the interpreter holds them: start, ask, kill.

A child that says nothing in time, ends, or says what makes no sense is `ClientGone`: it is killed, and what it had
under way is nobody's knowledge.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from jepsen_like.clients.messages import MAX_LINE_BYTES, READY, Ask, Open, Told, encode

START_SECONDS = 60.0
"""For a child to import everything, on a machine that has much else to do."""
STOP_SECONDS = 6.0

PROGRAM = (sys.executable, "-P", "-m", "jepsen_like.clients.process")


class ClientGone(Exception):
    """The client's process ended, or is to be ended: it made no sense, or did not begin in time."""


class ClientPort(Protocol):
    """A client process, or what stands for one in a test."""

    async def ask(self, asked: Ask) -> Told:
        """What became of it. Raises `ClientGone`. Whoever gives up waiting must `kill`."""
        ...

    async def stall(self, seconds: float) -> None:
        """It does nothing at all for so long, heartbeats included, and then goes on as if nothing had been."""
        ...

    async def kill(self) -> None:
        """As SIGKILL does; returns when it is gone. Killing twice is fine."""
        ...

    async def stop(self) -> None:
        """In order, and otherwise by `kill`."""
        ...


class ClientProcess:
    """See `ClientPort`. Made by `start`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._decoder = msgspec.json.Decoder(Told)

    @classmethod
    async def start(cls, opened: Open, log: Path, program: Sequence[str] = PROGRAM) -> ClientProcess:
        """A child that is ready. `log`: where what it prints is appended. Raises `ClientGone`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *program,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=MAX_LINE_BYTES,
                # A Ctrl-C at the terminal is the parent's to handle.
                start_new_session=True,
                env={**os.environ, "PYTHONFAULTHANDLER": "1"},
            )
        child = cls(process)
        try:
            async with asyncio.timeout(START_SECONDS):
                if await child._exchange(encode(opened)) != READY:
                    raise ClientGone("the client's process said something else than that it is ready")
        except BaseException as error:
            await child.kill()
            if isinstance(error, TimeoutError):
                raise ClientGone(f"the client's process was not ready after {START_SECONDS:g} s") from None
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
        """Its input ends; so does it, then."""
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
        """Wait for it, and let go of its pipes: what is still in them would keep their descriptors."""
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
            raise ClientGone(f"the client's process is not to be understood: {error!r}") from None
        raise ClientGone("the client's process ended")
