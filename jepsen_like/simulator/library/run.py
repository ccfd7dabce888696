"""The client library in a simulated cluster (`jepsen_like/simulator/cluster/run.py`).

Brokers, quorum, network, disks and faults are those of a simulated cluster. Applications use the library's producers,
consumers and groups, while topics are deleted and recreated under the same names (`topic_lives.py`).

At the end (S10) every record is delivered or failed, every reader of an existing topic has read it to its end, and
every committed record of the existing topics was returned to a member of the group.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from jepsen_like.simulator.cluster.liveness import LIVENESS_SECONDS
from jepsen_like.simulator.cluster.run import LOOK_EVERY, SimulatedWorld, Verdict, run_world
from jepsen_like.simulator.cluster.schedule import ClusterSchedule, Operation
from jepsen_like.simulator.quorum.dialing import endpoint_of
from jepsen_like.simulator.world.heap import Event
from jepsen_like.simulator.world.violation import Violation
from raftlog.client.consuming.fetcher import NEW_PARTITIONS_INTERVAL

from .clients import (
    Application,
    MemberApplication,
    ProducerApplication,
    ReaderApplication,
    virtual_library,
)
from .loop import VirtualLoop
from .node import LibraryNode
from .schedule import MEMBER_OPERATIONS, draw
from .topic_lives import INPUTS, OUTPUT, LivesTruth, TopicLives
from .transformed_truth import TransformedTruth
from .transformers import TransformerApplication

BEGIN_AT = 2.0
PRODUCERS = 2
MEMBERS = 3
TRANSFORMERS = ("transformer", None)
"""Transactional ids of the transformers, in odd seeds."""
LOOK_SECONDS = 0.25
CLIENTS_LIVENESS_SECONDS = 2 * LIVENESS_SECONDS + NEW_PARTITIONS_INTERVAL
"""Records are delivered or given up, and sessions of lost members expire, only some time after the cluster's heal. A
reader finds a partition that was added as late as that only when it looks for new ones."""
MEMBER_BACK_SECONDS = (0.1, 3.0)
HANG_SECONDS = (0.2, 8.0)
END_ROUNDS = 3
"""A task that is cancelled may wait for another, which must be cancelled too."""
END_SECONDS = 0.001


class ClientWorld(SimulatedWorld):
    """Everything of one run."""

    node_kind = LibraryNode
    operations_kind = TopicLives
    operations: TopicLives

    def __init__(self, schedule: ClusterSchedule) -> None:
        self._loops: dict[object, VirtualLoop] = {}
        self._applications: list[Application] = []
        super().__init__(schedule)
        self.lives = LivesTruth(self.truth, self.operations.made)
        self._bootstrap = ",".join(str(endpoint_of(node.node_id)) for node in self.nodes)
        self._begun = 0
        names = (*INPUTS, OUTPUT) if schedule.seed % 2 else INPUTS
        self.operations.names = names
        self.transformed = TransformedTruth(self.lives, OUTPUT)
        self.lives.committed_shown = self.transformed.shown
        self.producers = [self._make(ProducerApplication, f"p{n}", topics=INPUTS) for n in range(PRODUCERS)]
        self.readers = [self._make(ReaderApplication, f"r{n}", topic=name) for n, name in enumerate(names)]
        self._places: list[tuple[type[Application], str, dict[str, Any]]] = [
            (MemberApplication, f"m{n}", {"topics": INPUTS}) for n in range(MEMBERS)
        ]
        if OUTPUT in names:
            common = {"topics": INPUTS, "output": OUTPUT, "transformed": self.transformed}
            self._places += [
                (TransformerApplication, f"t{n}", common | {"transactional_id": name})
                for n, name in enumerate(TRANSFORMERS)
            ]
        self.members = [self._make(kind, name, **more) for kind, name, more in self._places]
        """The group members, by place."""
        for application in list(self._applications):
            self.heap.schedule(BEGIN_AT + 0.1 * self._begun, application.start)
        self._look_later()

    def start(self, node: LibraryNode) -> None:  # type: ignore[override]
        super().start(node)
        if node.running and node.loop is not None:
            self._loops[node.life] = node.loop
            assert node.broker is not None
            node.broker.view.subscribe(lambda index, events: self.transformed.applied(index, events))

    def _make(self, kind: type[Application], name: str, **more: object) -> Application:
        self._begun += 1
        rng = random.Random(f"{self.seed}/clients/{name}/{self._begun}")
        named = f"{name}.{self._begun}"
        made = kind(named, self.heap, self.network, self._bootstrap, self.lives, rng, **more)
        self._loops[made.life] = made.loop
        self._applications.append(made)
        return made

    def _run_event(self, event: Event) -> None:
        loop = self._loops.get(event.life)
        if loop is None:
            super()._run_event(event)
            return
        asyncio._set_running_loop(loop)  # like `entered`; most events come here
        try:
            if event.life in self._by_life:
                super()._run_event(event)
            else:
                event.callback()  # an application's event: no node changes before the next event
        finally:
            asyncio._set_running_loop(None)

    def _look_later(self) -> None:
        self.lives.look()
        self.transformed.look()
        self.heap.schedule(LOOK_SECONDS, self._look_later)

    # --- Processes ---------------------------------------------------------------------------------------------------

    def carry_out(self, operation: Operation) -> None:
        """Also carries out operations on processes that use the library."""
        if operation.kind not in MEMBER_OPERATIONS:
            super().carry_out(operation)
            return
        rng = random.Random(f"{self.seed}/clients/operation/{operation.number}")
        if operation.kind == "process_hangs":
            life = rng.choice(self._applications).life
            life.paused_until = max(life.paused_until, self.heap.now + rng.uniform(*HANG_SECONDS))
        else:
            place = rng.randrange(len(self.members))
            member = self.members[place]
            assert isinstance(member, MemberApplication | TransformerApplication)
            if operation.kind == "member_leaves":
                member.leaves = True
            else:
                member.life.alive = False
            self.heap.schedule(rng.uniform(*MEMBER_BACK_SECONDS), lambda: self._replace(place, member))
        done = self.operations.done
        done[operation.kind] = done.get(operation.kind, 0) + 1
        self.trace.note(-1, f"operation {operation}")

    def _replace(self, place: int, member: Application) -> None:
        if self.members[place] is member:
            kind, name, more = self._places[place]
            self.members[place] = self._make(kind, name, **more)
            self.members[place].start()

    # --- The end -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._end()

    def _end(self) -> None:
        """Cancel all unfinished tasks, also in crashed processes, so nothing of the world survives."""
        for _ in range(END_ROUNDS):
            for loop in self._loops.values():
                loop.life.alive, loop.life.paused_until = True, 0.0
                loop.end()
            self.heap.run_until(self.heap.now + END_SECONDS, self._run_last)
        for node in self.nodes:
            assert isinstance(node, LibraryNode)
            node.close_to_clients()

    def _run_last(self, event: Event) -> None:
        """Run only callbacks that end tasks: the verdict is known."""
        loop = self._loops.get(event.life)
        if loop is not None and loop.calls(event):
            with loop.entered():
                event.callback()

    def _require_progress(self, healed: float) -> None:
        for application in self._applications:
            self.heap.resume(application.life)
        if (
            OUTPUT in self.operations.names
        ):  # without the output topic, transformers could not write, and would make no progress
            self.operations.have(random.Random(f"{self.seed}/clients/output"), OUTPUT)
        super()._require_progress(healed)
        for producer in self.producers:  # all topics that the schedule makes exist now
            producer.stopping = True
        at = self.heap.now
        while True:
            lacking = self._missing()
            if not lacking:
                break
            if at >= healed + CLIENTS_LIVENESS_SECONDS:
                told = "; ".join(lacking[:5])
                raise Violation(f"S10: {CLIENTS_LIVENESS_SECONDS:.0f} s after everything healed: {told}")
            at += LOOK_EVERY
            self._run_until(at)
        self.lives.look()

    def _missing(self) -> list[str]:
        found = [line for application in self._applications if application.life.alive for line in application.missing]
        if len(self.members) > MEMBERS:
            found += self.transformed.missing()
        return found + self.lives.missing()

    def checks(self) -> dict[str, int]:
        return super().checks() | {f"clients {name}": count for name, count in self.lives.counts.items()}


def run_schedule(schedule: ClusterSchedule) -> Verdict:
    """Run a schedule."""
    with virtual_library(schedule.seed):
        return run_world(ClientWorld, schedule)


def run_client_seed(seed: int, seconds: float, *, faulty: bool = True) -> Verdict:
    """Draw the schedule of a seed and run it."""
    return run_schedule(draw(seed, seconds, faulty=faulty))
