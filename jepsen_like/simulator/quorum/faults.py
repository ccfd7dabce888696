"""What each fault of a quorum schedule does to the world, and how it is mended.

A table from kind to act. Each act takes everything from its `Fault`: nothing is drawn here but what a power loss keeps
of a disk, whose generator is named by the seed and the fault's place in virtual time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
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
from .probe import configuration_of
from .schedule import Fault
from .truth import QuorumTruth

RESTART_AFTER_FAILURE = 0.3

HEAD_BYTES = 32
"""Where a file says what the rest of it is."""
SNAPSHOT = f"{FOLDER}/snapshot"
SNAPSHOT_BODY_AT = 12
NAMED_AT, NAMED_BYTES = 24, 2
"""Where a snapshot of the cluster "simulated" says of which index it is."""

CUT_BYTES = 1500
"""Of a journal's end, at most."""

OUST_AFTER = 0.2
"""Seconds that whoever was elected against a stranded leader has to make itself obeyed by it."""
OUSTED_SECONDS = 1.4
ELECTED_AFTER = 0.4
"""Seconds: the others' patience with whoever was ousted, and a round of votes."""
WATCH_EVERY = 0.002
WATCHED_SECONDS = 1.0
FOLLOWS_AFTER = 0.4
"""Seconds that a deposed leader has to follow another one."""
HALVED_SECONDS = 2.0
CALLS_ARE_OVER = 2.5
"""Seconds of a clock's leap: more than any call may take."""
JUST_BEFORE = 0.02
ELECTION_IS_DUE = 0.7
"""Seconds of a clock's leap: more than any election timer has left."""


def journal_of(node: QuorumSimNode) -> str:
    """The newest generation's file."""
    return max(path for path in node.disk.files() if path.startswith(f"{FOLDER}/journal-"))


class QuorumWorldPort(Protocol):
    """What faults act on."""

    seed: int
    heap: EventHeap
    network: UnkindNetwork
    nodes: list[QuorumSimNode]
    trace: Trace
    truth: QuorumTruth

    def kill(self, node: QuorumSimNode, *, power_loss: random.Random | None, restart_after: float) -> None: ...
    def replace_disk(self, node: QuorumSimNode, *, restart_after: float) -> None: ...
    def halted(self, node: QuorumSimNode, until: float) -> None: ...
    def leader(self) -> QuorumSimNode | None: ...


