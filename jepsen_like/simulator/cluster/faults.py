"""The effect of each fault in a cluster's schedule, and its end.

A table from kind to function. Each function takes everything from its `Fault`; the parts of a disk that survive a power
failure are drawn from a generator that is seeded by the seed and the fault's time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from jepsen_like.simulator.brokers.node import REPLICATION, SimNode
from jepsen_like.simulator.quorum.schedule import Fault
from jepsen_like.simulator.world.heap import EventHeap
from jepsen_like.simulator.world.network import CLIENT, SimNetwork, Way
from jepsen_like.simulator.world.trace import Trace
from partitions.files.quarantine import QUARANTINED_SUFFIX
from raftlog.model import PartitionRecord

from .replica_faults import ReplicaFaults, rot_in_service

LOGS = "partitions/"


class Kill(Protocol):
    """End a node's process now, and start it again later."""

    def __call__(self, node: SimNode, *, power_loss: random.Random | None, restart_after: float) -> None: ...


class ClusterFaults:
    """Injects faults until `mend`."""

    def __init__(
        self,
        seed: int,
        heap: EventHeap,
        network: SimNetwork,
        nodes: Sequence[SimNode],
        trace: Trace,
        *,
        kill: Kill,
        stop_cleanly: Callable[[SimNode, float], None],
        led_partition: Callable[[int], PartitionRecord | None],
        rotted: Callable[[SimNode], None],
    ) -> None:
        """`stop_cleanly`: stop the node in an orderly way, and start it again after these seconds. `led_partition`:
        some partition that has a leader, chosen by the number. `rotted`: a file of the disk rotted under a running
        process."""
        self._seed = seed
        self._heap = heap
        self._network = network
        self._nodes = nodes
        self._trace = trace
        self._kill_node = kill
        self._stop_cleanly = stop_cleanly
        self._led_partition = led_partition
        self._rotted = rotted
        self._active = True
        self._of_replicas = ReplicaFaults(nodes, self._cut, self._kill, self._later)
        self._cuts: dict[Way, int] = {}
        """Way → the number of faults that cut it."""
        self.injected: dict[str, int] = {}
        self._acts: dict[str, Callable[[Fault, SimNode], None]] = {
            "kill": self._kill,
            "kill_leader": lambda fault, node: self._kill(fault, self._leader(fault, node)),
            "power_loss": self._power_loss,
            "power_loss_of_leader": lambda fault, node: self._power_loss(fault, self._leader(fault, node)),
            "crash_in_disk_operation": self._crash_in_disk_operation,
            "failed_fsync": self._failed_fsync,
            "full_disk": self._full_disk,
            "fill_disk": self._fill_disk,
            "no_descriptors": self._no_descriptors,
            "exceptions": self._exceptions,
            "slow_disk": self._slow_disk,
            "clean_stop": lambda fault, node: self._stop_cleanly(node, fault.seconds),
            "stall": self._stall,
            "cut": lambda fault, node: self._cut([(fault.node, fault.peer)], fault.seconds),
            "isolate": lambda fault, node: self._isolate(fault, node),
            "isolate_leader": lambda fault, node: self._isolate(fault, self._leader(fault, node)),
            "deafen": lambda fault, node: self._cut(self._into(node), fault.seconds),
            "stall_replication": lambda fault, node: self._cut(self._replication_of([node]), fault.seconds),
            "stall_leader": lambda fault, node: self._cut(
                self._replication_of([self._leader(fault, node)]), fault.seconds
            ),
            "stall_all_replication": lambda fault, node: self._cut(self._replication_of(self._nodes), fault.seconds),
            "cut_off_clients": lambda fault, node: self._cut_off_clients(fault, node, requests=True),
            "mute_to_clients": lambda fault, node: self._cut_off_clients(fault, node, requests=False),
            "reset_connections": lambda fault, node: self._reset_connections(fault),
            "wall_clock_jump": self._wall_clock_jump,
            "rot": self._rot,
            "rot_leader": lambda fault, node: self._rot(fault, self._leader(fault, node)),
            "rot_in_service": self._rot_in_service,
        }

    def inject(self, fault: Fault) -> None:
        """Inject the fault now."""
        if not self._active:
            return
        self.injected[fault.kind] = self.injected.get(fault.kind, 0) + 1
        self._trace.note(-1, f"fault {fault}")
        if fault.kind in self._acts:
            self._acts[fault.kind](fault, self._nodes[fault.node])
            return
        record = self._led_partition(int(fault.number))
        if record is not None:
            self._of_replicas.acts[fault.kind](fault, record)

    def mend(self) -> None:
        """End all faults: cuts heal, wall clocks stay as they are."""
        self._active = False
        self._cuts.clear()
        self._network.heal()
        for node in self._nodes:
            node.disk.crash_countdown = node.disk.fail_fsync = 0
            node.slow_disk_seconds = 0.0
            node.disk.full_below = ""
            node.disk.no_descriptors = False
            if node.breaks is not None:
                node.breaks.probability = 0.0
            if node.life is not None:
                self._heap.resume(node.life)

    def _later(self, seconds: float, undo: Callable[[], None]) -> None:
        self._heap.schedule(seconds, lambda: undo() if self._active else None)

    def _leader(self, fault: Fault, otherwise: SimNode) -> SimNode:
        record = self._led_partition(int(fault.number))
        return self._nodes[record.leader] if record is not None else otherwise

    # --- Processes, power, disks -------------------------------------------------------------------------------------

    def _kill(self, fault: Fault, node: SimNode) -> None:
        self._kill_node(node, power_loss=None, restart_after=fault.seconds)

    def _power_loss(self, fault: Fault, node: SimNode) -> None:
        rng = random.Random(f"{self._seed}/power/{fault.at}/{node.node_id}")
        self._kill_node(node, power_loss=rng, restart_after=fault.seconds)

    def _crash_in_disk_operation(self, fault: Fault, node: SimNode) -> None:
        node.disk.crash_countdown = int(fault.number) if node.running else 0

    def _failed_fsync(self, fault: Fault, node: SimNode) -> None:
        """Let one fsync fail and drop its data.

        A replica goes offline, or the node stops; later the process is restarted, as an operator would.
        """
        node.expected_stop = True
        node.disk.fail_fsync = 1

        def replace() -> None:
            node.disk.fail_fsync = 0
            self._kill_node(node, power_loss=None, restart_after=fault.seconds)

        # Also after everything else is mended: an offline replica needs a new process.
        self._heap.schedule(1.0 + fault.seconds, replace)

    def _full_disk(self, fault: Fault, node: SimNode) -> None:
        """Leave no space for logs; the quorum has its own. A process that cannot even open its logs ends."""
        if node.disk.occupied:
            return  # It is full already, for all files.
        node.disk.full_below = LOGS

        def room() -> None:
            node.disk.full_below = ""

        self._later(fault.seconds, room)

    def _fill_disk(self, fault: Fault, node: SimNode) -> None:
        """Let a foreign file take all space but a few blocks, permanently: later free space was freed by the product.

        If the logs have had no space until now, the disk is filled once the node has its ballast again: without ballast
        a start is not guaranteed (docs/quorum.md).
        """
        if node.disk.occupied:
            return
        if node.disk.full_below or not (node.running and node.own_disk.space().reserve_whole):
            self._later(1.0, lambda: self._fill_disk(fault, node))
            return
        node.disk.occupy(int(fault.number))

    def _no_descriptors(self, fault: Fault, node: SimNode) -> None:
        """Use up the process's descriptors: open files and connections stay, and no new one can be opened."""
        node.disk.no_descriptors = True
        self._network.refusing.add(int(node.node_id))

        def some_again() -> None:
            node.disk.no_descriptors = False
            self._network.refusing.discard(int(node.node_id))

        self._later(fault.seconds, some_again)

    def _exceptions(self, fault: Fault, node: SimNode) -> None:
        """Let ports of the node's partitions raise unforeseen exceptions.

        A replica that broke too often stays out of service until the process is restarted.
        """
        assert node.breaks is not None
        node.breaks.probability = fault.number

        def quiet() -> None:
            assert node.breaks is not None
            node.breaks.probability = 0.0

        def replace() -> None:
            quiet()
            if node.broker is not None and node.broker.manager.out_of_service():
                self._kill_node(node, power_loss=None, restart_after=0.1)

        self._later(fault.seconds, quiet)
        # Also after everything else is mended: such a replica does not return otherwise.
        self._heap.schedule(fault.seconds + 3.0, replace)

    def _slow_disk(self, fault: Fault, node: SimNode) -> None:
        node.slow_disk_seconds = fault.number

        def quick() -> None:
            node.slow_disk_seconds = 0.0

        self._later(fault.seconds, quick)

    def _stall(self, fault: Fault, node: SimNode) -> None:
        if node.life is not None:
            node.life.paused_until = max(node.life.paused_until, self._heap.now + min(fault.seconds, 3.0))

    def _rot(self, fault: Fault, node: SimNode) -> None:
        """Flip a bit of a log, or of a small file beside it, while the process is down.

        A log's indexes are removed, so that recovery reads the log.
        """
        self._kill_node(node, power_loss=None, restart_after=fault.seconds)
        files = {path: size for path, size in node.disk.files().items() if path.startswith(LOGS) and size}
        rng = random.Random(int(fault.number))
        logs = [path for path in sorted(files) if path.endswith(".log")]
        beside = [path for path in sorted(files) if not path.endswith((".log", QUARANTINED_SUFFIX))]
        if not logs:
            return
        node.disk.fail_fsync = 0
        path = rng.choice(beside if beside and rng.random() < 0.25 else logs)
        node.disk.flip(path, rng.randrange(files[path]), 1 << rng.randrange(8))
        if path.endswith(".log"):
            for suffix in (".index", ".timeindex"):
                node.disk.remove(path.removesuffix(".log") + suffix)
            node.disk.fsync_directory(path.rpartition("/")[0])

    def _rot_in_service(self, fault: Fault, node: SimNode) -> None:
        if rot_in_service(node, int(fault.number)):
            self._rotted(node)

    # --- Network -----------------------------------------------------------------------------------------------------

    def _others(self, node: SimNode) -> list[int]:
        return [int(other.node_id) for other in self._nodes if other.node_id != node.node_id]

    def _into(self, node: SimNode) -> list[tuple[int, int]]:
        return [(other, int(node.node_id)) for other in self._others(node)]

    def _isolate(self, fault: Fault, node: SimNode) -> None:
        """Isolate a node from the other nodes; clients still reach it."""
        self._cut(self._into(node) + [(int(node.node_id), other) for other in self._others(node)], fault.seconds)

    def _cut_off_clients(self, fault: Fault, node: SimNode, *, requests: bool) -> None:
        """Cut one node or all off from clients; if only answers are lost, requests are executed and resent."""
        nodes = self._nodes if int(fault.number) % 2 else [node]
        directions = [(int(one.node_id), CLIENT) for one in nodes]
        if requests:
            directions += [(CLIENT, int(one.node_id)) for one in nodes]
        self._cut(directions, fault.seconds)

    def _replication_of(self, nodes: Iterable[SimNode]) -> list[Way]:
        """Return the ways of these nodes' batches and acknowledgements; the quorum continues and fences no broker."""
        into = [way for node in nodes for way in self._into(node)]
        both = dict.fromkeys(into + [(receiver, sender) for sender, receiver in into])
        return [(sender, receiver, REPLICATION) for sender, receiver in both]

    def _cut(self, ways: Sequence[Way], seconds: float) -> None:
        network = self._network
        for way in ways:
            self._cuts[way] = self._cuts.get(way, 0) + 1
            network.cut(way)

        def mend() -> None:
            for way in ways:
                self._cuts[way] -= 1
                if not self._cuts[way]:
                    network.mend(way)
            network.flow()

        self._later(seconds, mend)

    def _reset_connections(self, fault: Fault) -> None:
        self._network.reset_some(fault.number)

    # --- Clocks ------------------------------------------------------------------------------------------------------

    def _wall_clock_jump(self, fault: Fault, node: SimNode) -> None:
        node.clock.wall_offset_ms += int(fault.number * 1000)
