"""The leader's side of replication: what to send to each voter and observer, and what their answers prove.

Observers are sent committed entries only. An observer's log therefore never needs truncation, and a voter that is
being removed does not hold the entry that removes it before the remaining voters have agreed to it. (Otherwise its
log would be the longest, and it could vote for no other candidate.)

One `Replication` lives as long as one leadership. It reads the journal, keeps a `Progress` per peer and reports to
the core how far each peer's log agrees; the core counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metadata.journal.journal import Journal
from metadata.journal.snapshot_file import Snapshot
from raftlog.errors import InvariantViolation, RemoteProtocolError

from .messages import (
    MAX_APPEND_BYTES,
    MAX_APPEND_ENTRIES,
    Append,
    AppendReply,
    Entry,
    Message,
    SnapshotReply,
)
from .progress import Progress, State
from .snapshot_transfer import OutgoingSnapshot

TRANSFER_BYTES = 8 * 1024 * 1024
"""The most bytes of log kept for peers that are being sent an earlier snapshot: half of what makes the next one due."""


class Replication:
    """The replication of one leadership. `tell` queues a message to a peer, which is sent after the next sync."""

    def __init__(
        self,
        term: int,
        voters: Sequence[int],
        journal: Journal,
        tell: Callable[[int, Message], None],
        disk_of: Callable[[int], bytes] = lambda peer: b"",
    ) -> None:
        """Begin with the voters in PROBE.

        `disk_of` returns the directory id with which a peer connected, and so made its acknowledgements; empty if
        unknown.
        """
        self._term = term
        self._disk_of = disk_of
        self._journal = journal
        self._tell = tell
        self._voters = frozenset(voters)
        self.progress: dict[int, Progress] = {}
        """The progress of each voter and observer, without this node."""
        self.stirred = True
        """Whether a peer may have become able to receive something, or may lack something, since the last `send`."""
        self._sent_upto = (0, 0)
        """(last index, commit index) at the last `send`."""
        self._appends: dict[tuple[int, int, bytes], tuple[Append, int]] = {}
        """(first index, last index, acknowledged by) → the append that one `send` shares between all peers in that
        position, and its size in bytes."""
        for voter in voters:
            self.track(voter)

    def track(self, peer: int) -> None:
        """Start sending to this peer."""
        if peer not in self.progress:
            self.forget(peer)

    def set_voters(self, voters: Sequence[int]) -> None:
        """Apply a changed configuration. A former voter becomes an observer."""
        self._voters = frozenset(voters)
        for voter in voters:
            self.track(voter)
        self.stirred = True

    # --- Sending ---

    def send(self, commit_index: int, snapshot: Snapshot | None, *, heartbeat: bool) -> None:
        """Send each peer what it may receive now; with `heartbeat`, send every peer something."""
        voters_last = self._journal.last_index
        upto = (voters_last, commit_index)
        if not (heartbeat or self.stirred) and upto == self._sent_upto:
            return
        self.stirred = False
        self._sent_upto = upto
        for voter, progress in self.progress.items():
            last = voters_last if voter in self._voters else commit_index
            if heartbeat or not progress.has_all(last, commit_index):
                self._send_to(voter, progress, commit_index, snapshot, heartbeat=heartbeat)
        self._appends.clear()

    def _send_to(
        self, voter: int, progress: Progress, commit_index: int, snapshot: Snapshot | None, *, heartbeat: bool
    ) -> None:
        last = self._journal.last_index if voter in self._voters else commit_index
        if voter not in self._voters and progress.state is State.PROBE:
            progress.next = max(progress.match + 1, min(progress.next, last + 1))
        if progress.state is not State.SNAPSHOT and progress.next <= self._journal.base_index:
            self._needs_snapshot(progress, snapshot)
        if progress.snapshot is not None:
            chunk = progress.snapshot.chunk(self._term, probe=heartbeat)
            if chunk is not None:
                self._tell(voter, chunk)
            return
        spoke = False
        while progress.next <= last and progress.may_send_entries():
            self._append(voter, progress, commit_index, last)
            spoke = True
        news = progress.state is State.REPLICATE and commit_index > progress.commit_sent
        if not spoke and (heartbeat or news):
            self._append(voter, progress, commit_index, progress.next - 1)

    def _append(self, voter: int, progress: Progress, commit_index: int, last: int) -> None:
        """Send a peer the next entries up to `last`, or as many as fit; without entries, a heartbeat."""
        prev_index = progress.next - 1
        # If it is unknown what the peer has, the append names the disk that acknowledged the previous entry: the peer
        # may have forgotten it (S9).
        reminded = progress.state is State.PROBE and prev_index == progress.match
        acknowledged_by = self._disk_of(voter) if reminded else b""
        shared = self._appends.get((prev_index, last, acknowledged_by))
        if shared is None:
            prev_term = self._journal.term_at(prev_index)
            if prev_term is None:
                raise InvariantViolation(
                    f"voter {voter} needs the entries after {prev_index}, which the log lacks: {progress}"
                )
            entries, size = self._batch(progress.next, last)
            shared = Append(self._term, prev_index, prev_term, commit_index, entries, acknowledged_by), size
            self._appends[prev_index, last, acknowledged_by] = shared
        append, size = shared
        self._tell(voter, append)
        progress.on_sent(prev_index + len(append.entries), size, commit_index)

    def _batch(self, first: int, last: int) -> tuple[tuple[Entry, ...], int]:
        """Return the entries from `first` to `last` that fit into one append, at least one if there is any, and their
        size in bytes."""
        start = first - self._journal.base_index
        end = min(start + MAX_APPEND_ENTRIES, last - self._journal.base_index + 1)
        batch: list[Entry] = []
        size = 0
        for command, _, term in self._journal.entries[start:end]:
            if batch and size + len(command) > MAX_APPEND_BYTES:
                break
            batch.append(Entry(term, command))
            size += len(command)
        return tuple(batch), size

    def _needs_snapshot(self, progress: Progress, snapshot: Snapshot | None) -> None:
        if snapshot is None or snapshot.index < self._journal.base_index:
            # Nothing was ever dropped: the voter's hint was below the beginning of any log.
            if snapshot is not None or self._journal.base_index != 1:
                raise InvariantViolation(
                    f"the log begins at {self._journal.base_index}, and no snapshot covers what came before"
                )
            progress.probe_from(self._journal.base_index + 1)
            return
        progress.send_snapshot(OutgoingSnapshot(snapshot))

    def oldest_on_its_way(self, answering: Callable[[int], bool]) -> int | None:
        """Return the last index of the oldest snapshot that is being sent to a peer that answers, or None.

        Without the entries after it, that peer would need the next snapshot as well, and under load one after the
        other without end (S10).
        """
        sent = (its.snapshot.snapshot.index for peer, its in self.progress.items() if its.snapshot and answering(peer))
        return min(sent, default=None)

    # --- Answers ---

    def on_append_reply(self, voter: int, reply: AppendReply) -> int:
        """Process an answer and return the index up to which the peer's log agrees.

        Raises `RemoteProtocolError` if the answer is about entries that were never sent.
        """
        progress = self.progress[voter]
        self._check_sent(voter, reply.index)
        if reply.success:
            progress.on_success(reply.index)
        else:
            progress.on_rejected(reply.index, reply.hint, forgot=reply.forgot)
        sent_last, sent_commit = self._sent_upto
        self.stirred |= not progress.has_all(sent_last if voter in self._voters else sent_commit, sent_commit)
        return progress.match

    def on_snapshot_reply(self, voter: int, reply: SnapshotReply) -> int:
        """Process an answer and return the index up to which the peer's log agrees. Raises `RemoteProtocolError` as
        above."""
        progress = self.progress[voter]
        self._check_sent(voter, reply.index)
        if reply.installed:
            progress.on_installed(reply.index)
        elif progress.snapshot is not None and progress.snapshot.snapshot.index == reply.index:
            progress.snapshot.on_reply(reply.next_offset)
        self.stirred = True
        return progress.match

    def _check_sent(self, voter: int, index: int) -> None:
        """Refuse an answer about an entry beyond the end of the log.

        A leader's log only grows, so nothing beyond its end was ever sent in its term.
        """
        if index > self._journal.last_index:
            last = self._journal.last_index
            raise RemoteProtocolError(f"node {voter} answered about entry {index}, but the leader's log ends at {last}")

    def forget(self, voter: int) -> None:
        """Reset the peer to an unknown one: what it acknowledged is lost with its disk."""
        self.progress[voter] = Progress(match=0, next=self._journal.last_index + 1)
        self.stirred = True

    def on_link_lost(self, voter: int) -> None:
        """Drop what was in flight to this peer. An observer is dropped altogether and starts again when it
        reconnects."""
        if voter not in self._voters:
            self.progress.pop(voter, None)
        else:
            self.progress[voter].on_link_lost()
            self.stirred = True
