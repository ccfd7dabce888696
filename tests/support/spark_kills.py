"""A streaming query whose driver, JVM and workers are killed at random points, again and again.

Each kill has a seed, which says at which step of a micro-batch it comes (`Step`), of which micro-batch since the query
was started, and how long after. The rows come to the sink's tasks in another order each time, so no replay is like what
it repeats. It writes to a topic, or with Spark's own file sink to Parquet (`--target`). After each kill, what readers
see of what is committed is compared, record by record, with what the cluster says that it has published, or with what
the log of Spark's sink says (`spark_copies.py`); at last the query runs to its end, and everything is there once.

    python -P -m tests.support.spark_kills --kills 20 --results build/spark-kills.jsonl
    python -P -m tests.support.spark_kills --target parquet --kills 20 --results build/spark-kills.jsonl

appends one line a kill to the results and ends with 1 at the first one after which anything is wrong. Kills that the
results have already, of this target, are not made again: a run that was ended, by whomever, goes on when it is called
again. A kill that came too late, when the query was at its end, is void: it is made again.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from raftlog.cli.nodes.local_cluster import LocalCluster
from spark_source import java

from . import result_lines
from .cluster import running_cluster
from .spark import unpacked_wheel
from .spark_copies import PARTITIONS, Copies, ParquetCopies, Target, TopicCopies

PER_TRIGGER = 10
AHEAD = 8
"""Micro-batches that there are to do when the query is started: more than it does before it is killed."""
LATEST_MICRO_BATCH = 2
"""The kill comes in one of the first so many that the query begins."""
LONGEST_DELAY_S = 0.3
"""About what a micro-batch takes."""
VOIDS_MAX = 3
RIGHT = "right"
EXIT_VOID = 3
EXIT_TERMINATED = 128 + signal.SIGTERM


class Void(Exception):
    """The kill says nothing: it did not come while the query worked."""


class Step(enum.StrEnum):
    """Of a micro-batch, in their order."""

    PLANNED = "planned"
    """Spark has written down how far it goes."""
    WRITING = "writing"
    """A task's transaction is open, or its file is there."""
    PUBLISHED = "published"
    """The quorum has decided, or the log of Spark's sink has it."""
    NOTED = "noted"
    """Spark has written down that it is done."""


@dataclass
class Kill:
    """One, as it is written down. Micro-batches are numbers, -1: none."""

    seed: int
    step: Step
    micro_batch: int = 0
    """Which one since the query was started, from 0."""
    delay_s: float = 0.0
    planned: int = -1
    noted: int = -1
    published: int = -1
    left_open: int = 0
    """Transactions, when it was dead; or files that are in no micro-batch, those of earlier kills included."""
    verdict: str = ""
    """`RIGHT`, or what was wrong."""
    took_s: float = 0.0
    commit: str = ""
    """Of the working tree that it ran in."""
    target: Target = Target.TOPIC

    @staticmethod
    def drawn(seed: int, target: Target) -> Kill:
        chance = random.Random(seed)
        step, micro_batch = chance.choice(list(Step)), chance.randrange(LATEST_MICRO_BATCH)
        return Kill(seed, step, micro_batch, round(chance.uniform(0, LONGEST_DELAY_S), 3), target=target)


def make(copies: Copies, kill: Kill) -> None:
    """Start the query, kill it, judge. Raises `Void`, and `AssertionError` for what is wrong."""
    began = time.monotonic()
    backlog = AHEAD * PER_TRIGGER // PARTITIONS - (copies.produced[0] - copies.planned_ends()[0])
    if backlog > 0:
        copies.produce(backlog)
    reached = _watch(copies, kill)
    copier = copies.start(shuffled=True, per_trigger=PER_TRIGGER)
    try:
        if not copier.wait_until(reached):
            raise Void(f"the query ended before it was killed:\n{copier.told()}")
        time.sleep(kill.delay_s)
        if copier.ended:
            raise Void("the query ended before it was killed")
    finally:
        copier.kill()
    kill.left_open = len(copies.left_open())
    try:
        kill.published = copies.check_published()
        kill.verdict = RIGHT
    except AssertionError as error:
        kill.verdict = str(error)
        raise
    finally:
        kill.planned, kill.noted = copies.planned(), copies.noted()
        kill.took_s, kill.commit = round(time.monotonic() - began, 1), result_lines.commit()


