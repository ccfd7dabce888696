"""The state machine's answers to commands: what holds now, or why nothing changed."""

from __future__ import annotations

from typing import TypeAlias

from raftlog.errors import RaftlogError, error_from_code
from raftlog.model import ProducerId
from raftlog.transactions import TransactionKey

from .fields import IncarnationField, NaturalField, PartitionEpochField, WireStruct


class Done(WireStruct, frozen=True, tag="done.1"):
    """The requested state holds now, and may have held before."""


class Registered(WireStruct, frozen=True, tag="registered.1"):
    """This process's incarnation. It may act on partitions once its view has reached this registration."""

    incarnation: IncarnationField


class IsrAltered(WireStruct, frozen=True, tag="isr_altered.1"):
    """The ISR was accepted with this partition epoch."""

    partition_epoch: PartitionEpochField


class ProducerIdsGranted(WireStruct, frozen=True, tag="producer_ids_granted.1"):
    """The producer ids `[first, first + count)` belong to the requester."""

    first: ProducerId
    count: NaturalField


class Refused(WireStruct, frozen=True, tag="refused.1"):
    """A refusal: `code` is a key of `raftlog.errors.CODES`."""

    code: str
    detail: str

    def error(self) -> RaftlogError:
        """Return the refusal as an exception."""
        return error_from_code(self.code, self.detail)


class Elected(WireStruct, frozen=True, tag="elected.1"):
    """The result of each election, in the order of the command: None if it was carried out."""

    refusals: tuple[Refused | None, ...]


class ReassignmentsAltered(WireStruct, frozen=True, tag="reassignments_altered.1"):
    """The result of each reassignment or move, in the order of the command: None if it was carried out."""

    refusals: tuple[Refused | None, ...]


class RefusedChange(WireStruct, frozen=True):
    """A refused change of a `ChangeGroups`, by its position."""

    position: NaturalField
    code: str
    detail: str


class GroupsChanged(WireStruct, frozen=True, tag="groups_changed.1"):
    """The refused changes; every other change was carried out."""

    refusals: tuple[RefusedChange, ...]


class TransactionAnswer(WireStruct, frozen=True):
    """The answer to one change of a `ChangeTransactions`, by its position.

    If the change was refused, `code` says why; otherwise `keys` and `count` are the requested values.
    """

    position: NaturalField
    code: str
    detail: str
    keys: tuple[TransactionKey, ...]
    count: NaturalField


class TransactionsChanged(WireStruct, frozen=True, tag="transactions_changed.1"):
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
