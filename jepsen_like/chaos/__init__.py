"""`raftlog chaos`: inject faults into clusters, and judge whether their guarantees held.

    raftlog chaos run --workload log --nemesis kill --nodes 3 --time 60 --rate 100 --seed 7
    raftlog chaos matrix --cells R1,R2 --time 60 --total 600    # cells of the scoreboard; resumes where it stopped
    raftlog chaos planted                                       # bugs planted in real clusters: time until found
    raftlog chaos report FOLDER                                 # rebuild a run's page
    raftlog chaos simulate --seed 7 --kind cluster              # no processes: virtual time, the same page
    raftlog chaos board                                         # the accumulated results
    raftlog chaos keep FILE...                                  # add results to those that are kept with the code
    raftlog chaos corpora FOLDER                                # compare our checkers with known verdicts
    raftlog chaos abilities                                     # the faults that this machine supports

Real clusters run in network namespaces (as root, `--layout namespaces`), or behind proxies on loopback addresses
(`--layout loopback`). Exit code 0: the runs are valid; 1: invalid, or could not be made; 2: wrong usage; 3: unknown,
which is no pass.

Each command imports its modules when it is called, so that `raftlog --help`, which lists these commands, stays fast.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import rich_click as click

from jepsen_like.scoreboard.cells import LOOPBACK, NAMESPACES, ROUNDS_A_RUN, cell
from raftlog.cli.terminal.output import output_option, show, table
from raftlog.errors import InvalidRequest

from ..run_records import RunFolder, RunPlan
from .board import board, keep
from .corpora import corpora
from .matrix import matrix
from .planted import planted
from .running import (
    EXIT_INVALID,
    EXIT_VALID,
    check_plan,
    default_layout,
    exit_code,
    layout_of,
    make_run,
    runs_option,
    told,
)

SIMULATED_KINDS = ["quorum", "groups", "consumers", "security", "cluster", "transactions", "clients"]


@click.group()
def chaos() -> None:
    """Inject faults into clusters, and judge whether their guarantees held."""


for command in (board, corpora, keep, matrix, planted):
    chaos.add_command(command)


def _layout_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--layout",
        type=click.Choice([NAMESPACES, LOOPBACK]),
        help="Layout of the cluster. Default: namespaces as root, else loopback.",
    )(command)


@chaos.command()
@click.option("--workload", default="log", show_default=True, help="docs/chaos.md lists them.")
@click.option("--nemesis", default="mixed", show_default=True, help="docs/faults.md lists them.")
@click.option("--cell", "cell_name", default="", help="Cell of the scoreboard, instead of workload and nemesis.")
@click.option("--nodes", type=click.IntRange(1, 5), default=3, show_default=True, help="Nodes of the cluster.")
@click.option(
    "--time",
    "seconds",
    type=click.FloatRange(1),
    default=60.0,
    show_default=True,
    help="Duration of the faults in seconds.",
)
@click.option("--rate", type=click.FloatRange(0.1), default=100.0, show_default=True, help="Operations per second.")
@click.option("--seed", type=int, help="Seed of operations and faults. Default: random.")
@click.option(
    "--option", "options", multiple=True, help="Option of workload or nemesis: name=value, the value as JSON."
)
@click.option(
    "--rounds", type=click.IntRange(0), default=0, help="Number of rounds with one fault each, instead of --time."
)
@click.option("--planted", default="", help="Bug to plant in the nodes: docs/faults.md lists them.")
@_layout_option
@runs_option
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
    """Make one run: a cluster, operations, faults, a verdict, and a page."""
    from jepsen_like.runs.interpreter import RunFailed

    seed = random.randrange(1, 2**31) if seed is None else seed
    try:
        if cell_name:
            _refuse_beside_cell(context)
            plan = cell(cell_name).plan(seed=seed, seconds=seconds, rate=rate, rounds=rounds or ROUNDS_A_RUN)
            layout = layout or layout_of(cell_name)
        else:
            plan = RunPlan(
                cell="", workload=workload, nemesis=nemesis, nodes=nodes, seconds=seconds, rate=rate, seed=seed,
                options=_options(options), rounds=rounds, planted=planted,
            )  # fmt: skip
        check_plan(plan)
    except InvalidRequest as error:
        raise click.UsageError(error.detail) from None
    try:
        found = make_run(plan, layout or default_layout(), runs)
    except RunFailed as error:
        click.echo(f"Error: {error}", err=True)
        context.exit(EXIT_INVALID)
    show(output, found, lambda wide: told(found))
    context.exit(exit_code([found.valid]))


@chaos.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def report(folder: Path) -> None:
    """Rebuild the page of a run's folder, and print its path."""
    from ..report.page import write_report

    click.echo(write_report(RunFolder(folder)))


@chaos.command()
@click.option("--seed", type=click.IntRange(0), required=True, help="Seed of the simulated cluster.")
@click.option("--kind", type=click.Choice(SIMULATED_KINDS), default="cluster", help="Kind of the simulated run.")
@click.option(
    "--time", "seconds", type=click.FloatRange(0.1), default=60.0, show_default=True, help="Virtual seconds of faults."
)
@runs_option
@click.pass_context
def simulate(context: click.Context, seed: int, kind: str, seconds: float, runs: Path) -> None:
    """Run a simulated world and print the path of its page. The same seed and code give the same trace."""
    from jepsen_like.runs.simulated import run_simulated

    from ..report.page import write_report

    folder = RunFolder(runs / f"simulated-{kind}-seed{seed}")
    verdict = run_simulated(kind, seed, seconds, folder)
    click.echo(str(verdict))
    click.echo(write_report(folder))
    context.exit(EXIT_VALID if verdict.passed else EXIT_INVALID)


@chaos.command()
def abilities() -> None:
    """Show the faults that this machine supports, and what is missing for the others."""
    from ..clusters.capabilities import table as capabilities

    rows = [(name, "no" if lacks else "yes", lacks or means) for name, means, lacks in capabilities()]
    click.echo(table(("Ability", "Here", "For"), rows))


def _refuse_beside_cell(context: click.Context) -> None:
    """Refuse options beside `--cell`: their run would count as one of the cell. Raises `InvalidRequest`."""
    given = [
        f"--{name.removesuffix('s') if name == 'options' else name}"
        for name in ("workload", "nemesis", "nodes", "options", "planted")
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    ]
    if given:
        raise InvalidRequest("invalid_request", f"--cell determines the run: leave out {', '.join(given)}, or --cell")


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
