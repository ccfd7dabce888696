"""Rounds of power failures of a whole cluster under load, and the checks afterwards.

Each of three real nodes keeps its data on a disk of its own whose power can be cut
(`jepsen_like/clusters/power_loss.py`). In a round, administrators change topics and a producer writes until at least
`changes` changes are acknowledged. Then all disks lose power, all nodes are killed, and they start again on the
surviving content of the disks. Then

* every acknowledged change is there, on every node, after a change through that node (S7);
* every record that the producer sent, before and after, is there once, in order, at the offset of its acknowledgement
  (S1, S2): the producer continues through the failure;
* all replicas return in sync without an operator (S10), and no log reports an error of the product.

Acknowledgements are recorded here, in the client's process. A change without an answer at the cut may be there or not.

The cut comes while the nodes run, in the middle of their work, disk after disk within milliseconds. The survival of
unsynced data is drawn for each disk (`Survivors`). Every round has its proof that each disk lost something.

    python -P -m tests.support.clusters.power_rounds --rounds 20 --results power-loss.jsonl

appends one line per round to the results and exits with 1 at the first round in which anything is missing. Rounds that
are in the results are not repeated, so an interrupted run continues when it is called again. A round that could not be
run (the machine was too busy for its load, or a cut lost nothing) is void: it proves nothing, and is repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from jepsen_like.clusters.power_loss import FaultDidNotBite, Survivors, Volumes, missing_capability
from raftlog import Admin
from raftlog.cli.nodes.local_cluster import DATA_FOLDER, LocalCluster, free_base_port
from raftlog.errors import RaftlogError

from . import result_lines
from .cluster import PATIENCE_S, all_in_sync, eventually, stop_and_check, tell
from .traffic import Traffic, check_exactly

NODES = 3
ADMINISTRATORS = 24
BASE_MS = 3_600_000
"""A register's value is the number of milliseconds beyond this in its topic's `retention.ms`."""


LOAD_PATIENCE_S = 3 * PATIENCE_S
"""A timeout: more than a thousand changes take a few seconds on an idle machine."""

BARRIER = "barrier"
EXIT_TERMINATED = 128 + signal.SIGTERM
EXIT_VOID = 3

VOIDS_MAX = 3
"""The number of void rounds that ends the run: it would not complete on this machine."""


T = TypeVar("T")


class Void(Exception):
    """The round proves nothing about the cluster: its load could not be produced before power was cut."""


@functools.cache
def _missing() -> str | None:
    return missing_capability()


def skip_unless_power_can_be_cut() -> None:
    """Skip the calling test, with the missing ability of this machine."""
    missing = _missing()
    if missing is not None:
        pytest.skip(f"power cannot be cut here: {missing}")


@dataclass
class Result:
    """One round, as it is stored."""

    round: int
    seed: int
    survivors: list[str]
    changes_acknowledged: int = 0
    records_acknowledged: int = 0
    """The number of changes when power was cut."""
    records_sent: int = 0
    """The number in the whole round: all of them are there at its end."""
    witness_bytes_lost: int = 0
    node_bytes_lost: list[int] = field(default_factory=list)
    """By node: the bytes that it had appended and not synced, and lost."""
    acknowledged_lost: list[str] = field(default_factory=list)
    back_after_s: float = 0.0
    """From the first start to all replicas in sync."""
    asked_again: list[str] = field(default_factory=list)
    """Errors of requests after the cut that had to be retried: none loses anything, each took time."""
    took_s: float = 0.0
    commit: str = ""
    """The commit of the working tree."""


class Administrator:
    """Changes topics, one change after the other, and records the acknowledged ones."""

    def __init__(self, number: int) -> None:
        self.register = f"register-{number}"
        self._number = number
        self.value = 0
        """The register's acknowledged value."""
        self.tried = 0
        self.alive: dict[str, str] = {}
        """Topic → id, of acknowledged topics."""
        self.deleted: set[str] = set()
        self.in_doubt: set[str] = set()
        """Topics whose last change has no answer."""
        self.acknowledged = 0

    async def work(self, admin: Admin, name: str) -> None:
        """Work until cancelled, or until a change has no answer: such a change may be executed later, over a newer
        one."""
        count = 0
        try:
            while True:
                count += 1
                if count % 10 == 0:
                    await self._make_another(admin, f"made-{name}-{self._number}-{count}")
                else:
                    self.tried += 1
                    await admin.alter_topic(self.register, {"retention.ms": str(BASE_MS + self.tried)})
                    self.value = self.tried
                    self.acknowledged += 1
        except (RaftlogError, asyncio.CancelledError):
            return  # the last requested change is in doubt

    async def _make_another(self, admin: Admin, topic: str) -> None:
        """Create another topic and delete the previous one."""
        for old in list(self.alive):
            self.in_doubt.add(old)
            del self.alive[old]
            await admin.delete_topic(old)
            self._answered(old)
            self.deleted.add(old)
        self.in_doubt.add(topic)
        made = await admin.create_topic(topic, 1, replication_factor=1)
        self._answered(topic)
        self.alive[topic] = made.id

    def _answered(self, topic: str) -> None:
        self.in_doubt.discard(topic)
        self.acknowledged += 1

    async def check(self, admin: Admin) -> list[str]:
        """Return the changes that a node lacks that knows all earlier decisions. Raises `AssertionError` for content
        that was never requested."""
        lost = []
        topics = {topic.name: topic.id for topic in await admin.list_topics()}
        lost += [f"{topic} was made" for topic, made in self.alive.items() if topics.get(topic) != made]
        lost += [f"{topic} was deleted" for topic in sorted(self.deleted & set(topics))]
        found = int((await admin.describe_topic(self.register)).configs["retention.ms"]) - BASE_MS
        assert found <= self.tried, f"{self.register} is {found}, the last value sent is {self.tried}"
        if found < self.value:
            lost.append(f"{self.register} is {found}, acknowledged was {self.value}")
        return lost

    def begin_again(self) -> None:
        self.acknowledged = 0
        self.in_doubt.clear()


