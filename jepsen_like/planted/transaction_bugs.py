"""Bugs of transactions: each leaves out a rule on which exactly-once depends (S13)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from metadata.commands.results import Refused
from metadata.commands.transactions import digest_of
from metadata.image import groups, transaction_commit
from metadata.image.transaction_state import TransactionsState
from metadata.records.groups import CommittedOffset
from metadata.records.transaction_table import Transactions
from metadata.records.transactions import NamedProducer, Standing
from partitions.producers import transactions as transaction_state
from partitions.producers.state import ProducerStates
from partitions.producers.transactions import TransactionState
from partitions.replica.transactions import LeaderTransactions
from raftlog.broker.changes.transaction_pieces import Parts
from raftlog.broker.changes.transactions import Transactions as NodeTransactions
from raftlog.model import Offset
from raftlog.transactions import Outcome, Verdict

from .patches import TRANSACTIONS, Patch, Planted, original

_advance = original(ProducerStates, "advance")
_begin = original(LeaderTransactions, "begin")
_decide = original(transaction_commit, "_decide")
_extend = original(TransactionState, "_extend")
_key_of = original(transaction_state, "key_of")
_marked = original(LeaderTransactions, "_marked")
_refusal = original(Transactions, "refusal")
_standing = original(TransactionsState, "standing")
_stage = original(NodeTransactions, "_stage")
_verdict = original(Transactions, "verdict")

EVERYTHING = Offset(2**62)


def _commits_what_is_undecided(self: Any, key: Any, topic_partition: Any) -> Verdict:
    """Write markers without the quorum's decision."""
    found = _verdict(self, key, topic_partition)
    return Verdict(Outcome.COMMITTED, EVERYTHING) if found.outcome is Outcome.UNDECIDED else found


def _commits_all_that_is_open(self: Any, key: Any, topic_partition: Any) -> Verdict:
    """Write a marker without the offset at which the transaction ends (Kafka's)."""
    found = _verdict(self, key, topic_partition)
    return Verdict(Outcome.COMMITTED, EVERYTHING) if found.outcome is Outcome.COMMITTED else found


def _takes_what_was_ended(self: Any, key: Any) -> str:
    """Accept records of transactions that have ended."""
    code = _refusal(self, key)
    return "" if code in ("transaction_aborted", "transaction_committed") else code


def _opens_once(self: Any, header: Any) -> None:
    """Do not reopen a transaction whose marker was seen."""
    key = transaction_state.key_of(header)
    if not any(known == key for known, _, _ in self.aborted):
        _extend(self, header)


def _forgets_aborts(self: Any, key: Any) -> Standing:
    """Forget aborts in the quorum, which decides; commits, and the leaders' knowledge, stay."""
    found = _standing(self, key)
    return Standing.UNDECIDED if found is Standing.ABORTED else found


def _says_marked_at_once(self: Any, exposed: Any) -> Any:
    """Report a marker as written when it is appended, not when it is below the high watermark."""
    writing, self._writing = self._writing, {}
    effects = _marked(self, exposed)
    self._writing = writing
    return effects


def _shows_all(self: Any, high_watermark: Any) -> Any:
    """Return the high watermark as the last stable offset."""
    self.settle(high_watermark)
    return high_watermark


def _moves_offsets_all_the_same(state: Any, wanted: Any, index: int) -> Generator[None, None, Any]:
    """Write the offsets even if the outputs are refused."""
    decided = yield from _decide(state, wanted, index)
    if isinstance(decided, Refused) and decided.code not in ("invalid_request", "offset_moved"):
        for group in wanted.moves.values():
            groups.have_group(state, group.group_id, index, wanted.principal)
            for move in group.moves:
                committed = CommittedOffset(move.end, -1, "", wanted.now_ms)
                state.groups.put_offsets(group.group_id, {move.topic_partition: committed})
    return decided


def _any_start_will_do(state: Any, wanted: Any) -> None:
    """Move offsets from any current value."""


def _leaves_old_ones_open(self: Any, exposed: Any) -> Any:
    """A new leader marks only transactions that began under itself."""
    for key in list(self._state.open_keys()):
        self._state._open.pop(key)
    return _begin(self, exposed)


def _knows_no_attempt(self: Any, attempt: Any) -> int | None:
    """Treat a retried initialization as a new one."""
    return None


