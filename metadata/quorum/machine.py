"""The state machine at the end of the log: committed entries go in one by one, and the image's events come out.

Every applied index gives exactly one call of `on_events`, in order; an installed snapshot gives one with the
difference to the former image. A command or snapshot that cannot be decoded stops the node: other nodes may have
applied it.

Entries are **applied in steps**. Fencing a broker with a hundred thousand replicas takes a second, and so does a
snapshot of as many partitions; votes, appends and heartbeats must be sent meanwhile. Committed entries therefore wait
here (`give`), and `carry_on` applies as many as time allows: whole entries, and perhaps a part of the last one. Until
that one is complete, the image is between two indexes (`between_entries` is false) and no decision may be based on
it. The point at which time runs out does not affect what is applied (S7).

The node's own **snapshots** of the image are made here, too: started when the log is long enough, and encoded and
written one step per tick.
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
"""Commands larger than this, in bytes, are decoded in a step of their own."""

RESTED_ENTRIES = 64
"""The number of entries before the next snapshot after a shortage of descriptors or memory."""


class StateMachine:
    """The image of one node and its progress."""

    def __init__(self, on_events: Callable[[int, Sequence[MetadataEvent]], None]) -> None:
        self.image = ClusterImage()
        self.applied_index = FIRST_INDEX
        self.snapshot_index = FIRST_INDEX
        """The index at which the last snapshot was started or installed."""
        self.given_index = FIRST_INDEX
        """The index of the last entry that this machine was given."""
        self._waiting: deque[Entry] = deque()
        self._work: _Work | None = None
        """The remaining steps of the first waiting entry."""
        self._snapshot: SnapshotEncoder | None = None
        self._checked: tuple[bytes, ClusterImage] | None = None
        """The last checked state of a leader's snapshot, which is installed next, and its image."""
        self._on_events = on_events

    # --- Entries ---

    def give(self, applied: Iterable[Entry]) -> None:
        """Queue the next committed entries."""
        for entry in applied:
            self._waiting.append(entry)
            self.given_index = entry.index

    @property
    def behind(self) -> bool:
        """Whether entries wait to be applied."""
        return bool(self._waiting)

    @property
    def between_entries(self) -> bool:
        """Whether the image is exactly the state at `applied_index`."""
        return self._work is None

    def carry_on(self, has_time: Callable[[], bool]) -> Iterator[tuple[Entry, CommandResult | None]]:
        """Apply waiting entries while there is time, at least one step.

        Yields each completed entry with its command's result, if it had a command. Raises `InvariantViolation`.
        """
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

    def check_in_steps(self, state: bytes) -> Generator[None, None, None]:
        """Read the state of a leader's snapshot before it is installed. Raises `RemoteProtocolError`."""
        self._checked = None
        image = yield from decode_snapshot_in_steps(state)
        self._checked = (state, image)

    def _install(self, snapshot: InstalledSnapshot) -> _Work:
        checked, self._checked = self._checked, None
        if checked is not None and checked[0] is snapshot.state:
            image = checked[1]
        else:
            try:
                image = yield from decode_snapshot_in_steps(snapshot.state)
            except RemoteProtocolError as error:
                raise InvariantViolation(f"the snapshot up to {snapshot.index} cannot be read here: {error}") from None
        events = yield from diff_in_steps(self.image, image)
        former, self.image = self.image, image
        self._snapshot = None
        self.snapshot_index = snapshot.index
        # Freeing many records takes its time, too.
        for names in slices(former.partitions):
            for name in names:
                del former.partitions[name]
            yield
        return None, events

    # --- Snapshots ---

    @property
    def entries_since_snapshot(self) -> int:
        """The number of entries applied since the last snapshot was started or installed."""
        return self.applied_index - self.snapshot_index

    @property
    def makes_snapshot(self) -> bool:
        """Whether a snapshot was started and is not complete."""
        return self._snapshot is not None

    def snapshot_step(self, *, begin: bool) -> tuple[bytes, int] | None:
        """Encode the next step of the current snapshot; with `begin`, start one if there is none.

        Returns (state, its index) when the snapshot is complete. A large one takes many steps, and entries are
        applied meanwhile.
        """
        if self._snapshot is None and begin and self.between_entries:
            self._snapshot = SnapshotEncoder(self.image)
            self.snapshot_index = self.applied_index
        state = self._snapshot.step() if self._snapshot is not None else None
        if state is None:
            return None
        self._snapshot = None
        return state, self.snapshot_index


class Snapshots:
    """The node's own snapshots, one at a time."""

    def __init__(self, machine: StateMachine, engine: Engine, limits: QuorumLimits) -> None:
        self._machine = machine
        self._engine = engine
        self._limits = limits
        self._writing: Iterator[None] | None = None
        """The remaining steps of writing a snapshot."""
        self._entries_wanted = 1
        """The number of entries without which no other snapshot is started."""

    @property
    def under_way(self) -> bool:
        """Whether a snapshot is in progress."""
        return self._writing is not None or self._machine.makes_snapshot

    def go_on(self, *, due: bool = False) -> bool:
        """Do the next step of the current snapshot. Returns whether one was completed.

        `due`: start a snapshot now if none is in progress. If it raises `DiskFailed` or `DiskFull`, the node must
        stop. If descriptors are short (`ResourceShortage`), the snapshot is abandoned, because the log still has
        everything that it covers, and another one is made later.
        """
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
        except ResourceShortage:
            self._writing = None
            self._entries_wanted = RESTED_ENTRIES
            return False
        self._writing = None
        self._entries_wanted = 1
        return True
