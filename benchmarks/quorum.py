"""The metadata quorum: commits per second, the latency of an ISR change, and the cost of many partitions.

    python benchmarks/quorum.py commits                     # one proposal in flight, and two hundred
    python benchmarks/quorum.py isr                         # ISR changes beside 10,000 offset commits per second
    python benchmarks/quorum.py partitions --count 100000   # start, snapshot, failover, fence, memory, stalls
    python benchmarks/quorum.py idle --count 10             # CPU of three idle voters

Three voters run in three processes on this machine, over real sockets and with fsync on (`quorum_voter.py`). They have
no logs, so the figures are the cost of the metadata alone. `--seconds`, `--runs` and `--count` allow a short trial of
each part.

*commits*: small commands with a session, proposed at the leader and at a follower; the latency is measured from the
call to the answer in the proposer's own loop. *isr*: one voter commits offsets of a consumer group, 100 commands per
second with a hundred offsets each; the two others propose ISR changes, which use the urgent lane. *partitions*: topics
of ten thousand partitions with three replicas each.

A turn is the work of a loop between two polls of its sockets, by the wall clock and by the processor time of its thread
alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from measuring import Cores, console, machine
from rich.table import Table

VOTERS = 3
IN_FLIGHT = (1, 200)
LOAD_COMMANDS_A_SECOND = 100.0
OFFSETS_A_COMMAND = 100
ISR_A_SECOND = 20.0
PARTITIONS_A_TOPIC = 10_000
ANSWER_SECONDS = 600.0

Answer = dict[str, Any]


class Voter:
    """A voter's process, and the requests to it."""

    def __init__(self, number: int, folder: str, ports: list[int]) -> None:
        self.number = number
        self._command = [sys.executable, os.path.join(os.path.dirname(__file__), "quorum_voter.py"), str(number)]
        self._command += [os.path.join(folder, str(number)), *map(str, ports)]
        os.makedirs(os.path.join(folder, str(number)), exist_ok=True)
        self.process: subprocess.Popen[str] | None = None

    def spawn(self) -> None:
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        environment = {**os.environ, "PYTHONPATH": root}
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, do: str, **fields: Any) -> None:
        assert self.process is not None and self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Answer:
        assert self.process is not None and self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"voter {self.number} ended: see above")
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise SystemExit(f"voter {self.number}: {answer['error']}")
        return answer

    def call(self, do: str, **fields: Any) -> Answer:
        self.ask(do, **fields)
        return self.answer()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Quorum:
    """All voters."""

    def __init__(self, folder: str) -> None:
        ports = free_ports(VOTERS)
        self.voters = [Voter(number, folder, ports) for number in range(VOTERS)]

    def start(self) -> None:
        for voter in self.voters:
            voter.spawn()
            voter.ask("start")
        for voter in self.voters:
            voter.answer()

    def leader(self) -> Voter:
        """Return the leader on which all voters agree."""
        for _ in range(100):
            said = {voter.call("leads")["leader"] for voter in self.voters if voter.process is not None}
            if len(said) == 1 and (number := said.pop()) >= 0 and self.voters[number].process is not None:
                return self.voters[number]
            time.sleep(0.1)
        raise SystemExit("the voters do not agree on a leader")

    def others(self, voter: Voter) -> list[Voter]:
        return [other for other in self.voters if other is not voter and other.process is not None]

    def create(self, count: int) -> list[Answer]:
        """Create `count` partitions, in topics of at most ten thousand."""
        leader, answers = self.leader(), []
        for number, first in enumerate(range(0, count, PARTITIONS_A_TOPIC)):
            partitions = min(PARTITIONS_A_TOPIC, count - first)
            answers.append(leader.call("create", name=f"topic-{number}", partitions=partitions))
            if answers[-1]["fate"] != "applied" or "Refused" in answers[-1]["result"]:
                raise SystemExit(f"a topic was not created: {answers[-1]}")
        return answers


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


@contextlib.contextmanager
def a_quorum(folder: str | None) -> Iterator[Quorum]:
    place = tempfile.mkdtemp(prefix="raftlog-quorum-", dir=folder)
    quorum = Quorum(place)
    try:
        quorum.start()
        yield quorum
    finally:
        for voter in quorum.voters:
            voter.kill()
        shutil.rmtree(place, ignore_errors=True)


def percentile(values: list[float], share: float) -> float:
    """Return a percentile of sorted values, in milliseconds."""
    return 1000 * values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def commits(arguments: argparse.Namespace) -> None:
    with a_quorum(arguments.folder) as quorum:
        leader = quorum.leader()
        table = Table("proposed at", "in flight", "run", "commits/s", "p50 ms", "p99 ms", "lost", title="commits")
        for where, voter in (("the leader", leader), ("a follower", quorum.others(leader)[0])):
            for in_flight in IN_FLIGHT:
                for run in range(1, arguments.runs + 1):
                    answer = voter.call(
                        "commits", seconds=arguments.seconds, in_flight=in_flight, rate=0.0, kind="grant"
                    )
                    found = answer["latencies"]
                    times = (percentile(found, 0.5), percentile(found, 0.99))
                    table.add_row(
                        where, str(in_flight), str(run), f"{len(found) / answer['took']:,.0f}",
                        *(f"{ms:.2f}" for ms in times), str(answer["lost"]),
                    )  # fmt: skip
        console.print(table)
        stalls(quorum)


