"""The follower's side of replication: comparing a leader's entries with its own log.

Three rules that make it safe, whatever is lost, late, double or out of order:

* an entry is removed only when the leader's entry at that index has another term: a real conflict. An append that says
  less than the log has takes nothing away;
* nothing at or below the commit index is ever removed: a leader that wants it has another history, and this node stops;
* the commit index follows only what *this* message proved to be equal.

What is *not* here: terms (the core has compared them), snapshots, answers on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.errors import InvariantViolation

from .journal import Journal
from .quorum_messages import Append


@dataclass(frozen=True, slots=True)
class Accepted:
    """The logs agree up to `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The entry before the leader's is missing here or another; the logs may agree up to `hint`."""

    hint: int


def accept(journal: Journal, commit_index: int, message: Append) -> Accepted | Rejected:
    """Compare, cut a conflict away, stage what is new."""
    prev_index = message.prev_index
    if prev_index >= journal.base_index:
        term = journal.term_at(prev_index)
        if term != message.prev_term:
            if prev_index <= commit_index:
                raise _diverged(prev_index, term, message.prev_term, commit_index)
            return Rejected(_hint(journal, commit_index, prev_index))
    index = prev_index
    for entry in message.entries:
        index += 1
        term = journal.term_at(index)
        if term == entry.term or index < journal.base_index:
            continue
        if index <= commit_index:
            raise _diverged(index, term, entry.term, commit_index)
        if term is not None:
            journal.truncate_from(index)
        journal.append(entry.command, index, entry.term)
    return Accepted(index)


def _hint(journal: Journal, commit_index: int, index: int) -> int:
    """The greatest index at which the logs may agree: before the conflicting term's first entry (Raft, 5.3)."""
    if index > journal.last_index:
        return journal.last_index
    conflicting = journal.term_at(index)
    while index > commit_index and journal.term_at(index) == conflicting:
        index -= 1
    return index


def _diverged(index: int, here: int | None, there: int, commit_index: int) -> InvariantViolation:
    return InvariantViolation(
        f"the leader has term {there} at index {index}, this log has {here}, and {commit_index} is committed here"
    )
