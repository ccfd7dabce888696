"""A streaming query whose driver, JVM and workers are killed at random points, repeatedly.

Each kill has a seed, which determines the step of a micro-batch (`Step`), the micro-batch since the start of the query,
and the delay. The rows arrive at the sink's tasks in another order each time, so no replay equals the attempt that it
repeats. The query writes to a topic, or with Spark's own file sink to Parquet (`--target`). After each kill, the
visible committed records are compared, record by record, with those that the cluster, or the log of Spark's sink, has
published (`copies.py`); finally the query runs to its end, and every record is there once.

    python -P -m tests.support.spark.kills --kills 20 --results build/spark-kills.jsonl
    python -P -m tests.support.spark.kills --target parquet --kills 20 --results build/spark-kills.jsonl

appends one line per kill to the results and exits with 1 at the first one after which anything is wrong. Kills of this
target that are in the results are not repeated, so an interrupted run continues when it is called again. A kill that
came too late, when the query was at its end, is void: it is repeated.
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
from tests.support.clusters import result_lines
from tests.support.clusters.cluster import running_cluster

from .copies import PARTITIONS, Copies, ParquetCopies, Target, TopicCopies
from .session import unpacked_wheel

PER_TRIGGER = 10
AHEAD = 8
"""The number of micro-batches to process when the query is started: more than it completes before it is killed."""
LATEST_MICRO_BATCH = 2
"""The kill comes in one of the first micro-batches of the query, up to this number."""
LONGEST_DELAY_S = 0.3
"""The approximate duration of a micro-batch."""
VOIDS_MAX = 3
RIGHT = "right"
EXIT_VOID = 3
EXIT_TERMINATED = 128 + signal.SIGTERM


class Void(Exception):
    """The kill proves nothing: it did not come while the query worked."""


class Step(enum.StrEnum):
    """The steps of a micro-batch, in their order."""

    PLANNED = "planned"
    """Spark has recorded its end offsets."""
    WRITING = "writing"
    """A task's transaction is open, or its file exists."""
    PUBLISHED = "published"
    """The quorum has decided, or the log of Spark's sink has it."""
    NOTED = "noted"
    """Spark has recorded its completion."""


@dataclass
class Kill:
    """One kill, as it is stored. Micro-batches are numbers, -1: none."""

    seed: int
    step: Step
    micro_batch: int = 0
    """The number since the start of the query, from 0."""
    delay_s: float = 0.0
    planned: int = -1
    noted: int = -1
    published: int = -1
    left_open: int = 0
    """Open transactions when it was dead; or files that are in no micro-batch, including those of earlier kills."""
    verdict: str = ""
    """`RIGHT`, or the error."""
    took_s: float = 0.0
    commit: str = ""
    """The commit of the working tree."""
    target: Target = Target.TOPIC

    @staticmethod
    def drawn(seed: int, target: Target) -> Kill:
        chance = random.Random(seed)
        step, micro_batch = chance.choice(list(Step)), chance.randrange(LATEST_MICRO_BATCH)
        return Kill(seed, step, micro_batch, round(chance.uniform(0, LONGEST_DELAY_S), 3), target=target)


def make(copies: Copies, kill: Kill) -> None:
    """Start the query, kill it, check. Raises `Void`, and `AssertionError` for an error."""
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
    """Whether the restarted query has reached the point at which it is to be killed."""
    planned, noted, published = copies.planned(), copies.noted(), copies.published()
    # A micro-batch that was planned and not recorded as complete is repeated first.
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
    """Run a kill for each seed, and store each after its check; then run the query to its end. Raises `AssertionError`
    for an error, `Void` if kills came too late repeatedly."""
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
    """The seeds of `kills` without a successful kill in the results."""
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
    # The nodes and Spark's processes are also ended after a SIGTERM.
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