def isr(arguments: argparse.Namespace) -> None:
    with a_quorum(arguments.folder) as quorum:
        quorum.create(30)
        leader = quorum.leader()
        leader.call("create", name="offsets", partitions=OFFSETS_A_COMMAND)
        loaded, other = quorum.others(leader)
        table = Table("run", "ISR changes at", "changes", "p50 ms", "p99 ms", "worst ms", "offset commits/s", "p99 ms")
        for run in range(1, arguments.runs + 1):
            for under_load in (False, True):
                if under_load:
                    rate = LOAD_COMMANDS_A_SECOND
                    loaded.ask("commits", seconds=arguments.seconds + 1, in_flight=1000, rate=rate, kind="offsets")
                    time.sleep(0.5)
                for voter in (leader, other):
                    voter.ask("isr", seconds=arguments.seconds, rate=ISR_A_SECOND)
                answers = [(name, v.answer()) for name, v in (("the leader", leader), ("a follower", other))]
                load = loaded.answer() if under_load else None
                for name, answer in answers:
                    found = answer["latencies"]
                    row = [f"{len(found)}", *(f"{percentile(found, p):.1f}" for p in (0.5, 0.99, 1.0))]
                    if load is not None:
                        row += [f"{100 * len(load['latencies']) / load['took']:,.0f}"]
                        row += [f"{percentile(load['latencies'], 0.99):.1f}"]
                    table.add_row(f"{run}{' loaded' if under_load else ''}", name, *row)
        console.print(table)
        stalls(quorum)


def partitions(arguments: argparse.Namespace) -> None:
    with a_quorum(arguments.folder) as quorum:
        table = Table("", "seconds", "", title=f"{arguments.count:,} partitions, replication factor 3")
        created = quorum.create(arguments.count)
        most = max(answer["took"] for answer in created)
        table.add_row("create them", f"{sum(a['took'] for a in created):.2f}", f"{most:.2f} the slowest topic")
        turns(table, quorum, "while they were created")
        leader = quorum.leader()
        taken = leader.call("snapshot")
        size = (
            f"{taken['bytes'] / 1e6:.1f} MB, step {1000 * taken['step']:.1f} ms, write {1000 * taken['write']:.0f} ms"
        )
        table.add_row("snapshot", f"{taken['took']:.2f}", size)
        turns(table, quorum, "while it was taken")
        fail_over(table, quorum, leader)
        turns(table, quorum, "while it was replaced")
        started = time.perf_counter()
        leader.spawn()
        answer = leader.call("start")
        table.add_row(
            "start", f"{time.perf_counter() - started:.2f}", f"{answer['partitions']:,} partitions in the view"
        )
        turns(table, quorum, "while it came back")
        deleted = quorum.leader().call("delete", name="topic-0")
        table.add_row(
            "delete a topic", f"{deleted['took']:.2f}", f"{min(arguments.count, PARTITIONS_A_TOPIC):,} partitions"
        )
        turns(table, quorum, "while it was deleted")
        costs = [voter.call("costs", forget=False) for voter in quorum.voters]
        table.add_row("memory, MB", "", " / ".join(f"{c['rss']:.0f} (peak {c['peak']:.0f})" for c in costs))
        console.print(table)


def fail_over(table: Table, quorum: Quorum, leader: Voter) -> None:
    rest = quorum.others(leader)
    started = time.perf_counter()
    leader.kill()
    for voter in rest:
        voter.ask("barrier", timeout=30.0)
    for voter in rest:
        voter.answer()
    table.add_row("the leader is killed: the quorum answers", f"{time.perf_counter() - started:.2f}", "")
    before = time.perf_counter() - started
    for voter in rest:
        voter.ask("without", broker=leader.number, timeout=120.0)
    answers = [voter.answer() for voter in rest]
    for what, key in (("... it is fenced", "fenced"), ("... every partition has a leader", "led")):
        table.add_row(what, f"{before + max(answer[key] for answer in answers):.2f}", "in both views")


def idle(arguments: argparse.Namespace) -> None:
    with a_quorum(arguments.folder) as quorum:
        quorum.create(arguments.count)
        time.sleep(2.0)
        table = Table("run", *(f"voter {v.number}" for v in quorum.voters), "all", title="idle: percent of one core")
        for run in range(1, arguments.runs + 1):
            before = [voter.call("costs", forget=False)["cpu"] for voter in quorum.voters]
            time.sleep(arguments.seconds)
            after = [voter.call("costs", forget=False)["cpu"] for voter in quorum.voters]
            shares = [100 * (b - a) / arguments.seconds for a, b in zip(before, after, strict=True)]
            table.add_row(str(run), *(f"{share:.2f}" for share in shares), f"{sum(shares):.2f}")
        console.print(table)


def turns(table: Table, quorum: Quorum, when: str) -> None:
    """Return the longest turns since the last request for them."""
    found = [voter.call("costs", forget=True) for voter in quorum.voters if voter.process is not None]
    for loop in ("quorum", "view"):
        wall, processor = (1000 * max(cost[loop + kind] for cost in found) for kind in ("", "_processor"))
        table.add_row(f"    longest turn of a {loop}'s loop", "", f"{wall:.0f} ms, {processor:.0f} of its own, {when}")


def stalls(quorum: Quorum) -> None:
    table = Table("", "", "")
    turns(table, quorum, "in all runs")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("commits", "isr", "partitions", "idle"))
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of each run in seconds")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--count", type=int, default=100_000, help="number of partitions")
    parser.add_argument("--folder", help="folder for the voters' data, on the disk to measure")
    arguments = parser.parse_args()
    console.print(machine())
    cores = Cores.now()
    {"commits": commits, "isr": isr, "partitions": partitions, "idle": idle}[arguments.what](arguments)
    console.print(Cores.now().since(cores))
    console.print(machine())


if __name__ == "__main__":
    main()
