"""The state machine at the end of the log: committed entries go in, one by one, and the image's events come out.

Every applied index gives exactly one call of `on_events`, in order; an installed snapshot gives one with the difference
to what was known before. A command or a snapshot that cannot be decoded stops the node: the others may have applied it.

What is *not* here: what a command does (`image.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raftlog.errors import InvariantViolation, RemoteProtocolError

from .commands import CommandResult, decode
from .engine import Committed, InstalledSnapshot
from .image import ClusterImage, diff
from .image_events import MetadataEvent
from .journal import FIRST_INDEX
from .snapshot import SnapshotEncoder


class StateMachine:
    """One node's image, and how far it is."""

    def __init__(self, on_events: Callable[[int, Sequence[MetadataEvent]], None]) -> None:
        self.image = ClusterImage()
        self.applied_index = FIRST_INDEX
        self.snapshot_index = FIRST_INDEX
        """Where the last snapshot was begun or installed."""
        self._snapshot: SnapshotEncoder | None = None
        self._on_events = on_events

    def apply(self, applied: Committed | InstalledSnapshot) -> CommandResult | None:
        """Returns the command's answer, if there was a command. Raises `InvariantViolation`."""
        if applied.index < self.applied_index:
            raise InvariantViolation(f"the state up to {applied.index} is installed after entry {self.applied_index}")
        result: CommandResult | None = None
        events: list[MetadataEvent] = []
        if isinstance(applied, InstalledSnapshot):
            events = self._install(applied)
        elif applied.index != self.applied_index + 1:
            raise InvariantViolation(f"entry {applied.index} is applied after entry {self.applied_index}")
        elif applied.command:
            result, events = self._carry_out(applied)
        self.applied_index = applied.index
        self._on_events(applied.index, events)
        return result

    def _carry_out(self, entry: Committed) -> tuple[CommandResult, list[MetadataEvent]]:
        try:
            envelope = decode(entry.command)
        except RemoteProtocolError as error:
            raise InvariantViolation(f"the committed entry {entry.index} cannot be applied here: {error}") from None
        return self.image.apply(entry.index, entry.term, envelope)

    def _install(self, snapshot: InstalledSnapshot) -> list[MetadataEvent]:
        try:
            image = ClusterImage.from_snapshot(snapshot.state)
        except RemoteProtocolError as error:
            raise InvariantViolation(f"the snapshot up to {snapshot.index} cannot be read here: {error}") from None
        events = diff(self.image, image)
        self.image = image
        self._snapshot = None
        self.snapshot_index = snapshot.index
        return events

    # --- Snapshots ---

    @property
    def entries_since_snapshot(self) -> int:
        """Applied since the last snapshot was begun or installed."""
        return self.applied_index - self.snapshot_index

    def snapshot_step(self, *, begin: bool) -> tuple[bytes, int] | None:
        """Go on with the snapshot under way; with `begin`, begin one where there is none. Returns (state, the index
        after which it is) when one is whole. It takes many steps where there is much, and entries are applied
        meanwhile."""
        if self._snapshot is None and begin:
            self._snapshot = self.image.begin_snapshot()
            self.snapshot_index = self.applied_index
        state = self._snapshot.step() if self._snapshot is not None else None
        if state is None:
            return None
        self._snapshot = None
        return state, self.snapshot_index
