"""The plan of a run, and the records that it leaves: one folder for each run, nothing elsewhere.

    <folder>/
      plan.json       the plan: `RunPlan`
      history.jsonl   operations of clients and notes of others (`jepsen_like/histories/history.py`)
      faults.jsonl    the faults, each with the proof of its effect: `Fault`
      verdict.json    the verdict of every checker by its name
      outcome.json    the line for the scoreboard: `Outcome`
      clients/        output of the client processes
      nodes/<name>/   log of each node
      world.log       trace of a simulated world (`jepsen_like/runs/simulated.py`)
      report.html     all of it, for people

A fault without proof is *void*: the run shows nothing about it. Times are nanoseconds since the run began, on the
monotonic clock of the machine that runs everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of one run. The same plan and seed draw the same operations and faults; their outcomes differ."""

    cell: str
    """Cell of the scoreboard, such as `R1`; empty for a run that belongs to none."""
    workload: str
    nemesis: str
    nodes: int
    seconds: float
    """Duration of operations and faults. The heal and the final reads come on top."""
    rate: float
    """Operations per second of all clients together."""
    seed: int
    processes: int = 6
    """Number of client processes."""
    options: dict[str, Any] = {}
    """Options of workload and nemesis, by name."""
    rounds: int = 0
    """The number of rounds in one cluster's life, each with fresh keys, one fault, its heal and a read of everything
    (`jepsen_like/runs/rounds.py`). 0: no rounds; faults and operations run concurrently for `seconds`.
    """
    planted: str = ""
    """A bug that is planted in the nodes (`planted/`): such a run measures the suite, not the product."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fault that was injected into the cluster."""

    kind: str
    targets: tuple[str, ...]
    """Nodes, or links as `n1>n2`."""
    began: int
    ended: int
    """Time of the heal; equal to `began` for an instantaneous fault."""
    evidence: dict[str, Any] = {}
    """Proof of the effect: numbers and texts. Empty: the fault is void."""
    error: str = ""
    """Why the fault could not be injected or proved."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run in one line."""

    plan: RunPlan
    commit: str
    """With a plus sign if the tree differed from it."""
    started: str
    """ISO 8601, UTC."""
    seconds: float
    """The part of the planned duration that really ran."""
    operations: dict[str, int]
    """Number of completions by `ok`, `fail`, `info`."""
    faults: dict[str, int]
    """Number of proved faults by kind; of damaged files also by the kind of file, as `bitflip:segment`."""
    void: dict[str, int]
    """Number of void faults by kind."""
    valid: bool | None
    """None: a checker crashed or exceeded its budget, or a kind of fault has no proof at all. That is no pass."""
    anomalies: dict[str, int]
    recovery_s: float | None
    """Seconds from the last heal until every partition was written to again."""
    rounds: int = 0
    """Rounds that were made, with a proved fault and without an anomaly."""
    left_out: tuple[str, ...] = ()
    """Nemeses that `mixed` left out because the cluster lacks a capability."""


@dataclass(frozen=True, slots=True)
class Worked:
    """The result of operations and faults."""

    seconds: float
    faults: Sequence[Fault]
    operations: Mapping[str, int]
    not_healed: str = ""
    """Why a fault could not be healed."""
    rounds: int = 0
    """As `Outcome.rounds`."""
    stuck: bool = False
    """Whether the cluster had to heal by itself and did not (S10)."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of a run."""

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
        """Return the log of a worker's client processes, including replacements."""
        return self.path / "clients" / f"worker-{worker}.log"

    def node(self, name: str) -> Path:
        return self.path / "nodes" / name


def read_faults(file: Path) -> Iterator[Fault]:
    """Yield the faults in the order in which they ended."""
    with file.open("rb") as lines:
        for line in lines:
            yield msgspec.json.decode(line, type=Fault)


class RealCluster(Protocol):
    """Nodes as processes of the product, for nemeses to break and clients to use (`clusters/`)."""

    @property
    def nodes(self) -> Sequence[str]:
        """Names, `n1` and so on; the node id is the position."""
        ...

    @property
    def bootstrap(self) -> Sequence[str]:
        """API addresses node by node, reachable from client processes of this machine."""
        ...

    def pid(self, node: str) -> int | None:
        """Return the id of the running process, or None while the node is down."""
        ...

    def data_folder(self, node: str) -> Path: ...

    def log_file(self, node: str) -> Path: ...

    async def start(self, nodes: Sequence[str] = ()) -> None:
        """Start the named nodes, or all, and return when they listen."""
        ...

    async def kill(self, nodes: Sequence[str]) -> None:
        """Send SIGKILL and wait until the processes have ended."""
        ...

    async def close(self) -> None:
        """Remove everything: processes, mounts, namespaces, rules."""
        ...


class Nemesis(Protocol):
    """Injects faults into clusters (`nemeses/`)."""

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> frozenset[str]:
        """The required capabilities, by the names of `clusters/capabilities.py`."""
        ...

    async def disturb(self, cluster: RealCluster, seconds: float, tell: Callable[[Fault], None]) -> None:
        """Inject faults for this time and report each when it is over. Heals all of them before it returns or is
        cancelled.
        """
        ...


class Checked(Protocol):
    """The part of a checker's `Verdict` that records need."""

    @property
    def valid(self) -> bool | None: ...

    @property
    def anomalies(self) -> Mapping[str, list[dict[str, Any]]]: ...
