"""The coordinator's decisions: silent members to remove, targets to assign, unused offsets to expire.

It runs beside the quorum's leader, one `Coordinator` a term, created with a full session for every member: so a
failover removes no member, and heartbeats received by the previous coordinator need not be known (S10). Heartbeats live
here, in memory. It is level-triggered, as the controller: it examines groups that changed, and again those whose change
was refused or lost. Its proposals name the epoch or the incarnation that it saw and, if it judges by silence or age,
its term; the image decides. So two coordinators at once do no harm.

Time is monotonic seconds from outside. Of a gap between two calls only `MOST_SILENCE_SECONDS` count, since a stalled
coordinator receives no heartbeats.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Protocol

import msgspec

from metadata.commands.cluster import STAMP_LAG_MS
from metadata.commands.groups import (
    MAX_PARTITIONS_PER_GROUP,
    Assign,
    Expire,
    Fence,
    GroupChange,
    Target,
    pack_partitions,
)
from metadata.records.group_table import GroupsView
from metadata.records.groups import CommittedOffset, GroupRecord, MemberRecord
from metadata.rules.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, PartitionCounts, Subscriptions
from raftlog.model import ClusterTime, TopicId, TopicRecord

MOST_SILENCE_SECONDS = 0.5
GROUPS_PER_CALL = 8
"""Groups examined in one call: small ones are assigned at once, a millisecond or two each."""
REMOVALS_PER_CALL = 256
"""The removals in one call; the others follow in the next one."""
SESSIONS_PER_CALL = 1_000
"""Sessions examined in one call: some milliseconds. After an election all of them are due at the same time."""
LOOK_AGAIN_SECONDS = 0.2
"""The delay before another look at a group whose proposal was refused or lost."""
EXPIRY_SECONDS = 60.0
"""The interval of the search for expired offsets."""
OFFSETS_PER_CALL = 20_000
"""Offsets whose age is checked in one call: some milliseconds."""

Matcher = Callable[[str], Callable[[str], bool]]
"""A pattern → the predicate that matches it against a topic's whole name."""


class Facts(Protocol):
    """The part of the cluster's view that is needed here."""

    @property
    def groups(self) -> GroupsView: ...

    @property
    def time(self) -> ClusterTime: ...

    def topics(self) -> list[TopicRecord]: ...

    def topic(self, name: str) -> TopicRecord | None: ...


class _Session(msgspec.Struct):
    incarnation: int
    deadline: float
    revoking_until: float | None = None
    entry: int = -1
    """The session's current heap entry: older ones are stale."""


class AssignmentJob(msgspec.Struct, frozen=True):
    """Targets to compute. `run` touches nothing else, so a thread may run it if `size` is large."""

    group: GroupRecord
    subscriptions: Subscriptions
    counts: PartitionCounts
    left_out: tuple[str, ...] = ()
    """Topics left out for lack of room: a group has a bounded number of partitions assigned."""

    @property
    def size(self) -> int:
        """The number of members and partitions."""
        return len(self.subscriptions) + sum(self.counts.values())

    def run(self) -> Assign | None:
        """Compute the targets; None if they are unchanged."""
        group = self.group
        present = {member_id: member.target for member_id, member in group.members.items()}
        assignor = ASSIGNORS.get(group.assignor, ASSIGNORS[DEFAULT_ASSIGNOR])
        targets = assignor(self.subscriptions, self.counts, present)
        if targets == present and group.target_epoch == group.epoch:
            return None
        packed = tuple(Target(member_id, pack_partitions(targets[member_id])) for member_id in sorted(targets))
        return Assign(group.group_id, group.epoch, packed)


