"""One consumer's place in its group, decided without network: what it was told, what it says next, when it has lost
everything. A pure core; `membership.py` is the shell, and the simulator runs the same class.

Three rules keep two members from reading one partition:

* **Only what is newer counts.** Any node answers a heartbeat, and one that is behind tells of an assignment that is
  over. Generations are indexes of the quorum's log, so within one incarnation the greater one is the later one.
* **What is being given up is not taken up again** before the group has confirmed that it is given up, even where it is
  assigned again meanwhile: the word that it is free may be on its way, and somebody else's it may be by then.
* **Who lost its place joins again only once its program has noticed** (it polls), so that what was lost is told before
  anything of it is owned anew, and a program that hangs owns nothing.

The program shows that it lives by polling. Between two polls at most `max_poll_interval` seconds may pass (KIP-62);
then the member leaves, however well its heartbeats go. Time spent waiting inside of `poll` does not count, time spent
in its callbacks does.

Times are monotonic seconds from outside.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from .api import GroupPartition, MembershipInfo, unpack

HURRY_INTERVAL = 0.1
"""Seconds between heartbeats when the group begins to be rearranged, at most the heartbeat interval."""
HURRY_SHARE = 0.25
"""While that lasts, heartbeats are apart by this share of how long it has lasted: a member that takes minutes over its
records must not have a thousand others ask ten times a second."""
RELEASED_PER_HEARTBEAT = 1_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What a consumer has to do to read what its group wants it to read."""

    revoked: list[GroupPartition]
    """Its own still: to be committed, then given up."""
    lost: list[GroupPartition]
    """Not its own any more (its topic was deleted): nothing of it can be committed."""
    new: list[GroupPartition]
    """To begin with."""
    free: list[GroupPartition]
    """To be released once `revoked` is given up; with those that it never began to read."""


class Member:
    """Of one consumer, through all the times that it joins."""

    def __init__(self, *, heartbeat_interval: float, max_poll_interval: float, now: float) -> None:
        self._interval = heartbeat_interval
        self._max_poll_interval = max_poll_interval
        self.current: MembershipInfo | None = None
        """What the group said last; None while it is no member."""
        self.session = 0
        """Rises when membership was lost: what the consumer had is then perhaps somebody else's already."""
        self.failing = False
        """The last heartbeat was not answered."""
        self._released: dict[GroupPartition, None] = {}
        self._in_poll = 0
        self._polled_at = now
        self._noticed = True
        """The program polled since membership was lost."""
        self._heard_at = now
        self._rearranged_at: float | None = None
        """When what the group says changed last, while it is being rearranged."""

    # --- The program -------------------------------------------------------------------------------------------------

    def poll_began(self, now: float) -> None:
        self._in_poll += 1
        self._polled_at = now
        self._noticed = True

    def poll_ended(self, now: float) -> None:
        self._in_poll -= 1
        self._polled_at = now

    def shows_life(self, now: float) -> None:
        """As a poll that begins and ends at once, for whoever hands out what an earlier one gave. Any thread."""
        self._polled_at = now

    @property
    def may_join(self) -> bool:
        """Its program waits for it."""
        return self._noticed

    @property
    def overdue_at(self) -> float | None:
        """When it leaves unless its program polls; None: its program is in `poll`."""
        return None if self._in_poll else self._polled_at + self._max_poll_interval

    def is_overdue(self, now: float) -> bool:
        """It is a member, and its program has not polled for too long."""
        due = self.overdue_at
        return self.current is not None and due is not None and now >= due

    # --- The group ---------------------------------------------------------------------------------------------------

    def joined(self, answer: MembershipInfo, now: float) -> None:
        self.current = answer
        self.failing = False
        self._heard_at, self._rearranged_at = now, now

    def heartbeat(self) -> tuple[int, list[GroupPartition]]:
        """What the next one says: the generation, and what was given up."""
        assert self.current is not None, "a member"
        return self.current.generation, list(self._released)[:RELEASED_PER_HEARTBEAT]

    def heard(self, answer: MembershipInfo, named: Collection[GroupPartition], now: float) -> bool:
        """The answer to a heartbeat that named these as given up. True where the consumer has something to look at."""
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
        # What is free now may have been given to it again.
        return changed or not set(named).isdisjoint(unpack(self.current.assigned if self.current else ()))

    def silence(self, now: float) -> None:
        """A heartbeat got no answer: whether it is a member still, the coordinator will say."""
        self.failing = True
        self._heard_at = now

    def lost(self) -> None:
        """It is no member any more."""
        self.current = None
        self.session += 1
        self._released.clear()
        self._noticed = self._in_poll > 0

    def next_heartbeat(self) -> float:
        """When the next heartbeat is due."""
        if self._released and not self.failing:
            return self._heard_at
        current = self.current
        if current is not None and current.state == "Stable" and not current.revoking:
            return self._heard_at + self._interval
        lasts = 0.0 if self._rearranged_at is None else self._heard_at - self._rearranged_at
        return self._heard_at + min(self._interval, max(HURRY_INTERVAL, HURRY_SHARE * lasts))

    # --- The consumer ------------------------------------------------------------------------------------------------

    def plan(self, reads: Collection[GroupPartition]) -> Plan:
        """For a consumer that reads these now."""
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
        """These are read no more, and committed as far as they will be."""
        self._released.update(dict.fromkeys(given_up))

    @property
    def releases(self) -> bool:
        """There is something to tell the group."""
        return bool(self._released)
