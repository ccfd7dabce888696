"""One consumer's state in its group: assignment, next heartbeat, loss of membership.

A pure core without network; `membership.py` is its shell, and the simulator runs the same class.

Three rules keep two members from reading the same partition:

* **Only newer answers count.** Any node answers a heartbeat, and a stale one reports an outdated assignment.
  Generations are indexes of the quorum's log, so within one incarnation the greater one is the later one.
* **A partition that is being released is not taken up again** before the group has confirmed the release, even if it is
  assigned again meanwhile: the release may be in flight, and by then the partition may belong to another member.
* **A member that lost its membership joins again only once its program has noticed**, that is, polls. So the loss is
  reported before any lost partition is owned again, and a program that hangs owns nothing.

The program proves that it is alive by polling. At most `max_poll_interval` seconds may pass between two polls (KIP-62);
then the member leaves, even if its heartbeats succeed. Time spent waiting inside `poll` does not count, time spent in
callbacks does.

Times are monotonic seconds, passed in by the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from raftlog.api.groups import GroupPartition, MembershipInfo

from .api import unpack

HURRY_INTERVAL = 0.1
"""Seconds between heartbeats when a rebalance begins; at most the heartbeat interval."""
HURRY_SHARE = 0.25
"""Interval of heartbeats during a rebalance, as a share of its duration so far.

A member that takes minutes to finish its records must not make a thousand others send heartbeats ten times a second.
"""
RELEASED_PER_HEARTBEAT = 1_000


@dataclass(frozen=True, slots=True)
class Plan:
    """Changes that make a consumer read what its group assigns to it."""

    revoked: list[GroupPartition]
    """Partitions that it still owns: to be committed, then released."""
    lost: list[GroupPartition]
    """Partitions that it no longer owns (the topic was deleted): nothing of them can be committed."""
    new: list[GroupPartition]
    """Partitions to begin reading."""
    free: list[GroupPartition]
    """Partitions to release once `revoked` is committed; includes those that it never began to read."""


class Member:
    """One consumer's membership, across all of its joins."""

    def __init__(self, *, heartbeat_interval: float, max_poll_interval: float, now: float) -> None:
        self._interval = heartbeat_interval
        self._max_poll_interval = max_poll_interval
        self.current: MembershipInfo | None = None
        """The group's last answer; None while it is not a member."""
        self.session = 0
        """Counts losses of membership: partitions of an earlier session may already have another owner."""
        self.failing = False
        """Whether the last heartbeat got no answer."""
        self._released: dict[GroupPartition, None] = {}
        self._in_poll = 0
        self._polled_at = now
        self._noticed = True
        """Whether the program has polled since membership was lost."""
        self._heard_at = now
        self._rearranged_at: float | None = None
        """Time of the last change in the group's answers during a rebalance."""

    # --- The program -------------------------------------------------------------------------------------------------

    def poll_began(self, now: float) -> None:
        self._in_poll += 1
        self._polled_at = now
        self._noticed = True

    def poll_ended(self, now: float) -> None:
        self._in_poll -= 1
        self._polled_at = now

    def shows_life(self, now: float) -> None:
        """Count as a poll that begins and ends at once.

        For a caller that hands out records of an earlier poll. Thread-safe.
        """
        self._polled_at = now

    @property
    def may_join(self) -> bool:
        """Whether its program waits for the membership."""
        return self._noticed

    @property
    def overdue_at(self) -> float | None:
        """Time at which it leaves unless its program polls; None while its program is in `poll`."""
        return None if self._in_poll else self._polled_at + self._max_poll_interval

    def is_overdue(self, now: float) -> bool:
        """Whether it is a member and its program has not polled for too long."""
        due = self.overdue_at
        return self.current is not None and due is not None and now >= due

    # --- The group ---------------------------------------------------------------------------------------------------

    def joined(self, answer: MembershipInfo, now: float) -> None:
        self.current = answer
        self.failing = False
        self._heard_at, self._rearranged_at = now, now

    def heartbeat(self) -> tuple[int, list[GroupPartition]]:
        """Return the contents of the next heartbeat: the generation and the released partitions."""
        assert self.current is not None, "a member"
        return self.current.generation, list(self._released)[:RELEASED_PER_HEARTBEAT]

    def heard(self, answer: MembershipInfo, named: Collection[GroupPartition], now: float) -> bool:
        """Take the answer to a heartbeat that reported the partitions `named` as released.

        Return True if the consumer has to act on a change.
        """
        before = self.current
        assert before is not None, "a member"
        self.failing = False
        self._heard_at = now
        for partition in named:
            self._released.pop(partition, None)
        stale = answer.generation < before.generation
        if not stale:
            self.current = answer
        changed = not stale and answer.generation > before.generation
        if changed or (not stale and answer.state != before.state):
            self._rearranged_at = now
        # A partition released now may have been assigned to it again.
        return changed or not set(named).isdisjoint(unpack(self.current.assigned if self.current else ()))

    def silence(self, now: float) -> None:
        """Record that a heartbeat got no answer; only the coordinator can tell whether the membership still holds."""
        self.failing = True
        self._heard_at = now

    def lost(self) -> None:
        """Record the loss of the membership."""
        self.current = None
        self.session += 1
        self._released.clear()
        self._noticed = self._in_poll > 0

    def next_heartbeat(self) -> float:
        """Return the time at which the next heartbeat is due."""
        if self._released and not self.failing:
            return self._heard_at
        current = self.current
        if current is not None and current.state == "Stable" and not current.revoking:
            return self._heard_at + self._interval
        lasts = 0.0 if self._rearranged_at is None else self._heard_at - self._rearranged_at
        return self._heard_at + min(self._interval, max(HURRY_INTERVAL, HURRY_SHARE * lasts))

    # --- The consumer ------------------------------------------------------------------------------------------------

    def plan(self, reads: Collection[GroupPartition]) -> Plan:
        """Return the plan for a consumer that reads `reads` now."""
        assert self.current is not None, "a member"
        assigned, revoking = unpack(self.current.assigned), unpack(self.current.revoking)
        mine, going = set(assigned), set(revoking)
        return Plan(
            revoked=[one for one in reads if one in going],
            lost=[one for one in reads if one not in mine and one not in going],
            new=[one for one in assigned if one not in reads and one not in self._released],
            free=revoking,
        )

    def release(self, given_up: Iterable[GroupPartition]) -> None:
        """Record that these partitions are no longer read, and will not be committed any further."""
        self._released.update(dict.fromkeys(given_up))

    @property
    def releases(self) -> bool:
        """Whether there are releases to report to the group."""
        return bool(self._released)