class Coordinator:
    """The coordinator of one term."""

    def __init__(self, facts: Facts, matcher: Matcher, term: int, *, offsets_retention_ms: int) -> None:
        """`offsets_retention_ms`: how long the offsets of a group without members are kept."""
        self.term = term
        self._facts = facts
        self._matcher = matcher
        self._retention_ms = offsets_retention_ms
        self._last_call: float | None = None
        self._missed = 0.0
        """Seconds of silence that are not counted."""
        self._sessions: dict[tuple[str, str], _Session] = {}
        self._due: list[tuple[float, int, tuple[str, str]]] = []
        """A heap of session deadlines; stale entries are discarded when they come up."""
        self._entries = 0
        self._dirty: dict[str, None] = dict.fromkeys(group.group_id for group in facts.groups.groups())
        self._again: dict[str, float] = {}
        """Groups to examine again, and when."""
        self._assigning: set[str] = set()
        """Groups whose targets are being computed or proposed."""
        self._removing: set[tuple[str, str, int]] = set()
        self._expiring: set[str] = set()
        self._next_expiry = -math.inf
        self._to_expire: list[str] = []
        """The rest of the current search for expired offsets."""
        self._patterns: dict[str, Callable[[str], bool]] = {}

    # --- What happened -----------------------------------------------------------------------------------------------

    def heartbeat(self, group_id: str, member_id: str, incarnation: int, now: float) -> bool:
        """Record a member's heartbeat; False if the group has no member of this incarnation."""
        self._watch(now)
        group = self._facts.groups.group(group_id)
        member = None if group is None else group.members.get(member_id)
        if member is None or member.incarnation != incarnation:
            return False
        session = self._begin(group_id, member, now)
        session.deadline = self._attention(now) + member.session_timeout_ms / 1000
        return True

    def group_changed(self, group_id: str) -> None:
        self._dirty[group_id] = None

    def topics_changed(self) -> None:
        """Record that some topic was created, grew or was deleted."""
        self._dirty.update(dict.fromkeys(group.group_id for group in self._facts.groups.groups() if group.members))

    @property
    def has_work(self) -> bool:
        """Return whether some group is to be examined."""
        return bool(self._dirty)

    def settled(self, change: GroupChange, now: float, *, done: bool) -> None:
        """Record that a proposal was decided (`done`: as proposed), or that its outcome is unknown."""
        match change:
            case Assign(group_id):
                self.assigned(group_id)
            case Fence(group_id, member_id, incarnation):
                self._removing.discard((group_id, member_id, incarnation))
            case Expire(group_id):
                self._expiring.discard(group_id)
                return
            case _:
                raise AssertionError(f"{change} is not the coordinator's")
        if not done:
            self._again[group_id] = now + LOOK_AGAIN_SECONDS

    def assigned(self, group_id: str, *, again_at: float | None = None) -> None:
        """Record that a job has ended; if it failed, the group is examined again at `again_at`."""
        self._assigning.discard(group_id)
        if again_at is not None:
            self._again[group_id] = again_at

    # --- What to do --------------------------------------------------------------------------------------------------

    def decide(self, now: float, now_ms: int) -> list[GroupChange]:
        """Return members to remove and offsets to expire, each to be passed to `settled` once its outcome is known.

        `now_ms`: this node's wall clock. It expires nothing: only the cluster's time does, as the view shows it (S8).
        """
        self._watch(now)
        for group_id in [group_id for group_id, due in self._again.items() if due <= now]:
            del self._again[group_id]
            self._dirty[group_id] = None
        changes: list[GroupChange] = list(self._fences(now, now_ms))
        if now >= self._next_expiry and not self._to_expire:
            self._next_expiry = now + EXPIRY_SECONDS
            if self._facts.time:
                self._to_expire = [group.group_id for group in self._facts.groups.groups() if not group.members]
        changes += self._expirations(self._facts.time)
        return changes

    def jobs(self, now: float) -> list[AssignmentJob]:
        """Return the targets to compute. Each job's group is skipped until `settled` or `assigned`."""
        if not self._dirty:
            return []
        jobs = []
        # Sorted, matched and counted once for all groups of this call.
        topics = _Topics(self._facts.topics(), self._fits)
        for group_id in list(islice(self._dirty, GROUPS_PER_CALL)):
            if group_id in self._assigning:
                self._again[group_id] = now + LOOK_AGAIN_SECONDS
            del self._dirty[group_id]
            group = self._facts.groups.group(group_id)
            if group is None or group_id in self._assigning:
                continue
            for member in group.members.values():
                self._begin(group_id, member, now)
            if group.members:
                self._assigning.add(group_id)
                jobs.append(topics.job(group))
        return jobs

    def next_call(self, now: float) -> float | None:
        """Return when to call `decide` again if nothing happens before; None: never."""
        if self._dirty or self._to_expire:
            return now
        times = [time + self._missed for time, _, _ in self._due[:1]]
        times += self._again.values()
        if self._facts.groups.has_groups:
            times.append(self._next_expiry)
        if self._sessions:
            # Silence counts only in steps, so a group with members needs regular calls.
            times.append(now + MOST_SILENCE_SECONDS)
        return max(now, min(times)) if times else None

    # --- Inside ------------------------------------------------------------------------------------------------------

    def _watch(self, now: float) -> None:
        if self._last_call is not None:
            self._missed += max(0.0, now - self._last_call - 2 * MOST_SILENCE_SECONDS)
        self._last_call = now

    def _attention(self, now: float) -> float:
        return now - self._missed

    def _begin(self, group_id: str, member: MemberRecord, now: float) -> _Session:
        """Return the member's session; a new one has its full duration."""
        key = (group_id, member.member_id)
        session = self._sessions.get(key)
        if session is None or session.incarnation != member.incarnation:
            at = self._attention(now)
            session = _Session(member.incarnation, at + member.session_timeout_ms / 1000)
            self._sessions[key] = session
            self._look_at(key, session, session.deadline)
        if all(partition in member.target for partition in member.owned):
            session.revoking_until = None
        elif session.revoking_until is None:
            session.revoking_until = self._attention(now) + member.rebalance_timeout_ms / 1000
            self._look_at(key, session, min(session.deadline, session.revoking_until))
        return session

    def _look_at(self, key: tuple[str, str], session: _Session, due: float) -> None:
        self._entries += 1
        session.entry = self._entries
        heapq.heappush(self._due, (due, self._entries, key))

    def _fences(self, now: float, now_ms: int) -> Iterable[Fence]:
        at = self._attention(now)
        room = REMOVALS_PER_CALL
        looks = SESSIONS_PER_CALL
        while room > 0 and looks > 0 and self._due and self._due[0][0] <= at:
            looks -= 1
            _, entry, key = heapq.heappop(self._due)
            session = self._sessions.get(key)
            if session is None or session.entry != entry:
                continue
            group = self._facts.groups.group(key[0])
            member = None if group is None else group.members.get(key[1])
            if member is None or member.incarnation != session.incarnation:
                del self._sessions[key]
                if member is not None:
                    self._begin(key[0], member, now)
                continue
            until = session.revoking_until
            deadline = session.deadline if until is None else min(session.deadline, until)
            self._look_at(key, session, max(deadline, at + LOOK_AGAIN_SECONDS))
            fence = (*key, member.incarnation)
            if at >= deadline and fence not in self._removing:
                self._removing.add(fence)
                room -= 1
                yield Fence(*key, member.incarnation, self.term, now_ms)

    def _expirations(self, time: ClusterTime) -> Iterable[Expire]:
        before_ms = time.now_ms - self._retention_ms - STAMP_LAG_MS
        room = OFFSETS_PER_CALL
        while self._to_expire and room > 0:
            group_id = self._to_expire.pop()
            group = self._facts.groups.group(group_id)
            if group is None or group.members or group_id in self._expiring:
                continue
            if time.since_ms(group.empty_since_ms) >= before_ms:
                continue
            offsets = self._facts.groups.offsets(group_id)
            room -= len(offsets) + 1
            if before_ms > 0 and _has_expired(time, offsets.values(), before_ms):
                self._expiring.add(group_id)
                yield Expire(group_id, group.epoch, self.term, before_ms)

    def _fits(self, pattern: str) -> Callable[[str], bool]:
        if pattern not in self._patterns:
            if len(self._patterns) >= 1_000:
                self._patterns.clear()
            self._patterns[pattern] = self._matcher(pattern)
        return self._patterns[pattern]