class QuorumFaults:
    """Carries out faults until `mend`."""

    def __init__(self, world: QuorumWorldPort) -> None:
        self._world = world
        self._active = True
        self._cuts: dict[tuple[int, int], int] = {}
        """Direction → how many faults hold it cut."""
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
        """Now."""
        if self._active:
            self.injected[fault.kind] = self.injected.get(fault.kind, 0) + 1
            self._world.trace.note(-1, f"fault {fault}")
            self._acts[fault.kind](fault, self._world.nodes[fault.node])

    def mend(self) -> None:
        """No more faults. Clocks, rotten and replaced disks stay as they are."""
        world = self._world
        self._active = False
        self._cuts.clear()
        world.network.heal()
        world.network.clear_up()
        for node in world.nodes:
            node.disk.crash_countdown = node.disk.crash_after_name_change = node.disk.fail_fsync = 0
            node.disk.fsync_seconds = 0.0
            node.disk.full = False
            if node.life is not None:
                node.life.paused_until = 0.0

    def _later(self, seconds: float, undo: Callable[[], object]) -> None:
        def due() -> None:
            if self._active:
                undo()

        self._world.heap.schedule(seconds, due)

    # --- Processes, power, disks -------------------------------------------------------------------------------------

    def _kill(self, fault: Fault, node: QuorumSimNode) -> None:
        self._world.kill(node, power_loss=None, restart_after=fault.seconds)

    def _power_loss(self, fault: Fault, node: QuorumSimNode) -> None:
        rng = random.Random(f"{self._world.seed}/power/{fault.at}/{fault.node}")
        self._world.kill(node, power_loss=rng, restart_after=fault.seconds)

    def _crash_in_disk_operation(self, fault: Fault, node: QuorumSimNode) -> None:
        node.disk.crash_countdown = int(fault.number) if node.running else 0

    def _crash_in_compaction(self, fault: Fault, node: QuorumSimNode) -> None:
        """Where snapshot and journal are written anew: no other operation of a running voter changes names."""
        node.disk.crash_after_name_change = int(fault.number) if node.running else 0

    def _failed_fsync(self, fault: Fault, node: QuorumSimNode) -> None:
        if node.running:
            node.disk_failing = True
            node.disk.fail_fsync = 1

    def _full_disk(self, fault: Fault, node: QuorumSimNode) -> None:
        """No write has room: the process stops itself, and does so again until there is some."""
        disk = node.disk
        disk.full = True

        def roomy() -> None:
            disk.full = False

        self._later(fault.seconds, roomy)

    def _slow_disk(self, fault: Fault, node: QuorumSimNode) -> None:
        disk = node.disk
        disk.fsync_seconds = fault.number
        self._world.halted(node, self._world.heap.now + fault.seconds)

        def quick() -> None:
            disk.fsync_seconds = 0.0

        self._later(fault.seconds, quick)

    def _stall(self, fault: Fault, node: QuorumSimNode) -> None:
        until = self._world.heap.now + fault.seconds
        if node.life is not None:
            node.life.paused_until = max(node.life.paused_until, until)
            self._world.halted(node, until)

    def _rot(self, fault: Fault, node: QuorumSimNode) -> None:
        """A bit of the journal or the snapshot flips while the process is down: anywhere, or where the file begins."""
        self._world.kill(node, power_loss=None, restart_after=fault.seconds)
        held = (f"{FOLDER}/journal-", f"{FOLDER}/snapshot")
        files = {path: size for path, size in node.disk.files().items() if path.startswith(held) and size}
        rng = random.Random(int(fault.number))
        path = rng.choice(sorted(files))
        node.damaged = True
        within = min(files[path], HEAD_BYTES) if rng.random() < 0.5 else files[path]
        node.disk.flip(path, rng.randrange(within), 1 << rng.randrange(8))

    def _rot_snapshot(self, fault: Fault, node: QuorumSimNode) -> None:
        """A bit flips where the stored snapshot says of which entry it is; or anywhere, while there is none."""
        if SNAPSHOT not in node.disk.files():
            self._rot(fault, node)
            return
        self._world.kill(node, power_loss=None, restart_after=fault.seconds)
        rng = random.Random(int(fault.number))
        node.damaged = True
        node.disk.flip(SNAPSHOT, NAMED_AT + rng.randrange(NAMED_BYTES), 1 << rng.randrange(8))

    def _lose_end(self, fault: Fault, node: QuorumSimNode) -> None:
        """The journal loses its end while the process is down, as when a file system is repaired: everything was
        written back before, and no checksum tells. Its voter must not start (S9)."""
        self._world.kill(node, power_loss=None, restart_after=fault.seconds)
        node.damaged = node.must_refuse = True
        self._cut_journal(node, random.Random(int(fault.number)))

    def _rewind(self, fault: Fault, node: QuorumSimNode) -> None:
        """Journal and witness go back in time together: nothing on this disk tells, and what the voter promised is
        forgotten. Where others know all of it; else nobody could promise anything any more, and it is a mere kill."""
        bearable = self._world.truth.others_hold_all_of(node)
        self._world.kill(node, power_loss=None, restart_after=fault.seconds)
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
                self._world.truth.rewound(node)

    def _snapshot_tells(self, node: QuorumSimNode) -> bool:
        """A snapshot that did not go back with its journal is of a term that the journal never heard of."""
        if SNAPSHOT not in node.disk.files():
            return False
        _, _, _, term, *_ = msgspec.msgpack.decode(node.disk.read(SNAPSHOT)[SNAPSHOT_BODY_AT:])
        path = journal_of(node)
        return bool(term > recover(path, node.disk.read(path)).term)

    def _cut_journal(self, node: QuorumSimNode, rng: random.Random) -> int:
        """Anywhere behind its first record. Returns the generation."""
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
        self._world.replace_disk(node, restart_after=fault.seconds)

    # --- Network -----------------------------------------------------------------------------------------------------

    def _into(self, node: int) -> list[tuple[int, int]]:
        return [(int(other.node_id), node) for other in self._world.nodes if other.node_id != node]

    def _out_of(self, node: int) -> list[tuple[int, int]]:
        return [(node, int(other.node_id)) for other in self._world.nodes if other.node_id != node]

    def _cut(self, directions: list[tuple[int, int]], seconds: float) -> None:
        for direction in directions:
            self._cuts[direction] = self._cuts.get(direction, 0) + 1
        self._world.network.cuts.update(directions)

        def mend() -> None:
            for direction in directions:
                self._cuts[direction] -= 1
            self._world.network.heal()
            self._world.network.cuts.update(cut for cut, holders in self._cuts.items() if holders)

        self._later(seconds, mend)

    def _strand(self, fault: Fault, node: QuorumSimNode) -> None:
        """The leader goes on with one follower, cut off from all others; what it is asked for meanwhile comes to
        nothing, and is not asked for again. Whoever is elected in its place is cut off as soon as the two have obeyed
        it, and the first to campaign then is the former leader: what its follower acknowledged in its first term
        comes again in another one."""
        world = self._world
        leader = world.leader()
        if leader is None:
            return
        if node is leader:
            node = world.nodes[(fault.node + 1) % len(world.nodes)]
        pair = [int(leader.node_id), int(node.node_id)]
        others = [int(other.node_id) for other in world.nodes if other not in (leader, node)]
        self._cut([way for one in pair for other in others for way in ((one, other), (other, one))], fault.seconds)
        way = (int(node.node_id), int(leader.node_id))
        world.network.echoes[way] = fault.seconds + OUST_AFTER + ELECTED_AFTER
        self._later(fault.seconds, lambda: world.network.echoes.pop(way, None))
        for one in (leader, node):
            self._later(fault.seconds - JUST_BEFORE, lambda one=one: self._leap(one, CALLS_ARE_OVER))  # type: ignore[misc]
        self._later(fault.seconds + OUST_AFTER, lambda: self._oust_for(leader, node))

    def _oust_for(self, former: QuorumSimNode, follower: QuorumSimNode) -> None:
        usurper = self._world.leader()
        if usurper is not None and usurper is not former:
            number = int(usurper.node_id)
            self._cut(self._into(number) + self._out_of(number) + self._into(int(follower.node_id)), OUSTED_SECONDS)
            self._leap(former, ELECTION_IS_DUE)
            helper = next(o for o in self._world.nodes if o not in (former, follower, usurper))
            heard = [(int(former.node_id), int(helper.node_id))]
            deaf = [way for way in self._out_of(int(former.node_id)) if way not in heard]
            self._once_it_leads(former, WATCHED_SECONDS, lambda: self._cut(deaf, OUSTED_SECONDS))

    def _once_it_leads(self, node: QuorumSimNode, patience: float, act: Callable[[], None]) -> None:
        """As soon as it does; or not at all."""
        if self._world.leader() is node:
            act()
        elif patience > 0.0:
            self._later(WATCH_EVERY, lambda: self._once_it_leads(node, patience - WATCH_EVERY, act))

    def _maroon(self, fault: Fault, node: QuorumSimNode) -> None:
        """Nobody hears the leader, which changes the voters. It is deposed, and what it appended is cut away, and not
        asked for again. Then it is to be elected by half of the voters."""
        leader = self._world.leader()
        if leader is not None:
            number = int(leader.node_id)
            self._cut(self._into(number) + self._out_of(number), fault.seconds)
            self._later(fault.seconds - JUST_BEFORE, lambda: self._leap(leader, CALLS_ARE_OVER))
            self._later(fault.seconds + FOLLOWS_AFTER, lambda: self._halve_for(leader))

    def _halve_for(self, former: QuorumSimNode) -> None:
        if former.quorum is None:
            return
        own = int(former.node_id)
        voters = [int(voter) for voter in configuration_of(former.quorum).node_ids if voter != own]
        half = {own, *voters[: (len(voters) + 1) // 2 - 1]}
        rest = [int(other.node_id) for other in self._world.nodes if int(other.node_id) not in half]
        self._cut([way for one in half for other in rest for way in ((one, other), (other, one))], HALVED_SECONDS)
        self._leap(former, ELECTION_IS_DUE)

    def _reset_connections(self, fault: Fault, node: QuorumSimNode) -> None:
        self._world.network.reset_some(fault.number)

    def _drop(self, fault: Fault, node: QuorumSimNode) -> None:
        self._world.network.drop = fault.number
        self._later(fault.seconds, self._world.network.clear_up)

    def _duplicate(self, fault: Fault, node: QuorumSimNode) -> None:
        self._world.network.duplicate = fault.number
        self._later(fault.seconds, self._world.network.clear_up)

    def _delay(self, fault: Fault, node: QuorumSimNode) -> None:
        self._world.network.delay = fault.number
        self._later(fault.seconds, self._world.network.clear_up)

    # --- Clocks ------------------------------------------------------------------------------------------------------

    def _wall_clock_jump(self, fault: Fault, node: QuorumSimNode) -> None:
        node.clock.wall_offset_ms += int(fault.number * 1000)

    def _clock_jump(self, fault: Fault, node: QuorumSimNode) -> None:
        self._leap(node, fault.number)

    def _leap(self, node: QuorumSimNode, seconds: float) -> None:
        """Timers that ran out meanwhile are due at once."""
        node.clock.leapt += seconds
        if node.running:
            node.tick_soon()
