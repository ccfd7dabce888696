"""The state machine's answers to commands: what holds now, or why nothing changed."""

from __future__ import annotations

from typing import TypeAlias

from raftlog.errors import RaftlogError, error_from_code
from raftlog.model import ProducerId

from .fields import IncarnationField, NaturalField, Part, PartitionEpochField
from .transactions import Key


class Done(Part, frozen=True, tag="done.1"):
    """The requested state holds now, and may have held before."""


class Registered(Part, frozen=True, tag="registered.1"):
    """This process's incarnation. It may act on partitions once its view has reached this registration."""

    incarnation: IncarnationField


class IsrAltered(Part, frozen=True, tag="isr_altered.1"):
    """The ISR was accepted with this partition epoch."""

    partition_epoch: PartitionEpochField


class ProducerIdsGranted(Part, frozen=True, tag="producer_ids_granted.1"):
    """The producer ids `[first, first + count)` belong to the requester."""

    first: ProducerId
    count: NaturalField


class Refused(Part, frozen=True, tag="refused.1"):
    """A refusal: `code` is a key of `raftlog.errors.CODES`."""

    code: str
    detail: str

    def error(self) -> RaftlogError:
        """Return the refusal as an exception."""
        return error_from_code(self.code, self.detail)


class Elected(Part, frozen=True, tag="elected.1"):
    """The result of each election, in the order of the command: None if it was carried out."""

    refusals: tuple[Refused | None, ...]


class ReassignmentsAltered(Part, frozen=True, tag="reassignments_altered.1"):
    """The result of each reassignment or move, in the order of the command: None if it was carried out."""

    refusals: tuple[Refused | None, ...]


class RefusedChange(Part, frozen=True):
    """A refused change of a `ChangeGroups`, by its position."""

    position: NaturalField
    code: str
    detail: str


class GroupsChanged(Part, frozen=True, tag="groups_changed.1"):
    """The refused changes; every other change was carried out."""

    refusals: tuple[RefusedChange, ...]


class TransactionAnswer(Part, frozen=True):
    """The answer to one change of a `ChangeTransactions`, by its position.

    If the change was refused, `code` says why; otherwise `keys` and `count` are the requested values.
    """

    position: NaturalField
    code: str
    detail: str
    keys: tuple[Key, ...]
    count: NaturalField


class TransactionsChanged(Part, frozen=True, tag="transactions_changed.1"):
    """The answers to changes that have one; every other change was carried out."""

    answers: tuple[TransactionAnswer, ...]


CommandResult: TypeAlias = (
    Done
    | Registered
    | IsrAltered
    | ProducerIdsGranted
    | Elected
    | Refused
    | ReassignmentsAltered
    | GroupsChanged
    | TransactionsChanged
)
