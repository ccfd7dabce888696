"""The effect of each fault of a quorum schedule, and its end.

`QuorumFaults` has a table from kind to action. An action takes every parameter from its `Fault`. The only random choice
made here is what a power loss keeps of a disk; its generator is seeded by the run's seed and the fault's virtual time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from jepsen_like.simulator.world.heap import EventHeap
from jepsen_like.simulator.world.trace import Trace
from jepsen_like.simulator.world.unkind_network import UnkindNetwork
from metadata.journal.format import decode
from metadata.journal.recovery import recover
from metadata.journal.witness import PATH as WITNESS
from metadata.journal.witness import Witness, Word
from metadata.voters.identity import FOLDER

from .node import QuorumSimNode
from .schedule import Fault
from .truth import QuorumTruth

RESTART_AFTER_FAILURE = 0.3

HEAD_BYTES = 32
"""The part of a file that describes the rest of the file."""
SNAPSHOT = f"{FOLDER}/snapshot"
SNAPSHOT_BODY_AT = 12
NAMED_AT, NAMED_BYTES = 24, 2
"""The bytes of a snapshot of the cluster "simulated" in which its index is stored."""

CUT_BYTES = 1500
"""The largest part that is cut from a journal's end."""

OUST_AFTER = 0.2
"""Seconds in which the leader elected against a stranded leader can make the stranded nodes follow it."""
OUSTED_SECONDS = 1.4
ELECTED_AFTER = 0.4
"""Seconds: the other nodes' patience with the ousted leader, and one round of votes."""
WATCH_EVERY = 0.002
WATCHED_SECONDS = 1.0
FOLLOWS_AFTER = 0.4
"""Seconds in which a deposed leader can become a follower of another one."""
HALVED_SECONDS = 2.0
CALLS_ARE_OVER = 2.5
"""Seconds that a clock leaps forward: more than any call's timeout."""
JUST_BEFORE = 0.02
ELECTION_IS_DUE = 0.7
"""Seconds that a clock leaps forward: more than any election timer has left."""


def journal_of(node: QuorumSimNode) -> str:
    """The file of the newest generation."""
    return max(path for path in node.disk.files() if path.startswith(f"{FOLDER}/journal-"))


class Kill(Protocol):
    """End a node's process now, and start it again later."""

    def __call__(self, node: QuorumSimNode, *, power_loss: random.Random | None, restart_after: float) -> None: ...


