"""One consumer's place in its group: joined, kept by heartbeats, joined again when it was lost.

A task of its own, so that a program that takes long over its records stays a member. What the group says is kept as
`current`, for the consumer to act on when it is asked for records next; what the consumer gave up is named in the next
heartbeat, at once. Whatever node is asked passes heartbeats on, so a coordinator that dies is only a heartbeat that
takes longer.

`session` rises when membership was lost: what the consumer had is then perhaps somebody else's already, and nothing of
it may be committed. What is *not* here: reading and committing (`group_consumer.py`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from raftlog.errors import InvalidRequest, RaftlogError

from .api import blames_caller
from .group_api import GroupApi, GroupPartition, MembershipInfo

logger = logging.getLogger("raftlog.client")

HURRY_INTERVAL = 0.1
"""Seconds between heartbeats while the group is being rearranged, at most `heartbeat_interval`."""
BACKOFF_MIN = 0.05
BACKOFF_MAX = 1.0
LEAVE_TIMEOUT = 3.0
LOST = ("unknown_member", "member_fenced")
RELEASED_PER_HEARTBEAT = 1_000


class GroupMembership:
    """Belongs to one event loop; `start` and `close` it."""

    def __init__(self, api: GroupApi, wanted: Mapping[str, Any], *, heartbeat_interval: float) -> None:
        """`wanted`: what to join with, as the API has it. Times in seconds."""
        self._api = api
        self._wanted = dict(wanted)
        self._instance_id = str(wanted.get("instance_id") or "")
        self._interval = heartbeat_interval
        self._timeout = max(1.0, wanted["session_timeout_ms"] / 3000)
        # Its own name from the first attempt on: a join whose answer got lost is found again.
        self._member_id = f"{str(wanted.get('client_id') or 'consumer')[:200]}-{secrets.token_hex(16)}"
        self.current: MembershipInfo | None = None
        """What the group said last; None while it is no member."""
        self.session = 0
        self.error: RaftlogError | None = None
        """Why it will never be a member (again)."""
        self.last_error: RaftlogError | None = None
        self.changed = asyncio.Event()
        """Something is to be looked at: `current`, `session` or `error`."""
        self._released: dict[GroupPartition, None] = {}
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to join. Starting twice is fine."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def release(self, given_up: Iterable[GroupPartition]) -> None:
        """These are read no more, and committed as far as they will be."""
        self._released.update(dict.fromkeys(given_up))
        if self._released:
            self._hurry.set()

    def keep(self, taken_up: Iterable[GroupPartition]) -> None:
        """These are its own again before it said that they are not."""
        for partition in taken_up:
            self._released.pop(partition, None)

    async def close(self) -> None:
        """Leave, but for a static member: it will be back."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        current, self.current = self.current, None
        if current is None or self._instance_id:
            return
        try:
            await self._api.leave(current.member_id, current.incarnation, timeout=LEAVE_TIMEOUT)
        except RaftlogError as error:
            logger.debug("leaving the group failed, so its session will end it: %s", error)

    # --- Inside ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._be_member()
        except Exception as error:  # whatever it is, whoever polls must hear of it
            logger.exception("membership ended")
            self.error = RaftlogError("internal_error", f"membership ended: {error!r}")
            self.changed.set()

    async def _be_member(self) -> None:
        backoff = BACKOFF_MIN
        while True:
            try:
                await self._check_instance()
                self._hear(await self._api.join({**self._wanted, "member_id": self._member_id}))
                backoff = BACKOFF_MIN
                await self._stay()
            except RaftlogError as error:
                self.last_error = error
                if blames_caller(error) and error.code not in LOST:
                    self.error = error
                    self.changed.set()
                    return
                logger.debug("joining the group failed: %s", error)
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, BACKOFF_MAX)

    async def _check_instance(self) -> None:
        """A static member that was replaced must not take its place back, and so for ever (KIP-345)."""
        if not self._instance_id or not self.session:
            return
        try:
            holder = await self._api.member_of_instance(self._instance_id)
        except InvalidRequest as error:
            if error.code != "unknown_group":
                raise
            return
        if holder not in (None, self._member_id):
            raise InvalidRequest("invalid_request", f"instance {self._instance_id!r} of the group is another process")

    async def _stay(self) -> None:
        """Heartbeats, until it is no member any more."""
        while True:
            await self._pause()
            current = self.current
            assert current is not None, "a member"
            released = list(self._released)[:RELEASED_PER_HEARTBEAT]
            try:
                answer = await self._api.heartbeat(
                    current.member_id, current.incarnation, current.generation, released, timeout=self._timeout
                )
            except RaftlogError as error:
                self.last_error = error
                if error.code in LOST:
                    self._lose()
                    return
                if blames_caller(error):
                    raise
                continue  # Nobody answers for now: whether it is a member still, the coordinator will say.
            for partition in released:
                self._released.pop(partition, None)
            self._hear(answer)

    async def _pause(self) -> None:
        current = self.current
        calm = current is not None and current.state == "Stable" and not current.revoking
        interval = self._interval if calm else min(self._interval, HURRY_INTERVAL)
        if self._released and self.last_error is None:
            interval = 0.0
        try:
            async with asyncio.timeout(interval):
                await self._hurry.wait()
        except TimeoutError:
            pass
        self._hurry.clear()

    def _hear(self, answer: MembershipInfo) -> None:
        before, self.current = self.current, answer
        self.last_error = None
        if before is None or (before.generation, before.incarnation) != (answer.generation, answer.incarnation):
            self.changed.set()

    def _lose(self) -> None:
        self.current = None
        self.session += 1
        self._released.clear()
        self.changed.set()


def no_member(last_error: RaftlogError | None) -> InvalidRequest:
    """What to tell whoever needs a member."""
    why = f": {last_error.detail}" if last_error is not None else ""
    return InvalidRequest("unknown_member", f"this consumer is not a member of its group now{why}")
