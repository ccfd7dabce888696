"""What must be true of consumer groups whenever the quorum has decided something: S8, and one reader at a time.

Judged from outside: who owned what is read off the image after each entry and kept (a *tenure*: a member's life, from a
grant on), and every commit carries a name by which it is known again in the image.

1. A committed offset is never lost nor lowered while its partition exists.
2. A commit is taken (and carried out) only for a tenure that holds when it is: not for a former owner, nor for a former
   tenure of the same member, whose position knows nothing of what others did in between.
3. Whoever is a member reads only what is its own, in the tenure in which it began. So no two members read one
   partition. (Who was removed and does not know it yet reads on, and can commit nothing.)
4. A tenure begins to read exactly at the committed offset of that moment: nothing is skipped, and nothing that was
   committed is read again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from jepsen_like.simulator.world.violation import Violation
from metadata.image.image import ClusterImage
from raftlog.model import TopicPartition


class Tenure(NamedTuple):
    """A partition of a member, from a grant on."""

    member_id: str
    incarnation: int
    granted: int


@dataclass(frozen=True, slots=True)
class Commit:
    """One offset that a member asked to be committed."""

    partition: TopicPartition
    offset: int
    tenure: Tenure


class Reader(Protocol):
    """A member as it is looked at."""

    @property
    def member_id(self) -> str: ...
    @property
    def reading(self) -> dict[TopicPartition, Tenure]:
        """What it reads now."""
        ...


class GroupTruth:
    """Of one group; raises `Violation`."""

    def __init__(self, group_id: str, readers: Iterable[Reader]) -> None:
        """`readers` may change; it is looked at whenever something was decided."""
        self._group_id = group_id
        self._readers = readers
        self.index = 0
        """Of the last entry that was looked at."""
        self.owners: dict[TopicPartition, Tenure] = {}
        self.incarnations: dict[str, int] = {}
        """Of the members of now."""
        self.offsets: dict[TopicPartition, int] = {}
        self.commits: dict[str, Commit] = {}
        """By name."""
        self.carried_out = 0
        self.grants = 0
        self._tokens: dict[TopicPartition, str] = {}
        self._history: dict[TopicPartition, list[tuple[int, Tenure | None]]] = {}
        """(entry, owner from then on)."""
        self._tenures: dict[tuple[TopicPartition, str, int], list[int]] = {}
        """(partition, member, incarnation) → its grants."""

    def applied(self, index: int, image: ClusterImage) -> None:
        """Some node's image is at this index."""
        if index <= self.index:
            return
        self.index = index
        self._look_at_offsets(index, image)
        if self._look_at_owners(image):
            for reader in self._readers:
                self.check(reader)

    def tenure(self, partition: TopicPartition, member_id: str, incarnation: int, generation: int) -> Tenure:
        """The one that a member means that knows this generation."""
        grants = self._tenures.get((partition, member_id, incarnation), [])
        known = [granted for granted in grants if granted <= generation]
        if not known:
            raise Violation(f"S8.3: {member_id} begins to read {partition}, which it was never given: {grants}")
        return Tenure(member_id, incarnation, known[-1])

    def begins(self, partition: TopicPartition, tenure: Tenure, offset: int) -> None:
        """A member has been told where to go on."""
        committed = self.offsets.get(partition, 0)
        if self.owners.get(partition) == tenure and offset != committed:
            raise Violation(f"S8.4: {tenure} begins {partition} at {offset}; committed is {committed}")

    def taken(self, tokens: Iterable[str], asked: int, index: int) -> None:
        """2: a node that was asked when entry `asked` was the last says that this commit was taken, by `index`: which
        may be the entry of a copy, after the one that was carried out."""
        for token in tokens:
            commit = self.commits[token]
            history = self._history.get(commit.partition, [])
            owners = [owner for since, owner in history if since <= asked][-1:]
            owners += [owner for since, owner in history if asked < since < index]
            if commit.tenure not in owners:
                raise Violation(f"S8.2: entry {index} takes {commit}, and {commit.partition} is that of {owners}")

    def check(self, reader: Reader) -> None:
        """3."""
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
        """2: by the owners of before this entry."""
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
