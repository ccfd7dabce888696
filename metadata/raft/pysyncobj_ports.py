"""The environment given to pysyncobj: clock, randomness, journal, an outbox instead of sockets, callbacks.

pysyncobj reads its clock, its randomness and its journal factory from module globals. They are replaced, once, by
dispatchers that use the ports of the engine whose call is running on this thread, and pysyncobj's originals if no
engine's call is.

Its journal is ours behind its names and conventions. pysyncobj asks for a journal once, in its constructor, and from
then on adds entries and keeps term and vote through it. Removals and rewrites go through the engine's own code
instead, so those calls do not exist here.

Its transport is a queue of messages that are sent after the next sync, and there is nothing to poll. A message to
many peers is encoded once: the sender passes one object for all of them, and each gets the same bytes. With two
hundred observers, encoding is the cost of an append.
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
"""The most queued messages: far above what windows and ticks allow, so more is a bug."""


# --- pysyncobj's journal ----------------------------------------------------------------------------------------------


class PysyncobjJournal:
    """pysyncobj's `Journal` interface over raftlog's journal."""

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
        """Do nothing: after a restart the commit index is learned again, starting from the snapshot."""

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        return self._commit_index

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Do nothing."""

    def _destroy(self) -> None:
        """Do nothing: the engine closes the journal."""


# --- pysyncobj's clock and randomness ---------------------------------------------------------------------------------


class Ports:
    """The environment that pysyncobj sees while a call of one engine runs."""

    __slots__ = ("journal", "now", "random")

    def __init__(self, now: float, random: Random) -> None:
        self.now = now
        self.random = random
        self.journal: PysyncobjJournal | None = None


class Running(threading.local):
    ports: Ports | None = None


class _RandomModule:
    """The stand-in for the module `random` in pysyncobj."""

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
    """A context in which pysyncobj sees one engine's ports. Calls of one engine do not nest; calls of two may."""

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


# --- pysyncobj's transport and callbacks ------------------------------------------------------------------------------


class Outbox(Transport):  # type: ignore[misc]
    """pysyncobj's transport: a queue of outgoing messages."""

    def __init__(self) -> None:
        super().__init__(None, None, [])
        self._queued: list[tuple[BrokerId, messages.Message]] = []
        self.membership: Membership | None = None

    def __bool__(self) -> bool:
        """Return whether messages are queued."""
        return bool(self._queued)

    def send(self, node: Node, message: messages.Message | dict[str, Any]) -> None:
        """Queue a message. The only one that pysyncobj still builds itself is its request for votes."""
        if isinstance(message, dict):
            if message["type"] != "request_vote":
                raise InvariantViolation(f"pysyncobj sent an unexpected message of type {message['type']!r}")
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
        """Return the queued messages, in order, as bytes: one object for all copies of a message."""
        queued, self._queued = self._queued, []
        coded: dict[int, bytes] = {}
        taken: list[tuple[BrokerId, bytes]] = []
        for peer, message in queued:
            # `queued` keeps the messages alive, so that their identities are unique.
            packed = coded.get(id(message))
            if packed is None:
                packed = coded[id(message)] = messages.encode(message)
            taken.append((peer, packed))
        return taken

    def destroy(self) -> None:
        """Discard the queue; pysyncobj calls this when it closes."""
        self._queued.clear()


class NothingToPoll:
    """The replacement of pysyncobj's poller, called in every tick: there are no sockets and no reason for a system
    call."""

    def poll(self, timeout: float) -> None:
        """Return at once."""


@functools.lru_cache(maxsize=4096)
def node_of(number: int) -> Node:
    """Return pysyncobj's object for a node. Caching it lets dictionary lookups succeed by identity."""
    return Node(number)


class Waiting:
    """The callback of a pending proposal: its owner's token, for the time when it is committed, truncated or never
    appended."""

    __slots__ = ("lost", "token")

    def __init__(self, token: int, lost: list[Lost]) -> None:
        self.token = token
        self.lost = lost

    def __call__(self, result: object, reason: int) -> None:
        """Report the proposal as not appended; pysyncobj calls this."""
        self.lost.append(Lost(self.token, certain=True))
