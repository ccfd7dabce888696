"""The shell around a `Member`: it joins, sends heartbeats, joins again and leaves.

It runs as a task of its own, so that a program that takes long over its records stays a member as long as it polls now
and then. The group's answers are kept for the consumer, which acts on them at its next poll; the partitions that it
released are reported in an immediate heartbeat. Any node forwards heartbeats, so the death of a coordinator only delays
one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import monotonic

import msgspec

from raftlog.api.groups import GroupPartition, JoinGroup, MembershipInfo
from raftlog.client.cluster.any_node import blames_caller
from raftlog.client.cluster.outage import Outage
from raftlog.errors import InvalidRequest, RaftlogError

from .api import GroupApi
from .member import Member

logger = logging.getLogger("raftlog.client")

BACKOFF_MIN = 0.05
BACKOFF_MAX = 1.0
LEAVE_TIMEOUT = 3.0
LOST = ("unknown_member", "member_fenced")


class GroupMembership:
    """Keeps a consumer a member of its group.

    It belongs to one event loop; `start` and `close` it.
    """

    def __init__(
        self,
        api: GroupApi,
        wanted: JoinGroup,
        *,
        heartbeat_interval: float,
        max_poll_interval: float = 300.0,
    ) -> None:
        """`wanted`: the join request, without a member id. Times are in seconds."""
        self._api = api
        # A fixed id from the first attempt on: if the answer to a join is lost, the retry finds the same member.
        member_id = f"{(wanted.client_id or 'consumer')[:200]}-{secrets.token_hex(16)}"
        self._wanted = msgspec.structs.replace(wanted, member_id=member_id)
        self._instance_id = wanted.instance_id
        self._outage = Outage("group member")
        self._timeout = max(1.0, wanted.session_timeout_ms / 3000)
        self._max_poll_interval = max_poll_interval
        self.member = Member(
            heartbeat_interval=heartbeat_interval, max_poll_interval=max_poll_interval, now=monotonic()
        )
        self.error: RaftlogError | None = None
        """The error that ends membership permanently."""
        self.last_error: RaftlogError | None = None
        self.changed = asyncio.Event()
        """Set when `current`, `session` or `error` has changed."""
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._joining: asyncio.Task[MembershipInfo] | None = None

    @property
    def current(self) -> MembershipInfo | None:
        """The group's last answer; None while it is not a member."""
        return self.member.current

    @property
    def session(self) -> int:
        """Number of losses of membership (`Member.session`)."""
        return self.member.session

    def start(self) -> None:
        """Begin to join. Idempotent."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Mark the time that the program spends inside `poll`."""
        self.member.poll_began(monotonic())
        self._woken.set()
        try:
            yield
        finally:
            self.member.poll_ended(monotonic())
            self._woken.set()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Mark the time that `poll` spends in one of the program's callbacks."""
        self.member.poll_ended(monotonic())
        self._woken.set()
        try:
            yield
        finally:
            self.member.poll_began(monotonic())
            self._woken.set()

    def shows_life(self) -> None:
        """Count as a poll: the program consumes what an earlier poll returned. Thread-safe."""
        self.member.shows_life(monotonic())

    def release(self, given_up: Iterable[GroupPartition]) -> None:
        """Report these partitions as released at the next heartbeat, which is due at once."""
        self.member.release(given_up)
        if self.member.releases:
            self._woken.set()

    async def close(self) -> None:
        """Leave the group, unless it is a static member, which will be back."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        current, self.member.current = self.member.current, None
        current = await self._joined_meanwhile() or current
        if current is not None and not self._instance_id:
            await self._leave(current)

    # --- Inside ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._be_member()
        except Exception as error:  # any error must reach the program through `poll`
            logger.exception("membership ended")
            self.error = RaftlogError("internal_error", f"membership ended: {error!r}")
            self.changed.set()

    async def _be_member(self) -> None:
        backoff = BACKOFF_MIN
        while True:
            try:
                await self._until_program_polls()
                await self._check_instance()
                self.member.joined(await self._join(), monotonic())
                self._answered()
                self.changed.set()
                backoff = BACKOFF_MIN
                await self._stay()
            except RaftlogError as error:
                self.last_error = error
                if blames_caller(error) and error.code not in LOST:
                    self.error = error
                    self.changed.set()
                    return
                self.unanswered(error)
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, BACKOFF_MAX)

    async def _until_program_polls(self) -> None:
        while not self.member.may_join:
            self._woken.clear()
            await self._woken.wait()

    async def _join(self) -> MembershipInfo:
        """Join in a task that outlives this one: `close` has to learn whether the join succeeded."""
        joining = self._joining = asyncio.get_running_loop().create_task(self._api.join(self._wanted))
        answer = await asyncio.shield(joining)
        self._joining = None
        return answer

    async def _joined_meanwhile(self) -> MembershipInfo | None:
        """Return the result of a join that was in flight, if it succeeded."""
        joining, self._joining = self._joining, None
        if joining is None:
            return None
        await asyncio.wait([joining], timeout=LEAVE_TIMEOUT)
        if not joining.done():
            joining.cancel()
            await asyncio.wait([joining])
        failed = joining.cancelled() or joining.exception() is not None
        return None if failed else joining.result()

    async def _leave(self, current: MembershipInfo) -> None:
        try:
            await self._api.leave(current.member_id, current.incarnation, timeout=LEAVE_TIMEOUT)
        except RaftlogError as error:
            logger.debug("leaving the group failed, so its session will end it: %s", error)

    async def _check_instance(self) -> None:
        """Check that no other process is this static instance: the two would replace each other forever (KIP-345)."""
        if not self._instance_id or not self.session:
            return
        try:
            holder = await self._api.member_of_instance(self._instance_id)
        except InvalidRequest as error:
            if error.code != "unknown_group":
                raise
            return
        if holder not in (None, self._wanted.member_id):
            raise InvalidRequest(
                "invalid_request",
                f"another process is instance {self._instance_id!r} of the group: give each its own instance_id",
            )

    async def _stay(self) -> None:
        """Send heartbeats until the membership ends."""
        member = self.member
        while True:
            await self._pause()
            current = member.current
            assert current is not None, "a member"
            if member.is_overdue(monotonic()):
                await self._give_up_place(current)
                return
            generation, named = member.heartbeat()
            try:
                answer = await self._api.heartbeat(
                    current.member_id, current.incarnation, generation, named, timeout=self._timeout
                )
            except RaftlogError as error:
                self.last_error = error
                if error.code in LOST:
                    self._lose()
                    return
                if blames_caller(error):
                    raise
                member.silence(monotonic())
                self.unanswered(error)
                continue
            self._answered()
            if member.heard(answer, named, monotonic()):
                self.changed.set()

    def unanswered(self, error: RaftlogError) -> None:
        """Note a failure that is retried; log it now and then."""
        if (text := self._outage.failed(error, monotonic())) is not None:
            logger.warning("%s", text)

    def _answered(self) -> None:
        self.last_error = None
        if (text := self._outage.succeeded(monotonic())) is not None:
            logger.warning("%s", text)

    async def _pause(self) -> None:
        """Wait until the next heartbeat is due or the program is overdue."""
        while True:
            self._woken.clear()
            due, overdue = self.member.next_heartbeat(), self.member.overdue_at
            until = due if overdue is None else min(due, overdue)
            if until <= monotonic():
                return
            try:
                async with asyncio.timeout(until - monotonic()):
                    await self._woken.wait()
            except TimeoutError:
                return

    async def _give_up_place(self, current: MembershipInfo) -> None:
        """Leave because the program hangs (KIP-62).

        A static member sends no leave request: if it is back within its session, it keeps its partitions.
        """
        seconds = self._max_poll_interval
        detail = f"no poll for max_poll_interval_ms, {seconds:g} s: the program took too long over its records"
        logger.warning("leaving the group: %s", detail)
        self.last_error = InvalidRequest("unknown_member", detail)
        self._lose()
        if not self._instance_id:
            await self._leave(current)

    def _lose(self) -> None:
        self.member.lost()
        self.changed.set()


def no_member(last_error: RaftlogError | None) -> InvalidRequest:
    """Return the error for a call that needs membership."""
    why = f": {last_error.detail}" if last_error is not None else ""
    return InvalidRequest("unknown_member", f"this consumer is not a member of its group{why}")