def _watch(copies: Copies, kill: Kill) -> Callable[[], bool]:
    """Whether the query, started anew, has come to where it is to be killed."""
    planned, noted, published = copies.planned(), copies.noted(), copies.published()
    # What was planned and is not noted as done is begun again first.
    target = noted + 1 + kill.micro_batch
    match kill.step:
        case Step.PLANNED:
            return lambda: copies.planned() >= max(target, planned + 1)
        case Step.WRITING:
            left_behind = copies.left_open()
            return lambda: copies.noted() >= target - 1 and bool(copies.left_open() - left_behind)
        case Step.PUBLISHED:
            return lambda: copies.published() >= max(target, published + 1)
        case Step.NOTED:
            return lambda: copies.noted() >= target


# --- The command ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def opened(cluster: LocalCluster, name: str, folder: Path, wheel: Path, target: Target) -> Iterator[Copies]:
    """New topics, and a checkpoint in this folder."""
    copies = {Target.TOPIC: TopicCopies, Target.PARQUET: ParquetCopies}[target](cluster, name, folder, wheel)
    try:
        yield copies
    finally:
        copies.close()


def run(copies: Copies, seeds: Sequence[int], results: str) -> None:
    """A kill for each seed, written down when it is judged; then the query to its end. Raises `AssertionError` with
    what is wrong, `Void` where kills came too late again and again."""
    for seed in seeds:
        for attempt in range(1, VOIDS_MAX + 1):
            kill = Kill.drawn(seed, copies.target)
            try:
                make(copies, kill)
            except Void:
                if attempt == VOIDS_MAX:
                    raise
                continue
            except AssertionError:
                result_lines.append(kill, results)
                raise
            result_lines.append(kill, results)
            break
    copies.finish(shuffled=True)


def seeds_to_do(results: str, first_seed: int, kills: int, target: Target) -> list[int]:
    """Those of `kills` seeds without a kill in the results after which all was right."""
    made = [kill for kill in result_lines.read(results, Kill) if kill.target is target]
    done = {kill.seed for kill in made if kill.verdict == RIGHT}
    return [seed for seed in range(first_seed, first_seed + kills) if seed not in done]


def main() -> int:
    parser = argparse.ArgumentParser(description="Spark is killed while it writes.")
    parser.add_argument("--target", type=Target, choices=list(Target), default=Target.TOPIC, help="Where it writes to.")
    parser.add_argument("--kills", type=int, default=20, help="In the results, when it is done.")
    parser.add_argument("--seed", type=int, default=1, help="Of the first kill; each later one has the next.")
    parser.add_argument("--results", default="spark-kills.jsonl", help="One line of JSON a kill is appended.")
    arguments = parser.parse_args()
    try:
        java.find()
    except java.NoJava as error:
        _say(str(error))
        return 2
    # Nodes and Spark's processes are ended also when somebody's patience is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    seeds = seeds_to_do(arguments.results, arguments.seed, arguments.kills, arguments.target)
    _say(f"{arguments.kills - len(seeds)} of {arguments.kills} kills are in {arguments.results}, {len(seeds)} to go")
    if not seeds:
        return 0
    with tempfile.TemporaryDirectory(prefix="raftlog-kills-") as folder:
        wheel = unpacked_wheel(Path(folder))
        try:
            with (
                running_cluster(3) as cluster,
                opened(cluster, "killed", Path(folder), wheel, arguments.target) as copies,
            ):
                run(copies, seeds, arguments.results)
        except AssertionError as error:
            _say(str(error))
            return 1
        except Void as void:
            _say(f"a kill is void {VOIDS_MAX} times: {void}")
            return EXIT_VOID
    _say("the query came to its end: every record is there once, and nothing is left open")
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
