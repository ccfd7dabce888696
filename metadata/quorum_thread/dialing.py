"""The connections on which a node's quorum thread sends: one to each peer that `metadata/quorum/peers.py` names.

An address that the operator set in `node.toml` overrides all others. A peer that does not answer at its address is
dialed at its next one, if it has several.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from metadata.quorum.peers import Peers
from metadata.quorum.protocol import QUORUM_PATH
from metadata.voters.configuration import Configuration
from raftlog.http2.dialer import ReconnectingDialer
from raftlog.http2.limits import Http2Limits
from raftlog.http2.tls import DialTls
from raftlog.model import BrokerId, Endpoint
from raftlog.ports import LinkHandler, Random

from .streams import DialedStream, Guard

Redirect = Callable[[BrokerId, Endpoint], Endpoint]
"""Returns where to dial a peer that reports the given address."""

FAILURES_PER_ADDRESS = 2
"""The number of failed attempts, or lost links without an answered hello, before the next address is tried."""
NEXT_ADDRESS_SECONDS = 0.2
"""The pause before the next address is dialed."""


class Dialing:
    """All dialers of one node. Used on the quorum's loop only."""

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
        """`initial`: the other voters that the folder was prepared with; they are dialed until the log names others."""
        self._whom = Peers(own, initial)
        self._handler = handler
        self._guard = guard
        self._random = random
        self._limits = limits
        self._tls = tls
        self._redirect = redirect
        self._dialers: dict[BrokerId, tuple[Endpoint, ReconnectingDialer]] = {}
        self._failures: dict[BrokerId, int] = {}
        """The failures of each dialed peer since it last answered."""
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    def start(self) -> None:
        """Start dialing."""
        self._reconcile()

    def on_configuration(self, configuration: Configuration) -> None:
        """Adopt the voters that the log names."""
        self._whom.on_configuration(configuration)
        self._reconcile()

    def on_registered(self, peer: BrokerId, endpoint: Endpoint | None) -> None:
        """Record the address in a broker's registration, or None if it was unregistered."""
        self._whom.on_registered(peer, endpoint)
        self._reconcile()

    def on_heard(self, peer: BrokerId, endpoint: Endpoint | None, *, proven: bool = True) -> None:
        """Record that a peer dialed this node. It is up, so it is dialed at once instead of after a long delay."""
        self._whom.on_heard(peer, endpoint, proven=proven)
        known = self._dialers.get(peer)
        if known is not None and known[1].stream is None:
            self._end(peer)
        self._reconcile()

    def on_gone(self, peer: BrokerId) -> None:
        """Record that a peer's link to this node closed."""
        self._whom.on_gone(peer)
        self._reconcile()

    def on_told(self, peer: BrokerId, voters: Mapping[BrokerId, Endpoint]) -> None:
        """Record the voters that a dialed peer reports: it answered."""
        self._failures.pop(peer, None)
        if self._whom.on_told(peer, voters):
            self._reconcile()

    def set_lost(self, lost: bool) -> None:
        """Set whether this node reaches no leader."""
        if self._whom.set_lost(lost):
            self._reconcile()

    @property
    def dialed(self) -> tuple[BrokerId, ...]:
        """The peers that this node dials, sorted."""
        return tuple(sorted(self._dialers))

    def address_of(self, peer: BrokerId) -> Endpoint | None:
        """Return the address at which to dial a peer, or None if it is unknown."""
        known = self._whom.address_of(peer)
        return None if known is None else self._redirect(peer, known)

    def trusted_address_of(self, peer: BrokerId) -> Endpoint | None:
        """Return the address of a peer in the configuration, in the log or in this node's folder, or None."""
        known = self._whom.trusted_address_of(peer)
        return None if known is None else self._redirect(peer, known)

    def _reconcile(self) -> None:
        """Dial exactly the wanted peers at their wanted addresses."""
        if self._closed:
            return
        wanted = {peer: self._redirect(peer, where) for peer, where in self._whom.wanted().items()}
        self._failures = {peer: count for peer, count in self._failures.items() if peer in wanted}
        for peer, (where, _) in list(self._dialers.items()):
            if wanted.get(peer) != where:
                self._end(peer)
        for peer, where in wanted.items():
            if peer not in self._dialers:
                self._dial(peer, where)

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
            on_closed=lambda reason: self._failed(peer, where),
        )
        self._dialers[peer] = (where, dialer)

    def _failed(self, peer: BrokerId, where: Endpoint) -> None:
        """Try the peer's next address if it did not answer at this one."""
        known = self._dialers.get(peer)
        if known is None or known[0] != where:
            return
        self._failures[peer] = self._failures.get(peer, 0) + 1
        if self._failures[peer] % FAILURES_PER_ADDRESS == 0:
            self._whom.on_failed(peer)
            asyncio.get_running_loop().call_later(NEXT_ADDRESS_SECONDS, self._reconcile)

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
        """Stop dialing. All connections are closed on return: together, since each may linger."""
        self._closed = True
        for peer in list(self._dialers):
            self._end(peer)
        if self._ending:
            await asyncio.wait(self._ending)
