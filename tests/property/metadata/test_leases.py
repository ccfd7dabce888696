"""Workers with any clocks, members, resets and deletions in any order: a record is skipped only by a reset (S8)."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.commands.cluster import SetFeatureLevel
from metadata.commands.groups import Commit, Delete, Leave, OffsetToCommit, Reset
from metadata.commands.instances import AnyGroupChange, ChangeGroupsAndInstances
from metadata.commands.leases import AcknowledgeLease, BeginLeases, RenewLease, TakeLease
from metadata.commands.results import GroupsChanged
from metadata.records.leases import NO_LEASE
from raftlog.model import Offset, TopicPartition
from raftlog.version import FEATURE_LEVEL
from tests.support.metadata.cluster import TOPIC
from tests.support.metadata.groups import NOW_MS, GroupCluster, join

GROUP = "readers"
PLACE = TopicPartition(TOPIC, 0)


class Workers:
    """Workers of one partition that remember former leases, and act on them at any later time."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.cluster = GroupCluster()
        self.cluster.do(SetFeatureLevel(FEATURE_LEVEL))
        self.leases = 0
        self.had: dict[int, tuple[int, int]] = {}
        """Lease → its range when it was taken."""
        self.open: dict[int, int] = {}
        """Offset → the last lease that had it and has not acknowledged it."""
        self.end = 0
        """The offset behind the last lease since the last reset."""

    @property
    def committed(self) -> int | None:
        known = self.cluster.image.groups.offsets_of(GROUP).get(PLACE)
        return None if known is None else known.offset

    def change(self) -> AnyGroupChange:
        """Return the next change, by a worker whose knowledge may be old."""
        record = self.cluster.view.leases.of_partition(GROUP, PLACE)
        group = self.cluster.image.groups.by_id.get(GROUP)
        kinds = ["take"] * 5 + ["take over"] * 3 + ["acknowledge"] * 6 + ["renew", "member", "reset", "commit", "begin"]
        kind = self.random.choice(kinds)
        self.leases += 1
        if kind == "begin":
            return BeginLeases(TOPIC, 0, GROUP, self.random.randrange(5), NOW_MS)
        if kind == "take over" and record is not None and record.ranges:
            over = self.random.choice(record.ranges)
            end = self.random.randint(over.start + 1, over.end)
            return TakeLease(TOPIC, 0, GROUP, self.leases, over.lease_id, over.start, end, 1_000, NOW_MS)
        if kind in ("acknowledge", "renew") and self.had:
            lease = self.random.choice(sorted(self.had)[-8:])
            if kind == "renew":
                return RenewLease(TOPIC, 0, GROUP, lease, self.random.choice((0, 1_000)))
            return AcknowledgeLease(TOPIC, 0, GROUP, lease, self.random.randint(*self.had[lease]), NOW_MS)
        if kind == "member":
            if group is not None and group.members:
                (member,) = group.members.values()
                return Leave(GROUP, member.member_id, member.incarnation, NOW_MS)
            return join("m") if self.random.random() < 0.5 else Delete(GROUP)
        offset = OffsetToCommit(TOPIC, 0, Offset(self.random.randrange(self.end + 3)))
        if kind == "reset":
            return Reset(GROUP, group.epoch if group is not None else -1, NOW_MS, (offset,))
        if kind == "commit":
            return Commit(GROUP, "", 0, 0, NOW_MS, (offset,))
        start = record.next_offset if record is not None else self.committed or 0
        start += self.random.choice((0, 0, 0, 0, 1))
        end = start + self.random.randint(1, 4)
        return TakeLease(TOPIC, 0, GROUP, self.leases, NO_LEASE, start, end, 1_000, NOW_MS)

    def step(self) -> None:
        change, before = self.change(), self.committed
        group = self.cluster.image.groups.by_id.get(GROUP)
        has_members = group is not None and bool(group.members)
        result = self.cluster.apply(ChangeGroupsAndInstances((change,), ("",)))
        assert isinstance(result, GroupsChanged), result
        assert list(self.cluster.view.leases.records()) == list(self.cluster.image.leases.records())
        if result.refusals:
            assert self.committed == before
            return
        after = self.committed
        if isinstance(change, TakeLease | AcknowledgeLease | RenewLease):
            assert not has_members, "a lease in a group with members"
        match change:
            case TakeLease(lease_id=lease, start=start, end=end, replaces=replaces):
                if replaces == NO_LEASE and start != self.end:
                    self.open = {}  # The first after a reset.
                self.end = end if replaces == NO_LEASE else self.end
                self.had[lease] = (start, end)
                self.open.update(dict.fromkeys(range(start, end), lease))
            case AcknowledgeLease(lease_id=lease, below=below):
                for offset in [one for one, holder in self.open.items() if holder == lease and one < below]:
                    del self.open[offset]
                assert after == min(self.open, default=self.end), "skipped, or behind"
            case Reset():
                self.open, self.end = {}, after or 0
            case Commit() | Delete() | BeginLeases() if after != before:
                self.open, self.end = {}, after or 0
            case _:
                assert after == before


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_a_record_is_committed_only_by_the_last_who_had_it_s8(seed: int, length: int) -> None:
    workers = Workers(seed)
    for _ in range(length):
        workers.step()  # Every invariant is checked after every command, and a node from a snapshot does the same.
