"""Turns of the connections of one loop: how much of its input each may handle before the others. A pure core.

A connection whose input is not handled within its turn is *behind*, and gets another turn in the next iteration of the
loop. The more connections are behind, the shorter is each turn, so that an iteration does not last longer because many
connections send much (processor sharing). A connection with little to do waits for one iteration, however much the
others send.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

TURN_S = 0.01
"""Seconds of all turns of an iteration, and so of a connection that is the only one behind. A single call of a handler
may take longer."""
WORK = 1000
"""The same in units of some 10 us: a message, or a frame that is parsed by hand.

A full buffer of the smallest frames would otherwise block the loop for a tenth of a second.
"""
LEAST_TURN_S = 0.0005
LEAST_WORK = 50
"""The shortest turn: an iteration of the loop costs some 50 us itself."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The bounds of one turn: it ends at the first that is reached."""

    seconds: float
    work: int


WHOLE_TURN = Turn(TURN_S, WORK)


class Turns:
    """The connections of one loop that are behind."""

    __slots__ = ("_behind",)

    def __init__(self) -> None:
        self._behind: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._behind)

    def turn_of(self, connection: Hashable) -> Turn:
        """Return the next turn of a connection."""
        sharing = len(self._behind) + (connection not in self._behind)
        if sharing == 1:
            return WHOLE_TURN
        return Turn(max(LEAST_TURN_S, TURN_S / sharing), max(LEAST_WORK, WORK // sharing))

    def note(self, connection: Hashable, *, is_behind: bool) -> None:
        """Note whether a connection has input left after its turn."""
        if is_behind:
            self._behind.add(connection)
        else:
            self._behind.discard(connection)
