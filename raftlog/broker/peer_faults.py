"""Faults of peers on the links between brokers: in the log, at a bounded rate, and as problems of the node's health.

A peer's fault drops its link and never stops this node. It is logged, at most `TOLD_MAX` times for a peer in
`TOLD_SECONDS`, because any program that reaches a data listener without TLS can cause such lines. A *contradiction*,
which no correct peer causes, is a problem of the health for `REMEMBERED_SECONDS` as well: either the peer or this node
is wrong, or the frame was forged.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from raftlog.errors import Contradiction, RemoteProtocolError
from raftlog.model import NO_BROKER
from raftlog.ports import Clock, Logger

TOLD_MAX = 20
TOLD_SECONDS = 10.0
REMEMBERED_SECONDS = 600.0
PEERS_MAX = 1_000
"""The most peers that are remembered; the one that was silent for the longest time is forgotten."""
LINES_MAX = 20
"""The most problems of the health."""


class _Faults(msgspec.Struct):
    """The faults of one peer on one kind of link. Times are monotonic seconds."""

    since: float = float("-inf")
    """The beginning of the present interval of `TOLD_SECONDS`."""
    told: int = 0
    """The lines of this interval."""
    untold: int = 0
    """The faults since the last line."""
    contradictions: int = 0
    contradicted_at: float = float("-inf")
    detail: str = ""
    """The last contradiction."""


class PeerFaults:
    """The faults of all peers of one node. Used on the broker's loop only."""

    def __init__(self, clock: Clock, logger: Logger) -> None:
        self._clock = clock
        self._logger = logger
        self._peers: OrderedDict[tuple[str, int], _Faults] = OrderedDict()

    def hear(self, event: str, peer: int, error: RemoteProtocolError) -> None:
        """Record a fault. `event` is its name in the log; `peer` is -1 if the peer did not say who it is."""
        now = self._clock.monotonic()
        known = self._peers.setdefault((event, peer), _Faults())
        self._peers.move_to_end((event, peer))
        if len(self._peers) > PEERS_MAX:
            self._peers.popitem(last=False)
        if isinstance(error, Contradiction):
            if now - known.contradicted_at >= REMEMBERED_SECONDS:
                known.contradictions = 0
            known.contradictions += 1
            known.contradicted_at = now
            known.detail = error.detail
        if now - known.since >= TOLD_SECONDS:
            known.since, known.told = now, 0
        if known.told >= TOLD_MAX:
            known.untold += 1
            return
        more = {"untold": known.untold} if known.untold else {}
        known.told, known.untold = known.told + 1, 0
        contradicts = isinstance(error, Contradiction)
        self._logger.warning(event, peer=peer, detail=error.detail, contradiction=contradicts, **more)

    def problems(self) -> list[str]:
        """Return the problems for the node's health."""
        since = self._clock.monotonic() - REMEMBERED_SECONDS
        told = [(peer, one) for (_, peer), one in self._peers.items() if one.contradicted_at > since]
        lines = [
            f"{_name(peer)} contradicted this node {one.contradictions} times, the last time: {one.detail[:300]}. "
            "Nothing of it was followed. Compare the two nodes (raftlog quorum describe), or look for another program "
            "that sends in its name: without [tls] every program that reaches the data listener can"
            for peer, one in reversed(told[-LINES_MAX:])
        ]
        return lines + ([f"... and {len(told) - LINES_MAX} more peers"] if len(told) > LINES_MAX else [])


def _name(peer: int) -> str:
    return "a peer without a name" if peer == NO_BROKER else f"node {peer}"
