"""Consumer groups in the world of the quorum (`jepsen_like/simulator/quorum/run.py`).

Nodes, network, disks and faults are the quorum's. The members of a group join, read, commit, hang, crash and are
isolated meanwhile. The group's topics are the registers that the quorum's clients create and delete, with more
partitions.

Safety is checked after every entry that the quorum has applied (`truth.py`). Progress is checked at the end (S10):
within `LIVENESS_SECONDS` after the heal every running member is in the group, the group is stable, every partition is
read by its owner, and a commit of each member is applied.

The members' actions are operations of the schedule, so a failing schedule is shrunk and saved like others.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterator
from unittest import mock

from jepsen_like.simulator.quorum.node import QuorumSimNode
from jepsen_like.simulator.quorum.run import QuorumVerdict, QuorumWorld, small_limits
from jepsen_like.simulator.quorum.schedule import Operation, Schedule
from jepsen_like.simulator.world.violation import Violation
from metadata.controller import group_coordinator as coordinator
from metadata.records.groups import GroupState
from raftlog.errors import RaftlogError

from .growing import grow
from .members import GROUP, MemberSettings, SimMember
from .node import GroupSimNode
from .schedule import MEMBER_OPERATIONS, MEMBERS, draw
from .truth import GroupTruth

LIVENESS_SECONDS = 40.0
LOOK_EVERY = 0.5
EXPIRY_SECONDS = 1.0
"""Seconds between two checks for expired offsets."""


class GroupWorld(QuorumWorld):
    """Everything of one run."""

    node_kind = GroupSimNode

    def __init__(self, schedule: Schedule) -> None:
        self._rng = random.Random(f"{schedule.seed}/groups")
        self.members: dict[int, SimMember] = {}
        """Place → the process that has it now; a crashed process is followed by another."""
        self.group = GroupTruth(GROUP, _Living(self.members))
        self._started = 0
        self._settings = MemberSettings(assignor=self._rng.choice(("uniform", "uniform", "range")))
        self._static = self._rng.random() < 0.3
        super().__init__(schedule)

    @property
    def group_nodes(self) -> list[GroupSimNode]:
        return [node for node in self.nodes if isinstance(node, GroupSimNode)]

    def applied(self, node: QuorumSimNode, index: int) -> None:
        super().applied(node, index)
        if node.quorum is not None:
            self.group.applied(index, node.quorum.image)

    # --- Operations --------------------------------------------------------------------------------------------------

    def _call(self, operation: Operation) -> None:
        if operation.kind not in MEMBER_OPERATIONS:
            super()._call(operation)
            return
        place, member = operation.subject % MEMBERS, self.members.get(operation.subject % MEMBERS)
        self.trace.note(-1, f"{operation.kind} {place}")
        rng = random.Random(f"{self.seed}/groups/{operation.at}")
        if operation.kind == "member_starts" and (member is None or member.crashed):
            self._start_member(place)
        elif operation.kind == "topic_grows":
            grow(self.nodes[operation.node], operation.subject)
        elif member is not None and operation.kind == "member_crashes":
            member.crashed = True
        elif member is not None and operation.kind == "member_is_cut_off":
            member.cut_off_until = self.heap.now + rng.uniform(0.2, 6.0)
        elif member is not None and operation.kind == "member_hangs":
            member.hangs_until = self.heap.now + rng.uniform(0.5, 8.0)

    def _start_member(self, place: int) -> None:
        self._started += 1
        instance = f"instance-{place}" if self._static and place % 2 else ""
        rng = random.Random(f"{self.seed}/groups/member-{self._started}")
        name = f"member-{self._started:04}"
        self.members[place] = SimMember(name, instance, self._settings, self.heap, self.group_nodes, self.group, rng)

    # --- Liveness ----------------------------------------------------------------------------------------------------

    def _require_progress(self, healed: float) -> None:
        """Check the group's progress and, once its members have stopped, the quorum's."""
        for member in self.members.values():
            member.cut_off_until = member.hangs_until = 0.0
        at, carried_out = healed, self.group.carried_out
        while self._has_majority():
            at += LOOK_EVERY
            self.heap.run_until(at, self._run_event)
            missing = self._missing_in_group(carried_out)
            if not missing:
                break
            if at >= healed + LIVENESS_SECONDS:
                raise Violation(f"S10: {LIVENESS_SECONDS:.0f} s after everything healed: {'; '.join(missing[:5])}")
        for member in self.members.values():
            member.crashed = True
        self.heap.run_until(at + 5.0, self._run_event)
        super()._require_progress(at + 5.0)

    def _missing_in_group(self, carried_out: int) -> list[str]:
        living = [member for member in self.members.values() if not member.crashed]
        leader = self.leader()
        if leader is None or leader.quorum is None:
            return ["no node leads"]
        image = leader.quorum.image
        group = image.groups.by_id.get(GROUP)
        if not living or group is None:
            return []
        missing = [] if group.state is GroupState.STABLE else [f"the group is {group.state.value}"]
        names = {member.member_id for member in living}
        missing += [f"{name} is in the group" for name in sorted(set(group.members) - names)]
        missing += [f"{name} is not in the group" for name in sorted(names - set(group.members))]
        wanted = {one for one in image.partitions if image.topics[one.topic_id].name.startswith("register-")}
        read = [one for member in living for one in member.reading]
        missing += [f"no member reads {one}" for one in sorted(wanted - set(read))]
        if len(read) != len(set(read)):
            missing.append("two read one partition")
        if wanted and self.group.carried_out <= carried_out:
            missing.append("no commit is carried out")
        return missing


class _Living:
    """The running members, at the time of each iteration."""

    def __init__(self, members: dict[int, SimMember]) -> None:
        self._members = members

    def __iter__(self) -> Iterator[SimMember]:
        return (member for member in self._members.values() if not member.crashed)


def run_schedule(schedule: Schedule) -> QuorumVerdict:
    """Run a schedule. An exception in the product's code is a violation, with its traceback."""
    with small_limits(schedule.limits), mock.patch.object(coordinator, "EXPIRY_SECONDS", EXPIRY_SECONDS):
        world = GroupWorld(schedule)
        violation = ""
        try:
            world.run()
        except Violation as found:
            violation = str(found)
        except (RaftlogError, AssertionError, LookupError, TypeError, ValueError, AttributeError, OSError) as error:
            violation = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    counts = {"group_commits": world.group.carried_out, "group_grants": world.group.grants}
    return QuorumVerdict(
        seed=schedule.seed,
        seconds=world.heap.now,
        voters=schedule.voters,
        observers=schedule.observers,
        trace=world.trace.digest(),
        events=world.heap.events_run,
        messages=world.network.messages,
        entries=world.truth.commit_index,
        calls=world.clients.counts | counts,
        changes=dict(world.operator.counts),
        faults=dict(world.faults.injected),
        violation=violation,
        lines=list(world.trace.lines) if violation else [],
    )


def run_group_seed(seed: int, seconds: float, *, faulty: bool = True) -> QuorumVerdict:
    """Draw the schedule of a seed and run it."""
    return run_schedule(draw(seed, seconds, faulty=faulty))
