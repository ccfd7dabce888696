"""Client sessions: what makes a retry of a command exactly-once.

A node that proposes names its session (random, of one life of a process), a sequence number that it gives once, and how
far its own view was. A retry repeats all three. Two things are remembered:

* **Which sequences of a session were carried out** (`Seen`): all up to one number, and some beyond it, since commands
  overtake each other on their way. So a command that was never carried out is never taken for an old one, however many
  others were carried out since it was proposed.
* **The first answers** to the last `MAX_ANSWERS` commands of all sessions. Whoever repeats a command that was carried
  out gets its first answer, or `outcome_unknown` where that is forgotten; never a second execution.

Both are bounded, and what is forgotten is taken for done. Of one session at least the last `MAX_SPAN` sequences are
told apart; who proposes keeps all that it has in flight within that span (`QuorumLimits.span_max`). Of sessions the
last `MAX_SESSIONS` that did anything are known. A session that comes back after it was forgotten is known from its
return on only: what it proposed on a view from before `floor_index` may have been carried out.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from metadata.commands.envelope import ClientSession
from metadata.commands.results import CommandResult, Refused

MAX_ANSWERS = 16_384
"""More than one node may have in flight; some four megabytes."""

MAX_SESSIONS = 4_096
"""Four times as many as there may be brokers: a session that may have commands in flight is not the oldest of these."""

MAX_SPAN = 16_384
"""Sequences of one session, from the oldest in flight to the newest."""


@dataclass(slots=True)
class Seen:
    """What was carried out of one session."""

    upto: int = -1
    """All up to here, or taken for it."""
    ahead: set[int] = field(default_factory=set)
    """And these beyond."""
    last_index: int = 0
    """Of the session's last command that was carried out."""
    floor_index: int = 0
    """What the session proposed on an earlier view may have been carried out and forgotten."""

    def add(self, sequence: int) -> None:
        """It was carried out."""
        self.ahead.add(sequence)
        if len(self.ahead) > 2 * MAX_SPAN:
            newest = sorted(self.ahead)[MAX_SPAN:]
            self.upto, self.ahead = newest[0], set(newest)
        while self.upto + 1 in self.ahead:
            self.upto += 1
            self.ahead.discard(self.upto)
        self.ahead.discard(self.upto)

    def may_have(self, session: ClientSession) -> bool:
        """Whether this command was carried out, as far as is remembered."""
        sequence = session.sequence
        return sequence <= self.upto or sequence in self.ahead or session.applied_index < self.floor_index


class ClientSessions:
    """Of the whole cluster; a part of the replicated state."""

    def __init__(self) -> None:
        self.answers: OrderedDict[tuple[bytes, int], tuple[int, CommandResult]] = OrderedDict()
        """(session id, sequence) → (index, first answer), oldest first."""
        self.seen: OrderedDict[bytes, Seen] = OrderedDict()
        """By session id, the one that was quiet for longest first."""
        self.forgotten_index = 0
        """Sessions whose last command was at or before this index may have been forgotten."""

    def first_answer(self, session: ClientSession) -> CommandResult | None:
        """The answer that was given before, or must be given because it may have been; None for what is new."""
        known = self.answers.get((session.session_id, session.sequence))
        if known is not None:
            return known[1]
        seen = self.seen.get(session.session_id)
        may_be_old = session.applied_index < self.forgotten_index if seen is None else seen.may_have(session)
        if may_be_old:
            return Refused("outcome_unknown", "the answer to this command, if it came before, is forgotten")
        return None

    def remember(self, session: ClientSession, index: int, result: CommandResult) -> None:
        """The command was carried out, for the first time."""
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
        """Out of the answers, for a snapshot that has nothing else: what is older than they may have been done."""
        for (session_id, sequence), (index, _) in self.answers.items():
            seen = self.seen.setdefault(session_id, Seen(floor_index=self.forgotten_index))
            seen.add(sequence)
            seen.last_index = index
            self.seen.move_to_end(session_id)
