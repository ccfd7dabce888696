"""`raftlog chaos matrix`: run cells of the scoreboard, one after the other or several clusters at a time.

Before every run the results determine what is due, so an interrupted matrix resumes when it is called again. With one
cluster at a time the runs are made in this process; several run in child processes (`raftlog chaos run --cell`), each
with its own nodes, clients and network, which append to the same results.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import rich_click as click

from jepsen_like.scoreboard.cells import CELLS, ROUNDS_A_RUN, cell
from jepsen_like.scoreboard.scoreboard import Score, due
from raftlog.cli.terminal.output import output_option, show

from ..run_records import Outcome, RunPlan
from .board import board_table, scores_of
from .running import EXIT_INVALID, RESULTS, exit_code, layout_of, make_run, runs_option, told

SEED_MAX = 2**31
FAILURES_MAX = 3
"""Failed runs in a row that end the matrix: the machine or the suite cannot run clusters."""
PARALLEL_MAX = 8
END_SECONDS = 180.0
"""Time for a child to take its cluster down after a signal."""
PROGRAM = (sys.executable, "-P", "-m", "raftlog.cli.main")


class TooManyFailures(Exception):
    """No run can be made here."""

    def __init__(self, failures: int) -> None:
        super().__init__(f"{failures} runs in a row failed to test their cluster")


@dataclass(slots=True)
class Sitting:
    """Chooses the next run, from the accumulated results and the runs in progress. Pure."""

    wanted: Sequence[str]
    seconds: float
    rate: float
    rounds: int | None = None
    """Target of cells that run in rounds; None: their own."""
    each: float | None = None
    """Target of other cells in seconds; None: their own."""
    begun: Counter[str] = field(default_factory=Counter)
    under_way: Counter[str] = field(default_factory=Counter)

    def next_plan(self, found: Mapping[str, Score], seed: int) -> RunPlan | None:
        """Return the next plan, or None if all targets are reached: first each cell once, then the least advanced."""
        names = due(found, self.wanted, rounds=self.rounds, seconds=self.each)
        left = [name for name in names if not self._is_on_its_way(name, found)]
        if not left:
            return None
        name = next((one for one in left if not self.begun[one]), left[0])
        self.begun[name] += 1
        self.under_way[name] += 1
        return cell(name).plan(
            seed=seed, seconds=self.seconds, rate=self.rate, rounds=min(ROUNDS_A_RUN, self._rounds_left(name, found))
        )

    def ended(self, plan: RunPlan) -> None:
        self.under_way[plan.cell] -= 1

    def _rounds_left(self, name: str, found: Mapping[str, Score]) -> int:
        started = found[name].rounds_now + self.under_way[name] * ROUNDS_A_RUN
        # `under_way` includes the run that is being planned.
        return max((self.rounds or CELLS[name].rounds) - started + ROUNDS_A_RUN, 1)

    def _is_on_its_way(self, name: str, found: Mapping[str, Score]) -> bool:
        """Return whether the runs in progress suffice for the target, if they pass."""
        count = self.under_way[name]
        if CELLS[name].rounds:
            return found[name].rounds_now + count * ROUNDS_A_RUN >= (self.rounds or CELLS[name].rounds)
        return found[name].seconds_now + count * self.seconds >= (self.each or CELLS[name].seconds)


@click.command()
@click.option("--cells", "names", default=",".join(CELLS), help="Names of cells, separated by commas. Default: all.")
@click.option("--time", "seconds", type=click.FloatRange(1), default=60.0, show_default=True, help="Seconds per run.")
@click.option("--rounds", type=click.IntRange(1), help="Target of cells that run in rounds. Default: their own.")
@click.option("--each", type=click.FloatRange(1), help="Target of other cells in seconds. Default: their own.")
@click.option("--total", type=click.FloatRange(1), help="Limit of the total time in seconds, including setup.")
@click.option("--rate", type=click.FloatRange(0.1), default=100.0, show_default=True, help="Operations per second.")
@click.option(
    "--parallel",
    type=click.IntRange(1, PARALLEL_MAX),
    default=1,
    show_default=True,
    help="Number of clusters at a time.",
)
@runs_option
@output_option
@click.pass_context
def matrix(
    context: click.Context,
    names: str,
    seconds: float,
    rounds: int | None,
    each: float | None,
    total: float | None,
    rate: float,
    parallel: int,
    runs: Path,
    output: str,
) -> None:
    """Run cells of the scoreboard, the least advanced first, until all targets or the time limit are reached.

    Stops at the first invalid run.
    """
    wanted = [cell(name.strip()).name for name in names.split(",")]
    sitting = Sitting(wanted, seconds, rate, rounds, each)
    end = time.monotonic() + total if total else float("inf")
    try:
        made = (
            _in_turn(sitting, runs, end) if parallel == 1 else asyncio.run(_side_by_side(sitting, runs, end, parallel))
        )
    except TooManyFailures as error:
        click.echo(f"Error: {error}", err=True)
        context.exit(EXIT_INVALID)
    show(output, made, lambda wide: board_table([runs / RESULTS], wanted))
    context.exit(exit_code([one.valid for one in made]))


def _in_turn(sitting: Sitting, runs: Path, end: float) -> list[Outcome]:
    from jepsen_like.runs.interpreter import RunFailed

    made: list[Outcome] = []
    failures = 0
    while time.monotonic() < end:
        plan = sitting.next_plan(scores_of([runs / RESULTS]), random.randrange(1, SEED_MAX))
        if plan is None:
            break
        try:
            made.append(make_run(plan, layout_of(plan.cell), runs))
        except RunFailed as error:
            failures += 1
            click.echo(f"{plan.cell}: {error}", err=True)
            if failures == FAILURES_MAX:
                raise TooManyFailures(failures) from error
            continue
        finally:
            sitting.ended(plan)
        failures = 0
        click.echo(told(made[-1]), err=True)
        if made[-1].valid is False:
            break
    return made


# --- Several at a time ------------------------------------------------------------------------------------------------


async def _side_by_side(sitting: Sitting, runs: Path, end: float, parallel: int) -> list[Outcome]:
    """Run several lanes until all is done; after the first invalid run, let the others finish."""
    made: list[Outcome] = []
    failures = 0

    async def lane() -> None:
        nonlocal failures
        while time.monotonic() < end and failures < FAILURES_MAX and not any(one.valid is False for one in made):
            plan = sitting.next_plan(scores_of([runs / RESULTS]), random.randrange(1, SEED_MAX))
            if plan is None:
                return
            try:
                found = await _child(plan, runs)
            finally:
                sitting.ended(plan)
            failures = failures + 1 if found is None else 0
            if found is not None:
                made.append(found)
                click.echo(told(found), err=True)

    loop = asyncio.get_running_loop()
    lanes = [asyncio.create_task(lane()) for _ in range(parallel)]
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: [one.cancel() for one in lanes])
    ended = await asyncio.gather(*lanes, return_exceptions=True)
    if any(isinstance(one, asyncio.CancelledError) for one in ended):
        raise click.Abort
    for one in ended:
        if isinstance(one, BaseException):
            raise one
    if failures >= FAILURES_MAX:
        raise TooManyFailures(failures)
    return made


async def _child(plan: RunPlan, runs: Path) -> Outcome | None:
    """Make one run in a child process, and return None if it failed. A cancellation ends the child in order."""
    command = [*PROGRAM, "chaos", "run", "--cell", plan.cell, "--seed", str(plan.seed), "--time", str(plan.seconds)]
    command += ["--rate", str(plan.rate), "--runs", str(runs), "-o", "json"]
    command += ["--rounds", str(plan.rounds)] if plan.rounds else []
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        written, _ = await process.communicate()
    except asyncio.CancelledError:
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        raise
    try:
        return msgspec.json.decode(written, type=Outcome)
    except msgspec.DecodeError:
        return None
