"""What pysyncobj is given in place of sockets: a queue of what is to leave after the next sync, and nothing to poll.

A message that goes to many peers is coded once: whoever tells it to each of them hands in one object, and each gets the
same bytes. With two hundred observers that is what an append costs.

What is *not* here: the messages' shapes (`quorum_messages.py`), when they leave (`pysyncobj_engine.py`).
"""

from __future__ import annotations

import functools
from typing import Any

from pysyncobj.node import Node
from pysyncobj.transport import Transport

from raftlog.errors import InvariantViolation
from raftlog.model import BrokerId

from . import quorum_messages as messages
from .quorum_membership import Membership

OUTBOX_MAX = 100_000
"""Far above what windows and ticks allow: more is a bug."""


class Outbox(Transport):  # type: ignore[misc]
    """pysyncobj's transport."""

    def __init__(self) -> None:
        super().__init__(None, None, [])
        self._queued: list[tuple[BrokerId, messages.Message]] = []
        self.membership: Membership | None = None

    def __bool__(self) -> bool:
        """Something is to leave."""
        return bool(self._queued)

    def send(self, node: Node, message: messages.Message | dict[str, Any]) -> None:
        """Queue a message. The one that pysyncobj still builds itself is its request for votes."""
        if isinstance(message, dict):
            if message["type"] != "request_vote":
                raise InvariantViolation(f"pysyncobj sends {message['type']!r}")
            assert self.membership is not None
            asked = (message["term"], message["last_log_index"], message["last_log_term"], self.membership.claim)
            message = messages.RequestVote(*asked)
        if len(self._queued) >= OUTBOX_MAX:
            raise InvariantViolation(f"{OUTBOX_MAX} messages were queued in one tick")
        self._queued.append((node.id, message))

    def take(self) -> list[tuple[BrokerId, bytes]]:
        """What was queued, in order, as bytes: one object for all copies of one message."""
        queued, self._queued = self._queued, []
        coded: dict[int, bytes] = {}
        taken: list[tuple[BrokerId, bytes]] = []
        for peer, message in queued:
            # `queued` keeps the messages, so that no two of them have one identity.
            packed = coded.get(id(message))
            if packed is None:
                packed = coded[id(message)] = messages.encode(message)
            taken.append((peer, packed))
        return taken

    def destroy(self) -> None:
        """pysyncobj's way of saying goodbye."""
        self._queued.clear()


class NothingToPoll:
    """pysyncobj's poller, which it asks in every tick: there are no sockets, and no reason to enter the system."""

    def poll(self, timeout: float) -> None:
        """Nothing came."""


@functools.lru_cache(maxsize=4096)
def node_of(number: int) -> Node:
    """pysyncobj's name of a node. It is made of a number alone; dictionaries find one and the same object at once."""
    return Node(number)
