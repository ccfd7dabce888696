"""Latency of a proper client of a secured cluster while strangers hold connections and try to log in.

    python benchmarks/strangers.py                        # ten minutes
    python benchmarks/strangers.py --seconds 5 --connections 500 --logins 100 --users 20 --rules 200      # a trial

Three nodes, required credentials, TLS at every listener. A client that is no superuser sends records at a steady rate,
`acks=all`, and reads them back (the load of `raftlog bench latency`). Its latencies are measured quiet before and after
each load of strangers, and with it:

* `idle`: connections to all listeners that never send a byte, opened again as the nodes close them;
* `idle, TLS`: the same after the handshake;
* `wrong tokens`, `wrong passwords`: requests to the HTTP APIs with tokens that do not exist, and with a wrong
  password of a user who exists, from 24 connections and as many addresses;
* `wrong tokens, data`: streams of data connections with such tokens;
* `rules`: no strangers, but users and access rules up to the cluster's limit; the topic of the client is also named by
  rules of others (two for each user).

The ratio is that of p99 to the mean p99 of the quiet runs before and after. Strangers are processes of their own
(`stranger_load.py`), bounded in number and time, and connect to 127.0.0.0/8 only. They share the machine's cores with
the cluster, so a part of the difference is theirs: the table has the nodes' own CPU time, too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
from callers import administrator, client
from measuring import Cores, a_cluster, console, cpu_seconds, machine, pids, resident_mb, wait_in_sync
from rich.table import Table
from stranger_load import Job, Told

from raftlog import Admin
from raftlog.api.security import Acl
from raftlog.cli.bench.fleet import Fleet
from raftlog.cli.bench.histogram import Summary
from raftlog.cli.bench.messages import Go, LatencyJob
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.security.acls import Operation, Permission, ResourceType
from raftlog.security.secrets import Secret

TOPIC = "strangers"
VICTIM = "victim"
PASSWORD = Secret("a password that cannot be guessed")
LOAD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stranger_load.py")
READY_SECONDS = 90.0
END_SECONDS = 30.0
REOPENED_PER_SECOND = 1_000.0
RULES_AT_ONCE = 500
TARGET = 2.0
"""The ratio below which a load should stay."""


@dataclass
class Run:
    """The client's latencies in one run, and the strangers' work beside it."""

    name: str
    read: Summary
    acknowledged: Summary
    node_cpu: float
    """CPU seconds of all nodes per second."""
    resident_mb: float
    cores: str
    told: list[Told] = field(default_factory=list)


class Bench:
    """A cluster, its client, and the loads beside it."""

    def __init__(self, cluster: LocalCluster, fleet: Fleet, options: argparse.Namespace) -> None:
        self._cluster, self._fleet, self._options = cluster, fleet, options
        self.runs: list[Run] = []

    async def measure(self, name: str, jobs: Sequence[Job] = ()) -> None:
        """Measure the client beside these loads."""
        async with contextlib.AsyncExitStack() as stack:
            children = [await stack.enter_async_context(Strangers(job)) for job in jobs]
            nodes = pids(self._cluster).values()
            before, cores = sum(map(cpu_seconds, nodes)), Cores.now()
            (passed,) = await self._fleet.go([Go(round(self._options.seconds * self._options.rate))])
            took = passed.ended - passed.began
            used = (sum(map(cpu_seconds, nodes)) - before) / took
            resident = max(map(resident_mb, nodes))
            told = [await child.end() for child in children]
        run = Run(
            name,
            passed.latency.summary(),
            passed.acknowledged.summary(),
            used,
            resident,
            Cores.now().since(cores),
            told,
        )
        self.runs.append(run)
        console.print(f"{name}: p50 {run.read.p50_ms:.1f}, p99 {run.read.p99_ms:.1f} ms; {run.cores}")

    async def quiet(self) -> None:
        """Measure without strangers, once the last ones' connections are gone."""
        await asyncio.sleep(self._options.pause)
        await self.measure("quiet")

    def job(self, kind: str) -> Job:
        """Return a load against all nodes' listeners of its kind."""
        options, nodes, security = self._options, self._cluster.nodes, self._cluster.security
        assert security is not None
        api = [(node.api.host, node.api.port) for node in nodes]
        data = [(node.data.host, node.data.port) for node in nodes]
        targets = {"data": data, "bearer": api, "basic": api}.get(kind, [*api, *data])
        idle = kind.startswith("idle")
        return Job(
            kind, targets, security.authority.certificate, count=options.connections if idle else 0,
            rate=REOPENED_PER_SECOND if idle else options.logins, seconds=READY_SECONDS + 2 * options.seconds,
            user=VICTIM,
        )  # fmt: skip