class PoweredCluster:
    """Three nodes, three disks."""

    def __init__(self, volumes: Volumes, program: Sequence[str] | None = None) -> None:
        self.volumes = volumes
        self.cluster = LocalCluster(volumes.folder, NODES, free_base_port(NODES))
        if program is not None:
            self.cluster.program = program
        for node in self.cluster.nodes:
            volume = volumes.add(f"disk-{node.node_id}")
            os.makedirs(node.folder)
            os.symlink(volume.data, os.path.join(node.folder, DATA_FOLDER))
        self.administrators = [Administrator(number) for number in range(ADMINISTRATORS)]
        self.rounds = 0
        self.cuts = 0
        """All disks."""
        self._barriers = 0

    def start(self) -> None:
        """Start all nodes, and wait until they accept requests."""
        self.cluster.start()
        self.cluster.wait_ready(PATIENCE_S)

    async def prepare(self) -> None:
        """Create the topics that the administrators change. Once."""
        async with Admin(self.cluster.bootstrap) as admin:
            await admin.create_topic(BARRIER, 1, 1)
            for administrator in self.administrators:
                await admin.create_topic(administrator.register, 1, 1, {"retention.ms": str(BASE_MS)})

    async def round(self, seed: int, *, changes: int = 1000) -> Result:
        """Run one power failure of all nodes. Raises `AssertionError` for any error except lost acknowledged changes:
        those are in the result."""
        self.rounds += 1
        rng = random.Random(seed)
        survivors = [rng.choice(list(Survivors)) for _ in range(NODES)]
        result = Result(self.rounds, seed, [kept.value for kept in survivors])
        topic = f"produced-{self.rounds}-{seed}"
        async with Admin(self.cluster.bootstrap) as admin:
            await admin.create_topic(topic, 3, 3)
            await all_in_sync(admin, topic)
            async with Traffic(self.cluster.bootstrap, topic, 3, records=10, pause=0.02) as traffic:
                await self._change(admin, changes, rng, functools.partial(self._cut, rng, survivors, result))
                result.changes_acknowledged = sum(one.acknowledged for one in self.administrators)
                result.records_acknowledged = sum(traffic.acknowledged_counts)
                began = time.monotonic()
                await asyncio.to_thread(self.start)
                await all_in_sync(admin, topic)
                result.back_after_s = round(time.monotonic() - began, 2)
                result.acknowledged_lost = await self._check_changes(result)
                await traffic.grows()
            await check_exactly(self.cluster.bootstrap, traffic)
            result.records_sent = sum(len(partition.sent) for partition in traffic.partitions)
            await self._until_answered(result, lambda: _delete(admin, topic))
        return result

    async def _change(self, admin: Admin, changes: int, rng: random.Random, cut: functools.partial[None]) -> None:
        """Make changes until there are enough, and a little longer, until the cut is over."""
        for administrator in self.administrators:
            administrator.begin_again()
        name = f"{self.rounds}"
        working = [asyncio.create_task(one.work(admin, name)) for one in self.administrators]
        try:
            await self._enough_changes(changes)
            await asyncio.sleep(rng.uniform(0, 0.2))
            if any(task.done() for task in working):
                raise Void("an administrator got no answer while all was well")
            await asyncio.to_thread(cut)
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working)

    async def _enough_changes(self, changes: int) -> None:
        try:
            async with asyncio.timeout(LOAD_PATIENCE_S):
                while sum(one.acknowledged for one in self.administrators) < changes:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        except TimeoutError:
            made = sum(one.acknowledged for one in self.administrators)
            raise Void(f"{made} of {changes} changes were acknowledged within {LOAD_PATIENCE_S:.0f} s") from None

    def _cut(self, rng: random.Random, survivors: list[Survivors], result: Result) -> None:
        pids = [[node.process.pid] if node.process is not None and node.running else [] for node in self.cluster.nodes]
        disks = list(zip(self.volumes.volumes, survivors, pids, strict=True))
        for volume, kept, users in rng.sample(disks, len(disks)):
            volume.cut(kept, rng, users)
        self.cluster.kill_all()
        self.cuts += 1
        lost = [volume.restore() for volume in self.volumes.volumes]
        result.witness_bytes_lost = sum(proof.witness for proof in lost)
        result.node_bytes_lost = [sum(proof.files.values()) for proof in lost]

    async def _check_changes(self, result: Result) -> list[str]:
        """Check on every node, after a change through that node. Repeating a change does no harm."""
        lost = []
        for node in self.cluster.nodes:
            async with Admin(str(node.api)) as admin:
                self._barriers += 1
                value = {"retention.ms": str(BASE_MS + self._barriers)}
                await self._until_answered(result, lambda: admin.alter_topic(BARRIER, value))  # noqa: B023
                for administrator in self.administrators:
                    told = await self._until_answered(result, lambda: administrator.check(admin))  # noqa: B023
                    lost += [f"node {node.node_id}: {what}" for what in told]
        return lost

    async def _until_answered(self, result: Result, ask: Callable[[], Awaitable[T]]) -> T:
        async def answer() -> tuple[T]:
            try:
                return (await ask(),)
            except RaftlogError as error:
                result.asked_again.append(str(error))
                raise

        return (await eventually(answer, "an answer after the cut"))[0]


