"""`raftlog chaos board` and `keep`: the scoreboard, and the results that are kept with the code.

`--write` makes the table from kept results alone, so that everyone with the repository can reproduce it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import rich_click as click

from jepsen_like.provenance.product import same_product
from jepsen_like.scoreboard.cells import CELLS, NOT_TESTED
from jepsen_like.scoreboard.kept_results import CORPORA, FOLDER, PLANTED, POWER_LOSS, RUNS, SEEDS, SPARK_KILLS, lines_of
from jepsen_like.scoreboard.kept_results import keep as keep_lines
from jepsen_like.scoreboard.scoreboard import COLUMNS, Score, read_results, row, scores
from jepsen_like.scoreboard.scoreboard import table as as_csv
from raftlog.cli.terminal.output import output_option, show, table

from .running import RESULTS, runs_option

SCOREBOARD = Path(__file__).parents[1] / "scoreboard.csv"
BOARD_COLUMNS = (
    "cell", "fault", "seconds_now", "seconds", "target_s", "rounds_now", "target_rounds", "passed", "unknown",
    "anomalies_now", "void",
)  # fmt: skip


@click.command()
@click.option("--write", is_flag=True, help="Write the table of the kept results as CSV, beside this program.")
@runs_option
@output_option
def board(write: bool, runs: Path, output: str) -> None:
    """Show the totals of each cell, from the runs here and the kept results, and what was never tested."""
    kept = FOLDER / RUNS
    found = scores_of([kept, runs / RESULTS])
    others = other_rows()
    if write:
        SCOREBOARD.write_text(as_csv(scores_of([kept]), others), encoding="utf-8")
        click.echo(SCOREBOARD, err=True)
    rows = [dict(zip(COLUMNS, map(str, row(CELLS[name], score)), strict=True)) for name, score in found.items()]
    show(output, [*rows, *others], lambda wide: _shown(found, CELLS, wide=wide, others=others))
    if output == "table":
        click.echo(f"\nNever tested: {'; '.join(NOT_TESTED)}.")


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def keep(files: Sequence[Path]) -> None:
    """Add the lines of these results to those that are kept with the code, each once."""
    taken = keep_lines(files)
    click.echo(table(("File", "New"), sorted(taken.items())))


def scores_of(files: Iterable[Path]) -> dict[str, Score]:
    """Return the scores from the files that exist; a line in two files counts once."""
    results = read_results([file for file in files if file.exists()])
    return scores({msgspec.json.encode(one): one for one in results}.values(), same_product())


def board_table(files: Sequence[Path], names: Iterable[str]) -> str:
    """Return the table as text."""
    return _shown(scores_of(files), names)


def other_rows() -> list[Mapping[str, object]]:
    """Return the rows that are not cells: seeds, planted bugs, corpora, power failures of a whole cluster."""
    from jepsen_like.runs.hunting import HUNT_SECONDS, found_bugs, read_hunts
    from jepsen_like.scoreboard.other_rows import corpora, hunted, planted, power_failures, simulated, spark_kills
    from jepsen_like.simulator.shards.shard import summarize
    from jepsen_like.simulator.shards.shard_code import ROOTS, same_code

    from ..planted.bugs import SIMULATED
    from ..planted.catalogue import load_detections
    from ..planted.real import HUNTS
    from ..planted.stories import STORIES

    same = {kind: same_code(kind) for kind in ROOTS}
    shards = [str(FOLDER / SEEDS)] if (FOLDER / SEEDS).exists() else []
    hunts = read_hunts([FOLDER / PLANTED] if (FOLDER / PLANTED).exists() else [])
    return [
        power_failures(lines_of(POWER_LOSS), same_product()),
        spark_kills(lines_of(SPARK_KILLS)),
        *simulated(summarize(shards, lambda kind, commit, clean: same[kind](commit, clean))),
        corpora(lines_of(CORPORA)),
        planted([bug.name for bug in SIMULATED], load_detections(), STORIES),
        hunted(list(HUNTS), found_bugs(hunts), HUNT_SECONDS),
    ]


def _shown(
    found: Mapping[str, Score],
    names: Iterable[str],
    *,
    wide: bool = False,
    others: Iterable[Mapping[str, object]] = (),
) -> str:
    columns = COLUMNS if wide else BOARD_COLUMNS
    rows = [dict(zip(COLUMNS, row(CELLS[name], found[name]), strict=True)) for name in names]
    return table(columns, [[one.get(column, "") for column in columns] for one in [*rows, *others]])
