"""Whom a node's quorum thread dials, and where: the voters that its log names, and whoever dials it.

The first are needed to follow, to propose and to elect; the second are observers, which only their own hello tells of,
and voters that the log here does not name yet. Somebody who is neither any more is dialed no longer. A node that
reaches no leader dials besides whomever its peers call voters: it may have been away while they changed.

Where a peer listens: where its last hello said, else where the log says, else where this node's folder says; and in
place of any of them what the operator set in `node.toml`.

What is *not* here: links and their handshake (`quorum_links.py`), when to try again (`raftlog/http2/dialer.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from raftlog.http2.dialer import ReconnectingDialer
from raftlog.http2.limits import Http2Limits
from raftlog.http2.tls import DialTls
from raftlog.model import BrokerId, Endpoint
from raftlog.ports import LinkHandler, Random

from .quorum_configuration import Configuration
from .quorum_protocol import QUORUM_PATH
from .quorum_thread_streams import DialedStream, Guard

Redirect = Callable[[BrokerId, Endpoint], Endpoint]
"""Where to dial a peer that says that it listens there."""


class Dialing:
    """All dialers of one node. Lives on the quorum's loop."""

    def __init__(
        self,
        own: BrokerId,
        initial: Mapping[BrokerId, Endpoint],
        *,
        handler: LinkHandler,
        guard: Guard,
        random: Random,
        limits: Http2Limits,
        tls: Callable[[BrokerId], DialTls] | None,
        redirect: Redirect,
    ) -> None:
        """`initial`: the other voters that the folder was prepared with, dialed until the log says more."""
        self._own = own
        self._initial = dict(initial)
        self._handler = handler
        self._guard = guard
        self._random = random
        self._limits = limits
        self._tls = tls
        self._redirect = redirect
        self._voters: dict[BrokerId, Endpoint | None] = dict.fromkeys(initial)
        self._heard: dict[BrokerId, Endpoint | None] = {}
        """Where whoever has a link to this node says that it listens, and voters that had one."""
        self._linked: set[BrokerId] = set()
        """Who has a link to this node now."""
        self._told: dict[BrokerId, Mapping[BrokerId, Endpoint]] = {}
        """Whom each peer that was dialed calls voters, and where they are."""
        self._lost = False
        self._dialers: dict[BrokerId, tuple[Endpoint, ReconnectingDialer]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    def start(self) -> None:
        """Begin to dial."""
        self._reconcile()

    def on_configuration(self, configuration: Configuration) -> None:
        """The log names these voters."""
        self._voters = {voter.node_id: voter.endpoint for voter in configuration.voters if voter.node_id != self._own}
        self._forget_the_gone()
        self._reconcile()

    def on_heard(self, peer: BrokerId, endpoint: Endpoint | None) -> None:
        """A peer dialed us, so it is there: no need to sit out a long delay before dialing it."""
        self._heard[peer] = endpoint
        self._linked.add(peer)
        known = self._dialers.get(peer)
        if known is not None and known[1].stream is None:
            self._end(peer)
        self._reconcile()

    def on_gone(self, peer: BrokerId) -> None:
        """Its link to us is over. A voter is dialed on; where its last hello said, for as long as it is one."""
        self._linked.discard(peer)
        self._forget_the_gone()
        self._reconcile()

    def on_told(self, peer: BrokerId, voters: Mapping[BrokerId, Endpoint]) -> None:
        """Whom a peer that was dialed calls voters."""
        self._told[peer] = voters
        if self._lost:
            self._reconcile()

    def set_lost(self, lost: bool) -> None:
        """Whether this node reaches no leader."""
        if lost != self._lost:
            self._lost = lost
            if self._told:
                self._reconcile()

    @property
    def dialed(self) -> tuple[BrokerId, ...]:
        """Whom this node dials, sorted."""
        return tuple(sorted(self._dialers))

    def _forget_the_gone(self) -> None:
        kept = self._linked | self._voters.keys()
        self._heard = {peer: where for peer, where in self._heard.items() if peer in kept}

    def address_of(self, peer: BrokerId) -> Endpoint | None:
        """Where to dial a peer; None where nobody ever said."""
        known = self._heard.get(peer) or self._voters.get(peer) or self._initial.get(peer)
        known = known or next((voters[peer] for voters in self._told.values() if peer in voters), None)
        return None if known is None else self._redirect(peer, known)

    def _reconcile(self) -> None:
        """Dial whom we should, where we should, and nobody else."""
        if self._closed:
            return
        told = {voter for voters in self._told.values() for voter in voters} if self._lost else set()
        wanted = {peer: self.address_of(peer) for peer in sorted({*self._voters, *self._heard, *told} - {self._own})}
        for peer, (where, _) in list(self._dialers.items()):
            if wanted.get(peer) != where:
                self._end(peer)
        for peer, address in wanted.items():
            if address is not None and peer not in self._dialers:
                self._dial(peer, address)

    def _dial(self, peer: BrokerId, where: Endpoint) -> None:
        stream = DialedStream(peer, self._handler, self._guard)
        dialer = ReconnectingDialer(
            where.host,
            where.port,
            QUORUM_PATH,
            stream,
            random=self._random,
            limits=self._limits,
            ssl=self._tls(peer) if self._tls else None,
            on_opened=stream.on_opened,
        )
        self._dialers[peer] = (where, dialer)

    def _end(self, peer: BrokerId) -> None:
        _, dialer = self._dialers.pop(peer)
        task = asyncio.get_running_loop().create_task(dialer.close())
        self._ending.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            task.result()

    async def close(self) -> None:
        """Dial nobody any more; all connections are closed when this returns: together, since each may linger."""
        self._closed = True
        for peer in list(self._dialers):
            self._end(peer)
        if self._ending:
            await asyncio.wait(self._ending)
