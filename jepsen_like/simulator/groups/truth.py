"""Checks consumer groups (S8) after every entry that the quorum has applied: offsets, owners, and one reader at a time.

The checks use only the image and the members' reports. The owners of partitions are taken from the image after each
entry (a *tenure*: a member's life with a partition, from its assignment on), and every commit has a unique token by
which it is found in the image.

1. A committed offset is never lost or lowered while its partition exists.
2. A commit is accepted, and applied, only in a present tenure: not from a former owner, nor in an earlier tenure of the
   same member, whose position lacks what others did meanwhile.
3. A present member reads only its own partitions, in the tenure in which it began. So no two members read one
   partition. (A removed member that does not know this yet continues to read, but cannot commit.)
4. A tenure begins to read exactly at the offset that is committed at that moment: no record is skipped, and no
   committed record is read again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from jepsen_like.simulator.world.violation import Violation
from metadata.image.image import ClusterImage
from raftlog.model import TopicPartition


class Tenure(NamedTuple):
    """One member's ownership of a partition, from its assignment on."""

    member_id: str
    incarnation: int
    granted: int


@dataclass(frozen=True, slots=True)
class Commit:
    """One offset of a member's commit request."""

    partition: TopicPartition
    offset: int
    tenure: Tenure


class Reader(Protocol):
    """The interface of a member for the checks."""

    @property
    def member_id(self) -> str: ...
    @property
    def reading(self) -> dict[TopicPartition, Tenure]:
        """The partitions that it reads now."""
        ...


class GroupTruth:
    """Checks one group; raises `Violation`."""

    def __init__(self, group_id: str, readers: Iterable[Reader]) -> None:
        """`readers` may change; it is iterated at each check."""
        self._group_id = group_id
        self._readers = readers
        self.index = 0
        """Index of the last checked entry."""
        self.owners: dict[TopicPartition, Tenure] = {}
        self.incarnations: dict[str, int] = {}
        """Member id → incarnation, of the present members."""
        self.offsets: dict[TopicPartition, int] = {}
        self.commits: dict[str, Commit] = {}
        """Token → commit."""
        self.carried_out = 0
        self.grants = 0
        self._tokens: dict[TopicPartition, str] = {}
        self._history: dict[TopicPartition, list[tuple[int, Tenure | None]]] = {}
        """Partition → (entry, owner from then on)."""
        self._tenures: dict[tuple[TopicPartition, str, int], list[int]] = {}
        """(partition, member, incarnation) → the generations of its assignments."""

    def applied(self, index: int, image: ClusterImage) -> None:
        """A node's image is at this index."""
        if index <= self.index:
            return
        self.index = index
        self._look_at_offsets(index, image)
        if self._look_at_owners(image):
            for reader in self._readers:
                self.check(reader)

    def tenure(self, partition: TopicPartition, member_id: str, incarnation: int, generation: int) -> Tenure:
        """The tenure of a member that knows this generation."""
        grants = self._tenures.get((partition, member_id, incarnation), [])
        known = [granted for granted in grants if granted <= generation]
        if not known:
            raise Violation(f"S8.3: {member_id} begins to read {partition}, which it never owned: {grants}")
        return Tenure(member_id, incarnation, known[-1])

    def begins(self, partition: TopicPartition, tenure: Tenure, offset: int) -> None:
        """A member has received its start offset."""
        committed = self.offsets.get(partition, 0)
        if self.owners.get(partition) == tenure and offset != committed:
            raise Violation(f"S8.4: {tenure} begins {partition} at {offset}; committed is {committed}")

    def taken(self, tokens: Iterable[str], asked: int, index: int) -> None:
        """2: a node accepted this commit. `asked`: the last entry when it was asked; `index`: the entry that it
        reports, which may be that of a later copy of the commit.
        """
        for token in tokens:
            commit = self.commits[token]
            history = self._history.get(commit.partition, [])
            owners = [owner for since, owner in history if since <= asked][-1:]
            owners += [owner for since, owner in history if asked < since < index]
            if commit.tenure not in owners:
                raise Violation(f"S8.2: entry {index} takes {commit}, and {commit.partition} is that of {owners}")

    def check(self, reader: Reader) -> None:
        """3: check one reader."""
        for partition, tenure in reader.reading.items():
            present = self.incarnations.get(tenure.member_id) == tenure.incarnation
            owner = self.owners.get(partition)
            if present and partition in self._existing and owner != tenure:
                raise Violation(f"S8.3: {reader.member_id} reads {partition} as {tenure}, which is {owner}'s")

    def _look_at_offsets(self, index: int, image: ClusterImage) -> None:
        self._existing = image.partitions
        offsets = image.groups.offsets_of(self._group_id)
        for partition, before in list(self.offsets.items()):
            if partition not in image.partitions:
                del self.offsets[partition], self._tokens[partition]
            elif partition not in offsets or offsets[partition].offset < before:
                raise Violation(f"S8.1: entry {index} turns {before} of {partition} into {offsets.get(partition)}")
        for partition, committed in offsets.items():
            if self._tokens.get(partition) != committed.metadata:
                self._carried_out(index, partition, committed.metadata)
            self._tokens[partition] = committed.metadata
            self.offsets[partition] = committed.offset

    def _carried_out(self, index: int, partition: TopicPartition, token: str) -> None:
        """2: check against the owners before this entry."""
        commit = self.commits[token]
        owner = self.owners.get(partition)
        if owner != commit.tenure:
            raise Violation(f"S8.2: entry {index} carries out {commit}, and {partition} is {owner}'s")
        self.carried_out += 1

    def _look_at_owners(self, image: ClusterImage) -> bool:
        group = image.groups.by_id.get(self._group_id)
        members = {} if group is None else group.members
        owners = {
            partition: Tenure(member_id, members[member_id].incarnation, granted)
            for member_id in sorted(members)
            for partition, granted in members[member_id].owned.items()
        }
        self.incarnations = {member_id: member.incarnation for member_id, member in members.items()}
        if owners == self.owners:
            return False
        for partition in self.owners:
            if partition not in owners:
                self._history[partition].append((self.index, None))
        for partition, tenure in owners.items():
            if self.owners.get(partition) != tenure:
                self.grants += 1
                self._history.setdefault(partition, []).append((self.index, tenure))
                self._tenures.setdefault((partition, tenure.member_id, tenure.incarnation), []).append(tenure.granted)
        self.owners = owners
        return True