class Strangers:
    """One process of strangers."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._child: Process | None = None

    async def __aenter__(self) -> Strangers:
        self._child = await asyncio.create_subprocess_exec(sys.executable, LOAD, stdin=PIPE, stdout=PIPE)
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(msgspec.json.encode(self._job) + b"\n")
        try:
            async with asyncio.timeout(READY_SECONDS):
                if not await self._child.stdout.readline():
                    raise SystemExit("the strangers' process ended before its load began")
        except BaseException:
            await self._kill()
            raise
        return self

    async def end(self) -> Told:
        """End the load, and return the work."""
        assert self._child is not None and self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.close()
        async with asyncio.timeout(END_SECONDS):
            return msgspec.json.decode(await self._child.stdout.readline(), type=Told)

    async def __aexit__(self, *error: object) -> None:
        await self._kill()

    async def _kill(self) -> None:
        assert self._child is not None
        with contextlib.suppress(ProcessLookupError):
            self._child.kill()
        await self._child.wait()


async def add_rules(admin: Admin, users: int, rules: int) -> None:
    """Add users and rules of theirs: denials and allowances, about the client's topic and about others."""
    names = [f"user-{number}" for number in range(users)]
    await _limited(admin.create_user(name) for name in names)
    operations = (Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER, Operation.DELETE)
    made = [
        Acl(f"User:{names[number % users]}", operations[number // users % len(operations)], ResourceType.TOPIC,
            TOPIC if number < 2 * users else f"topic-{number}", permission=list(Permission)[number % 2])
        for number in range(rules)
    ]  # fmt: skip
    for start in range(0, len(made), RULES_AT_ONCE):
        await admin.create_acls(made[start : start + RULES_AT_ONCE])


async def _limited(works: Iterable[Awaitable[object]]) -> None:
    room = asyncio.Semaphore(16)

    async def run(work: Awaitable[object]) -> None:
        async with room:
            await work

    await asyncio.gather(*map(run, works))


async def run_all(cluster: LocalCluster, options: argparse.Namespace) -> list[Run]:
    """Run each load between two quiet runs."""
    kinds = {
        "idle": "idle", "idle, TLS": "idle_tls", "wrong tokens": "bearer", "wrong passwords": "basic",
        "wrong tokens, data": "data",
    }  # fmt: skip
    access = await client(cluster, TOPIC)
    async with Admin(cluster.bootstrap, **administrator(cluster).keywords) as admin:
        await admin.create_topic(TOPIC, 3, 3)
        await admin.create_user(VICTIM, PASSWORD)
        await wait_in_sync(admin, [TOPIC])
        async with Fleet([LatencyJob(cluster.bootstrap, TOPIC, options.rate, access=access)]) as fleet:
            await fleet.go([Go(round(3 * options.rate))])
            bench = Bench(cluster, fleet, options)
            steps: list[tuple[str, Callable[[str], Awaitable[None]]]] = [
                (name, lambda name: bench.measure(name, [bench.job(kinds[name])])) for name in kinds
            ]
            await bench.quiet()
            for name, step in steps:
                if name in options.loads:
                    await step(name)
                    await bench.quiet()
            if "rules" in options.loads:
                await add_rules(admin, options.users, options.rules)
                await bench.measure("rules")
    return bench.runs


def table(runs: Sequence[Run], options: argparse.Namespace) -> Table:
    """Return the table, with the ratio of each p99 to the quiet one around it."""
    shown = Table("", "strangers", "until read: p50, ms", "p99, ms", "p99 / quiet", "acknowledged: p50, ms", "p99, ms",
                  "CPU of the nodes, s/s", "RSS of one, MB")  # fmt: skip
    for place, run in enumerate(runs):
        around = [other.read.p99_ms for other in runs[max(place - 1, 0) : place + 2] if other.name == "quiet"]
        ratio = run.read.p99_ms / statistics.mean(around) if run.name != "quiet" else 1.0
        mark = "" if ratio < TARGET else f" (not below {TARGET:g})"
        shown.add_row(
            run.name, "; ".join(map(_work, run.told)), f"{run.read.p50_ms:.2f}", f"{run.read.p99_ms:.2f}",
            "" if run.name == "quiet" else f"{ratio:.2f}{mark}", f"{run.acknowledged.p50_ms:.2f}",
            f"{run.acknowledged.p99_ms:.2f}", f"{run.node_cpu:.2f}", f"{run.resident_mb:.0f}",
        )  # fmt: skip
    return shown


def _work(told: Told) -> str:
    if told.answers:
        answers = ", ".join(f"{count:,} x {answer}" for answer, count in sorted(told.answers.items()))
        return f"{told.opened / told.seconds:,.0f} logins/s: {answers}"
    return f"{told.held:,.0f} held, {told.ended / told.seconds:,.0f} closed per second"


LOADS = ("idle", "idle, TLS", "wrong tokens", "wrong passwords", "wrong tokens, data", "rules")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=LOADS, metavar="LOAD", help="(default: all)")
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of each run (default: %(default)s)")
    parser.add_argument("--pause", type=float, default=8.0, help="seconds before a quiet run (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=200.0, help="records per second (default: %(default)s)")
    parser.add_argument("--connections", type=int, default=10_000, help="idle connections (default: %(default)s)")
    parser.add_argument("--logins", type=float, default=1_000.0, help="wrong logins per second (default: %(default)s)")
    parser.add_argument("--users", type=int, default=1_000, help="users with rules (default: %(default)s)")
    parser.add_argument("--rules", type=int, default=9_900, help="rules; a cluster has 10,000 (default: %(default)s)")
    parser.add_argument("--folder", default=None, help="folder on the disk to use (default: that of temporary files)")
    options = parser.parse_args()
    console.print(machine())
    with a_cluster(options.folder, secure=True) as cluster:
        runs = asyncio.run(run_all(cluster, options))
    console.print(table(runs, options))


if __name__ == "__main__":
    main()