class _Topics:
    """The current topics and their subscribers."""

    def __init__(self, topics: list[TopicRecord], fits: Callable[[str], Callable[[str], bool]]) -> None:
        self._topics = topics
        self._by_name = {topic.name: topic for topic in topics}
        self._by_id = {topic.topic_id: topic for topic in topics}
        self._fits = fits
        self._fitting: dict[str, frozenset[TopicId]] = {}
        """By pattern."""

    def job(self, group: GroupRecord) -> AssignmentJob:
        """Return the job that computes a group's next targets."""
        subscriptions = {name: self._subscribed(member) for name, member in group.members.items()}
        wanted = frozenset[TopicId]().union(*set(subscriptions.values()))
        counts: dict[TopicId, int] = {}
        left_out = []
        left = MAX_PARTITIONS_PER_GROUP
        for topic in sorted((self._by_id[topic_id] for topic_id in wanted), key=lambda topic: topic.name):
            if topic.partition_count <= left:
                counts[topic.topic_id] = topic.partition_count
                left -= topic.partition_count
            else:
                left_out.append(topic.name)
        return AssignmentJob(group, subscriptions, counts, tuple(left_out))

    def _subscribed(self, member: MemberRecord) -> frozenset[TopicId]:
        named = frozenset(self._by_name[name].topic_id for name in member.topics if name in self._by_name)
        if not member.pattern:
            return named
        if member.pattern not in self._fitting:
            fits = self._fits(member.pattern)
            self._fitting[member.pattern] = frozenset(topic.topic_id for topic in self._topics if fits(topic.name))
        return named | self._fitting[member.pattern]


def _has_expired(time: ClusterTime, offsets: Iterable[CommittedOffset], before_ms: int) -> bool:
    """Return whether some offsets have expired, or none are left to keep the group for."""
    oldest = min((committed.commit_timestamp_ms for committed in offsets), default=-1)
    return time.since_ms(oldest) < before_ms
