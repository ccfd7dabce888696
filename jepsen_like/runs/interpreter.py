"""The interpreter of a workload on a real cluster: draws operations, lets client processes execute them, and writes the
history.

    await interpret(plan, cluster.bootstrap, folder, origin_ns, healed)

There is one worker for each client process (`plan.processes`), distributed over the nodes. An operation begins when its
line is written, and ends when its answer arrives; `info` if the outcome is unknown. After `info` the worker continues
as another process of the history, with a new client. `crash` kills the worker's process and starts another, `stall`
stops it for some seconds and lets it continue.

The cluster cannot block this: a client reports the outcome of an operation in time, and one that does not is killed a
little later. Operations in flight when the time is over are awaited for that long. `healed` is awaited after the last
operation with faults, for `HEAL_SECONDS`; the recovery and the final reads are bounded by the workload.

Errors of the suite end the run: a client that repeatedly cannot be started, a cluster that cannot be prepared, faults
that are never healed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from jepsen_like.clients.messages import Ask, Open, Told, option, rotated
from jepsen_like.histories.file import HistoryFile
from jepsen_like.histories.history import Operation
from jepsen_like.run_records import RunFolder, RunPlan
from jepsen_like.workloads import HEALED, workload_of
from jepsen_like.workloads.generators import Context, Generator, Pending, Wanted
from raftlog.errors import RaftlogError

from .client_processes import NO_VARIABLES, ClientGone, ClientPort, ClientProcess

OPERATION_SECONDS = 10.0
"""Default of the option `operation_timeout_s`."""
GRACE_SECONDS = 6.0
"""Time after an operation's timeout within which a client must answer."""
HEAL_SECONDS = 300.0
IDLE_SECONDS = 1.0
"""Interval between draws while a generator is pending: its time may be over."""
STARTS_MAX = 5
"""Failed starts of one client in a row that end the run."""
START_PAUSE_SECONDS = 0.5

Spawn: TypeAlias = Callable[[Open], Awaitable[ClientPort]]
"""Starts a client process. Raises `ClientGone` or `OSError`."""


class RunFailed(Exception):
    """The suite failed: the run says nothing about the cluster."""


async def interpret(
    plan: RunPlan,
    bootstrap: Sequence[str],
    folder: RunFolder,
    origin_ns: int,
    healed: asyncio.Event,
    *,
    history: HistoryFile | None = None,
    spawn: Spawn | None = None,
    first_process: int = 0,
    environment: Mapping[str, str] = NO_VARIABLES,
) -> int:
    """Prepare the cluster for the plan's workload, run it, and read back the final state.

    `bootstrap`: one API address for each node. `origin_ns`: the time on the monotonic clock when the run began.
    `healed`: set when no more faults are injected. `history`: the file to which other actors write notes; None: the
    folder's, for this call alone. `spawn`: starts clients; None: as child processes. `first_process`: the first process
    number in the history, a multiple of the plan's processes, so that several calls can share one history.
    `environment`: more variables for child processes.

    Returns the first process number that is free for the next call. Raises `InvalidRequest` for a plan that cannot be
    run, and `RunFailed`; in any case, no process remains.
    """
    workload = workload_of(plan)

    def now() -> int:
        return time.monotonic_ns() - origin_ns

    with contextlib.ExitStack() as stack:
        if history is None:
            history = stack.enter_context(HistoryFile(folder.history, now))
        try:
            options = await workload.prepare(plan, bootstrap)
        except (RaftlogError, TimeoutError) as error:
            raise RunFailed(f"the cluster could not be prepared for {plan.workload}: {error!r}") from error

        async def start_process(opened: Open) -> ClientPort:
            return await ClientProcess.start(opened, folder.client_log(opened.worker), environment=environment)

        def client_of(worker: int) -> Awaitable[ClientPort]:
            own = rotated(list(bootstrap), worker)
            return (spawn or start_process)(Open(workload.client, own, worker, {**plan.options, **options}))

        interpreter = Interpreter(plan, client_of, history, now, len(bootstrap), first_process=first_process)
        try:
            await interpreter.start()
            # The nemesis waits for this line: faults before the first operation would show nothing.
            history.note("suite", "prepared", options)
            await interpreter.run(workload.generator(plan, options), healed)
            history.note("suite", "ends", await workload.ends(bootstrap, options))
            return interpreter.next_process
        finally:
            await interpreter.close()


