"""Story commands about moving the partition."""

from __future__ import annotations

from metadata.commands.cluster import SetFeatureLevel
from metadata.commands.envelope import Command
from metadata.commands.replicas import AlterReassignments, BeginMoves, Move, Reassignment, ThrottleReassignments
from metadata.commands.results import ReassignmentsAltered, Refused
from raftlog.model import BrokerId
from tests.support.metadata.cluster import TP

from .world import World


class Moves(World):
    """Reassignments, decided at the quorum."""

    def do_reassign(self, target: str, throttle: str = "") -> None:
        """An operator requests these replicas, the preferred leader first; `throttle` is in bytes per second."""
        self._reassign(tuple(BrokerId(int(broker)) for broker in target.split(",")), throttle)

    def do_feature_level(self, level: str) -> None:
        """All brokers are upgraded, and the quorum decides by the rules of this level from now on."""
        self.quorum.do(SetFeatureLevel(int(level)))

    def do_cancel_move(self) -> None:
        self._reassign(())

    def do_begin_move(self, by: str = "") -> None:
        """The controller begins the move; with `by=deposed`, a controller that was deposed before its command was
        decided."""
        move = Move(TP.topic_id, TP.partition, self.quorum.partition.partition_epoch)
        self._decide(BeginMoves((move,)), term=self.quorum.term - 1 if by else None)

    def _reassign(self, target: tuple[BrokerId, ...], throttle: str = "") -> None:
        epoch = self.quorum.partition.partition_epoch
        asked = (Reassignment(TP.topic_id, TP.partition, epoch, target),)
        rate = int(throttle or 0)
        self._decide(ThrottleReassignments(asked, rate, rate) if rate else AlterReassignments(asked))

    def _decide(self, command: Command, *, term: int | None = None) -> None:
        result = self.quorum.apply(command, term=term)
        if isinstance(result, ReassignmentsAltered):
            (refused,) = result.refusals
        else:
            assert isinstance(result, Refused), result
            refused = result
        if refused is None:
            self.say_record()
        else:
            self.say(f"refused: {refused.code}")
