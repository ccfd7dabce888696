"""How far each voter is, as the leader knows it, and what to send it next.

A voter is in one of three states (the design is etcd's):

* PROBE: it is not known where its log agrees. One append at a time, until one succeeds.
* REPLICATE: it agrees up to `match`; appends are sent ahead of their answers, within a window.
* SNAPSHOT: what it needs is no longer in the log. A snapshot is on its way.

```
            success                     next <= base
   PROBE  ----------->  REPLICATE     ---------------->  SNAPSHOT
     ^                     |                                |
     +---------------------+--------------------------------+
        rejected, link lost               installed, given up
```

An answer never moves `next` back into what is in flight: only a rejection of something beyond `match` does, and a lost
link. Messages may be lost, late or double; `match` only rises, and only by answers of the current term: but for a voter
that says itself that it forgot what it had acknowledged. It begins anew, and is not counted (`forgotten.py`).
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

from .snapshot_transfer import OutgoingSnapshot

WINDOW_MESSAGES = 32
WINDOW_BYTES = 8 * 1024 * 1024
"""What one voter may have in flight: bounds memory and what is sent again after a loss."""


class State(enum.Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(slots=True)
class Progress:
    """One voter's. Invariant: `match < next`."""

    match: int
    """Its log agrees, durably, up to here; 0: nothing is known, or it forgot."""
    next: int
    """The next entry to send."""
    state: State = State.PROBE
    probing: bool = False
    """In PROBE: the one append is on its way."""
    commit_sent: int = 0
    """The greatest commit index it was told."""
    snapshot: OutgoingSnapshot | None = None
    _in_flight: deque[tuple[int, int]] = field(default_factory=deque)
    """(last index, bytes) of each append that was not answered."""
    _in_flight_bytes: int = 0

    def may_send_entries(self) -> bool:
        """Whether the window has room."""
        if self.state is State.PROBE:
            return not self.probing
        full = len(self._in_flight) >= WINDOW_MESSAGES or self._in_flight_bytes >= WINDOW_BYTES
        return self.state is State.REPLICATE and not full

    def has_all(self, last_index: int, commit_index: int) -> bool:
        """Everything up to `last_index` was sent, and told it was that so much is committed."""
        return self.state is State.REPLICATE and self.next > last_index and self.commit_sent >= commit_index

    def on_sent(self, last_index: int, size: int, commit_index: int) -> None:
        """Entries up to `last_index` were sent (none where it is below `next`)."""
        self.commit_sent = max(self.commit_sent, commit_index)
        if self.state is State.PROBE:
            self.probing = True
        elif last_index >= self.next:
            self._in_flight.append((last_index, size))
            self._in_flight_bytes += size
            self.next = last_index + 1

    def on_success(self, index: int) -> bool:
        """The logs agree up to `index`. Returns whether that is news."""
        news = index > self.match
        self.match = max(self.match, index)
        while self._in_flight and self._in_flight[0][0] <= index:
            self._in_flight_bytes -= self._in_flight.popleft()[1]
        if self.state is State.PROBE:
            self.state = State.REPLICATE
            self.next = self.match + 1
            self.probing = False
        self.next = max(self.next, self.match + 1)
        return news

    def on_rejected(self, index: int, hint: int, *, forgot: bool = False) -> None:
        """An append after entry `index` did not fit; the logs may agree up to `hint`. `forgot`: whoever says so lacks
        what it had acknowledged."""
        if self.state is State.SNAPSHOT:
            return
        if index <= self.match:
            if forgot:
                self.match = 0
                self.probe_from(max(1, min(index, hint + 1)))
            return  # late: it was answered before what is known now
        if self.state is State.PROBE and index != self.next - 1:
            return
        self.probe_from(max(self.match + 1, min(index, hint + 1)))

    def on_link_lost(self) -> None:
        """What was in flight is gone."""
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
        """What it needs is no longer in the log."""
        self.probe_from(self.next)
        self.state = State.SNAPSHOT
        self.snapshot = snapshot

    def on_installed(self, index: int) -> bool:
        """Its log begins at `index` now. Returns whether its match rose."""
        news = index > self.match
        self.match = max(self.match, index)
        if self.state is State.SNAPSHOT:
            self.probe_from(self.match + 1)
        self.next = max(self.next, self.match + 1)
        return news

    def __str__(self) -> str:
        waiting = " waiting" if self.probing else f" in_flight={len(self._in_flight)}" if self._in_flight else ""
        return f"{self.state.value} match={self.match} next={self.next}{waiting}"
