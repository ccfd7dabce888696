"""The follower's side of replication: comparing a leader's entries with its own log.

Three rules that make it safe, whatever is lost, late, double or out of order:

* an entry is removed only when the leader's entry at that index has another term: a real conflict. An append that says
  less than the log has takes nothing away;
* nothing at or below the commit index is ever removed: a leader that wants it has another history, and this node stops;
* the commit index follows only what *this* message proved to be equal.

And one that keeps a broken peer's fault the peer's (S11): what no leader of ours can have said is refused before
anything was done about it (`check`). Of two histories of what is committed one is wrong. Where a voter tells the other
one, this log may be the wrong one, and the node stops; anybody else who tells it is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

from metadata.journal.journal import Journal
from metadata.voters.configuration import decode_entry, is_single_step
from raftlog.errors import InvariantViolation, RemoteProtocolError

from .messages import Append


@dataclass(frozen=True, slots=True)
class Accepted:
    """The logs agree up to `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The entry before the leader's is missing here or another; the logs may agree up to `hint`."""

    hint: int


def check(journal: Journal, commit_index: int, message: Append, *, of_voter: bool) -> None:
    """Raises `RemoteProtocolError` for an append that no leader can have sent. `of_voter`: its sender counts as one."""
    _check_steps(journal, message)
    if not of_voter:
        try:
            compare(journal, commit_index, message)
        except InvariantViolation as error:
            raise RemoteProtocolError(f"who is no voter here leads by another history: {error.detail}") from None


def _check_steps(journal: Journal, message: Append) -> None:
    """Every configuration must be a single step from the one before it, as a leader makes them (S7, S9). The first one
    of a log is not compared: before it each node has what its own folder was prepared with, which names no disk."""
    latest = None
    for index, entry in enumerate(message.entries, message.prev_index + 1):
        configuration = decode_entry(entry.command)
        if configuration is None or index <= journal.base_index:
            continue
        if latest is None:
            if message.prev_index >= journal.base_index and journal.term_at(message.prev_index) != message.prev_term:
                return  # what comes before it is not here: the append will be rejected
            latest = journal.configuration_at(max(message.prev_index, journal.base_index))
        if any(voter.pinned for voter in latest.voters) and not is_single_step(latest, configuration):
            raise RemoteProtocolError(
                f"entry {index} changes the voters from {latest.node_ids} to {configuration.node_ids}, or their disks, "
                "by more than one step: no leader does that"
            )
        latest = configuration


def accept(journal: Journal, commit_index: int, message: Append) -> Accepted | Rejected:
    """Compare, cut a conflict away, stage what is new."""
    known = compare(journal, commit_index, message)
    if isinstance(known, Rejected):
        return known
    index = message.prev_index + known
    if known < len(message.entries) and index < journal.last_index:
        journal.truncate_from(index + 1)
    for entry in message.entries[known:]:
        index += 1
        journal.append(entry.command, index, entry.term)
    return Accepted(message.prev_index + len(message.entries))


def compare(journal: Journal, commit_index: int, message: Append) -> Rejected | int:
    """How many of the message's entries this log has, from the first on; or that the logs differ before them. Changes
    nothing. Raises `InvariantViolation` where they differ in what is committed here."""
    prev_index = message.prev_index
    if prev_index >= journal.base_index:
        term = journal.term_at(prev_index)
        if term != message.prev_term:
            if prev_index <= commit_index:
                raise _diverged(prev_index, term, message.prev_term, commit_index)
            return Rejected(_hint(journal, commit_index, prev_index))
    for known, entry in enumerate(message.entries):
        index = prev_index + 1 + known
        term = journal.term_at(index)
        if term == entry.term or index < journal.base_index:
            continue
        if index <= commit_index:
            raise _diverged(index, term, entry.term, commit_index)
        return known
    return len(message.entries)


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
