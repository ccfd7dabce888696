"""`raftlog chaos`: break clusters, and read what became of their promises.

    raftlog chaos run --workload log --nemesis kill --nodes 3 --time 60 --rate 100 --seed 7
    raftlog chaos matrix --cells R1,R2 --time 60 --total 600    # cells of the scoreboard, going on where it stopped
    raftlog chaos report FOLDER                                 # its page anew
    raftlog chaos simulate --seed 7 --kind cluster              # no processes: virtual time, the same page
    raftlog chaos board                                         # what was accumulated
    raftlog chaos abilities                                     # what this machine can do to a cluster

Real clusters run as root in network namespaces of their own (`--layout namespaces`), or behind proxies on loopback
addresses (`--layout loopback`). Exit code 0: what ran is valid; 1: it is not, or could not be run; 2: a wrong call; 3:
nobody knows, which is no pass. What is *not* here: one run (`runner.py`), the table (`cells.py`, `scoreboard.py`).

What the commands need is imported by the command that is called: `raftlog --help` shows these, too, and loads nothing
heavy.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import random
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click

from raftlog.cli.output import output_option, show, table

from .cells import CELLS, LOOPBACK, NAMESPACES, NOT_TESTED, cell
from .product import is_here
from .run_records import Outcome, RunFolder, RunPlan
from .scoreboard import COLUMNS, append, due, read_results, row, scores
from .scoreboard import table as as_csv

EXIT_VALID, EXIT_INVALID, EXIT_UNKNOWN = 0, 1, 3
RUNS = Path("chaos-runs")
RESULTS = RUNS / "results.jsonl"
SCOREBOARD = Path(__file__).parent / "scoreboard.csv"
BOARD_COLUMNS = ("cell", "fault", "seconds_now", "seconds", "target_s", "passed", "unknown", "anomalies_now", "void")

T = TypeVar("T")


@click.group()
def chaos() -> None:
    """Break clusters, and read what became of their promises."""


def _runs_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--runs", type=click.Path(path_type=Path), default=RUNS, show_default=True, help="Folder of all runs."
    )(command)


def _layout_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--layout", type=click.Choice([NAMESPACES, LOOPBACK]), help="Default: namespaces as root, else loopback."
    )(command)


@chaos.command()
@click.option("--workload", default="log", show_default=True, help="docs/chaos.md lists them.")
@click.option("--nemesis", default="mixed", show_default=True, help="docs/faults.md lists them.")
@click.option("--cell", "cell_name", default="", help="A cell of the scoreboard, in place of workload and nemesis.")
@click.option("--nodes", type=click.IntRange(1, 5), default=3, show_default=True)
@click.option("--time", "seconds", type=click.FloatRange(1), default=60.0, show_default=True, help="Seconds.")
@click.option("--rate", type=click.FloatRange(0.1), default=100.0, show_default=True, help="Operations a second.")
@click.option("--seed", type=int, help="Of operations and faults. Default: any.")
@click.option("--option", "options", multiple=True, help="Of workload or nemesis: name=value, the value as JSON.")
@click.option(
    "--rounds", type=click.IntRange(0), default=0, help="So many faults, one after the other, in place of --time."
)
@click.option("--planted", default="", help="A planted bug in the nodes: docs/faults.md lists them.")
@_layout_option
@_runs_option
@output_option
@click.pass_context
def run(
    context: click.Context,
    workload: str,
    nemesis: str,
    cell_name: str,
    nodes: int,
    seconds: float,
    rate: float,
    seed: int | None,
    options: Sequence[str],
    rounds: int,
    planted: str,
    layout: str | None,
    runs: Path,
    output: str,
) -> None:
    """One run: a cluster, operations, faults, a verdict, and a page."""
    seed = random.randrange(1, 2**31) if seed is None else seed
    if cell_name:
        plan = cell(cell_name).plan(seed=seed, seconds=seconds, rate=rate)
        layout = layout or _layout_of(cell_name)
    else:
        plan = RunPlan(
            cell="", workload=workload, nemesis=nemesis, nodes=nodes, seconds=seconds, rate=rate, seed=seed,
            options=_options(options), rounds=rounds, planted=planted,
        )  # fmt: skip
    found = _run(plan, layout or _default_layout(), runs)
    show(output, found, lambda wide: _told(found))
    context.exit(_exit_code([found.valid]))


@chaos.command()
@click.option("--cells", "names", default=",".join(CELLS), help="Names, separated by commas. Default: all.")
@click.option("--time", "seconds", type=click.FloatRange(1), default=60.0, show_default=True, help="Seconds a run.")
@click.option("--total", type=click.FloatRange(1), help="Seconds of all runs, what each needs around it included.")
@click.option("--rate", type=click.FloatRange(0.1), default=100.0, show_default=True, help="Operations a second.")
@_runs_option
@output_option
@click.pass_context
def matrix(
    context: click.Context, names: str, seconds: float, total: float | None, rate: float, runs: Path, output: str
) -> None:
    """Cells of the scoreboard, the least advanced first, until all have what they need or the time is over. Ends at
    the first run that is not valid."""
    wanted = [cell(name.strip()).name for name in names.split(",")]
    end = time.monotonic() + total if total else None
    made: list[Outcome] = []
    while (end is None or time.monotonic() < end) and (left := due(_scores(runs), wanted)):
        name = next((one for one in left if not any(made_one.plan.cell == one for made_one in made)), left[0])
        plan = cell(name).plan(seed=random.randrange(1, 2**31), seconds=seconds, rate=rate)
        made.append(_run(plan, _layout_of(name), runs))
        click.echo(_told(made[-1]), err=True)
        if made[-1].valid is False:
            break
    show(output, made, lambda wide: _board(runs, wanted))
    context.exit(_exit_code([one.valid for one in made]))


@chaos.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def report(folder: Path) -> None:
    """The page of a run's folder, made anew. Prints where it is."""
    from .report.page import write_report

    click.echo(write_report(RunFolder(folder)))


