"""Bugs between the engine and its callers: reads, retries, sessions."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from metadata.image.client_sessions import ClientSessions
from metadata.image.image import ClusterImage
from metadata.quorum import machine as quorum_machine
from metadata.quorum import node as quorum_node
from metadata.quorum.port import Fate, Outcome
from metadata.quorum.questions import Barriers
from raftlog.ports import Buffer

from .patches import Patch, Planted, original

_encode = original(quorum_node, "encode")
_decode_snapshot = original(quorum_machine, "decode_snapshot_in_steps")
_propose = original(quorum_node.QuorumNode, "propose")
_pump = original(Barriers, "pump")


def _read_what_is_here(node: Any, done: Any, *, timeout: float = 5.0) -> None:
    index = node._machine.applied_index
    node._proposals._ended.append((done, Outcome(Fate.APPLIED, index)))


def _encode_without_session(command: Any, *, session: Any = None, term: int | None = None) -> bytes:
    packed: bytes = _encode(command, term=term)
    return packed


def _image_without_answers(packed: Buffer) -> Generator[None, None, ClusterImage]:
    image: ClusterImage = yield from _decode_snapshot(packed)
    image.sessions = ClientSessions()
    return image


def _join_the_barrier_under_way(barriers: Any, now: float) -> None:
    """A read during a barrier shares it, although the barrier's place in the log may be older than the read."""
    if barriers._under_way:
        barriers._under_way += barriers._waiting
        barriers._waiting.clear()
    _pump(barriers, now)


def _remember_nothing(sessions: Any, session: Any, index: int, result: Any) -> None:
    """Store no answer."""


CLIENT_BUGS = (
    Planted(
        "reads_are_local",
        "a read is answered from this node's own state, which may be stale (pysyncobj)",
        "QuorumNode.read_barrier goes through the log",
        (Patch(quorum_node.QuorumNode, "read_barrier", _read_what_is_here),),
    ),
    Planted(
        "late_readers_join_a_barrier",
        "a read is answered by a barrier that is older than the read",
        "Barriers gives later reads the next entry",
        (Patch(Barriers, "pump", _join_the_barrier_under_way),),
    ),
    Planted(
        "retry_without_session",
        "a retried command is applied twice (pysyncobj)",
        "QuorumNode.propose names a session",
        (Patch(quorum_node, "encode", _encode_without_session),),
    ),
    Planted(
        "answers_are_not_remembered",
        "commands carry sessions, but no answer is remembered",
        "ClientSessions.remember",
        (Patch(ClientSessions, "remember", _remember_nothing),),
    ),
    Planted(
        "answers_are_not_in_snapshots",
        "a voter that installed a snapshot applies a retry that the others recognize",
        "the snapshot holds the answers",
        (Patch(quorum_machine, "decode_snapshot_in_steps", _image_without_answers),),
    ),
)