@dataclass(slots=True)
class _Worker:
    number: int
    process: int
    client: ClientPort | None = None
    task: asyncio.Task[None] | None = None
    """The task of the current operation, or of a client's start."""


@dataclass(slots=True)
class Interpreter:
    """The loop over a generator's operations. Belongs to one event loop; `close` it."""

    plan: RunPlan
    spawn: Callable[[int], Awaitable[ClientPort]]
    """Starts the client of a worker."""
    history: HistoryFile
    now: Callable[[], int]
    nodes: int = 1
    grace: float = GRACE_SECONDS
    heal_within: float = HEAL_SECONDS
    first_process: int = 0
    _workers: list[_Worker] = field(default_factory=list)
    _happened: asyncio.Queue[Operation | None] = field(default_factory=asyncio.Queue)
    """Completions; None: another event for which a generator may wait. At most two per worker."""
    _invoked: int = 0
    _failed: BaseException | None = None

    async def start(self) -> None:
        """Start all clients. Raises `RunFailed`."""
        assert self.first_process % self.plan.processes == 0, "a process's number determines its worker"
        self._workers = [_Worker(number, self.first_process + number) for number in range(self.plan.processes)]
        for worker in self._workers:
            worker.task = asyncio.create_task(self._started(worker))
        await self._settled()

    async def run(self, generator: Generator, healed: asyncio.Event) -> None:
        """Run until the generator is exhausted. Raises `RunFailed`."""
        watching = asyncio.create_task(self._watch(healed))
        try:
            while True:
                generator = self._caught_up(generator)
                context = self._context()
                wanted, after = generator.draw(context)
                if wanted is None:
                    break
                if isinstance(wanted, Wanted) and wanted.time <= context.time:
                    generator = after.told(self._invoke(wanted))
                    await asyncio.sleep(0)
                    continue
                if isinstance(wanted, Pending):
                    generator = after
                happened = await self._next(None if isinstance(wanted, Pending) else wanted.time)
                generator = generator if happened is None else generator.told(happened)
            await self._settled()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    @property
    def next_process(self) -> int:
        """The first process number that was never used."""
        count = len(self._workers)
        return (max(worker.process for worker in self._workers) // count + 1) * count

    async def close(self) -> None:
        """Cancel all operations and stop all processes."""
        tasks = [worker.task for worker in self._workers if worker.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        clients = [worker.client for worker in self._workers if worker.client is not None]
        await asyncio.gather(*(client.stop() for client in clients))

    # --- What is to be known ------------------------------------------------------------------------------------------

    def _context(self) -> Context:
        chance = random.Random(f"{self.plan.seed}/{self._invoked}")
        free = tuple(worker.process for worker in self._workers if worker.task is None)
        return Context(self.now(), free, tuple(worker.process for worker in self._workers), chance)

    def _caught_up(self, generator: Generator) -> Generator:
        """Return the generator after all events so far: it has seen the completion of every free process."""
        while not self._happened.empty():
            happened = self._happened.get_nowait()
            generator = generator if happened is None else generator.told(happened)
        self._check()
        return generator

    async def _next(self, at: int | None) -> Operation | None:
        """Return the next completion, or None at the given time or after another event."""
        wait = IDLE_SECONDS if at is None else min(max(at - self.now(), 0) / 1e9, IDLE_SECONDS)
        try:
            async with asyncio.timeout(wait):
                happened = await self._happened.get()
        except TimeoutError:
            return None
        return happened

    async def _watch(self, healed: asyncio.Event) -> None:
        """Tell the generator of the heal, or fail the run if the heal is overdue."""
        try:
            async with asyncio.timeout(self.plan.seconds + self.heal_within):
                await healed.wait()
        except TimeoutError:
            self._failed = RunFailed(f"the cluster was not healed {self.heal_within:g} s after its time")
            self._happened.put_nowait(None)
            return
        self._happened.put_nowait(self.history.note("suite", HEALED))

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    async def _settled(self) -> None:
        """Wait until no operation is in flight: each ends by itself, in time."""
        await asyncio.gather(*(worker.task for worker in self._workers if worker.task is not None))
        self._check()

    # --- Operations ---------------------------------------------------------------------------------------------------

    def _invoke(self, wanted: Wanted) -> Operation:
        worker = self._workers[wanted.process % len(self._workers)]
        assert worker.process == wanted.process and worker.task is None, f"{wanted} is not for a free process"
        self._invoked += 1
        invoked = self.history.add(
            Operation(0, wanted.process, "invoke", wanted.f, wanted.value, node=self._node(worker))
        )
        worker.task = asyncio.create_task(self._done(worker, wanted))
        return invoked

    def _node(self, worker: _Worker) -> str:
        return f"n{worker.number % self.nodes + 1}"

    async def _done(self, worker: _Worker, wanted: Wanted) -> None:
        """Execute the operation, write its completion, and replace the client if it is gone."""
        try:
            told, gone = await self._told(worker, wanted)
            value = wanted.value if told.value is None and told.kind != "ok" else told.value
            completed = self.history.add(
                Operation(
                    0,
                    wanted.process,
                    told.kind,
                    wanted.f,
                    value,
                    node=self._node(worker),
                    error=told.error,
                    rebalanced=tuple(told.rebalanced),
                )
            )
            if told.kind == "info":
                worker.process += len(self._workers)
            if gone:
                self._happened.put_nowait(completed)
                await self._started(worker)
            else:
                worker.task = None
                self._happened.put_nowait(completed)
        except Exception as error:  # noqa: BLE001  a bug of the suite ends the run
            self._fail(worker, error)

    async def _told(self, worker: _Worker, wanted: Wanted) -> tuple[Told, bool]:
        """Return the outcome, and whether the client is gone."""
        assert worker.client is not None
        if wanted.f == "crash":
            await worker.client.kill()
            return Told("info", error="killed on purpose"), True
        if wanted.f == "stall":
            return await self._stalled(worker.client, float(wanted.value))
        timeout = option(self.plan.options, "operation_timeout_s", OPERATION_SECONDS)
        asked = Ask(wanted.process, wanted.f, wanted.value, timeout, dict(wanted.hint))
        try:
            async with asyncio.timeout(timeout + self.grace):
                return await worker.client.ask(asked), False
        except TimeoutError:
            error = f"the client did not answer within {timeout + self.grace:g} s"
        except ClientGone as gone:
            error = str(gone)
        await worker.client.kill()
        return Told("info", error={"client": error}), True

    async def _stalled(self, client: ClientPort, seconds: float) -> tuple[Told, bool]:
        try:
            await client.stall(seconds)
        except ClientGone as gone:
            await client.kill()
            return Told("info", error={"client": str(gone)}), True
        return Told("ok", seconds), False

    async def _started(self, worker: _Worker) -> None:
        """Start a client for this worker, and make the worker free. Never raises."""
        worker.client = None
        try:
            for attempt in range(1, STARTS_MAX + 1):
                try:
                    worker.client = await self.spawn(worker.number)
                    break
                except (ClientGone, OSError) as error:
                    if attempt == STARTS_MAX:
                        raise RunFailed(f"client {worker.number} cannot be started: {error}") from error
                    await asyncio.sleep(START_PAUSE_SECONDS)
        except Exception as error:  # noqa: BLE001  the run raises it
            self._fail(worker, error)
            return
        worker.task = None
        self._happened.put_nowait(None)

    def _fail(self, worker: _Worker, error: Exception) -> None:
        worker.task = None
        self._failed = self._failed or error
        self._happened.put_nowait(None)
