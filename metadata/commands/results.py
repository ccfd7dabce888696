"""The answers of the state machine to commands: what holds now, or why nothing changed."""

from __future__ import annotations

from typing import TypeAlias

from raftlog.errors import RaftlogError, error_from_code
from raftlog.model import ProducerId

from .fields import IncarnationField, NaturalField, Part, PartitionEpochField
from .transactions import Key


class Done(Part, frozen=True, tag="done.1"):
    """It holds now (perhaps it did before)."""


class Registered(Part, frozen=True, tag="registered.1"):
    """This process's incarnation. It may act on partitions once its view has come to this registration."""

    incarnation: IncarnationField


class IsrAltered(Part, frozen=True, tag="isr_altered.1"):
    """The ISR was accepted with this partition epoch."""

    partition_epoch: PartitionEpochField


class ProducerIdsGranted(Part, frozen=True, tag="producer_ids_granted.1"):
    """`[first, first + count)` are the asker's."""

    first: ProducerId
    count: NaturalField


class Refused(Part, frozen=True, tag="refused.1"):
    """Not carried out, for a reason by name: `code` is a key of `raftlog.errors.CODES`."""

    code: str
    detail: str

    def error(self) -> RaftlogError:
        """As an exception."""
        return error_from_code(self.code, self.detail)


class Elected(Part, frozen=True, tag="elected.1"):
    """What became of each election, in the order of the command: None where it was carried out."""

    refusals: tuple[Refused | None, ...]


class ReassignmentsAltered(Part, frozen=True, tag="reassignments_altered.1"):
    """What became of each reassignment or move, in the order of the command: None where it was carried out."""

    refusals: tuple[Refused | None, ...]


class RefusedChange(Part, frozen=True):
    """One change of a `ChangeGroups`, by its position, that was not carried out."""

    position: NaturalField
    code: str
    detail: str


class GroupsChanged(Part, frozen=True, tag="groups_changed.1"):
    """What was refused; every other change was carried out."""

    refusals: tuple[RefusedChange, ...]


class TransactionAnswer(Part, frozen=True):
    """What there is to tell of one change of a `ChangeTransactions`, by its position: `code` says why it was not
    carried out; otherwise `keys` and `count` say what was asked for."""

    position: NaturalField
    code: str
    detail: str
    keys: tuple[Key, ...]
    count: NaturalField


class TransactionsChanged(Part, frozen=True, tag="transactions_changed.1"):
    """Every change that has no answer here was carried out, and there is nothing to tell."""

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
