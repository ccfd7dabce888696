"""One run from its plan to its page, with progress on the terminal: shared by the commands of `raftlog chaos`."""

from __future__ import annotations

import asyncio
import datetime
import os
import signal
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import rich_click as click

from jepsen_like.scoreboard.cells import LOOPBACK, NAMESPACES, cell
from jepsen_like.scoreboard.json_lines import append_line
from raftlog.errors import InvalidRequest

from ..run_records import Outcome, RunFolder, RunPlan

EXIT_VALID, EXIT_INVALID, EXIT_UNKNOWN = 0, 1, 3
RUNS = Path("chaos-runs")
RESULTS = "results.jsonl"
"""In the folder of all runs."""
TOLD_OF_A_KIND = 5
LINE_MAX = 1_000
"""Characters."""

T = TypeVar("T")


def runs_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--runs", type=click.Path(path_type=Path), default=RUNS, show_default=True, help="Folder for all runs."
    )(command)


def make_run(plan: RunPlan, layout: str, runs: Path, *, keep: bool = True) -> Outcome:
    """Make a run, write its page, and return its outcome. `keep`: append the outcome to the results. Raises
    `RunFailed`.
    """
    from jepsen_like.runs.interpreter import RunFailed
    from jepsen_like.runs.runner import folder_name, run

    from ..report.page import write_report

    check_plan(plan)
    folder = RunFolder(runs / folder_name(plan, datetime.datetime.now(datetime.UTC)))
    with _progress(plan) as tell:
        try:
            found = _until_interrupted(run(plan, folder, layout=layout, tell=tell))
        except* RunFailed as group:
            why = "; ".join(str(error) for error in group.exceptions)
            raise RunFailed(f"the run failed and says nothing about the cluster: {why} (see {folder.path})") from group
        tell("writing the page")
        page = write_report(folder)
    if keep:
        append_line(runs / RESULTS, found)
    click.echo(page, err=True)
    if found.valid is False and not plan.planted:
        click.echo(what_was_found(folder), err=True)
    return found


def check_plan(plan: RunPlan) -> None:
    """Raises `InvalidRequest` for a plan with unknown names or options."""
    from jepsen_like.runs.options import check_options

    from ..nemeses.make import make
    from ..workloads import workload_of

    workload_of(plan)
    check_options(plan.options)
    make(plan.nemesis, seed=plan.seed, origin_ns=0, options=plan.options)
    if plan.planted:
        from ..planted.bugs import PINNED

        if plan.planted not in PINNED:
            raise InvalidRequest("invalid_config", f"unknown planted bug {plan.planted!r}: see docs/faults.md")


def what_was_found(folder: RunFolder) -> str:
    """Return the first anomalies of each kind and the faults of an invalid run, one per line.

    If only the printed output of a run survives, this is what there is for the analysis.
    """
    checkers = msgspec.json.decode(folder.verdict.read_bytes())["checkers"]
    lines = [
        f"{checker}: {name}: {msgspec.json.encode(one).decode()}"
        for checker, verdict in checkers.items()
        for name, anomalies in verdict["anomalies"].items()
        for one in anomalies[:TOLD_OF_A_KIND]
    ]
    faults = [f"fault: {line}" for line in folder.faults.read_text().splitlines()] if folder.faults.exists() else []
    return "\n".join(line if len(line) <= LINE_MAX else f"{line[:LINE_MAX]}…" for line in lines + faults)


def _until_interrupted(work: Coroutine[Any, Any, T]) -> T:
    """Run until SIGTERM, which ends a run as SIGINT does: nothing of the cluster remains."""

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
    """Show the current phase on the terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        title = f"{plan.planted or plan.cell or plan.workload} beside {plan.nemesis}, seed {plan.seed}"
        task = progress.add_task(title)
        yield lambda text: progress.update(task, description=f"{title}: {text}")


def default_layout() -> str:
    return NAMESPACES if os.geteuid() == 0 else LOOPBACK


def layout_of(name: str) -> str:
    """Return a cell's own layout; without root, the only one available."""
    return cell(name).layout if os.geteuid() == 0 else LOOPBACK


def exit_code(valid: Sequence[bool | None]) -> int:
    return EXIT_INVALID if False in valid else EXIT_UNKNOWN if None in valid else EXIT_VALID


def told(found: Outcome) -> str:
    """Return the outcome as a line of text."""
    verdict = {True: "valid", False: "INVALID", None: "unknown"}[found.valid]
    name = found.plan.planted or found.plan.cell or found.plan.workload
    counted = ", ".join(f"{number:,} {kind}" for kind, number in found.operations.items())
    faults = ", ".join(f"{number} {kind}" for kind, number in found.faults.items()) or "none"
    void = "".join(f"; void: {number} {kind}" for kind, number in found.void.items())
    anomalies = (
        f"; {', '.join(f'{number} {kind}' for kind, number in found.anomalies.items())}" if found.anomalies else ""
    )
    rounds = f"{found.rounds} of {found.plan.rounds} rounds; " if found.plan.rounds else ""
    return f"{name} seed {found.plan.seed}: {verdict}{anomalies} ({rounds}{counted}; faults: {faults}{void})"
