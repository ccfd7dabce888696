"""The controller's place in a node: made when the node begins to lead, asked what to do, dropped when it leads no more.

Every term has a controller of its own, with empty sessions: it grants everyone a full session before it fences anybody.
What it decides is proposed with its term, and is refused where it is applied in another.

What is *not* here: what it decides (`controller.py`, `sessions.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from raftlog.model import BrokerId, Incarnation

from .commands import Command, encode
from .controller import Controller
from .engine import Outcome
from .image import ClusterImage
from .sessions import Sessions

DECIDE_EVERY = 0.01
"""Seconds: a decision costs little when nothing changed, but not nothing."""

LOOK_EVERY = 0.05
"""Seconds: what only time brings about (the end of a session, of a patience) is seen soon enough by then."""


class Controlling:
    """One node's turns as controller."""

    def __init__(self, session: float, submit: Callable[[bytes, bool, Callable[[Outcome], None]], None]) -> None:
        """`session`: a broker's, in seconds. `submit(envelope, urgent, done)` hands a proposal to the engine."""
        self._session = session
        self._submit = submit
        self._controller: Controller | None = None
        self._term = -1
        self._decided_at = float("-inf")

    @property
    def active(self) -> bool:
        """This node is the controller."""
        return self._controller is not None

    @property
    def next_due(self) -> float:
        """When to look again even if nothing happens."""
        return math.inf if self._controller is None else self._decided_at + LOOK_EVERY

    def update(self, leads: bool, term: int, image: ClusterImage) -> None:
        """This node leads `term` and has applied what was committed before, or it does not."""
        if not leads:
            self._controller = None
        elif self._controller is None or self._term != term:
            self._controller = Controller(image, Sessions(self._session))
            self._term = term

    def heartbeat(
        self, broker_id: BrokerId, incarnation: Incarnation, applied_index: int, now: float, *, stopping: bool
    ) -> bool | None:
        """A broker's sign of life: whether its incarnation is the registered one. None: this is not the controller."""
        if self._controller is None:
            return None
        return self._controller.heartbeat(broker_id, incarnation, applied_index, now, stopping=stopping)

    def decide(self, now: float) -> bool:
        """Propose what is due. Returns whether anything was."""
        controller = self._controller
        if controller is None or now < self._decided_at + DECIDE_EVERY:
            return False
        self._decided_at = now
        commands = controller.decide(now)
        for command in commands:
            self._propose(controller, command)
        return bool(commands)

    def _propose(self, controller: Controller, command: Command) -> None:
        self._submit(encode(command, term=self._term), True, lambda outcome: controller.settled(command))
