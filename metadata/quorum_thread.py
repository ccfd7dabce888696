"""The quorum's own thread: an asyncio loop beside the broker's, with the quorum's connections, ticks and fsyncs.

Votes, appends and broker heartbeats leave from here, so that neither a busy broker loop nor a slow fsync of a
partition deposes anybody. The broker's loop talks to it through `call_soon_threadsafe` only, in both directions.

What is *not* here: any decision (`quorum_node.py`).
"""

from __future__ import annotations

import asyncio
import ssl as ssl_module
from collections.abc import Callable, Mapping, Sequence

from raftlog.config import TimingConfig
from raftlog.http2.stream import StreamAcceptor
from raftlog.model import BrokerId, Endpoint, QuorumStatus
from raftlog.ports import Clock, Disk, Random

from .commands import Command, RegisterBroker
from .engine import Outcome
from .image_events import MetadataEvent
from .quorum_node import QuorumIdentity, QuorumLimits

QUORUM_PATH = "/raftlog.quorum"


class QuorumThread:
    """The `MetadataQuorum` of one broker process. All methods and all callbacks are on the broker's loop."""

    def __init__(
        self,
        identity: QuorumIdentity,
        *,
        peers: Mapping[BrokerId, Endpoint],
        disk: Disk,
        clock: Clock,
        random: Random,
        timing: TimingConfig,
        on_events: Callable[[int, Sequence[MetadataEvent]], None],
        on_fatal: Callable[[BaseException], None],
        limits: QuorumLimits | None = None,
        ssl: ssl_module.SSLContext | None = None,
    ) -> None:
        """`peers`: where to dial each other voter's data listener. Called on the broker's running loop."""
        raise NotImplementedError

    async def start(self) -> None:
        """Open the journal and start the thread; returns when messages can be taken. Raises as `QuorumNode` does."""
        raise NotImplementedError

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The thread's loop, for `Http2Listener(loop_for_path={QUORUM_PATH: quorum.loop})`. There after `start`."""
        raise NotImplementedError

    @property
    def acceptor(self) -> StreamAcceptor:
        """The listener's handler of `QUORUM_PATH`; it is called on the thread's loop."""
        raise NotImplementedError

    def register(self, command: RegisterBroker, done: Callable[[Outcome], None]) -> None:
        """See `QuorumNode.register`."""
        raise NotImplementedError

    def propose(self, command: Command, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        """See `MetadataQuorum`."""
        raise NotImplementedError

    def read_barrier(self, done: Callable[[Outcome], None], *, timeout: float = 5.0) -> None:
        """See `MetadataQuorum`."""
        raise NotImplementedError

    def leader_status(self, done: Callable[[QuorumStatus], None], *, timeout: float = 1.0) -> None:
        """See `QuorumNode.leader_status`."""
        raise NotImplementedError

    def status(self) -> QuorumStatus:
        """As this node knew it at its last tick."""
        raise NotImplementedError

    def voters(self) -> Sequence[BrokerId]:
        raise NotImplementedError

    async def close(self) -> None:
        """Stop the thread, close its connections, sync the journal. Waiting proposals end as unknown."""
        raise NotImplementedError
