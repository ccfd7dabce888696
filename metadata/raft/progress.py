"""The leader's knowledge of a peer's log, and what to send to the peer next.

A peer is in one of three states (the design is etcd's):

* PROBE: it is unknown where its log agrees. Appends are sent one at a time until one succeeds.
* REPLICATE: its log agrees up to `match`; appends are sent ahead of their answers, within a window.
* SNAPSHOT: the log no longer holds what it needs. A snapshot is being sent.

```
            success                     next <= base
   PROBE  ----------->  REPLICATE     ---------------->  SNAPSHOT
     ^                     |                                |
     +---------------------+--------------------------------+
        rejected, link lost               installed, given up
```

An answer never moves `next` back into what is in flight; only a rejection of something beyond `match`, or a lost
link, does. Messages may be lost, late or duplicated. `match` only rises, and only by answers of the current term,
with one exception: a peer that reports that it forgot what it had acknowledged starts again from 0, and is not
counted (`forgotten.py`).
"""

from __future__ import annotations

import enum
from collections import deque

import msgspec

from .snapshot_transfer import OutgoingSnapshot

WINDOW_MESSAGES = 32
WINDOW_BYTES = 8 * 1024 * 1024
"""The most bytes that one peer may have in flight: bounds memory and what is resent after a loss."""


class State(enum.Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress(msgspec.Struct):
    """The progress of one peer. Invariant: `match < next`."""

    match: int
    """The last index up to which its log agrees, durably; 0 if nothing is known, or the peer forgot."""
    next: int
    """The index of the next entry to send."""
    state: State = State.PROBE
    probing: bool = False
    """In PROBE: whether the one append is in flight."""
    commit_sent: int = 0
    """The greatest commit index sent to it."""
    snapshot: OutgoingSnapshot | None = None
    _in_flight: deque[tuple[int, int]] = msgspec.field(default_factory=deque)
    """(last index, bytes) of each unanswered append."""
    _in_flight_bytes: int = 0

    def may_send_entries(self) -> bool:
        """Return whether the window has room for another append."""
        if self.state is State.PROBE:
            return not self.probing
        full = len(self._in_flight) >= WINDOW_MESSAGES or self._in_flight_bytes >= WINDOW_BYTES
        return self.state is State.REPLICATE and not full

    def has_all(self, last_index: int, commit_index: int) -> bool:
        """Return whether everything up to `last_index`, and the news that `commit_index` is committed, were sent."""
        return self.state is State.REPLICATE and self.next > last_index and self.commit_sent >= commit_index

    def on_sent(self, last_index: int, size: int, commit_index: int) -> None:
        """Record that entries up to `last_index` were sent (none if it is below `next`)."""
        self.commit_sent = max(self.commit_sent, commit_index)
        if self.state is State.PROBE:
            self.probing = True
        elif last_index >= self.next:
            self._in_flight.append((last_index, size))
            self._in_flight_bytes += size
            self.next = last_index + 1

    def on_success(self, index: int) -> None:
        """Record that the logs agree up to `index`."""
        self.match = max(self.match, index)
        while self._in_flight and self._in_flight[0][0] <= index:
            self._in_flight_bytes -= self._in_flight.popleft()[1]
        if self.state is State.PROBE:
            self.state = State.REPLICATE
            self.next = self.match + 1
            self.probing = False
        self.next = max(self.next, self.match + 1)

    def on_rejected(self, index: int, hint: int, *, forgot: bool = False) -> None:
        """Record that an append after entry `index` was rejected; the logs may agree up to `hint`.

        `forgot`: whether the peer reports that it lacks what it had acknowledged.
        """
        if self.state is State.SNAPSHOT:
            return
        if index <= self.match:
            if forgot:
                self.match = 0
                self.probe_from(max(1, min(index, hint + 1)))
            return  # late: the peer sent it before answers that are known already
        if self.state is State.PROBE and index != self.next - 1:
            return
        self.probe_from(max(self.match + 1, min(index, hint + 1)))

    def on_link_lost(self) -> None:
        """Record that the link is lost, and with it everything in flight."""
        if self.state is State.REPLICATE:
            self.probe_from(self.match + 1)
        self.probing = False
        if self.snapshot is not None:
            self.snapshot.awaiting = False

    def probe_from(self, index: int) -> None:
        self.state = State.PROBE
        self.next = index
        self.probing = False
        self.snapshot = None
        self._in_flight.clear()
        self._in_flight_bytes = 0

    def send_snapshot(self, snapshot: OutgoingSnapshot) -> None:
        """Start sending a snapshot: the log no longer holds what the peer needs."""
        self.probe_from(self.next)
        self.state = State.SNAPSHOT
        self.snapshot = snapshot

    def on_installed(self, index: int) -> None:
        """Record that the peer installed the snapshot up to `index`."""
        self.match = max(self.match, index)
        if self.state is State.SNAPSHOT:
            self.probe_from(self.match + 1)
        self.next = max(self.next, self.match + 1)

    def __str__(self) -> str:
        waiting = " waiting" if self.probing else f" in_flight={len(self._in_flight)}" if self._in_flight else ""
        return f"{self.state.value} match={self.match} next={self.next}{waiting}"