@chaos.command()
@click.option("--seed", type=click.IntRange(0), required=True)
@click.option("--kind", type=click.Choice(["quorum", "groups", "cluster", "transactions"]), default="cluster")
@click.option("--time", "seconds", type=click.FloatRange(0.1), default=60.0, show_default=True, help="Virtual seconds.")
@_runs_option
@click.pass_context
def simulate(context: click.Context, seed: int, kind: str, seconds: float, runs: Path) -> None:
    """A simulated world: the same seed and code do the same, to the last byte. Prints where its page is."""
    from .report.page import render_simulated
    from .simulator.seeds import RUNNERS

    verdict = RUNNERS[kind](seed, seconds)
    page = runs / f"simulated-{kind}-{seed}.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    lines = [str(verdict), *verdict.lines]
    page.write_text(
        render_simulated(kind, seed, verdict.seconds, trace=verdict.trace, violation=_violation(verdict), lines=lines),
        encoding="utf-8",
    )
    click.echo(str(verdict))
    click.echo(page)
    context.exit(EXIT_VALID if verdict.passed else EXIT_INVALID)


def _violation(verdict: Any) -> str:
    if verdict.passed:
        return ""
    return verdict.violation or "it did not come back in time: see what the world told"


@chaos.command()
@click.option("--write", is_flag=True, help="Write the table beside this program, as CSV.")
@click.option(
    "--shards", multiple=True, type=click.Path(exists=True, dir_okay=False), help="Results of simulated worlds."
)
@_runs_option
@output_option
def board(write: bool, shards: Sequence[str], runs: Path, output: str) -> None:
    """What was accumulated of each cell, and what was never tested. What was simulated goes into the CSV."""
    found = _scores(runs)
    if write:
        SCOREBOARD.write_text(as_csv(found, _simulated(shards)), encoding="utf-8")
        click.echo(SCOREBOARD, err=True)
    rows = [dict(zip(COLUMNS, map(str, row(CELLS[name], score)), strict=True)) for name, score in found.items()]
    show(output, rows, lambda wide: _board(runs, list(CELLS), wide=wide))
    if output == "table":
        click.echo(f"\nNever tested: {'; '.join(NOT_TESTED)}.")


@chaos.command()
def abilities() -> None:
    """What this machine can do to a cluster; what is missing, with what would bring it."""
    from .clusters.capabilities import table as capabilities

    rows = [(name, "no" if lacks else "yes", lacks or means) for name, means, lacks in capabilities()]
    click.echo(table(("Ability", "Here", "For"), rows))