class QuorumFaults:
    """Injects faults until `mend`."""

    def __init__(
        self,
        seed: int,
        heap: EventHeap,
        network: UnkindNetwork,
        nodes: Sequence[QuorumSimNode],
        trace: Trace,
        truth: QuorumTruth,
        *,
        kill: Kill,
        replace_disk: Callable[[QuorumSimNode, float], None],
        halted: Callable[[QuorumSimNode, float], None],
        leader: Callable[[], QuorumSimNode | None],
    ) -> None:
        """`replace_disk`: give the node an empty disk, and restart it after this number of seconds. `halted`: do not
        time calls to this node until then. `leader`: the leader of the latest term, if there is one.
        """
        self._seed = seed
        self._heap = heap
        self._network = network
        self._nodes = nodes
        self._trace = trace
        self._truth = truth
        self._kill_node = kill
        self._replace = replace_disk
        self._halted = halted
        self._leader = leader
        self._active = True
        self._cuts: dict[tuple[int, int], int] = {}
        """Direction → the number of faults that cut it."""
        self.injected: dict[str, int] = {}
        self._acts: dict[str, Callable[[Fault, QuorumSimNode], None]] = {
            "kill": self._kill,
            "power_loss": self._power_loss,
            "crash_in_disk_operation": self._crash_in_disk_operation,
            "crash_in_compaction": self._crash_in_compaction,
            "failed_fsync": self._failed_fsync,
            "full_disk": self._full_disk,
            "slow_disk": self._slow_disk,
            "stall": self._stall,
            "cut": lambda fault, node: self._cut([(fault.node, fault.peer)], fault.seconds),
            "isolate": lambda fault, node: self._cut(self._into(fault.node) + self._out_of(fault.node), fault.seconds),
            "strand": self._strand,
            "maroon": self._maroon,
            "deafen": lambda fault, node: self._cut(self._into(fault.node), fault.seconds),
            "reset_connections": self._reset_connections,
            "drop": self._drop,
            "duplicate": self._duplicate,
            "delay": self._delay,
            "wall_clock_jump": self._wall_clock_jump,
            "clock_jump": self._clock_jump,
            "rot": self._rot,
            "rot_snapshot": self._rot_snapshot,
            "lose_end": self._lose_end,
            "rewind": self._rewind,
            "replace_disk": self._replace_disk,
        }

    def inject(self, fault: Fault) -> None:
        """Inject a fault now."""
        if self._active:
            self.injected[fault.kind] = self.injected.get(fault.kind, 0) + 1
            self._trace.note(-1, f"fault {fault}")
            self._acts[fault.kind](fault, self._nodes[fault.node])

    def mend(self) -> None:
        """End all faults. Clocks, damaged disks and replaced disks stay as they are."""
        self._active = False
        self._cuts.clear()
        self._network.heal()
        self._network.clear_up()
        for node in self._nodes:
            node.disk.crash_countdown = node.disk.crash_after_name_change = node.disk.fail_fsync = 0
            node.disk.fsync_seconds = 0.0
            node.disk.full = False
            if node.life is not None:
                self._heap.resume(node.life)

    def _later(self, seconds: float, undo: Callable[[], object]) -> None:
        def due() -> None:
            if self._active:
                undo()

        self._heap.schedule(seconds, due)

    # --- Processes, power, disks -------------------------------------------------------------------------------------

    def _kill(self, fault: Fault, node: QuorumSimNode) -> None:
        self._kill_node(node, power_loss=None, restart_after=fault.seconds)

    def _power_loss(self, fault: Fault, node: QuorumSimNode) -> None:
        rng = random.Random(f"{self._seed}/power/{fault.at}/{fault.node}")
        self._kill_node(node, power_loss=rng, restart_after=fault.seconds)

    def _crash_in_disk_operation(self, fault: Fault, node: QuorumSimNode) -> None:
        node.disk.crash_countdown = int(fault.number) if node.running else 0

    def _crash_in_compaction(self, fault: Fault, node: QuorumSimNode) -> None:
        """The process dies inside a compaction, which rewrites snapshot and journal: no other operation of a running
        voter changes names.
        """
        node.disk.crash_after_name_change = int(fault.number) if node.running else 0

    def _failed_fsync(self, fault: Fault, node: QuorumSimNode) -> None:
        if node.running:
            node.disk_failing = True
            node.disk.fail_fsync = 1

    def _full_disk(self, fault: Fault, node: QuorumSimNode) -> None:
        """Every write fails with "no space": the process stops itself, again after each restart, until there
        is room.
        """
        disk = node.disk
        disk.full = True

        def roomy() -> None:
            disk.full = False

        self._later(fault.seconds, roomy)

    def _slow_disk(self, fault: Fault, node: QuorumSimNode) -> None:
        disk = node.disk
        disk.fsync_seconds = fault.number
        self._halted(node, self._heap.now + fault.seconds)

        def quick() -> None:
            disk.fsync_seconds = 0.0

        self._later(fault.seconds, quick)

    def _stall(self, fault: Fault, node: QuorumSimNode) -> None:
        until = self._heap.now + fault.seconds
        if node.life is not None:
            node.life.paused_until = max(node.life.paused_until, until)
            self._halted(node, until)

    def _rot(self, fault: Fault, node: QuorumSimNode) -> None:
        """A bit of the journal or the snapshot flips while the process is down: anywhere, or at the beginning of the
        file.
        """
        self._kill_node(node, power_loss=None, restart_after=fault.seconds)
        held = (f"{FOLDER}/journal-", f"{FOLDER}/snapshot")
        files = {path: size for path, size in node.disk.files().items() if path.startswith(held) and size}
        rng = random.Random(int(fault.number))
        path = rng.choice(sorted(files))
        node.damaged = True
        within = min(files[path], HEAD_BYTES) if rng.random() < 0.5 else files[path]
        node.disk.flip(path, rng.randrange(within), 1 << rng.randrange(8))

    def _rot_snapshot(self, fault: Fault, node: QuorumSimNode) -> None:
        """A bit flips in the part of the stored snapshot that names its last entry; without a snapshot, anywhere."""
        if SNAPSHOT not in node.disk.files():
            self._rot(fault, node)
            return
        self._kill_node(node, power_loss=None, restart_after=fault.seconds)
        rng = random.Random(int(fault.number))
        node.damaged = True
        node.disk.flip(SNAPSHOT, NAMED_AT + rng.randrange(NAMED_BYTES), 1 << rng.randrange(8))

    def _lose_end(self, fault: Fault, node: QuorumSimNode) -> None:
        """The journal loses its end while the process is down, as a repair of the file system may cause: the lost part
        had been written back, and no checksum reveals the loss. The voter must not start (S9).
        """
        self._kill_node(node, power_loss=None, restart_after=fault.seconds)
        node.damaged = node.must_refuse = True
        self._cut_journal(node, random.Random(int(fault.number)))

    def _rewind(self, fault: Fault, node: QuorumSimNode) -> None:
        """Journal and witness return to an earlier state together: nothing on this disk reveals it, and the voter has
        forgotten its promises. It happens only if the other nodes hold everything that this voter promised;
        otherwise no quorum could keep its promises, and the fault is only a kill.
        """
        bearable = self._truth.others_hold_all_of(node)
        self._kill_node(node, power_loss=None, restart_after=fault.seconds)
        if bearable:
            generation = self._cut_journal(node, random.Random(int(fault.number)))
            witness = Witness(node.disk)
            for synced in (0, 1):  # both sectors
                witness.say(Word(generation, synced))
            witness.sync()
            if self._snapshot_tells(node):
                node.damaged = node.must_refuse = True
            else:
                node.rewound = True
                self._truth.rewound(node)

    def _snapshot_tells(self, node: QuorumSimNode) -> bool:
        """The snapshot kept its state, and is of a later term than the journal knows."""
        if SNAPSHOT not in node.disk.files():
            return False
        _, _, _, term, *_ = msgspec.msgpack.decode(node.disk.read(SNAPSHOT)[SNAPSHOT_BODY_AT:])
        path = journal_of(node)
        return bool(term > recover(path, node.disk.read(path)).term)

    def _cut_journal(self, node: QuorumSimNode, rng: random.Random) -> int:
        """Cut the journal anywhere after its first record. Returns its generation."""
        path = journal_of(node)
        for name in (WITNESS, path):
            node.disk.open(name).fsync()
        content = node.disk.read(path)
        first = decode(content, 0)
        assert first is not None
        left = rng.randrange(max(first.end, len(content) - CUT_BYTES), len(content))
        file = node.disk.open(path)
        file.truncate(left)
        file.fsync()
        return int(path[-14:-4])

    def _replace_disk(self, fault: Fault, node: QuorumSimNode) -> None:
        self._replace(node, fault.seconds)

    # --- Network -----------------------------------------------------------------------------------------------------

    def _into(self, node: int) -> list[tuple[int, int]]:
        return [(int(other.node_id), node) for other in self._nodes if other.node_id != node]

    def _out_of(self, node: int) -> list[tuple[int, int]]:
        return [(node, int(other.node_id)) for other in self._nodes if other.node_id != node]

    def _cut(self, directions: list[tuple[int, int]], seconds: float) -> None:
        for direction in directions:
            self._cuts[direction] = self._cuts.get(direction, 0) + 1
        self._network.cuts.update(directions)

        def mend() -> None:
            for direction in directions:
                self._cuts[direction] -= 1
            self._network.heal()
            self._network.cuts.update(cut for cut, holders in self._cuts.items() if holders)

        self._later(seconds, mend)

    def _strand(self, fault: Fault, node: QuorumSimNode) -> None:
        """Isolate the leader with one follower. Its commands time out and are not sent again. The leader elected in its
        place is isolated as soon as the two follow it, and then the former leader is the first to campaign: the
        follower's acknowledgements from the former leader's first term arrive again in its second.
        """
        leader = self._leader()
        if leader is None:
            return
        if node is leader:
            node = self._nodes[(fault.node + 1) % len(self._nodes)]
        pair = [int(leader.node_id), int(node.node_id)]
        others = [int(other.node_id) for other in self._nodes if other not in (leader, node)]
        self._cut([way for one in pair for other in others for way in ((one, other), (other, one))], fault.seconds)
        way = (int(node.node_id), int(leader.node_id))
        self._network.echoes[way] = fault.seconds + OUST_AFTER + ELECTED_AFTER
        self._later(fault.seconds, lambda: self._network.echoes.pop(way, None))
        for one in (leader, node):
            self._later(fault.seconds - JUST_BEFORE, lambda one=one: self._leap(one, CALLS_ARE_OVER))  # type: ignore[misc]
        self._later(fault.seconds + OUST_AFTER, lambda: self._oust_for(leader, node))

    def _oust_for(self, former: QuorumSimNode, follower: QuorumSimNode) -> None:
        usurper = self._leader()
        if usurper is not None and usurper is not former:
            number = int(usurper.node_id)
            self._cut(self._into(number) + self._out_of(number) + self._into(int(follower.node_id)), OUSTED_SECONDS)
            self._leap(former, ELECTION_IS_DUE)
            helper = next(o for o in self._nodes if o not in (former, follower, usurper))
            heard = [(int(former.node_id), int(helper.node_id))]
            deaf = [way for way in self._out_of(int(former.node_id)) if way not in heard]
            self._once_it_leads(former, WATCHED_SECONDS, lambda: self._cut(deaf, OUSTED_SECONDS))

    def _once_it_leads(self, node: QuorumSimNode, patience: float, act: Callable[[], None]) -> None:
        """Act as soon as the node leads; give up when `patience` is over."""
        if self._leader() is node:
            act()
        elif patience > 0.0:
            self._later(WATCH_EVERY, lambda: self._once_it_leads(node, patience - WATCH_EVERY, act))

    def _maroon(self, fault: Fault, node: QuorumSimNode) -> None:
        """Isolate the leader, which then changes the voters. It is deposed, its entries are truncated and not proposed
        again. Then half of the voters are to elect it.
        """
        leader = self._leader()
        if leader is not None:
            number = int(leader.node_id)
            self._cut(self._into(number) + self._out_of(number), fault.seconds)
            self._later(fault.seconds - JUST_BEFORE, lambda: self._leap(leader, CALLS_ARE_OVER))
            self._later(fault.seconds + FOLLOWS_AFTER, lambda: self._halve_for(leader))

    def _halve_for(self, former: QuorumSimNode) -> None:
        if former.quorum is None:
            return
        own = int(former.node_id)
        voters = [int(voter) for voter in former.quorum.engine.journal.configurations[-1][1].node_ids if voter != own]
        half = {own, *voters[: (len(voters) + 1) // 2 - 1]}
        rest = [int(other.node_id) for other in self._nodes if int(other.node_id) not in half]
        self._cut([way for one in half for other in rest for way in ((one, other), (other, one))], HALVED_SECONDS)
        self._leap(former, ELECTION_IS_DUE)

    def _reset_connections(self, fault: Fault, node: QuorumSimNode) -> None:
        self._network.reset_some(fault.number)

    def _drop(self, fault: Fault, node: QuorumSimNode) -> None:
        self._network.drop = fault.number
        self._later(fault.seconds, self._network.clear_up)

    def _duplicate(self, fault: Fault, node: QuorumSimNode) -> None:
        self._network.duplicate = fault.number
        self._later(fault.seconds, self._network.clear_up)

    def _delay(self, fault: Fault, node: QuorumSimNode) -> None:
        self._network.delay = fault.number
        self._later(fault.seconds, self._network.clear_up)

    # --- Clocks ------------------------------------------------------------------------------------------------------

    def _wall_clock_jump(self, fault: Fault, node: QuorumSimNode) -> None:
        node.clock.wall_offset_ms += int(fault.number * 1000)

    def _clock_jump(self, fault: Fault, node: QuorumSimNode) -> None:
        self._leap(node, fault.number)

    def _leap(self, node: QuorumSimNode, seconds: float) -> None:
        """Timers that expire in the leap fire at once."""
        node.clock.leapt += seconds
        if node.running:
            node.tick_soon()
