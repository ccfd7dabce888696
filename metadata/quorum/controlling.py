"""The controller's life within a node: it is created when the node begins to lead, asked for decisions, and dropped
when the node stops leading.

Every term has a controller of its own, with empty sessions: it grants every broker a full session before it fences
any. Its decisions are proposed with its term, and are refused if they are applied in another. Beside it is the keeper
of the cluster's time, also one per term. Every node knows since when its image has had the present time, so a new
controller continues from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from metadata.commands.envelope import Command, encode
from metadata.controller.controller import Controller
from metadata.controller.heartbeats import Sessions
from metadata.controller.time_keeper import TimeKeeper
from metadata.image.image import ClusterImage
from raftlog.model import NO_TIME, BrokerId, Incarnation

from .port import Outcome

DECIDE_EVERY = 0.01
"""The shortest interval between decisions, in seconds: a decision costs little when nothing changed, but not
nothing."""

LOOK_EVERY = 0.05
"""The longest interval between decisions, in seconds: early enough for changes that only time causes, such as the end
of a session."""


class Controlling:
    """The controllers of one node, term after term."""

    def __init__(self, session: float, submit: Callable[[bytes, bool, Callable[[Outcome], None]], None]) -> None:
        """`session` is a broker's session in seconds. `submit(envelope, urgent, done)` passes a proposal to the
        engine."""
        self._session = session
        self._submit = submit
        self._controller: Controller | None = None
        self._keeper = TimeKeeper(-1)
        self._image: ClusterImage | None = None
        self._time = NO_TIME
        """The image's cluster time."""
        self._time_at = 0.0
        """When this node first saw that time."""
        self._term = -1
        self._decided_at = float("-inf")

    @property
    def active(self) -> bool:
        """Whether this node is the controller."""
        return self._controller is not None

    @property
    def next_due(self) -> float:
        """When the next decision is due even if nothing happens."""
        return math.inf if self._controller is None else self._decided_at + LOOK_EVERY

    def update(self, leads: bool, term: int, image: ClusterImage, now: float) -> None:
        """Start or drop the controller: `leads` says whether this node leads `term` and has applied what was
        committed before it."""
        self._image = image
        if image.time is not self._time:
            self._time = image.time
            self._time_at = now
        if not leads:
            self._controller = None
        elif self._controller is None or self._term != term:
            self._controller = Controller(image, Sessions(self._session))
            self._keeper = TimeKeeper(term)
            self._term = term

    def heartbeat(
        self,
        broker_id: BrokerId,
        incarnation: Incarnation,
        applied_index: int,
        now: float,
        *,
        stopping: bool,
        wall_ms: int,
    ) -> bool | None:
        """Process a broker's heartbeat. Returns whether its incarnation is the registered one, or None if this node
        is not the controller."""
        if self._controller is None:
            return None
        known = self._controller.heartbeat(broker_id, incarnation, applied_index, now, stopping=stopping)
        if known and wall_ms > 0:
            self._keeper.heard(broker_id, wall_ms, now)
        return known

    def decide(self, now: float, voters: Sequence[BrokerId]) -> bool:
        """Propose the decisions that are due. Returns whether there were any."""
        controller = self._controller
        if controller is None or now < self._decided_at + DECIDE_EVERY:
            return False
        self._decided_at = now
        commands = controller.decide(now)
        for command in commands:
            self._propose(command, controller.settled)
        assert self._image is not None
        step = self._keeper.decide(now, self._image, voters, self._time_at)
        if step is not None:
            self._propose(step, self._keeper.settled)
        return bool(commands) or step is not None

    def _propose(self, command: Command, settled: Callable[[Command], None]) -> None:
        self._submit(encode(command, term=self._term), True, lambda outcome: settled(command))
