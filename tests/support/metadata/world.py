"""A controller in virtual time, with brokers that send heartbeats and a quorum that applies at once (or on command)."""

from __future__ import annotations

from metadata.commands.envelope import Command
from metadata.commands.results import Elected
from metadata.controller.controller import Controller
from metadata.controller.heartbeats import Sessions
from raftlog.model import BrokerId

from .cluster import Cluster, report

SESSION = 0.9
TICK = 0.01
BEAT = 0.2


class World:
    """A cluster whose brokers send heartbeats, a controller that decides, and a quorum that applies at once (or on
    command)."""

    def __init__(self, cluster: Cluster, *, recovery_patience: float = 3.0, rebalance_after: float = 30.0) -> None:
        self.cluster = cluster
        self.now = 1000.0
        self.up = {int(b) for b in cluster.image.brokers}
        self.decided: list[tuple[float, Command]] = []
        self.held: list[Command] | None = None
        self._patience = recovery_patience
        self._rebalance_after = rebalance_after
        self._beats = dict.fromkeys(range(10), 0.0)
        self.new_controller()

    def new_controller(self) -> None:
        self.cluster.term += 1
        self.controller = Controller(
            self.cluster.image,
            Sessions(SESSION),
            recovery_patience=self._patience,
            rebalance_after=self._rebalance_after,
        )

    def run(self, seconds: float) -> list[Command]:
        """Let time pass; return the decisions made meanwhile."""
        first = len(self.decided)
        for _ in range(round(seconds / TICK)):
            self.now += TICK
            for broker in sorted(self.up):
                if self.now >= self._beats[broker]:
                    self._beats[broker] = self.now + BEAT
                    self.beat(broker)
            for command in self.controller.decide(self.now):
                self.decided.append((self.now, command))
                if self.held is not None:
                    self.held.append(command)
                else:
                    self.settle(command)
        return [command for _, command in self.decided[first:]]

    def beat(self, broker: int, *, stopping: bool = False) -> bool:
        image = self.cluster.image
        incarnation = self.cluster.incarnation(broker)
        return self.controller.heartbeat(BrokerId(broker), incarnation, image.index, self.now, stopping=stopping)

    def settle(self, command: Command) -> None:
        result = self.cluster.apply(command, term=self.cluster.term)
        if isinstance(result, Elected):
            assert all(refused is None for refused in result.refusals), result
        self.controller.settled(command)

    def die(self, *brokers: int) -> None:
        self.up -= set(brokers)

    def restart(self, broker: int, *, end: int = 0, cut: bool = False) -> None:
        self.cluster.start(broker, report(0, end, cut=cut))
        self.up.add(broker)
        self._beats[broker] = self.now

    def rejoin(self) -> None:
        """The leader, if there is one, adds all live brokers to its ISR."""
        cluster = self.cluster
        live = [int(b) for b in sorted(cluster.image.brokers) if not cluster.image.brokers[b].fenced]
        if cluster.partition.has_leader:
            cluster.apply(cluster.isr_proposal(*live))

    @property
    def leader(self) -> int:
        return self.cluster.partition.leader