# --- One run ----------------------------------------------------------------------------------------------------------


def _run(plan: RunPlan, layout: str, runs: Path) -> Outcome:
    """Its outcome, which is appended to the results; its page is written."""
    from .interpreter import RunFailed
    from .nemeses.nemesis import make
    from .report.page import write_report
    from .runner import folder_name, run
    from .workloads import workload_of

    workload_of(plan)
    make(plan.nemesis, seed=plan.seed, origin_ns=0, options=plan.options)
    folder = RunFolder(runs / folder_name(plan, datetime.datetime.now(datetime.UTC)))
    with _progress(plan) as tell:
        try:
            found = _until_interrupted(run(plan, folder, layout=layout, tell=tell))
        except* RunFailed as group:
            why = "; ".join(str(error) for error in group.exceptions)
            raise click.ClickException(f"the run says nothing of the cluster: {why} (see {folder.path})") from group
        tell("drawing")
        page = write_report(folder)
    append(runs / RESULTS.name, found)
    click.echo(page, err=True)
    return found


def _until_interrupted(work: Coroutine[Any, Any, T]) -> T:
    """SIGTERM ends a run as SIGINT does: nothing is left of the cluster."""

    async def watched() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(watched())
    except asyncio.CancelledError:
        raise click.Abort from None


@contextmanager
def _progress(plan: RunPlan) -> Iterator[Callable[[str], None]]:
    """A line that says what happens now, on a terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        title = f"{plan.cell or plan.workload} beside {plan.nemesis}, seed {plan.seed}"
        task = progress.add_task(title)
        yield lambda text: progress.update(task, description=f"{title}: {text}")


def _options(given: Sequence[str]) -> dict[str, Any]:
    import msgspec

    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        try:
            found[name] = msgspec.json.decode(value) if equals else True
        except msgspec.DecodeError:
            found[name] = value
    return found


def _default_layout() -> str:
    return NAMESPACES if os.geteuid() == 0 else LOOPBACK


def _layout_of(name: str) -> str:
    """A cell's own; without root, what there is."""
    return cell(name).layout if os.geteuid() == 0 else LOOPBACK


# --- Telling ----------------------------------------------------------------------------------------------------------


def _exit_code(valid: Sequence[bool | None]) -> int:
    return EXIT_INVALID if False in valid else EXIT_UNKNOWN if None in valid else EXIT_VALID


def _told(found: Outcome) -> str:
    verdict = {True: "valid", False: "INVALID", None: "unknown"}[found.valid]
    name = found.plan.cell or found.plan.workload
    counted = ", ".join(f"{number:,} {kind}" for kind, number in found.operations.items())
    faults = ", ".join(f"{number} {kind}" for kind, number in found.faults.items()) or "none"
    void = "".join(f"; void: {number} {kind}" for kind, number in found.void.items())
    anomalies = (
        f"; {', '.join(f'{number} {kind}' for kind, number in found.anomalies.items())}" if found.anomalies else ""
    )
    return f"{name} seed {found.plan.seed}: {verdict}{anomalies} ({counted}; faults: {faults}{void})"


def _scores(runs: Path) -> Any:
    results = runs / RESULTS.name
    return scores(read_results([results] if results.exists() else []), is_here)


def _simulated(shards: Sequence[str]) -> list[Mapping[str, object]]:
    from .planted.catalogue import BUGS, load_detections
    from .planted.stories import STORIES
    from .simulated_rows import planted, simulated
    from .simulator.shard import summarize
    from .simulator.shard_code import ROOTS, SameCode

    same = {kind: SameCode(kind) for kind in ROOTS}
    summaries = summarize(shards, lambda kind, commit: same[kind](commit))
    return [*simulated(summaries), planted(list(BUGS), load_detections(), STORIES)]


def _board(runs: Path, names: Sequence[str], *, wide: bool = False) -> str:
    found = _scores(runs)
    columns = COLUMNS if wide else BOARD_COLUMNS
    rows = [dict(zip(COLUMNS, row(CELLS[name], found[name]), strict=True)) for name in names]
    return table(columns, [[one[column] for column in columns] for one in rows])
