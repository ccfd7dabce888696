"""The client processes of a benchmark, from their controller's side.

`async with Fleet(jobs) as fleet: ... await fleet.go([...])` runs one child for each job. All are ready when the block
begins, and all are gone when it ends, whatever ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from types import TracebackType

import msgspec

from raftlog.errors import RaftlogError, error_from_code

from .messages import MAX_LINE_BYTES, Failed, Go, Job, Passed, Progress, Ready, Report
from .together import together

STOP_SECONDS = 10.0
"""Time after which a child that has not ended is killed, in seconds."""
OnProgress = Callable[[Progress], None]


class Fleet:
    """One child for each job, in the order of the jobs."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._children: list[Process] = []
        self._on_progress: OnProgress = _ignore

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    async def go(self, orders: Sequence[Go], on_progress: OnProgress | None = None) -> list[Passed]:
        """Run one pass in all children at once.

        Raises the error of the first that failed; the fleet is unusable then.
        """
        self._on_progress = on_progress or _ignore
        answers = await self._ask(orders)
        passed = [answer for answer in answers if isinstance(answer, Passed)]
        if len(passed) != len(answers):
            raise RaftlogError("internal_error", "a client process did not run its pass")
        return passed

    async def salt(self) -> None:
        """Change the producers' values for the next pass."""
        await self._ask([Go(salt=True)] * len(self._children))

    async def __aenter__(self) -> Fleet:
        try:
            for _ in self._jobs:
                self._children.append(await _start())
            await self._ask(self._jobs)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stop()

    async def _ask(self, messages: Sequence[Job | Go]) -> list[Ready | Passed]:
        for child, message in zip(self._children, messages, strict=True):
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the answer reports its end
                child.stdin.write(msgspec.json.encode(message) + b"\n")
                await child.stdin.drain()
        return await together(*map(self._answer, self._children))

    async def _answer(self, child: Process) -> Ready | Passed:
        """Return a child's next message that is not progress. Raises the error with which it failed."""
        assert child.stdout is not None
        while line := await child.stdout.readline():
            report: Report = msgspec.json.decode(line, type=Report)
            if isinstance(report, Failed):
                raise error_from_code(report.code, report.detail)
            if not isinstance(report, Progress):
                return report
            self._on_progress(report)
        code = await child.wait()
        raise RaftlogError("internal_error", f"a client process ended by itself (exit code {code})")

    async def _stop(self) -> None:
        for child in self._children:
            assert child.stdin is not None
            child.stdin.close()
        await asyncio.gather(*map(_reap, self._children))


async def _start() -> Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "raftlog.cli.bench.child"),
        stdin=PIPE,
        stdout=PIPE,
        limit=MAX_LINE_BYTES,
        # The parent handles Ctrl-C at the terminal.
        start_new_session=True,
    )


async def _reap(child: Process) -> None:
    assert child.stdout is not None
    try:
        async with asyncio.timeout(STOP_SECONDS):
            # Read to the end: a child that cannot write cannot end.
            while await child.stdout.read(MAX_LINE_BYTES):
                pass
            await child.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


def _ignore(progress: Progress) -> None:
    """Ignore progress."""
