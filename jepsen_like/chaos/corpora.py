"""`raftlog chaos corpora FOLDER`: compare our checkers with other projects' histories of known verdict."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import rich_click as click

from jepsen_like.provenance.product import commit_of_the_product
from jepsen_like.scoreboard.json_lines import append_line
from raftlog.cli.terminal.output import output_option, show, table

from .running import EXIT_INVALID, EXIT_VALID, runs_option

FILE = "corpora.jsonl"


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@runs_option
@output_option
@click.pass_context
def corpora(context: click.Context, folder: Path, runs: Path, output: str) -> None:
    """Judge histories of known verdict: `porcupine`, `knossos` and `kafka_cases.json` in FOLDER."""
    from ..corpora import agreements

    began = time.perf_counter()
    found = list(agreements(folder, commit_of_the_product()))
    seconds = time.perf_counter() - began
    for one in found:
        append_line(runs / FILE, one)
    rows = [(one.corpus, one.cases, one.agreed, " ".join(one.wrong)) for one in found]
    show(output, found, lambda wide: table(("Corpus", "Cases", "Agreed", "Wrong"), rows))
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    click.echo(f"{sum(one.cases for one in found)} histories in {seconds:.1f} s, {largest:.0f} MiB at most", err=True)
    context.exit(EXIT_VALID if found and all(one.agreed == one.cases for one in found) else EXIT_INVALID)
