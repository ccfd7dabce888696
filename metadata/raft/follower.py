"""The follower's side of replication: the comparison of a leader's entries with its own log.

Three rules keep it safe, whatever is lost, late, duplicated or reordered:

* An entry is removed only if the leader's entry at that index has another term, which is a real conflict. An append
  that covers less than the log has removes nothing.
* Nothing at or below the commit index is ever removed. A leader that requires it has another history: its append is
  refused like one that was lost on the way, so this node keeps what it promised and follows that leader in nothing.
* The commit index follows only what *this* message proved to be equal.

A fourth rule confines the fault of a broken peer to that peer (S11): an append that no leader can have sent is
refused before it has any effect (`check`). Of two histories of committed entries one is wrong, and the frame does not
tell which. If it is this node's, refusing it is enough: the node follows no leader of the other history, so it serves
no linearizable read, and its broker is fenced.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from metadata.journal.journal import Journal
from metadata.voters.configuration import decode_entry, is_single_step
from raftlog.errors import Contradiction, RemoteProtocolError

from .messages import Append


class Accepted(msgspec.Struct, frozen=True):
    """An accepted append: the logs agree up to `index`."""

    index: int


class Rejected(msgspec.Struct, frozen=True):
    """A rejected append: the entry before the leader's is missing here or differs. The logs may agree up to `hint`."""

    hint: int


def check(
    journal: Journal, commit_index: int, message: Append, check_command: Callable[[bytes], None] = lambda command: None
) -> None:
    """Raise `RemoteProtocolError` for an append that no leader can have sent.

    `check_command` raises it for the bytes of an entry that no node could apply.
    """
    _check_steps(journal, message)
    known = compare(journal, commit_index, message)
    if not isinstance(known, Rejected):
        for entry in message.entries[known:]:
            check_command(entry.command)


def _check_steps(journal: Journal, message: Append) -> None:
    """Check that every configuration is a single step from the one before it, as leaders make them (S7, S9).

    The first one of a log is not checked: before it, each node has what its own folder was prepared with, which names
    no disks.
    """
    latest = None
    for index, entry in enumerate(message.entries, message.prev_index + 1):
        configuration = decode_entry(entry.command)
        if configuration is None or index <= journal.base_index:
            continue
        if latest is None:
            if message.prev_index >= journal.base_index and journal.term_at(message.prev_index) != message.prev_term:
                return  # the entry before it is missing here: the append will be rejected
            latest = journal.configuration_at(max(message.prev_index, journal.base_index))
        if any(voter.pinned for voter in latest.voters) and not is_single_step(latest, configuration):
            raise RemoteProtocolError(
                f"entry {index} changes the voters from {latest.node_ids} to {configuration.node_ids}, or their disks, "
                "by more than one step, which no leader does"
            )
        latest = configuration


def accept(journal: Journal, commit_index: int, message: Append) -> Accepted | Rejected:
    """Compare, truncate at a conflict, and stage what is new."""
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
    """Return how many of the message's entries this log has, from the first on, or `Rejected` if the logs differ
    before them.

    It changes nothing. Raises `Contradiction` if the logs differ in entries that are committed here.
    """
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
    """Return the greatest index at which the logs may agree: before the conflicting term's first entry (Raft, 5.3)."""
    if index > journal.last_index:
        return journal.last_index
    conflicting = journal.term_at(index)
    while index > commit_index and journal.term_at(index) == conflicting:
        index -= 1
    return index


def _diverged(index: int, here: int | None, there: int, commit_index: int) -> Contradiction:
    return Contradiction(
        f"it sent another history as leader: it has term {there} at index {index}, this node's log has {here}, and "
        f"{commit_index} is committed here"
    )
