"""The broker of this process in the quorum's view: its registration, heartbeats and orderly stop.

A registration is proposed once this node knows the registration that it replaces, and then until the state machine
answers; it is idempotent for one start of one directory. If another process of the same broker registered in between,
this one is refused. From then on heartbeats go to the controller, at once to a new one, and say how far this node's
metadata has progressed. A stopping broker says so in its heartbeats and waits until it is fenced; by then its
leaderships are elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from metadata.commands.cluster import REGISTRATION_FEATURE_LEVEL, RegisterBroker, ReplaceRegistration
from metadata.commands.envelope import encode
from metadata.commands.results import Registered
from metadata.image.brokers import is_unused
from metadata.image.image import ClusterImage
from raftlog.config import TimingConfig
from raftlog.model import NO_BROKER, NO_INCARNATION, BrokerId, Incarnation

from .port import Fate, Outcome
from .proposals import Proposals
from .protocol import MAX_WALL_MS, BrokerHeartbeat


class OwnBroker:
    """The broker of this process."""

    def __init__(self, broker_id: BrokerId, timing: TimingConfig, proposals: Proposals) -> None:
        self._broker_id = broker_id
        self._every = timing.broker_heartbeat_ms / 1000
        self._proposals = proposals
        self._incarnation: Incarnation = NO_INCARNATION
        self._next_heartbeat_at = 0.0
        self._told: BrokerId = NO_BROKER
        """The receiver of the last heartbeat."""
        self._speechless = True
        """Whether no heartbeat can be sent: the broker is not registered, or no controller is known."""
        self._registering: tuple[int, RegisterBroker, Callable[[Outcome], None]] | None = None
        """(index, command, callback) of a registration that waits until this node has applied `index`, and so knows
        its predecessor."""
        self._stopping: tuple[float, Callable[[bool], None]] | None = None

    def register(self, command: RegisterBroker, barrier: Outcome, done: Callable[[Outcome], None]) -> None:
        """Start the registration; see `QuorumNode.register`. Any earlier registration is known at the barrier's
        index."""
        if barrier.fate is Fate.APPLIED:
            self._registering = (barrier.index, command, done)
        else:
            done(barrier)  # the node closes

    def propose_registration(self, image: ClusterImage) -> bool:
        """Propose the registration once the image has reached the barrier. Returns whether it was proposed now."""
        if self._registering is None or image.index < self._registering[0]:
            return False
        _, command, done = self._registering
        self._registering = None
        known = image.brokers.get(self._broker_id)
        allowed = image.feature_level >= REGISTRATION_FEATURE_LEVEL or is_unused(image)
        if allowed and command.feature_level >= REGISTRATION_FEATURE_LEVEL:
            command = ReplaceRegistration.after(command, NO_INCARNATION if known is None else known.incarnation)

        def answered(outcome: Outcome) -> None:
            if isinstance(outcome.result, Registered):
                self._incarnation = outcome.result.incarnation
                self._next_heartbeat_at = 0.0
            done(outcome)

        self._proposals.add(encode(command), urgent=True, deadline=float("inf"), done=answered)
        return True

    def stop(self, deadline: float, done: Callable[[bool], None]) -> None:
        """Start an orderly stop; see `QuorumNode.stop_broker`."""
        self._stopping = (deadline, done)
        self._next_heartbeat_at = 0.0

    @property
    def next_due(self) -> float:
        """When a heartbeat is due, or a stop has reached its deadline."""
        overdue = self._stopping[0] if self._stopping is not None else math.inf
        return overdue if self._speechless else min(overdue, self._next_heartbeat_at)

    def heartbeat(self, now: float, controller: BrokerId, applied_index: int, wall_ms: int) -> BrokerHeartbeat | None:
        """Return the heartbeat to send to the controller now, or None."""
        self._speechless = self._incarnation == NO_INCARNATION or controller == NO_BROKER
        if self._speechless:
            return None
        if now < self._next_heartbeat_at and controller == self._told:
            return None
        self._next_heartbeat_at = now + self._every
        self._told = controller
        # A clock that was never set, or is far ahead, is clamped: no other clock agrees with it anyway.
        wall_ms = min(max(wall_ms, 0), MAX_WALL_MS)
        return BrokerHeartbeat(self._broker_id, self._incarnation, applied_index, self._stopping is not None, wall_ms)

    def notice_fence(self, now: float, image: ClusterImage) -> None:
        """Complete a stop if the broker is fenced (or replaced, or never registered), or if its deadline has passed."""
        if self._stopping is None:
            return
        deadline, done = self._stopping
        broker = image.brokers.get(self._broker_id)
        let_go = broker is None or broker.incarnation != self._incarnation or broker.fenced
        if let_go or now >= deadline:
            # Later heartbeats still say that the broker stops, so it is never unfenced again.
            self._stopping = (float("inf"), lambda fenced: None)
            done(let_go)
