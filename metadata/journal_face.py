"""The journal as pysyncobj calls it: its names, its conventions, nothing else.

pysyncobj asks for a journal once, in its constructor, and from then on adds entries and keeps term and vote through
it. What it would remove or rewrite goes through the engine's own code instead, so those calls do not exist here.
"""

from __future__ import annotations

from typing import Any

from .journal import Journal
from .journal_format import NO_VOTE


class JournalFace:
    """pysyncobj's `Journal`, over ours."""

    def __init__(self, journal: Journal, commit_index: int) -> None:
        self._journal = journal
        self._commit_index = commit_index

    def __len__(self) -> int:
        return len(self._journal.entries)

    def __getitem__(self, item: Any) -> Any:
        return self._journal.entries[item]

    def add(self, command: bytes, index: int, term: int) -> None:
        """Stage an entry."""
        self._journal.append(command, index, term)

    def setCurrentTerm(self, term: int, vote: int | None) -> None:  # noqa: N802
        """Stage term and vote."""
        self._journal.set_hard_state(term, NO_VOTE if vote is None else vote)

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._journal.term

    def getVotedForNodeId(self) -> int | None:  # noqa: N802
        return None if self._journal.vote == NO_VOTE else self._journal.vote

    def setRaftCommitIndex(self, index: int) -> None:  # noqa: N802
        """Not kept: after a restart it is learned again, from the snapshot on."""

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        return self._commit_index

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Nothing is done by time."""

    def _destroy(self) -> None:
        """The engine closes the journal."""
