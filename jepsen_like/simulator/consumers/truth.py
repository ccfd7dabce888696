"""Checks HTTP consumers (S8): at least once, one owner in each epoch, and no consumer that is lost.

The world knows of every answer whether the whole of it reached its client: only then its records were *delivered*, to
whichever program. A partition has only an end, and its records are the numbers below that.

C1. A committed offset never passes a record that was not delivered.
C2. A position that is lent never passes one either.
C3. A position is where the group has committed (or where it may begin), or where a delivery under the same epoch and
    grant was confirmed.
C4. An empty commit names only what was confirmed in the epoch that it names.
C5. In each epoch one node owns the consumer; and a commit is carried out only in the epoch that it names.
C6. A consumer that exists is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from http_api.service.instances import Lease
from jepsen_like.simulator.world.violation import Violation
from metadata.image.image import ClusterImage
from raftlog.model import Offset, TopicPartition

Grant = tuple[str, int, TopicPartition, int]
"""Consumer, epoch, partition, and the entry that granted it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """When a request was made: the last checked entry, and the names of the consumers that existed."""

    index: int
    existing: frozenset[str]


class ConsumersTruth:
    """Checks the consumers of one group; raises `Violation`."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self.index = 0
        """Index of the last checked entry."""
        self.ends: dict[TopicPartition, int] = {}
        """The partitions' log ends."""
        self.committed: dict[TopicPartition, int] = {}
        self.counts = {"deliveries": 0, "redelivered": 0, "take_overs": 0, "empty_commits": 0, "not_delivered": 0}
        self._below: dict[TopicPartition, int] = {}
        """Every record below this was delivered, or lies before the group's beginning."""
        self._beyond: dict[TopicPartition, set[int]] = {}
        """Records that were delivered, from the first that was not."""
        self._lent: set[TopicPartition] = set()
        """Partitions of which a position was ever lent."""
        self._begins: dict[TopicPartition, set[int]] = {}
        """Positions at which the group may begin where it has committed nothing."""
        self._commits: dict[TopicPartition, list[tuple[int, int]]] = {}
        """Partition → (entry, committed offset from then on)."""
        self._confirmed: dict[Grant, set[int]] = {}
        self._confirmed_in: dict[tuple[str, int, TopicPartition], set[int]] = {}
        self._tokens: dict[str, tuple[str, int]] = {}
        """Metadata of a commit → the consumer and the epoch that it names."""
        self._owners: dict[tuple[str, int], int] = {}
        self._epochs: dict[str, list[tuple[int, int]]] = {}
        """Consumer → (entry, its epoch from then on; -1: there is none)."""

    # --- The quorum --------------------------------------------------------------------------------------------------

    def applied(self, index: int, image: ClusterImage) -> None:
        """A node's image is at this index. Checks C1 and C5."""
        if index <= self.index:
            return
        self.index = index
        records = image.instances.of_group(self._group_id)
        for name in sorted({*records, *self._epochs}):
            epoch = records[name].epoch if name in records else -1
            if self._epoch(name, index) != epoch:
                self._epochs.setdefault(name, []).append((index, epoch))
                self.counts["take_overs"] += epoch >= 0
        for partition, one in image.groups.offsets_of(self._group_id).items():
            if self.committed.get(partition) == one.offset:
                continue
            below = self._below.get(partition, 0)
            if one.offset > below:
                raise Violation(
                    f"C1: entry {index} commits {one.offset} of {partition}; record {below} was never delivered"
                )
            self._check_epoch(index, partition, one.metadata)
            self.committed[partition] = one.offset
            self._commits.setdefault(partition, []).append((index, one.offset))

    def _check_epoch(self, index: int, partition: TopicPartition, token: str) -> None:
        """C5: a commit is carried out in the epoch that it names."""
        name, epoch = self._tokens.get(token, ("", -1))
        epochs = {self._epoch(name, index - 1), self._epoch(name, index)}
        if name and epoch not in epochs:
            raise Violation(f"C5: entry {index} commits {partition} for {name} in epoch {epoch}, not {sorted(epochs)}")

    def _epoch(self, name: str, index: int) -> int:
        """Return the epoch of a consumer after an entry; -1: there was none."""
        return next((epoch for since, epoch in reversed(self._epochs.get(name, [])) if since <= index), -1)

    # --- Records -----------------------------------------------------------------------------------------------------

    def written(self, partition: TopicPartition, count: int) -> None:
        """Records were appended."""
        self.ends[partition] = self.ends.get(partition, 0) + count

    def latest(self, partition: TopicPartition) -> int:
        """A consumer that begins at the end asks for it. Before the first position is lent, it may begin there."""
        end = self.ends.get(partition, 0)
        if partition not in self._lent:
            self._begins.setdefault(partition, {0}).add(end)
            self._passed(partition, end)
        return end

    def delivered(self, lease: Lease, ends: Mapping[TopicPartition, Offset]) -> None:
        """A whole answer reached its client."""
        self.counts["deliveries"] += 1
        for one in lease.partitions:
            if one.partition not in ends:
                continue
            below, beyond = self._below.get(one.partition, 0), self._beyond.setdefault(one.partition, set())
            new = set(range(max(one.offset, below), ends[one.partition])) - beyond
            self.counts["redelivered"] += ends[one.partition] - one.offset - len(new)
            beyond |= new
            self._passed(one.partition, below)

    def _passed(self, partition: TopicPartition, below: int) -> None:
        """Everything below an offset is done: continue to the first record that was not delivered."""
        below = max(below, self._below.get(partition, 0))
        beyond = self._beyond.setdefault(partition, set())
        while below in beyond:
            beyond.discard(below)
            below += 1
        self._below[partition] = below

    # --- Leases ------------------------------------------------------------------------------------------------------

    def lent_by(self, node: int, name: str, epoch: int) -> None:
        """C5: a node lends positions as the owner in an epoch."""
        owner = self._owners.setdefault((name, epoch), node)
        if owner != node:
            raise Violation(f"C5: nodes {owner} and {node} own {name} in epoch {epoch}")

    def lent(self, lease: Lease) -> None:
        """C2 and C3: check the positions of a lease."""
        name, epoch = lease.record.name, lease.record.epoch
        for one in lease.partitions:
            self._lent.add(one.partition)
            told = f"{name} in epoch {epoch} is at {one.offset} of {one.partition} (grant {one.granted})"
            below = self._below.get(one.partition, 0)
            if one.offset > below:
                raise Violation(f"C2: {told}; record {below} was never delivered")
            confirmed = self._confirmed.get((name, epoch, one.partition, one.granted), set())
            starts = self._starts(one.partition, one.granted)
            if one.offset not in confirmed and (one.delivered or one.offset not in starts):
                raise Violation(
                    f"C3: {told}, delivered: {one.delivered}; "
                    f"confirmed is {sorted(confirmed)[-5:]}, a start {sorted(starts)[-5:]}"
                )

    def _starts(self, partition: TopicPartition, granted: int) -> set[int]:
        """Return the positions at which a reader may start that got the partition by this entry."""
        commits = self._commits.get(partition, [])
        before = [offset for index, offset in commits if index <= granted][-1:]
        later = {offset for index, offset in commits if index > granted}
        return later | (set(before) or self._begins.get(partition, {0}))

    def confirms(self, lease: Lease, ends: Iterable[tuple[TopicPartition, Offset]]) -> None:
        """The node that faces the client is about to confirm a delivery."""
        granted = {one.partition: one.granted for one in lease.partitions}
        name, epoch = lease.record.name, lease.record.epoch
        for partition, end in ends:
            self._confirmed.setdefault((name, epoch, partition, granted[partition]), set()).add(end)
            self._confirmed_in.setdefault((name, epoch, partition), set()).add(end)

    # --- Requests ----------------------------------------------------------------------------------------------------

    def commits_delivered(self, name: str, epoch: int, offsets: Iterable[tuple[TopicPartition, int]]) -> None:
        """C4: a node is about to commit for an empty body."""
        for partition, offset in offsets:
            if offset not in self._confirmed_in.get((name, epoch, partition), set()):
                raise Violation(f"C4: {name} commits {offset} of {partition} in epoch {epoch}, which was not confirmed")

    def token(self, name: str, epoch: int) -> str:
        """Return the metadata of a commit, by which it is found in the image."""
        token = f"{name}/{epoch}/{len(self._tokens)}"
        self._tokens[token] = name, epoch
        return token

    @property
    def asked(self) -> Asked:
        """The present moment, for a request that begins now."""
        return Asked(self.index, frozenset(name for name in self._epochs if self._epoch(name, self.index) >= 0))

    def not_found(self, name: str, asked: Asked) -> None:
        """C6: a node says that there is no such consumer."""
        history = self._epochs.get(name, [])
        if name in asked.existing and not any(epoch < 0 and since > asked.index for since, epoch in history):
            raise Violation(f"C6: {name} is not found; it has existed since entry {asked.index} at least")
