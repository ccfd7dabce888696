"""pysyncobj's commands: what a leader is given to append, what of the log is handed out, and when a tick is needed.

pysyncobj keeps the queue of commands and the routing of their outcomes. Ours is who may append, that each committed
entry is handed out once, in order and in bounded portions, and that a tick without need is none.

The class has pysyncobj's name, so that its private names are pysyncobj's (see `pysyncobj_core.py`, which makes it
whole). What is *not* here: applying (`quorum_machine.py`).
"""

from __future__ import annotations

import math
import queue

from pysyncobj.syncobj import _COMMAND_TYPE, _RAFT_STATE

from raftlog.errors import InvariantViolation

from . import pysyncobj_elections
from .engine import Committed, InstalledSnapshot, Lost
from .quorum_configuration import CONFIGURATION
from .quorum_lanes import Waiting
from .quorum_replication import Replication

APPLY_MAX = 2048
"""Entries applied in one tick: what is left waits for the next."""

REGULAR = bytes([_COMMAND_TYPE.REGULAR])
NO_OP = bytes([_COMMAND_TYPE.NO_OP])
KINDS = (REGULAR, NO_OP, CONFIGURATION)
assert bytes([_COMMAND_TYPE.MEMBERSHIP]) == CONFIGURATION


class _SyncObj(pysyncobj_elections._SyncObj):
    """The part of a node that takes commands and hands out entries."""

    applied: list[Committed | InstalledSnapshot]
    lost: list[Lost]
    held_back: bool
    replication: Replication | None
    may_commit_more: bool
    _has_commands: bool
    __raftLastApplied: int

    def propose(self, command: bytes, token: int) -> None:
        """Append a command, if this node leads."""
        if self.__raftState != _RAFT_STATE.LEADER:
            self.lost.append(Lost(token, certain=True))
        else:
            self._has_commands = True
            self._applyCommand(command, Waiting(token, self.lost), _COMMAND_TYPE.REGULAR)

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        """Only a leader's commands go anywhere; forwarding is the node's business."""
        if not self._has_commands:
            return
        self._has_commands = False
        if self.__raftState == _RAFT_STATE.LEADER:
            super()._checkCommandsToApply()
            return
        while True:
            try:
                _, waiting = self.__commandsQueue.get_nowait()
            except queue.Empty:
                return
            waiting(None, 0)

    def is_due(self) -> bool:
        """Whether pysyncobj's tick has anything to do. Who leads counts, applies, or beats, and then asks whether it
        still has a majority; who does not campaigns or applies."""
        if self.__raftCommitIndex > self.__raftLastApplied:
            return True
        if self.__raftState == _RAFT_STATE.LEADER:
            return self.may_commit_more or not self.__otherNodes or bool(self._now() > self.__newAppendEntriesTime)
        return bool(self.__raftElectionDeadline < self._now())

    def do_what_is_due(self) -> None:
        """pysyncobj's tick, where there is any need of it."""
        if self.is_due():
            self.may_commit_more = False
            self.doTick(0.0)

    def next_due(self) -> float:
        """When time will."""
        if self.replication is not None:
            return float(self.__newAppendEntriesTime)
        never = self.__raftLeader is None and not self.may_campaign
        return math.inf if never else max(float(self.__raftElectionDeadline), self._pre_votes.next_question_at)

    def __applyLogEntries(self) -> bool:  # noqa: N802
        """Hand out what is committed; whoever applies it cannot fail and go on: an error there stops the node."""
        if self.held_back:
            return False
        first = self.__raftLastApplied + 1
        last = min(self.__raftCommitIndex, self.__raftLastApplied + APPLY_MAX)
        start = first - self.journal.base_index
        for command, index, term in self.journal.entries[start : start + last - first + 1]:
            token = None
            for proposed_term, waiting in self.__commandsWaitingCommit.pop(index, ()):
                if proposed_term == term:
                    token = waiting.token
                else:
                    self.lost.append(Lost(waiting.token, certain=True))
            self.applied.append(Committed(index, term, self.__doApplyCommand(command), token))
            self.__raftLastApplied = index
        return False

    def __doApplyCommand(self, command: bytes) -> bytes:  # noqa: N802
        """The bytes that were proposed; empty for what begins a leadership and for a configuration."""
        kind = command[:1]
        if kind not in KINDS:
            raise InvariantViolation(f"an entry of kind {kind!r} is committed")
        return command[1:] if kind == REGULAR else b""
