"""The cells of the scoreboard: each is a workload with a fault, and the time that it has to accumulate. Pure.

`R` cells read and write a log, `M` cells the metadata. `reference` names a comparable test of Jepsen's; it is shown
beside our own figures and sets no target. `NOT_TESTED` lists what no cell covers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jepsen_like.run_records import RunPlan
from raftlog.errors import InvalidRequest

RATE = 100.0
"""Operations per second of a real cluster on a small machine, as in Jepsen's test of Redpanda."""

ROUNDS_A_RUN = 10
"""Rounds per cluster; a run that is interrupted loses them."""

NAMESPACES, LOOPBACK = "namespaces", "loopback"

NOT_TESTED = (
    "Byzantine nodes",
    "faults of real network cards and switches",
    "more than 5 nodes",
    "runs of many days without a restart",
    "more than one machine: all nodes of a run share its cores, memory and clock source",
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One row. `seconds`: the time of operations with faults that has to be accumulated."""

    name: str
    workload: str
    nemesis: str
    seconds: float
    fault: str
    """A description for people."""
    nodes: int = 3
    layout: str = NAMESPACES
    reference: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 0
    """The number of rounds to accumulate, for a cell that runs in rounds (`jepsen_like/runs/rounds.py`); then `seconds`
    is the length of a round.
    """

    def plan(self, *, seed: int, seconds: float, rate: float = RATE, rounds: int = ROUNDS_A_RUN) -> RunPlan:
        """Return the plan of one run. `rounds`: for a cell that runs in rounds."""
        return RunPlan(
            cell=self.name,
            workload=self.workload,
            nemesis=self.nemesis,
            nodes=self.nodes,
            seconds=self.seconds if self.rounds else seconds,
            rate=rate,
            seed=seed,
            options=dict(self.options),
            rounds=rounds if self.rounds else 0,
        )


def _mix(*nemeses: str) -> dict[str, Any]:
    return {"nemeses": list(nemeses)}


_NETWORK = ("partition", "partition-one-way", "partition-leaders")
_ALL_OF_METADATA = _mix("kill", "pause", *_NETWORK, "power", "power-all", "pause-kill")
_EVERY_30_S = {"redraw": 30}
_SECURED = {"secured": True}
_OFTEN = {"hold": [1, 4], "quiet": [1, 4], "redraw": 15}
"""Ten minutes cover every kind of file."""
_ROUND_S = 5.0
"""About the time of a round's operations and fault."""
_AT_ONCE = {"topics": 1, "hold": [0, 1]}
_AMNESIA = {**_mix("pause-kill", "part-kill"), "topics": 1, "hold": [1.5, 3]}
"""Long enough, twice, for a session to expire and for others to acknowledge without the node."""
_CLOCKS = {"at_once": 1, "retention_past_s": 120, "hold": [5, 100]}
"""A node leads again half a minute after its start, and retention runs within another half."""

CELLS: Mapping[str, Cell] = {
    cell.name: cell
    for cell in (
        Cell("R0", "log", "none", 3_600, "none", reference="J1-J3"),
        Cell("R1", "log", "kill", 9_000, "kill: one, a minority, a majority, all, leaders", reference="J1-J3"),
        Cell("R2", "log", "pause", 9_000, "pause: one, a minority, a majority, all, leaders", reference="J1-J3"),
        Cell("R3", "log", "partition", 9_000, "partition: one, a majority", reference="J1-J3"),
        Cell("R4", "log", "partition-ring", 9_000, "majorities ring, bridge", nodes=5, reference="J1, J4, J5"),
        Cell("R5", "log", "partition-one-way", 9_000, "one way, in or out, link by link"),
        Cell("R6", "log", "partition-leaders", 9_000, "leaders, controller or both isolated", reference="J4"),
        Cell("R7", "log", "links", 3_600, "links: delay, stall, reset, late bytes", layout=LOOPBACK, reference="J3"),
        Cell(
            "R8", "log", "mixed", 3_600,
            "clocks: jumps of up to 288 s, strobe, wrong by days at a start, monotonic offsets; with retention by time",
            reference="J1-J5",
            options={**_mix("clock", "clock-start", "clock-monotonic"), **_CLOCKS},
        ),
        Cell("R9", "log", "power", 9_000, "power failure of one, a minority, leaders", reference="J3"),
        Cell("R10", "log", "power-all", _ROUND_S, "power failure of all at once", reference="J3", options=_AT_ONCE,
             rounds=50),
        Cell("R10b", "log", "power-rot", _ROUND_S, "as R10, and a flipped bit in a replica's last batch",
             options=_AT_ONCE, rounds=50),
        Cell("R11", "log", "mixed", _ROUND_S, "a node loses power between two that were paused or isolated",
             reference="J3", options=_AMNESIA, rounds=100),
        Cell("R11m", "metadata-registers", "mixed", _ROUND_S, "as R11, of the metadata", reference="J3",
             options=_AMNESIA, rounds=100),
        Cell("R12", "log", "mixed", 21_000, "bits flipped in every kind of file, and kills", reference="J3, J4",
             options={**_mix("bitflip", "kill"), **_OFTEN}),
        Cell("R13", "log", "mixed", 21_000, "truncated files, and kills", reference="J3-J5",
             options={**_mix("truncate", "kill"), **_OFTEN}),
        Cell("R14", "log", "rollback", 3_000, "files rolled back to an earlier state", reference="J3"),
        Cell("R15", "log", "mixed", 3_600,
             "full disks that only retention empties, failing and slow fsyncs, read-only disk",
             options=_mix("disk-full", "fsync-error", "slow-fsync", "read-only")),
        Cell("R16", "log", "mixed", 10_000, "moves of voters and replicas, drained brokers; kills, partitions", nodes=5,
             reference="J1, J3, J4", options=_mix("membership", "kill", "partition")),
        Cell("R17", "log", "mixed", 126_000, "every fault, redrawn every 30 s", reference="J1-J4",
             options=_EVERY_30_S),
        Cell("R17t", "log", "mixed", 9_000, "every fault; transactions of a group that reads and writes",
             options={**_EVERY_30_S, "transactions": True, "subscribe": True}, reference="J1, J2"),
        Cell("R18", "log", "mixed", 9_000, "kill, pause, partition during rebalances", reference="J1",
             options={**_mix("kill", "pause", "partition"), "subscribe": True}),
        Cell("R19", "topic-lives", "mixed", 3_600, "kill, pause, partition while topics are deleted and recreated",
             options=_mix("kill", "pause", "partition")),
        Cell("R20", "log", "mixed", 3_600, "no free file descriptor, and idle connections that take all of them",
             options={**_mix("descriptors", "idle-connections"), "at_once": 1}),
        Cell("R1h", "rest", "kill", 3_600, "as R1; HTTP consumers that any node serves, and answers that are cut"),
        Cell("R3h", "rest", "partition", 3_600, "as R3, with HTTP consumers"),
        Cell("R9h", "rest", "power", 3_600, "as R9, with HTTP consumers"),
        Cell("R17h", "rest", "mixed", 9_000, "as R17, with HTTP consumers", options=_EVERY_30_S),
        Cell("R1s", "log", "kill", 3_600, "as R1, with security and strangers at every door", options=_SECURED),
        Cell("R3s", "log", "partition", 3_600, "as R3, with security and strangers", options=_SECURED),
        Cell("R9s", "log", "power", 3_600, "as R9, with security and strangers", options=_SECURED),
        Cell("R16s", "log", "mixed", 3_600, "as R16, with security and strangers", nodes=5,
             options={**_mix("membership", "kill", "partition"), **_SECURED}),
        Cell("R17s", "log", "mixed", 9_000, "as R17, with security and strangers",
             options={**_EVERY_30_S, **_SECURED}),
        Cell("M1", "metadata-registers", "mixed", 14_400, "R1 to R3, R5, R6, R9 to R11", reference="J4",
             options=_ALL_OF_METADATA),
        Cell("M2", "metadata-set", "mixed", 14_400, "as M1", reference="J4", options=_ALL_OF_METADATA),
        Cell("M3", "group-offsets", "mixed", 9_000, "as M1, and rebalances", options=_ALL_OF_METADATA),
        Cell("M4", "topics", "mixed", 3_600, "kill, pause, partition", options=_mix("kill", "pause", "partition")),
        Cell("M5", "positions", "mixed", 3_600, "as M1, in transactions", options=_ALL_OF_METADATA),
    )
}  # fmt: skip
"""Name → cell, for runs on real clusters."""

REFERENCES: Mapping[str, str] = {
    "J1": "Redpanda: 60 s by default, some 10^5 s in all; 14,772 operations in the sample run",
    "J2": "Bufstream: 300 s x 30 x 7 faults x 2 = 126,000 s",
    "J3": "NATS: 64 cells of 300 s = 5.3 h a pass; also 100 x 300 s",
    "J4": "etcd: 7 workloads x 8 faults, 60 s by default",
    "J5": "Tendermint: 10 nemeses, 60 s by default",
}
"""The scope of Jepsen's published analyses; rates, times and sizes are theirs."""


def cell(name: str) -> Cell:
    """Return the cell of this name. Raises `InvalidRequest`."""
    if name not in CELLS:
        raise InvalidRequest("invalid_request", f"unknown cell {name!r}; cells: {', '.join(CELLS)}")
    return CELLS[name]
