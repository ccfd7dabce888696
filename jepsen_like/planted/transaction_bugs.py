"""Bugs of transactions: rules without which exactly-once does not hold, each left out (S13)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from metadata.commands.results import Refused
from metadata.image import groups, transaction_commit
from metadata.image.transaction_state import TransactionsState
from metadata.records.groups import CommittedOffset
from metadata.records.transaction_table import Transactions
from metadata.records.transactions import NamedProducer, Standing
from partitions.producers import transactions as transaction_state
from partitions.producers.state import ProducerStates
from partitions.producers.transactions import TransactionState
from partitions.replica.transactions import LeaderTransactions
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
_verdict = original(Transactions, "verdict")

EVERYTHING = Offset(2**62)


def _commits_what_is_undecided(self: Any, key: Any, topic_partition: Any) -> Verdict:
    """The leader does not wait for the quorum's decision."""
    found = _verdict(self, key, topic_partition)
    return Verdict(Outcome.COMMITTED, EVERYTHING) if found.outcome is Outcome.UNDECIDED else found


def _commits_all_that_is_open(self: Any, key: Any, topic_partition: Any) -> Verdict:
    """A marker without the offset up to which the transaction is meant (Kafka's)."""
    found = _verdict(self, key, topic_partition)
    return Verdict(Outcome.COMMITTED, EVERYTHING) if found.outcome is Outcome.COMMITTED else found


def _takes_what_was_ended(self: Any, key: Any) -> str:
    """Records of transactions that are over are taken like others."""
    code = _refusal(self, key)
    return "" if code in ("transaction_aborted", "transaction_committed") else code


def _opens_once(self: Any, header: Any) -> None:
    """Whose marker was seen has nothing open any more."""
    key = transaction_state.key_of(header)
    if not any(known == key for known, _, _ in self.aborted):
        _extend(self, header)


def _forgets_aborts(self: Any, key: Any) -> Standing:
    """The quorum remembers commits, and leaders what they were told; whoever decides remembers no abort."""
    found = _standing(self, key)
    return Standing.UNDECIDED if found is Standing.ABORTED else found


def _says_marked_at_once(self: Any, exposed: Any) -> Any:
    """A marker that is appended is as good as one below the high watermark."""
    writing, self._writing = self._writing, {}
    effects = _marked(self, exposed)
    self._writing = writing
    return effects


def _shows_all(self: Any, high_watermark: Any) -> Any:
    """The last stable offset is the high watermark."""
    self.settle(high_watermark)
    return high_watermark


def _moves_offsets_all_the_same(state: Any, wanted: Any, index: int) -> Generator[None, None, Any]:
    """Offsets are written whether or not the outputs are."""
    decided = yield from _decide(state, wanted, index)
    if isinstance(decided, Refused) and decided.code not in ("invalid_request", "offset_moved"):
        for group in wanted.moves.values():
            groups.have_group(state, group.group_id, index)
            for move in group.moves:
                committed = CommittedOffset(move.end, -1, "", wanted.now_ms)
                state.groups.put_offsets(group.group_id, {move.topic_partition: committed})
    return decided


def _any_start_will_do(state: Any, wanted: Any) -> None:
    """Offsets move from wherever they are."""


def _leaves_old_ones_open(self: Any, exposed: Any) -> Any:
    """A new leader marks only what began under itself."""
    for key in list(self._state.open_keys()):
        self._state._open.pop(key)
    return _begin(self, exposed)


def _knows_no_attempt(self: Any, attempt: Any) -> int | None:
    """A request to begin that comes again is another one."""
    return None


def _forgets_whose_transaction_is_open(states: Any, now: float) -> None:
    _advance(states, now)
    for producer_id, entry in list(states._in_transaction.items()):
        if states._service_ms - entry.appended_at_ms >= states._bounds.expiration_ms:
            del states._in_transaction[producer_id]


def _bug(name: str, hole: str, closed_by: str, *patches: Patch) -> Planted:
    return Planted(name, hole, closed_by, patches, TRANSACTIONS)


TRANSACTION_BUGS = (
    _bug(
        "marker_before_decision",
        "records of a transaction that is not decided are shown",
        "LeaderTransactions: markers are written for what the quorum has decided",
        Patch(Transactions, "verdict", _commits_what_is_undecided),
    ),
    _bug(
        "late_write_after_abort_accepted",
        "a write that was long on its way is taken after its transaction was aborted, and shown",
        "Transactions.refusal, and a state that opens the transaction again",
        Patch(Transactions, "refusal", _takes_what_was_ended),
        Patch(TransactionState, "_extend", _opens_once),
    ),
    _bug(
        "late_write_joins_the_commit",
        "a write behind the end that the commit named is shown with it",
        "markers carry the named end",
        Patch(Transactions, "verdict", _commits_all_that_is_open),
    ),
    _bug(
        "abort_forgotten_before_a_late_commit",
        "a commit that comes after the abort is carried out: half of its output is there",
        "outcomes are kept until the block expires, or the producer's next end",
        Patch(TransactionsState, "standing", _forgets_aborts),
    ),
    _bug(
        "decision_forgotten_too_early",
        "a new leader finds committed records open, and nobody who remembers",
        "MarkersWritten is said of markers below the high watermark",
        Patch(LeaderTransactions, "_marked", _says_marked_at_once),
    ),
    _bug(
        "stable_offset_beyond_an_open_transaction",
        "readers of what is committed are shown what is open",
        "TransactionState.last_stable_offset: below whatever is open",
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
        "input that another producer has worked on is worked on again (R5)",
        "_group_refusal: a move starts at the current offset",
        Patch(transaction_commit, "_group_refusal", _any_start_will_do),
    ),
    _bug(
        "new_leader_leaves_old_ones",
        "what was open when the leader fell is never marked",
        "LeaderTransactions.begin: a new leader does the same for what it finds open",
        Patch(LeaderTransactions, "begin", _leaves_old_ones_open),
    ),
    _bug(
        "a_repeated_initialisation_fences",
        "a request to begin that comes again fences the very producer for which it was made",
        "NamedProducer.turn_of: the record knows which requests began it",
        Patch(NamedProducer, "turn_of", _knows_no_attempt),
    ),
    _bug(
        "open_transactions_expire",
        "a producer is forgotten while its transaction is open, and what it sends again is committed twice",
        "ProducerStates.advance leaves open transactions alone",
        Patch(ProducerStates, "advance", _forgets_whose_transaction_is_open),
    ),
)
