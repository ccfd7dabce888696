"""Proposals that peers sent to this node, because it leads: into the engine, and the outcome back.

How many a peer may have here, and how many bytes, is bounded, and so are the bytes of all peers together; one more is
refused, and its proposer tries again. The lease ends with the outcome, whether the peer is still there or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from metadata.commands.envelope import decode, encode_result
from raftlog.errors import RemoteProtocolError
from raftlog.model import BrokerId

from . import protocol
from .limits import QuorumLimits
from .port import Fate, Outcome
from .protocol import Propose, Proposed

DETAIL_CHARACTERS = 1_024
"""Of the reason for a refusal: what `Proposed` has room for."""


@dataclass(slots=True)
class _Held:
    count: int = 0
    size: int = 0


class Forwarded:
    """Those that have no outcome yet."""

    def __init__(
        self,
        limits: QuorumLimits,
        submit: Callable[[bytes, bool, Callable[[Outcome], None]], None],
        send: Callable[[BrokerId, Proposed], None],
    ) -> None:
        """`submit(envelope, urgent, done)` hands one to this node's engine; `send` sends an answer to a peer."""
        self._limits = limits
        self._submit = submit
        self._send = send
        self._held: dict[BrokerId, _Held] = {}
        self._size = 0
        """Bytes of all of them."""

    def on_propose(self, peer: BrokerId, frame: Propose) -> None:
        """Raises `RemoteProtocolError`."""
        # What does not decode would stop every node that applies it; the controller's commands are never forwarded.
        envelope = decode(frame.envelope)
        if envelope.term is not None or protocol.is_controllers(envelope.command):
            raise RemoteProtocolError(f"node {peer} proposes what only the controller may")
        author = protocol.author(envelope.command)
        if author not in (None, peer):
            raise RemoteProtocolError(f"node {peer} proposes in the name of broker {author}")
        size = len(frame.envelope)
        held = self._held.get(peer, _Held())
        room = self._limits.have_room(held.count, held.size + size, urgent=frame.urgent)
        if not room or self._size + size > self._limits.forwarded_bytes_max:
            self._send(peer, Proposed(frame.request_id, Fate.REFUSED.value, detail="too many proposals wait"))
            return
        self._hold(peer, 1, size)

        def answer(outcome: Outcome) -> None:
            self._hold(peer, -1, -size)
            result = encode_result(outcome.result) if outcome.result is not None else b""
            detail = outcome.detail[:DETAIL_CHARACTERS]
            self._send(peer, Proposed(frame.request_id, outcome.fate.value, outcome.index, result, detail))

        self._submit(frame.envelope, frame.urgent, answer)

    def _hold(self, peer: BrokerId, count: int, size: int) -> None:
        held = self._held.setdefault(peer, _Held())
        held.count += count
        held.size += size
        self._size += size
        if not held.count:
            del self._held[peer]
