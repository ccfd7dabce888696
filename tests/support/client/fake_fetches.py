"""Fetches of the cluster in memory (`fake_cluster.py`), with a session and without."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raftlog.http2.connection import Http2Stream
from raftlog.wire import (
    AbortedRange,
    ErrorResponse,
    FetchedPartition,
    FetchedSlot,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    SessionFetchRequest,
    SessionFetchResponse,
    SlotToFetch,
    encode,
)

if TYPE_CHECKING:
    from .fake_cluster import FakeNode


@dataclass
class FakeSession:
    """The slots of a stream's session."""

    number: int
    isolation: int
    slots: dict[int, SlotToFetch] = field(default_factory=dict)
    marks: dict[int, int] = field(default_factory=dict)
    """Slot → the last reported high watermark."""


class FakeFetches:
    """The fetches of one node."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self.sessions: dict[Http2Stream, FakeSession] = {}
        self.refuse_sessions = False
        """The node has no room for sessions."""
        self.asked: list[SessionFetchRequest] = []

    async def answer(self, stream: Http2Stream, request: FetchRequest) -> None:
        """Answer a fetch without a session."""
        fate = self._node.on_fetch(request)
        if fate.drop_before or fate.drop_after:
            stream.connection.abort("dropped by the test")
        if fate.drop_before or fate.drop_after or fate.ignore or fate.silent:
            return
        deadline = asyncio.get_running_loop().time() + request.max_wait_ms / 1000
        while True:
            changed = self._node.cluster.changed
            answers, body = self._read(request.partitions, request.max_bytes, request.isolation, fate.error)
            if body or any(answer.error for answer in answers) or not await self._changed(changed, deadline):
                break
        if not stream.closed:
            stream.send(encode(FetchResponse(request.correlation_id, answers, fate.throttle_ms), body))

    async def answer_in_session(self, stream: Http2Stream, request: SessionFetchRequest) -> None:
        self.asked.append(request)
        added = [
            FetchPartition(s.topic_id, s.partition, s.offset, s.max_bytes, s.current_leader_epoch)
            for s in request.added
        ]
        as_plain = FetchRequest(
            request.correlation_id, request.max_wait_ms, request.min_bytes, request.max_bytes, added, request.isolation
        )
        self._node.fetches.append(as_plain)
        fate = self._node.on_fetch(as_plain)
        if fate.drop_before or fate.drop_after:
            stream.connection.abort("dropped by the test")
        if fate.drop_before or fate.drop_after or fate.ignore or fate.silent:
            return
        session = self._session(stream, request)
        if session is None:
            code = "overloaded" if self.refuse_sessions else "unknown_fetch_session"
            stream.send(encode(ErrorResponse(request.correlation_id, code, "from the fake")))
            return
        deadline = asyncio.get_running_loop().time() + request.max_wait_ms / 1000
        while True:
            changed = self._node.cluster.changed
            answers, body = self._read_session(session, request.max_bytes, fate.error)
            news = any(answer.error or answer.length for answer in answers)
            if news or not await self._changed(changed, deadline):
                break
        session.marks.update((answer.slot, answer.high_watermark) for answer in answers)
        if not stream.closed:
            stream.send(encode(SessionFetchResponse(request.correlation_id, answers, fate.throttle_ms), body))

    def _session(self, stream: Http2Stream, request: SessionFetchRequest) -> FakeSession | None:
        if request.begins and not self.refuse_sessions:
            self.sessions[stream] = FakeSession(request.session, request.isolation)
        session = self.sessions.get(stream)
        if session is None or session.number != request.session:
            return None
        for number in request.dropped:
            session.slots.pop(number, None)
        for slot in request.added:
            assert slot.slot not in session.marks, "a slot was used twice"
            session.slots[slot.slot] = slot
            session.marks[slot.slot] = -1
        return session

    def _read_session(self, session: FakeSession, max_bytes: int, error: str) -> tuple[list[FetchedSlot], list[bytes]]:
        slots = list(session.slots.values())
        answers, body = self._read(slots, max_bytes, session.isolation, error)
        told = []
        for slot, answer in zip(slots, answers, strict=True):
            if answer.error or answer.length:
                del session.slots[slot.slot]
            elif session.marks[slot.slot] == answer.high_watermark:
                continue
            told.append(
                FetchedSlot(
                    slot.slot, answer.error, answer.detail, answer.high_watermark, answer.last_stable_offset,
                    answer.log_start_offset, answer.leader_epoch, answer.length, answer.leader, answer.aborted,
                )
            )  # fmt: skip
        return told, body

    async def _changed(self, changed: asyncio.Event, deadline: float) -> bool:
        try:
            async with asyncio.timeout_at(deadline):
                await changed.wait()
        except TimeoutError:
            return False
        return True

    def _read(
        self, partitions: Sequence[FetchPartition | SlotToFetch], max_bytes: int, isolation: int, error: str
    ) -> tuple[list[FetchedPartition], list[bytes]]:
        answers: list[FetchedPartition] = []
        body: list[bytes] = []
        for asked in partitions:
            topic = self._node.topic_by_id(asked.topic_id)
            partition = topic.partitions[asked.partition] if topic else None
            code, found = error, []
            if partition is None:
                code = code or "unknown_topic"
                answers.append(FetchedPartition(asked.topic_id, asked.partition, code))
                continue
            if partition.leader != self._node.number:
                code = code or "not_leader"
            elif not partition.start_offset <= asked.offset <= partition.end_offset:
                code = code or "offset_out_of_range"
            if not code and (room := max_bytes - sum(map(len, body))) > 0:
                most, committed = min(room, asked.max_bytes), isolation == 1
                found = partition.read(asked.offset, most, min_one_batch=not body, committed=committed)
            body += found
            answers.append(
                FetchedPartition(
                    asked.topic_id, asked.partition, code, "from the fake", partition.end_offset,
                    partition.last_stable_offset, partition.start_offset, partition.leader_epoch, sum(map(len, found)),
                    partition.leader, [AbortedRange(*one) for one in partition.aborted if isolation],
                )
            )  # fmt: skip
        return answers, body
