"""Client sessions, which make a retry of a command exactly-once.

A proposing node names its session (random, one for each life of a process), a sequence number that it uses once, and
how far its own view was. A retry repeats all three. The image remembers two things:

* **The sequences of a session that were carried out** (`Seen`): all up to one number, and some beyond it, since
  commands overtake each other in flight. So a command that was never carried out is never mistaken for an old one,
  however many others were carried out since it was proposed; answers alone could not distinguish the two.
* **The first answers** to the last `MAX_ANSWERS` commands of all sessions. A retry of a command that was carried out
  gets its first answer, or `outcome_unknown` if that was evicted; never a second execution.

Both are bounded, and an evicted entry counts as carried out. At least the last `MAX_SPAN` sequences of a session are
distinguished; a proposer keeps everything in flight within that span (`QuorumLimits.span_max`). The `MAX_SESSIONS` most
recently active sessions are kept. A session that returns after its eviction is known from its return on only: commands
proposed on a view from before `floor_index` may have been carried out.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from metadata.commands.envelope import ClientSession
from metadata.commands.results import CommandResult, Refused

MAX_ANSWERS = 16_384
"""The answers kept: more than one node may have in flight; some four megabytes."""

MAX_SESSIONS = 4_096
"""The sessions kept: four times the number of brokers, so a session with commands in flight is never the oldest."""

MAX_SPAN = 16_384
"""The span of one session's sequences, from the oldest in flight to the newest."""


class Seen(msgspec.Struct):
    """The commands of one session that were carried out."""

    upto: int = -1
    """All sequences up to this one were carried out, or count as such."""
    ahead: set[int] = set()
    """The sequences beyond it that were carried out."""
    last_index: int = 0
    """The index of the session's last command that was carried out."""
    floor_index: int = 0
    """Commands proposed on a view before this index may have been carried out and evicted."""

    def add(self, sequence: int) -> None:
        """Record that the sequence was carried out."""
        self.ahead.add(sequence)
        if len(self.ahead) > 2 * MAX_SPAN:
            newest = sorted(self.ahead)[MAX_SPAN:]
            self.upto, self.ahead = newest[0], set(newest)
        while self.upto + 1 in self.ahead:
            self.upto += 1
            self.ahead.discard(self.upto)
        self.ahead.discard(self.upto)

    def may_have(self, session: ClientSession) -> bool:
        """Return whether this command was, or may have been, carried out."""
        sequence = session.sequence
        return sequence <= self.upto or sequence in self.ahead or session.applied_index < self.floor_index


class ClientSessions:
    """The client sessions of the whole cluster; a part of the replicated state."""

    def __init__(self) -> None:
        self.answers: OrderedDict[tuple[bytes, int], tuple[int, CommandResult]] = OrderedDict()
        """(session id, sequence) → (index, first answer), oldest first."""
        self.seen: OrderedDict[bytes, Seen] = OrderedDict()
        """Session id → its record, the least recently active first."""
        self.forgotten_index = 0
        """Sessions whose last command was at or before this index may have been evicted."""

    def first_answer(self, session: ClientSession) -> CommandResult | None:
        """Return the first answer, or `outcome_unknown` if the command may have been carried out; None if it is new."""
        known = self.answers.get((session.session_id, session.sequence))
        if known is not None:
            return known[1]
        seen = self.seen.get(session.session_id)
        may_be_old = session.applied_index < self.forgotten_index if seen is None else seen.may_have(session)
        if may_be_old:
            return Refused(
                "outcome_unknown", "the command may have been carried out before; its answer is no longer kept"
            )
        return None

    def remember(self, session: ClientSession, index: int, result: CommandResult) -> None:
        """Record a command that was carried out for the first time."""
        self.answers[session.session_id, session.sequence] = (index, result)
        if len(self.answers) > MAX_ANSWERS:
            self.answers.popitem(last=False)
        seen = self.seen.get(session.session_id)
        if seen is None:
            seen = self.seen[session.session_id] = Seen(floor_index=self.forgotten_index)
        seen.add(session.sequence)
        seen.last_index = index
        self.seen.move_to_end(session.session_id)
        if len(self.seen) > MAX_SESSIONS:
            _, forgotten = self.seen.popitem(last=False)
            self.forgotten_index = forgotten.last_index

    def derive_seen(self) -> None:
        """Derive `seen` from the answers, for a snapshot without it: older sequences count as carried out."""
        for (session_id, sequence), (index, _) in self.answers.items():
            seen = self.seen.setdefault(session_id, Seen(floor_index=self.forgotten_index))
            seen.add(sequence)
            seen.last_index = index
            self.seen.move_to_end(session_id)
