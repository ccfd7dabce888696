"""What pysyncobj is given of the world: clock, randomness, journal, an outbox in place of sockets, callbacks.

pysyncobj reads its clock, its randomness and its journal factory from module globals. They are replaced, once, by
dispatchers that look at the ports of the engine whose call is running on this thread, and at pysyncobj's originals
where none is.

Its journal is ours under its names and conventions. pysyncobj asks for a journal once, in its constructor, and from
then on adds entries and keeps term and vote through it. What it would remove or rewrite goes through the engine's own
code instead, so those calls do not exist here.

Its transport is a queue of what is to leave after the next sync, and there is nothing to poll. A message that goes to
many peers is coded once: the sender hands in one object for all of them, and each gets the same bytes. With two hundred
observers that is what an append costs.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import pysyncobj.syncobj
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from metadata.journal.format import NO_VOTE
from metadata.journal.journal import Journal
from raftlog.errors import InvariantViolation
from raftlog.model import BrokerId
from raftlog.ports import Random

from . import messages
from .engine import Lost
from .membership import Membership

OUTBOX_MAX = 100_000
"""Far above what windows and ticks allow: more is a bug."""


# --- Its journal ------------------------------------------------------------------------------------------------------


class JournalFace:
    """pysyncobj's `Journal`, over ours."""

    def __init__(self, journal: Journal, commit_index: int) -> None:
        self._journal = journal
        self._commit_index = commit_index

    def __len__(self) -> int:
        return len(self._journal.entries)

    def __getitem__(self, item: Any) -> Any:
        return self._journal.entries[item]

    def add(self, command: bytes, index: int, term: int) -> None:
        """Stage an entry."""
        self._journal.append(command, index, term)

    def setCurrentTerm(self, term: int, vote: int | None) -> None:  # noqa: N802
        """Stage term and vote."""
        self._journal.set_hard_state(term, NO_VOTE if vote is None else vote)

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._journal.term

    def getVotedForNodeId(self) -> int | None:  # noqa: N802
        return None if self._journal.vote == NO_VOTE else self._journal.vote

    def setRaftCommitIndex(self, index: int) -> None:  # noqa: N802
        """Not kept: after a restart it is learned again, from the snapshot on."""

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        return self._commit_index

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Nothing is done by time."""

    def _destroy(self) -> None:
        """The engine closes the journal."""


# --- Its clock and randomness -----------------------------------------------------------------------------------------


class Ports:
    """What pysyncobj may see of the world while one engine's call runs."""

    __slots__ = ("journal", "now", "random")

    def __init__(self, now: float, random: Random) -> None:
        self.now = now
        self.random = random
        self.journal: JournalFace | None = None


class Running(threading.local):
    ports: Ports | None = None


class _RandomModule:
    """Stands where pysyncobj expects the module `random`."""

    def random(self) -> float:
        ports = running.ports
        return ports.random.random() if ports is not None else float(_originals["random"].random())


def _monotonic() -> float:
    ports = running.ports
    return ports.now if ports is not None else float(_originals["monotonicTime"]())


def _create_journal(path: str | None = None) -> Any:
    ports = running.ports
    return ports.journal if ports is not None else _originals["createJournal"](path)


class Active:
    """Within it pysyncobj sees one engine's ports. The calls of one engine do not nest; those of two may."""

    __slots__ = ("_outer", "_ports")

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._outer: Ports | None = None

    def __enter__(self) -> None:
        self._outer, running.ports = running.ports, self._ports

    def __exit__(self, *raised: object) -> None:
        running.ports = self._outer


running = Running()
_originals: dict[str, Any] = {}


def install_dispatchers() -> None:
    replaced = {"random": _RandomModule(), "monotonicTime": _monotonic, "createJournal": _create_journal}
    if not _originals:
        _originals.update({name: getattr(pysyncobj.syncobj, name) for name in replaced})
        for name, dispatcher in replaced.items():
            setattr(pysyncobj.syncobj, name, dispatcher)


# --- Its transport and its callbacks ----------------------------------------------------------------------------------


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
            message = messages.RequestVote(
                term=message["term"],
                last_index=message["last_log_index"],
                last_term=message["last_log_term"],
                configuration_index=self.membership.claim,
            )
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


class Waiting:
    """A proposal that is in an engine's hands: whose it is, for when it is committed, cut away or never appended."""

    __slots__ = ("lost", "token")

    def __init__(self, token: int, lost: list[Lost]) -> None:
        self.token = token
        self.lost = lost

    def __call__(self, result: object, reason: int) -> None:
        """pysyncobj's callback: the command was not appended."""
        self.lost.append(Lost(self.token, certain=True))
