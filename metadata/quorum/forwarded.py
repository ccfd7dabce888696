"""Proposals that peers forwarded to this node, because it leads: into the engine, and the outcome back.

The number and bytes of one peer's proposals are bounded, and so are the bytes of all peers together. A further
proposal is refused, and its proposer retries. A proposal stops counting when its outcome is known, whether the peer
is still connected or not.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from metadata.commands.envelope import Command, decode, encode_result
from raftlog.errors import RemoteProtocolError
from raftlog.model import BrokerId

from . import protocol
from .limits import QuorumLimits
from .port import Fate, Outcome
from .protocol import Propose, Proposed

DETAIL_CHARACTERS = 1_024
"""The most characters of a refusal's reason: the room for it in `Proposed`."""


class _Held(msgspec.Struct):
    count: int = 0
    size: int = 0


class Forwarded:
    """The forwarded proposals without an outcome."""

    def __init__(
        self,
        limits: QuorumLimits,
        submit: Callable[[bytes, bool, Callable[[Outcome], None]], None],
        send: Callable[[BrokerId, Proposed], None],
        check: Callable[[Command], None] = lambda command: None,
    ) -> None:
        """`submit(envelope, urgent, done)` passes a proposal to this node's engine; `send` sends an answer to a
        peer; `check` raises `RemoteProtocolError` for a command that no correct peer proposes now."""
        self._limits = limits
        self._submit = submit
        self._send = send
        self._check = check
        self._held: dict[BrokerId, _Held] = {}
        self._size = 0
        """The bytes of all of them."""

    def on_propose(self, peer: BrokerId, frame: Propose) -> None:
        """Accept or refuse a peer's proposal. Raises `RemoteProtocolError` if the peer may not make it."""
        # An envelope that does not decode would stop every node that applies it. The controller's commands are never
        # forwarded.
        envelope = decode(frame.envelope)
        if envelope.term is not None or protocol.is_controllers(envelope.command):
            raise RemoteProtocolError(f"node {peer} proposed a command that only the controller may propose")
        author = protocol.author(envelope.command)
        if author not in (None, peer):
            raise RemoteProtocolError(f"node {peer} proposed a command in the name of broker {author}")
        self._check(envelope.command)
        size = len(frame.envelope)
        held = self._held.get(peer, _Held())
        room = self._limits.have_room(held.count, held.size + size, urgent=frame.urgent)
        if not room or self._size + size > self._limits.forwarded_bytes_max:
            self._send(peer, Proposed(frame.request_id, Fate.REFUSED.value, detail="too many proposals are undecided"))
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
