"""One process of a benchmark: a client that is controlled on standard input (`messages.py`).

Clients run in their own processes because one of them fills a core: several in one process would measure that core, and
the process with the progress bars would be measured too. A child ends when its input does, so it never outlives its
parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
from collections.abc import Callable

import msgspec

from raftlog.errors import RaftlogError

from .messages import (
    MAX_LINE_BYTES,
    ConsumeJob,
    Failed,
    Go,
    Job,
    LatencyJob,
    ProduceJob,
    Ready,
    Report,
)
from .together import together
from .worker import Worker

TELL_SECONDS = 0.5
"""Time between two `Progress` messages, in seconds."""

Tell = Callable[[Report], None]


class _InputEnded(Exception):
    """The parent is done."""


def worker_for(job: Job) -> Worker:
    """Return the worker for a job, importing only what it needs."""
    if isinstance(job, ProduceJob):
        from .producer import ProducingWorker

        return ProducingWorker(job)
    if isinstance(job, ConsumeJob):
        from .consumer import ConsumingWorker

        return ConsumingWorker(job)
    assert isinstance(job, LatencyJob)
    from .latency import LatencyWorker

    return LatencyWorker(job)


async def serve(lines: asyncio.StreamReader, tell: Tell) -> None:
    """Run one child. Returns when its input ends, even in the middle of a pass."""
    first = await lines.readline()
    if not first:
        return
    job = msgspec.json.decode(first, type=Job)
    orders: asyncio.Queue[Go] = asyncio.Queue()
    with contextlib.suppress(_InputEnded):
        await together(_work(worker_for(job), orders, tell), _listen(lines, orders))


async def _listen(lines: asyncio.StreamReader, orders: asyncio.Queue[Go]) -> None:
    """Queue orders until the input ends. The queue holds at most one, because the parent waits for each answer."""
    while line := await lines.readline():
        orders.put_nowait(msgspec.json.decode(line, type=Go))
    raise _InputEnded


async def _work(worker: Worker, orders: asyncio.Queue[Go], tell: Tell) -> None:
    try:
        await worker.prepare()
        _settle_memory()
        tell(Ready())
        while True:
            go = await orders.get()
            telling = asyncio.create_task(_telling(worker, tell))
            try:
                passed = await worker.run(go)
            finally:
                telling.cancel()
            tell(worker.tally.take())
            if passed is None:
                _settle_memory()
            tell(Ready() if passed is None else passed)
    except RaftlogError as error:
        tell(Failed(error.code, error.detail))
    finally:
        await worker.close()


async def _telling(worker: Worker, tell: Tell) -> None:
    while True:
        await asyncio.sleep(TELL_SECONDS)
        tell(worker.tally.take())


def _settle_memory() -> None:
    """Hide the pool, which belongs to the benchmark and has millions of values, from the garbage collector."""
    gc.collect()
    gc.freeze()


async def _main() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(MAX_LINE_BYTES, loop)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    output = sys.stdout.fileno()
    encoder = msgspec.json.Encoder()

    def tell(report: Report) -> None:
        # The parent reads all the time, so this pipe is never full for long.
        line = memoryview(encoder.encode(report) + b"\n")
        while line:
            line = line[os.write(output, line) :]

    try:
        await serve(lines, tell)
    finally:
        transport.close()


if __name__ == "__main__":
    # Either the parent has stopped reading, or Ctrl-C was pressed, which the parent reports.
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        asyncio.run(_main())
