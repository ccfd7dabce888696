"""What a run against a real cluster is told to do, and what it leaves behind: one folder a run, nothing elsewhere.

    <folder>/
      plan.json       what was asked: `RunPlan`
      history.jsonl   what clients did and were told (`jepsen_like/histories/history.py`), nemeses' operations under
      their names faults.jsonl    what was done to the cluster, each with the proof that it bit: `Fault` verdict.json
      every checker's verdict by its name outcome.json    the line that the scoreboard adds up: `Outcome` clients/
      what client processes printed nodes/<name>/   what each node logged, and what is kept of its disk where replicas
      diverged world.log       of a simulated world: what it told of itself (`jepsen_like/runs/simulated.py`)
      report.html     all of it, for people

A fault without proof is *void*: what a run shows about it is nothing. Times are nanoseconds of the monotonic clock of
the machine that runs all of it, since the run began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One run. The same plan and seed draw the same operations and faults. What becomes of them differs."""

    cell: str
    """Of the scoreboard, such as `R1`; empty for a run of nobody's table."""
    workload: str
    nemesis: str
    nodes: int
    seconds: float
    """Of operations and faults. Healing and the last reads come on top."""
    rate: float
    """Operations a second, all clients together."""
    seed: int
    processes: int = 6
    """Client processes of the operating system."""
    options: dict[str, Any] = {}
    """Of workload and nemesis, by name."""
    rounds: int = 0
    """The number of rounds in one cluster's life, each with fresh keys, one fault, its healing and a read of everything
    (`jepsen_like/runs/rounds.py`). 0: no rounds; faults and operations run concurrently for `seconds`."""
    planted: str = ""
    """A bug that is planted in the nodes (`planted/`): such a run measures the suite, not the product."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that was done to the cluster."""

    kind: str
    targets: tuple[str, ...]
    """Nodes, or links as `n1>n2`."""
    began: int
    ended: int
    """When it was healed; equal to `began` where it is an instant."""
    evidence: dict[str, Any] = {}
    """What proves that it bit: numbers and texts. Empty: void."""
    error: str = ""
    """Why it could not be made, or not proved."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A run in one line."""

    plan: RunPlan
    commit: str
    """With a plus sign where the tree differed from it."""
    started: str
    """ISO 8601, UTC."""
    seconds: float
    """Of the plan's, those that really ran."""
    operations: dict[str, int]
    """`ok`, `fail`, `info`."""
    faults: dict[str, int]
    """By kind, those with proof; of damaged files also by theirs, as `bitflip:segment`."""
    void: dict[str, int]
    """By kind, those without."""
    valid: bool | None
    """None: a checker crashed or came to no end, or a fault kind has no proof at all. That is no pass."""
    anomalies: dict[str, int]
    recovery_s: float | None
    """From the last heal until every partition was written to again."""
    rounds: int = 0
    """That were made, whose fault is proved, and in which nothing was wrong."""
    left_out: tuple[str, ...] = ()
    """What `mixed` would have drawn from as well, had the cluster what it needs."""


@dataclass(frozen=True, slots=True)
class Worked:
    """What came of operations and faults."""

    seconds: float
    faults: Sequence[Fault]
    operations: Mapping[str, int]
    not_healed: str = ""
    """Why, where something could not be healed."""
    rounds: int = 0
    """As `Outcome.rounds`."""
    stuck: bool = False
    """It was the cluster's to heal, by itself (S10)."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where things are."""

    path: Path

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def history(self) -> Path:
        return self.path / "history.jsonl"

    @property
    def faults(self) -> Path:
        return self.path / "faults.jsonl"

    @property
    def verdict(self) -> Path:
        return self.path / "verdict.json"

    @property
    def outcome(self) -> Path:
        return self.path / "outcome.json"

    @property
    def world(self) -> Path:
        return self.path / "world.log"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def client_log(self, worker: int) -> Path:
        """What a client process printed, those that took its place included."""
        return self.path / "clients" / f"worker-{worker}.log"

    def node(self, name: str) -> Path:
        return self.path / "nodes" / name


def read_faults(file: Path) -> Iterator[Fault]:
    """In the order in which they ended."""
    with file.open("rb") as lines:
        for line in lines:
            yield msgspec.json.decode(line, type=Fault)


class RealCluster(Protocol):
    """Nodes as processes of the product, for nemeses to break and clients to reach. See `clusters/`."""

    @property
    def nodes(self) -> Sequence[str]:
        """Names, `n1` and so on; node id = position."""
        ...

    @property
    def bootstrap(self) -> Sequence[str]:
        """What clients dial, node by node; reachable from client processes of this machine."""
        ...

    def pid(self, node: str) -> int | None:
        """Of the running process; None while it is down."""
        ...

    def data_folder(self, node: str) -> Path: ...

    def log_file(self, node: str) -> Path: ...

    async def start(self, nodes: Sequence[str] = ()) -> None:
        """All, or those that are named; returns when their processes listen."""
        ...

    async def kill(self, nodes: Sequence[str]) -> None:
        """SIGKILL, and wait until they are gone."""
        ...

    async def close(self) -> None:
        """Nothing is left: no process, mount, namespace, or rule."""
        ...


class Nemesis(Protocol):
    """Something that breaks clusters. See `nemeses/`."""

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> frozenset[str]:
        """Capabilities, as `clusters/capabilities.py` names them."""
        ...

    async def disturb(self, cluster: RealCluster, seconds: float, tell: Callable[[Fault], None]) -> None:
        """Make faults for so long, tell of each when it is over, and heal all of them before returning, also when it is
        cancelled."""
        ...


class Checked(Protocol):
    """What a checker of a run gives: `checkers/verdict.py`'s Verdict, in this shape."""

    @property
    def valid(self) -> bool | None: ...

    @property
    def anomalies(self) -> Mapping[str, list[dict[str, Any]]]: ...
