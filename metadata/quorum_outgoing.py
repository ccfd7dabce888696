"""What leaves a node: the engine's messages at once, answers and questions at the end of a tick; all of it coded once.

What is *not* here: when an engine's message may leave (`engine.py`: not before its `Ready`), links (`quorum_links.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from raftlog.model import BrokerId

from .quorum_protocol import EngineFrame, Frame, encode


class Outgoing:
    """One node's."""

    def __init__(self, send: Callable[[BrokerId, bytes], None]) -> None:
        """`send` puts a frame on the link to a peer, where there is one."""
        self._send = send
        self._queued: list[tuple[BrokerId, Frame]] = []

    def send_engine(self, said: Iterable[tuple[BrokerId, bytes]]) -> None:
        """Send the engine's messages. What it says to many peers is one object, and so is the frame around it."""
        framed: dict[int, bytes] = {}
        kept = list(said)  # so that no two messages have one identity
        for peer, message in kept:
            frame = framed.get(id(message))
            if frame is None:
                frame = framed[id(message)] = encode(EngineFrame(message))
            self._send(peer, frame)

    def queue(self, peer: BrokerId, frame: Frame) -> None:
        """Until the end of the tick."""
        self._queued.append((peer, frame))

    def flush(self) -> None:
        """Send what is queued."""
        queued, self._queued = self._queued, []
        for peer, frame in queued:
            self._send(peer, encode(frame))