async def _delete(admin: Admin, topic: str) -> None:
    """Delete, unless an earlier attempt did so whose answer was lost."""
    if any(known.name == topic for known in await admin.list_topics()):
        await admin.delete_topic(topic)


@contextlib.contextmanager
def powered_cluster(program: Sequence[str] | None = None) -> Iterator[PoweredCluster]:
    """`program` runs a node (`LocalCluster.program`). Raises `PowerLossUnavailable` if the machine does not support
    it."""
    with Volumes() as volumes:
        powered = PoweredCluster(volumes, program)
        try:
            powered.start()
            yield powered
        except BaseException as error:
            powered.cluster.kill_all()
            tell(powered.cluster)
            _say(f"a round failed: {error!r}")
            raise
        stop_and_check(powered.cluster)


# --- The command ------------------------------------------------------------------------------------------------------


async def run(powered: PoweredCluster, seeds: Sequence[int], changes: int, results: str, first_seed: int) -> bool:
    """Run a round for each seed, and store it at its end. Returns False at the first in which acknowledged data is
    lost. Raises `Void` if a round could not be run."""
    await powered.prepare()
    for seed in seeds:
        began = time.monotonic()
        result = await powered.round(seed, changes=changes)
        result.round, result.commit = seed - first_seed + 1, result_lines.commit()
        result.took_s = round(time.monotonic() - began, 1)
        await asyncio.to_thread(result_lines.append, result, results)
        if result.acknowledged_lost:
            return False
    return True


def seeds_to_do(results: str, first_seed: int, rounds: int) -> list[int]:
    """The seeds of `rounds` without a successful round in the results."""
    done = {result.seed for result in result_lines.read(results, Result) if not result.acknowledged_lost}
    return [seed for seed in range(first_seed, first_seed + rounds) if seed not in done]


def go_through(rounds: int, first_seed: int, changes: int, results: str) -> int:
    """Run all rounds that the results lack. Returns the exit code."""
    voids = 0
    while seeds := seeds_to_do(results, first_seed, rounds):
        _say(f"{rounds - len(seeds)} of {rounds} rounds are in {results}, {len(seeds)} to go")
        try:
            with powered_cluster() as powered:
                if not asyncio.run(run(powered, seeds, changes, results, first_seed)):
                    return 1
        except (Void, FaultDidNotBite) as void:
            voids += 1
            _say(f"a round is void, and made again on new disks: {void}")
            if voids == VOIDS_MAX:
                return EXIT_VOID
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def main() -> int:
    parser = argparse.ArgumentParser(description="Power failures of three nodes at once, under load.")
    parser.add_argument("--rounds", type=int, default=20, help="In the results, when it is done.")
    parser.add_argument("--changes", type=int, default=1000, help="Acknowledged metadata changes a round, at least.")
    parser.add_argument("--seed", type=int, default=1, help="Of the first round; each later one has the next.")
    parser.add_argument("--results", default="power-loss.jsonl", help="One line of JSON a round is appended.")
    arguments = parser.parse_args()
    missing = missing_capability()
    if missing is not None:
        _say(f"power cannot be cut here: {missing}")
        return 2
    # The disks are also unmounted after a SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    return go_through(arguments.rounds, arguments.seed, arguments.changes, arguments.results)


if __name__ == "__main__":
    sys.exit(main())
