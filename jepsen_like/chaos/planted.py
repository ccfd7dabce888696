"""`raftlog chaos planted`: measures whether each planted bug is found in a real cluster, and how soon.

raftlog chaos planted                      # all that have no result yet, one after the other
raftlog chaos planted log_without_fsync    # this one
raftlog chaos planted --control            # the same runs without a bug: they must be valid
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import rich_click as click

from jepsen_like.scoreboard.json_lines import append_line
from raftlog.cli.terminal.output import output_option, show, table

from .running import EXIT_INVALID, EXIT_VALID, default_layout, make_run, runs_option

HUNTS_FILE = "planted.jsonl"
SEED_MAX = 2**31


@click.command()
@click.argument("names", nargs=-1)
@click.option(
    "--time",
    "seconds",
    type=click.FloatRange(1),
    default=600.0,
    show_default=True,
    help="Time limit for each bug in seconds.",
)
@click.option("--control", is_flag=True, help="Plant nothing: make one run of each hunt, which has to be valid.")
@click.option("--seed", type=int, help="Seed of the first run of each bug. Default: random.")
@runs_option
@output_option
@click.pass_context
def planted(
    context: click.Context,
    names: Sequence[str],
    seconds: float,
    control: bool,
    seed: int | None,
    runs: Path,
    output: str,
) -> None:
    """Look for planted bugs in real clusters. Appends results; without names it resumes where it stopped."""
    from jepsen_like.runs.hunting import HUNT_SECONDS, counts, hunt, hunt_of, read_hunts
    from jepsen_like.runs.interpreter import RunFailed

    from ..planted.real import HUNTS

    results = runs / HUNTS_FILE
    known = read_hunts([results] if results.exists() else [])
    done = {one.bug for one in known if one.planted is not control and counts(one)}
    made = []
    failed = False
    for name in names or [one for one in HUNTS if one not in done]:
        hunt_of(name)
        first = random.randrange(1, SEED_MAX) if seed is None else seed
        try:
            one = hunt(
                name,
                lambda plan: make_run(plan, default_layout(), runs, keep=False),
                seed=first,
                seconds=seconds,
                planted=not control,
            )
        except RunFailed as error:
            click.echo(f"{name}: no run could be made: {error}", err=True)
            failed = True
            continue
        append_line(results, one)
        made.append(one)
        click.echo(f"{name}: {'found' if one.found else 'nothing'} after {one.seconds:g} s {one.anomalies}", err=True)
    rows = [
        [one.bug, "found" if one.found else "nothing", one.seconds, one.runs, " ".join(sorted(one.anomalies))]
        for one in made
    ]
    show(output, made, lambda wide: table(("Bug", "Result", "Seconds", "Runs", "By"), rows))
    wrong = [one for one in made if one.found is control or (not control and one.seconds > HUNT_SECONDS)]
    context.exit(EXIT_INVALID if wrong or failed else EXIT_VALID)
