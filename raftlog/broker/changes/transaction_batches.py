"""Batches of transaction changes (`batches.py`): a thousand commits a second become a hundred commands, each no
larger than `MAX_CHANGES_BYTES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from metadata.commands.envelope import Command
from metadata.commands.results import TransactionsChanged
from metadata.commands.transactions import (
    MAX_CHANGE_BYTES,
    MAX_CHANGES,
    MAX_CHANGES_BYTES,
    TRANSACTIONS_FEATURE_LEVEL,
    ChangeTransactions,
    ChangeTransactionsAs,
    TransactionChange,
)
from metadata.quorum.port import MetadataQuorum, Outcome
from raftlog.config import KIB
from raftlog.errors import RaftlogError, error_from_code
from raftlog.ports import Clock, Scheduler
from raftlog.transactions import TransactionKey

from .batches import ChangeBatches, Limits

MOST_BYTES = MAX_CHANGE_BYTES + 1 * KIB
"""Maximum size of one change: a part of that size, and its name."""
LIMITS = Limits(MOST_BYTES, "transaction_too_large", MAX_CHANGES_BYTES, MAX_CHANGES, 0)


@dataclass(frozen=True, slots=True)
class Decided:
    """The result of a change that was carried out."""

    keys: tuple[TransactionKey, ...] = ()
    """The keys that the image answered with, if any."""
    count: int = 0
    """The number of ids in an opened block."""


class TransactionBatches(ChangeBatches[TransactionChange, Decided]):
    """Batches of transaction changes."""

    def __init__(
        self,
        quorum: MetadataQuorum,
        when_view_reaches: Callable[[int, Callable[[], None]], None],
        feature_level: Callable[[], int],
        clock: Clock,
        scheduler: Scheduler,
    ) -> None:
        super().__init__(
            quorum,
            when_view_reaches,
            feature_level,
            clock,
            scheduler,
            what="transactions",
            needs_level=TRANSACTIONS_FEATURE_LEVEL,
            limits=LIMITS,
            decoder=msgspec.msgpack.Decoder(TransactionChange),
        )

    def _command(self, changes: tuple[TransactionChange, ...]) -> Command:
        return ChangeTransactions(changes)

    def _command_as(self, changes: tuple[TransactionChange, ...], principals: tuple[str, ...]) -> Command:
        return ChangeTransactionsAs(changes, principals)

    def _answers(self, outcome: Outcome, count: int) -> list[Decided | RaftlogError] | None:
        if not isinstance(outcome.result, TransactionsChanged):
            return None
        answers: list[Decided | RaftlogError] = [Decided()] * count
        for told in outcome.result.answers:
            if told.position >= count:
                continue  # answers none of these changes
            refused = error_from_code(told.code, told.detail) if told.code else None
            answers[told.position] = refused or Decided(told.keys, told.count)
        return answers