def _forgets_whose_transaction_is_open(states: Any, now: float) -> None:
    _advance(states, now)
    for producer_id, entry in list(states._in_transaction.items()):
        if states._service_ms - entry.appended_at_ms >= states._bounds.expiration_ms:
            del states._in_transaction[producer_id]


def _says_visible_at_once(self: Any, commit: Any) -> bool:
    """A decided commit counts as visible, though leaders write its markers later."""
    return True


def _keeps_the_first_part(self: Any, commit: Any, commit_id: Any, parts: Any, number: int) -> None:
    """A staged commit is complete after its first part."""
    some = parts.packed[:1]
    _stage(self, commit, commit_id, Parts(some, digest_of(some)), number)


def _bug(name: str, hole: str, closed_by: str, *patches: Patch) -> Planted:
    return Planted(name, hole, closed_by, patches, TRANSACTIONS)


TRANSACTION_BUGS = (
    _bug(
        "marker_before_decision",
        "records of an undecided transaction are visible",
        "LeaderTransactions writes markers only for decided transactions",
        Patch(Transactions, "verdict", _commits_what_is_undecided),
    ),
    _bug(
        "late_write_after_abort_accepted",
        "a delayed write is accepted after its transaction was aborted, and becomes visible",
        "Transactions.refusal, and a state that opens the transaction again",
        Patch(Transactions, "refusal", _takes_what_was_ended),
        Patch(TransactionState, "_extend", _opens_once),
    ),
    _bug(
        "late_write_joins_the_commit",
        "a write beyond the end that the commit names becomes visible with it",
        "markers carry the named end",
        Patch(Transactions, "verdict", _commits_all_that_is_open),
    ),
    _bug(
        "abort_forgotten_before_a_late_commit",
        "a commit after the abort is applied: half of its output is visible",
        "outcomes are kept until the block expires, or the producer's next end",
        Patch(TransactionsState, "standing", _forgets_aborts),
    ),
    _bug(
        "decision_forgotten_too_early",
        "a new leader finds committed records open, and their decision is forgotten",
        "MarkersWritten is reported for markers below the high watermark",
        Patch(LeaderTransactions, "_marked", _says_marked_at_once),
    ),
    _bug(
        "stable_offset_beyond_an_open_transaction",
        "read_committed consumers see open transactions",
        "TransactionState.last_stable_offset is below every open transaction",
        Patch(TransactionState, "last_stable_offset", _shows_all),
    ),
    _bug(
        "offsets_without_the_output",
        "a group's offsets move with a commit that is refused",
        "_decide: everything is checked before anything is written",
        Patch(transaction_commit, "_decide", _moves_offsets_all_the_same),
    ),
    _bug(
        "offsets_from_any_start",
        "input that another producer has processed is processed again (R5)",
        "_group_refusal: a move starts at the current offset",
        Patch(transaction_commit, "_group_refusal", _any_start_will_do),
    ),
    _bug(
        "new_leader_leaves_old_ones",
        "transactions that were open when the leader failed are never marked",
        "LeaderTransactions.begin: a new leader takes over the open transactions",
        Patch(LeaderTransactions, "begin", _leaves_old_ones_open),
    ),
    _bug(
        "a_repeated_initialisation_fences",
        "a retried initialisation fences the producer that sent it",
        "NamedProducer.turn_of: the record has the requests that began it",
        Patch(NamedProducer, "turn_of", _knows_no_attempt),
    ),
    _bug(
        "open_transactions_expire",
        "a producer is forgotten while its transaction is open, and its resends are committed twice",
        "ProducerStates.advance leaves open transactions alone",
        Patch(ProducerStates, "advance", _forgets_whose_transaction_is_open),
    ),
    _bug(
        "visible_before_its_markers",
        "a caller that waits until its commit is visible is answered before the markers are written",
        "Transactions._is_visible: no end of the commit is left in the view",
        Patch(NodeTransactions, "_is_visible", _says_visible_at_once),
    ),
    _bug(
        "half_of_a_staged_commit",
        "of a commit that is staged in parts only the first part is committed",
        "Transactions._stage: the last command names the number and the digest of all parts",
        Patch(NodeTransactions, "_stage", _keeps_the_first_part),
    ),
)
