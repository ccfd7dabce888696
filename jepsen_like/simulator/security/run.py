"""Users, tokens and access rules in the world of the quorum (`jepsen_like/simulator/quorum/run.py`).

Nodes, network, disks, clocks and faults are the quorum's. Administrators at every node make and remove users and
tokens meanwhile, also by views that are stale, and tokens expire. Safety is checked after every entry that any node has
applied (`truth.py`), progress at the end as in the quorum's world.

The operations are those of the schedule, so a failing schedule is shrunk and saved like others.
"""

from __future__ import annotations

import random
import traceback

from jepsen_like.simulator.quorum.node import QuorumSimNode
from jepsen_like.simulator.quorum.run import QuorumVerdict, QuorumWorld, small_limits
from jepsen_like.simulator.quorum.schedule import Operation, Schedule
from jepsen_like.simulator.world.collector import seldom_collected
from jepsen_like.simulator.world.violation import Violation
from raftlog.errors import RaftlogError

from .administrators import Administrators
from .node import SecuritySimNode
from .schedule import SECURITY_OPERATIONS, draw
from .truth import SecurityTruth


class SecurityWorld(QuorumWorld):
    """Everything of one run."""

    node_kind = SecuritySimNode

    def __init__(self, schedule: Schedule) -> None:
        self.security = SecurityTruth()
        super().__init__(schedule)
        rng = random.Random(f"{schedule.seed}/security")
        self.administrators = Administrators(self.clients, self.security, rng)

    def applied(self, node: QuorumSimNode, index: int) -> None:
        super().applied(node, index)
        assert isinstance(node, SecuritySimNode)
        if node.quorum is not None:
            self.security.applied(index, node.quorum.image, node.view.security)

    def run(self) -> None:
        super().run()
        self.security.check_refused()

    def _call(self, operation: Operation) -> None:
        if operation.kind not in SECURITY_OPERATIONS:
            super()._call(operation)
            return
        node = self.nodes[operation.node]
        assert isinstance(node, SecuritySimNode)
        self.administrators.call(operation, node)


def run_schedule(schedule: Schedule) -> QuorumVerdict:
    """Run a schedule. An exception in the product's code is a violation, with its traceback."""
    with small_limits(schedule.limits), seldom_collected():
        world = SecurityWorld(schedule)
        violation = ""
        try:
            world.run()
        except Violation as found:
            violation = str(found)
        except (RaftlogError, AssertionError, LookupError, TypeError, ValueError, AttributeError, OSError) as error:
            violation = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    counts = {"tokens_made": len(world.security.tokens), "tokens_gone": len(world.security.gone)}
    return QuorumVerdict(
        seed=schedule.seed,
        seconds=world.heap.now,
        voters=schedule.voters,
        observers=schedule.observers,
        trace=world.trace.digest(),
        events=world.heap.events_run,
        messages=world.network.messages,
        entries=world.truth.commit_index,
        calls=world.clients.counts | world.administrators.counts | counts,
        changes=dict(world.operator.counts),
        faults=dict(world.faults.injected),
        violation=violation,
        lines=list(world.trace.lines) if violation else [],
    )


def run_security_seed(seed: int, seconds: float, *, faulty: bool = True) -> QuorumVerdict:
    """Draw the schedule of a seed and run it."""
    return run_schedule(draw(seed, seconds, faulty=faulty))
