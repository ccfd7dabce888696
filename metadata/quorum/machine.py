"""The state machine at the end of the log: committed entries go in, one by one, and the image's events come out.

Every applied index gives exactly one call of `on_events`, in order; an installed snapshot gives one with the difference
to what was known before. A command or a snapshot that cannot be decoded stops the node: the others may have applied it.

Entries are **applied in steps**. A fence of a broker with a hundred thousand replicas is a second of work, and so is a
snapshot of as many partitions; votes, appends and heartbeats must leave meanwhile. So what is committed waits here
(`give`), and `carry_on` does as much as there is time for: whole entries, and the last one perhaps in part. Until that
one has ended the image is between two indexes (`between_entries` is false) and nobody may decide anything by it. Where
the time runs out changes nothing of what is applied (S7).

The node's own **snapshots** of the image are made here, too: begun when the log is long enough, and made and written a
step at each tick.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TypeAlias

from metadata.commands.envelope import decode
from metadata.commands.results import CommandResult
from metadata.image.apply import apply_in_steps
from metadata.image.diff import diff_in_steps
from metadata.image.image import ClusterImage, slices
from metadata.journal.journal import FIRST_INDEX
from metadata.raft.engine import Committed, Engine, InstalledSnapshot
from metadata.records.events import MetadataEvent
from metadata.snapshot.encoder import SnapshotEncoder, decode_snapshot_in_steps
from raftlog.errors import InvariantViolation, RemoteProtocolError, ResourceShortage

from .limits import QuorumLimits

Entry: TypeAlias = Committed | InstalledSnapshot

_Work: TypeAlias = Generator[None, None, tuple[CommandResult | None, list[MetadataEvent]]]


LARGE_COMMAND_BYTES = 16 * 1024
"""Reading one that is larger is a step of its own."""

RESTED_ENTRIES = 64
"""After a shortage of descriptors or memory the next snapshot waits for so many more entries."""


class StateMachine:
    """One node's image, and how far it is."""

    def __init__(self, on_events: Callable[[int, Sequence[MetadataEvent]], None]) -> None:
        self.image = ClusterImage()
        self.applied_index = FIRST_INDEX
        self.snapshot_index = FIRST_INDEX
        """Where the last snapshot was begun or installed."""
        self.given_index = FIRST_INDEX
        """Of the last entry that was committed, as far as this machine was told."""
        self._waiting: deque[Entry] = deque()
        self._work: _Work | None = None
        """The rest of the first of those that wait."""
        self._snapshot: SnapshotEncoder | None = None
        self._on_events = on_events

    # --- Entries ---

    def give(self, applied: Iterable[Entry]) -> None:
        """These are committed, and next."""
        for entry in applied:
            self._waiting.append(entry)
            self.given_index = entry.index

    @property
    def behind(self) -> bool:
        """There is something to carry on with."""
        return bool(self._waiting)

    @property
    def between_entries(self) -> bool:
        """The image is the state at `applied_index`."""
        return self._work is None

    def carry_on(self, has_time: Callable[[], bool]) -> Iterator[tuple[Entry, CommandResult | None]]:
        """Apply what waits while there is time, one step at least. Yields each entry that is done, with the command's
        answer, if there was a command. Raises `InvariantViolation`."""
        while self._waiting:
            entry = self._waiting[0]
            if self._work is None:
                self._work = self._begin(entry)
            try:
                next(self._work)
            except StopIteration as ended:
                self._work = None
                self._waiting.popleft()
                result, events = ended.value
                self.applied_index = entry.index
                self._on_events(entry.index, events)
                yield entry, result
            if not has_time():
                return

    def _begin(self, entry: Entry) -> _Work:
        if entry.index < self.applied_index:
            raise InvariantViolation(f"the state up to {entry.index} is installed after entry {self.applied_index}")
        if isinstance(entry, InstalledSnapshot):
            return self._install(entry)
        if entry.index != self.applied_index + 1:
            raise InvariantViolation(f"entry {entry.index} is applied after entry {self.applied_index}")
        return self._carry_out(entry)

    def _carry_out(self, entry: Committed) -> _Work:
        if not entry.command:
            return None, []
        try:
            envelope = decode(entry.command)
        except RemoteProtocolError as error:
            raise InvariantViolation(f"the committed entry {entry.index} cannot be applied here: {error}") from None
        if len(entry.command) > LARGE_COMMAND_BYTES:
            yield
        result = yield from apply_in_steps(self.image, entry.index, entry.term, envelope)
        return result, self.image.take_events()

    def _install(self, snapshot: InstalledSnapshot) -> _Work:
        try:
            image = yield from decode_snapshot_in_steps(snapshot.state)
        except RemoteProtocolError as error:
            raise InvariantViolation(f"the snapshot up to {snapshot.index} cannot be read here: {error}") from None
        events = yield from diff_in_steps(self.image, image)
        former, self.image = self.image, image
        self._snapshot = None
        self.snapshot_index = snapshot.index
        # Letting go of many records takes its time, too.
        for names in slices(former.partitions):
            for name in names:
                del former.partitions[name]
            yield
        return None, events

    # --- Snapshots ---

    @property
    def entries_since_snapshot(self) -> int:
        """Applied since the last snapshot was begun or installed."""
        return self.applied_index - self.snapshot_index

    @property
    def makes_snapshot(self) -> bool:
        """One was begun and is not whole."""
        return self._snapshot is not None

    def snapshot_step(self, *, begin: bool) -> tuple[bytes, int] | None:
        """Go on with the snapshot under way; with `begin`, begin one where there is none. Returns (state, the index
        after which it is) when one is whole. It takes many steps where there is much, and entries are applied
        meanwhile."""
        if self._snapshot is None and begin and self.between_entries:
            self._snapshot = SnapshotEncoder(self.image)
            self.snapshot_index = self.applied_index
        state = self._snapshot.step() if self._snapshot is not None else None
        if state is None:
            return None
        self._snapshot = None
        return state, self.snapshot_index


class Snapshots:
    """A node's own snapshots, one at a time."""

    def __init__(self, machine: StateMachine, engine: Engine, limits: QuorumLimits) -> None:
        self._machine = machine
        self._engine = engine
        self._limits = limits
        self._writing: Iterator[None] | None = None
        """The rest of a snapshot's way to the disk."""
        self._entries_wanted = 1
        """Before that many there is no other one."""
        self.hindrance = ""
        """Why the last one could not be written; empty where it was."""

    @property
    def under_way(self) -> bool:
        """There is more to do to one."""
        return self._writing is not None or self._machine.makes_snapshot

    def go_on(self, *, due: bool = False) -> bool:
        """The next step, if there is one. `due`: begin one now, where none is under way. Whether one came to its end.
        Raises `DiskFailed` or `DiskFull`: the node must stop. Where descriptors are short (`ResourceShortage`) the
        snapshot is given up, since the log still has all that it covers, and another is made later."""
        if self._writing is None:
            entries = self._machine.entries_since_snapshot
            due = due or entries >= self._limits.snapshot_entries
            due = due or self._engine.journal_bytes >= self._limits.snapshot_bytes
            taken = self._machine.snapshot_step(begin=due and entries >= self._entries_wanted)
            if taken is None:
                return False
            state, index = taken
            self._writing = self._engine.compact(state, index)
        try:
            if next(self._writing, "done") != "done":
                return False
        except ResourceShortage as error:
            self._writing = None
            self._entries_wanted = RESTED_ENTRIES
            self.hindrance = error.detail
            return False
        self._writing = None
        self._entries_wanted = 1
        self.hindrance = ""
        return True
