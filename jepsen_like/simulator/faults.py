"""What goes wrong in a simulated world, drawn from the seed: which kinds at all (a swarm), and when.

Every fault comes from one generator of its own, so that a run's other draws stay the same when faults are left out.
A fault acts on the world through `World`; what was broken is mended some time later, and `mend` mends everything, for
the liveness part of a run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from .heap import EventHeap
from .network import CLIENT, SimNetwork
from .node import SimNode
from .trace import Trace


class World(Protocol):
    """What faults act on."""

    heap: EventHeap
    network: SimNetwork
    nodes: list[SimNode]
    trace: Trace

    def kill(self, node: SimNode, *, power_loss: bool, restart_after: float) -> None: ...
    def stop_cleanly(self, node: SimNode, *, restart_after: float) -> None: ...


class Faults:
    """Injects the chosen kinds at random times until `mend`."""

    def __init__(self, world: World, rng: random.Random, *, mean_seconds: float) -> None:
        self._world = world
        self._rng = rng
        self._mean = mean_seconds
        self._active = True
        kinds: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "kill_and_back": self._kill_and_back,
            "power_loss": self._power_loss,
            "power_loss_all": self._power_loss_all,
            "kill_all": self._kill_all,
            "crash_in_disk_operation": self._crash_in_disk_operation,
            "failed_fsync": self._failed_fsync,
            "clean_stop": self._clean_stop,
            "pause": self._pause,
            "cut_one_way": self._cut_one_way,
            "isolate": self._isolate,
            "isolate_inbound": self._isolate_inbound,
            "cut_off_clients": self._cut_off_clients,
            "reset_connections": self._reset_connections,
            "wall_clock_jump": self._wall_clock_jump,
        }
        self.kinds = {name: fault for name, fault in kinds.items() if rng.random() < 0.5} or {"kill": self._kill}
        self.injected: dict[str, int] = dict.fromkeys(self.kinds, 0)
        self._next()

    def mend(self) -> None:
        """No more faults; cuts heal, clocks of the wall stay as they are."""
        self._active = False
        self._world.network.heal()
        for node in self._world.nodes:
            node.disk.crash_countdown = 0
            node.disk.fail_fsync = 0
            if node.life is not None:
                node.life.paused_until = 0.0

    def _next(self) -> None:
        self._world.heap.schedule(self._rng.expovariate(1 / self._mean), self._inject)

    def _inject(self) -> None:
        if not self._active:
            return
        name = self._rng.choice(sorted(self.kinds))
        self.injected[name] += 1
        self._world.trace.note(-1, f"fault {name}")
        self.kinds[name]()
        self._next()

    def _node(self) -> SimNode:
        return self._rng.choice(self._world.nodes)

    def _down_for(self) -> float:
        return self._rng.choice((0.05, 0.3, 1.0, 3.0)) * self._rng.uniform(0.5, 1.5)

    # --- Processes and power ---

    def _kill(self) -> None:
        self._world.kill(self._node(), power_loss=False, restart_after=self._down_for())

    def _kill_and_back(self) -> None:
        """Back before anybody's session has ended."""
        self._world.kill(self._node(), power_loss=False, restart_after=self._rng.uniform(0.001, 0.2))

    def _power_loss(self) -> None:
        self._world.kill(self._node(), power_loss=True, restart_after=self._down_for())

    def _power_loss_all(self) -> None:
        for node in self._world.nodes:
            self._world.kill(node, power_loss=True, restart_after=self._down_for())

    def _kill_all(self) -> None:
        for node in self._world.nodes:
            self._world.kill(node, power_loss=False, restart_after=self._down_for())

    def _crash_in_disk_operation(self) -> None:
        self._node().disk.crash_countdown = self._rng.randrange(1, 40)

    def _failed_fsync(self) -> None:
        """One fsync fails and drops what it should have kept. A replica goes offline, or the node stops; later the
        process is made anew, as an operator would."""
        node = self._node()
        node.expected_stop = True
        node.disk.fail_fsync = 1

        def replace() -> None:
            node.disk.fail_fsync = 0
            self._world.kill(node, power_loss=False, restart_after=self._down_for())

        self._world.heap.schedule(self._rng.uniform(1.0, 6.0), replace)

    def _clean_stop(self) -> None:
        self._world.stop_cleanly(self._node(), restart_after=self._down_for())

    def _pause(self) -> None:
        life = self._node().life
        if life is not None:
            life.paused_until = self._world.heap.now + self._rng.choice((0.05, 0.5, 2.0)) * self._rng.uniform(0.5, 1.5)

    # --- Network ---

    def _cut_one_way(self) -> None:
        first, second = self._rng.sample(self._world.nodes, 2)
        self._cut([(int(first.node_id), int(second.node_id))])

    def _isolate(self) -> None:
        lonely = int(self._node().node_id)
        others = [int(node.node_id) for node in self._world.nodes if node.node_id != lonely]
        self._cut([(lonely, other) for other in others] + [(other, lonely) for other in others])

    def _isolate_inbound(self) -> None:
        deaf = int(self._node().node_id)
        self._cut([(int(node.node_id), deaf) for node in self._world.nodes if node.node_id != deaf])

    def _cut_off_clients(self) -> None:
        """From one node, or all; where only answers are lost, requests are carried out and sent again."""
        nodes = self._rng.choice((self._world.nodes, [self._node()]))
        answers = [(int(node.node_id), CLIENT) for node in nodes]
        requests = [(CLIENT, int(node.node_id)) for node in nodes]
        self._cut(answers + self._rng.choice(([], requests)))

    def _cut(self, directions: list[tuple[int, int]]) -> None:
        self._world.network.cuts.update(directions)
        self._world.heap.schedule(self._down_for(), self._world.network.heal)

    def _reset_connections(self) -> None:
        self._world.network.reset_some(self._rng.choice((0.2, 1.0)))

    # --- Clocks ---

    def _wall_clock_jump(self) -> None:
        self._node().clock.wall_offset_ms += self._rng.randrange(-100_000, 100_000)
