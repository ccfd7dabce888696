"""Fetches from any number of leaders as one long poll.

A fetch from one leader is that leader's long poll. For several, all leaders are first asked without waiting. If that
yields too little, each is polled until one has something; then all are asked again, so the answer is one state of every
partition. The data of a cancelled poll is released, never sent.

A request may name ten thousand partitions, so the work for them is spread over several turns of the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import msgspec

from raftlog.errors import RaftlogError
from raftlog.model import BrokerId
from raftlog.ports import FileRegion, Part, release_regions
from raftlog.slices import turns
from raftlog.wire import FetchedPartition, FetchPartition, FetchRequest, FetchResponse

from .forwarding import PeerRequests
from .leaders import ASKS_ELSEWHERE, READ_PATIENCE_SECONDS, RETRY_SECONDS, Leaders, Slots
from .local import OwnRequests

PARTITIONS_A_TURN = 1_000
"""Partitions processed in one turn of the loop, at a microsecond or two each."""


class FetchRouter:
    """Fetches, wherever the partitions are led. All calls are made on the broker's loop."""

    def __init__(
        self,
        node_id: BrokerId,
        local: OwnRequests,
        forwarder: PeerRequests,
        leaders: Leaders,
    ) -> None:
        self._node_id = node_id
        self._local = local
        self._forwarder = forwarder
        self._leaders = leaders

    async def fetch(self, request: FetchRequest) -> tuple[FetchResponse, list[Part]]:
        """See `BrokerService.fetch`."""
        loop = asyncio.get_running_loop()
        patience = loop.time() + READ_PATIENCE_SECONDS
        deadline = loop.time() + request.max_wait_ms / 1000
        polls = 0
        while True:
            leaders = await self._leaders_of(request.partitions)
            left_ms = max(int((deadline - loop.time()) * 1000), 0)
            if len(leaders) <= 1:
                response, parts = await self._ask_all(request, left_ms, request.min_bytes)
            else:
                response, parts = await self._ask_all(request, 0, 0)
                if left_ms and not _is_enough(response, min(request.min_bytes, request.max_bytes // len(leaders))):
                    release_regions(parts)
                    if polls:
                        # The last poll ended without an answer, and the next one may end as soon.
                        await asyncio.sleep(min(RETRY_SECONDS, left_ms / 1000))
                    polls += 1
                    await self._poll_each(request, left_ms)
                    continue
            try:
                again = await self._asks_again(response, patience)
            except BaseException:
                release_regions(parts)
                raise
            if not again:
                return response, parts
            release_regions(parts)

    async def _asks_again(self, response: FetchResponse, patience: float) -> bool:
        """Return whether to ask all leaders once more, because a leader moved."""
        moved = any(p.error in ASKS_ELSEWHERE for p in response.partitions)
        return moved and await self._leaders.retry_before(patience)

    async def _ask_all(
        self, request: FetchRequest, max_wait_ms: int, min_bytes: int
    ) -> tuple[FetchResponse, list[Part]]:
        """Ask every leader once, and return the answers in the order of the request."""
        slots = Slots(FetchedPartition, len(request.partitions))
        bodies: dict[int, list[Part]] = {}
        groups = await self._groups(request.partitions, slots)
        # Each leader gets a share of `max_bytes`, so that all together return no more than requested.
        share = request.max_bytes // max(len(groups), 1)
        request = msgspec.structs.replace(request, max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=share)
        try:
            await asyncio.gather(
                *(self._ask(leader, request, positions, slots, bodies) for leader, positions in groups.items())
            )
        except BaseException:
            # Some leaders may have answered before the client left.
            for body in bodies.values():
                release_regions(body)
            raise
        parts = [part for position in sorted(bodies) for part in bodies[position]]
        return FetchResponse(request.correlation_id, slots.in_order()), parts

    async def _ask(
        self,
        leader: BrokerId,
        request: FetchRequest,
        positions: list[int],
        slots: Slots[FetchedPartition],
        bodies: dict[int, list[Part]],
    ) -> None:
        try:
            response, parts = await self._ask_leader(leader, _part_of(request, positions))
        except RaftlogError as error:
            for position in positions:
                slots.fail(position, request.partitions[position], error, final=True)
            return
        left = deque(parts)
        try:
            assert len(response.partitions) == len(positions), "an answer to something else"
            async for some in turns(len(positions), PARTITIONS_A_TURN):
                for position, answer in zip(positions[some], response.partitions[some], strict=True):
                    slots.settle(position, self._leaders.weighed(answer), final=True)
                    if answer.length:
                        bodies[position] = _take(left, answer.length)
        except BaseException:
            release_regions(left)
            raise

    async def _ask_leader(self, leader: BrokerId, request: FetchRequest) -> tuple[FetchResponse, list[Part]]:
        if leader != self._node_id:
            response, body = await self._forwarder.fetch(leader, request)
            return response, [body] if body.nbytes else []
        future: asyncio.Future[tuple[FetchResponse, list[Part]]] = asyncio.get_running_loop().create_future()

        def done(response: FetchResponse, parts: list[Part]) -> None:
            if future.done():
                release_regions(parts)
            else:
                future.set_result((response, parts))

        waiting = self._local.fetch(request, done)
        try:
            return await future
        except asyncio.CancelledError:
            waiting.cancel()
            if future.done() and not future.cancelled():
                release_regions(future.result()[1])
            raise

    async def _poll_each(self, request: FetchRequest, left_ms: int) -> None:
        """Poll until one leader has data, or the deadline passes. The caller requests the result again with the
        rest."""
        slots = Slots(FetchedPartition, len(request.partitions))
        request = msgspec.structs.replace(request, max_wait_ms=left_ms)
        groups = await self._groups(request.partitions, slots)
        tasks: list[asyncio.Task[tuple[FetchResponse, list[Part]]]] = [
            asyncio.create_task(self._ask_leader(leader, _part_of(request, positions)))
            for leader, positions in groups.items()
        ]
        if not tasks:
            return
        # If a partition has no leader now, the poll of the others is kept short.
        timeout = RETRY_SECONDS if slots.answers else None
        try:
            await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                # Not after the wait below: the caller may be cancelled in it.
                task.add_done_callback(_release)
                task.cancel()
            await asyncio.wait(tasks)

    async def _leaders_of(self, partitions: Sequence[FetchPartition]) -> set[BrokerId]:
        leaders: set[BrokerId] = set()
        async for some in turns(len(partitions), PARTITIONS_A_TURN):
            leaders.update(self._leaders.of(one.topic_id, one.partition) for one in partitions[some])
        return leaders

    async def _groups(
        self, partitions: Sequence[FetchPartition], slots: Slots[FetchedPartition]
    ) -> dict[BrokerId, list[int]]:
        """Return positions by the leader to ask, like `Leaders.groups`."""
        groups: dict[BrokerId, list[int]] = {}
        async for some in turns(len(partitions), PARTITIONS_A_TURN):
            found = self._leaders.groups(partitions, slots, range(some.start, some.stop))
            for leader, positions in found.items():
                groups.setdefault(leader, []).extend(positions)
        return groups


def _part_of(request: FetchRequest, positions: list[int]) -> FetchRequest:
    chosen = [request.partitions[position] for position in positions]
    return msgspec.structs.replace(request, partitions=chosen, forwarded=True)


def _release(task: asyncio.Task[tuple[FetchResponse, list[Part]]]) -> None:
    """Release the records of a poll that is given up; its error, if any, is found by the next one."""
    if not task.cancelled() and task.exception() is None:
        release_regions(task.result()[1])


def _is_enough(response: FetchResponse, min_bytes: int) -> bool:
    """Return whether the response has enough data. An error is returned without delay."""
    return sum(p.length for p in response.partitions) >= min_bytes or any(p.error for p in response.partitions)


def _take(parts: deque[Part], length: int) -> list[Part]:
    """Remove the first `length` bytes from the parts and return them.

    A region is never cut: a local leader's answer for one partition consists of whole parts, and a forwarded one is
    memory.
    """
    taken: list[Part] = []
    while length:
        part = parts.popleft()
        if isinstance(part, FileRegion):
            assert part.length <= length, "a region spans two partitions"
            taken.append(part)
            length -= part.length
            continue
        view = memoryview(part)
        if view.nbytes > length:
            parts.appendleft(view[length:])
            view = view[:length]
        taken.append(view)
        length -= view.nbytes
    return taken
