"""The cluster image: the replicated state machine that every node applies the metadata log to.

`apply` is deterministic and total: the same commands give the same image and the same answers on every node, and a
command that decodes is carried out or refused by name, never half and never with an exception. All that a proposer
believed is checked again here, so a controller or leader that is behind can only propose.

Before the command itself two questions are settled, for all commands alike. *Is it from a deposed controller?* A
command made under a term is refused in another. *Did it come before?* A command that
carries a client session is carried out once: a retry gets the first answer, or `outcome_unknown` where that is
forgotten (`image_sessions.py`).

A command that touches many partitions is applied in steps (`apply_in_steps`), so that whoever applies it can do other
things in between. It is one change all the same: nothing else is applied, and nobody looks, until it has ended.

What is *not* here: the rules (`image_elections.py`), what each command changes (`image_brokers.py`,
`image_partitions.py`, `image_topics.py`), the records and their indexes (`image_state.py`), bytes (`snapshot.py`).
"""

from __future__ import annotations

from collections.abc import Generator

from raftlog.errors import InvariantViolation
from raftlog.model import UNTHROTTLED, ClusterTime, ProducerId
from raftlog.ports import Buffer

from . import image_brokers, image_invariants, image_partitions, image_reassignments, image_topics, snapshot
from .command_envelope import Command, Envelope
from .command_results import CommandResult, Done, ProducerIdsGranted, Refused
from .commands import (
    MAX_STEP_MS,
    STAMP_LAG_MS,
    TIME_FEATURE_LEVEL,
    AddPartitions,
    AdvanceTime,
    AlterIsr,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    FenceBroker,
    GrantProducerIds,
    NoOp,
    RegisterBroker,
    ReportRoom,
    SetFeatureLevel,
    UnfenceBroker,
)
from .commands_moves import (
    AlterReassignments,
    BeginMoves,
    ElectUnclean,
    RenewLeadership,
    ReportLoss,
    ThrottleReassignments,
    UnregisterBroker,
)
from .groups.changes import ChangeGroups
from .groups.image import change_groups, topic_removed
from .groups.transaction_changes import ChangeTransactions
from .groups.transaction_image import change_transactions, strike_topic
from .image_events import (
    MetadataEvent,
)
from .image_state import ImageState, Steps, run
from .snapshot import SnapshotEncoder

MAX_PRODUCER_IDS_PER_GRANT = 100_000


class ClusterImage(ImageState):
    """The agreed facts after `index`. Read the records as you like; only `apply` changes them."""

    def apply(self, index: int, term: int, envelope: Envelope) -> tuple[CommandResult, list[MetadataEvent]]:
        """Carry out one committed command, of the log entry at `index` and `term`.

        Raises `InvariantViolation` when the entries do not come in order.
        """
        result = run(self.apply_in_steps(index, term, envelope))
        return result, self.take_events()

    def apply_in_steps(self, index: int, term: int, envelope: Envelope) -> Steps:
        """The same, a slice at a time for what touches many partitions. Until it has ended this image is of no index:
        nobody may look at its partitions, nor apply anything else. The events are left in `take_events`."""
        if index <= self.index:
            raise InvariantViolation(f"entry {index} is applied after entry {self.index}")
        self.index = index
        if envelope.term is not None and envelope.term != term:
            return Refused("not_controller", f"a command of term {envelope.term} in an entry of term {term}")
        session = envelope.session
        if session is not None:
            known = self.sessions.first_answer(session)
            if known is not None:
                return known
        result = self._carry_out(envelope.command, index, term)
        if isinstance(result, Generator):
            result = yield from result
        if self.throttle and not self.reassigning:
            self.put_throttle(UNTHROTTLED)
        if session is not None:
            self.sessions.remember(session, index, result)
        return result

    def _carry_out(self, command: Command, index: int, term: int) -> CommandResult | Steps:
        match command:
            case AlterIsr():
                return image_partitions.alter_isr(self, command)
            case ElectLeaders():
                return image_partitions.elect_leaders(self, command)
            case RegisterBroker():
                return image_brokers.register_broker(self, command, index)
            case FenceBroker():
                return image_brokers.fence_broker(self, command)
            case UnfenceBroker():
                return image_brokers.unfence_broker(self, command)
            case CreateTopic():
                return image_topics.create_topic(self, command, index)
            case DeleteTopic():
                return self._delete_topic(command, index)
            case ChangeGroups():
                return change_groups(self, command, index, term)
            case ChangeTransactions():
                return change_transactions(self, command, index, term)
            case AlterTopic():
                return image_topics.alter_topic(self, command)
            case AddPartitions():
                return image_topics.add_partitions(self, command)
            case GrantProducerIds():
                return self._grant_producer_ids(command)
            case SetFeatureLevel():
                return self._set_feature_level(command)
            case NoOp():
                return Done()
            case AdvanceTime():
                return advance_time(self, command, term)
            case AlterReassignments():
                return image_reassignments.alter_reassignments(self, command)
            case BeginMoves():
                return image_reassignments.begin_moves(self, command)
            case UnregisterBroker():
                return image_reassignments.unregister_broker(self, command)
            case ElectUnclean():
                return image_reassignments.elect_unclean(self, command)
            case ReportLoss():
                return image_brokers.report_loss(self, command)
            case RenewLeadership():
                return image_partitions.renew_leadership(self, command)
            case ReportRoom():
                return image_brokers.report_room(self, command)
            case ThrottleReassignments():
                return image_reassignments.throttle_reassignments(self, command)

    def _delete_topic(self, command: DeleteTopic, index: int) -> Steps:
        topic_removed(self, command.topic_id, index)
        yield from strike_topic(self, command.topic_id)
        return (yield from image_topics.delete_topic(self, command))

    def _grant_producer_ids(self, command: GrantProducerIds) -> CommandResult:
        broker = self.brokers.get(command.broker_id)
        if broker is None or broker.incarnation != command.incarnation:
            return Refused("stale_incarnation", f"broker {command.broker_id} is not at {command.incarnation}")
        if not 1 <= command.count <= MAX_PRODUCER_IDS_PER_GRANT:
            return Refused("invalid_request", f"a block has 1 to {MAX_PRODUCER_IDS_PER_GRANT} producer ids")
        first = self.next_producer_id
        self.next_producer_id = ProducerId(first + command.count)
        return ProducerIdsGranted(first, command.count)

    def _set_feature_level(self, command: SetFeatureLevel) -> CommandResult:
        if command.level < self.feature_level:
            return Refused("unsupported_version", f"the feature level is {self.feature_level} and never falls")
        behind = [b for b in sorted(self.brokers) if self.brokers[b].feature_level < command.level]
        if behind:
            level = self.brokers[behind[0]].feature_level
            return Refused("unsupported_version", f"broker {behind[0]} understands feature level {level} at most")
        if command.level != self.feature_level:
            self.put_feature_level(command.level)
        return Done()

    # --- Snapshots ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The whole state, for `from_snapshot` of this or a newer version."""
        return snapshot.encode(self)

    def begin_snapshot(self) -> SnapshotEncoder:
        """The state of now, to be encoded a slice at a time while this image goes on."""
        return SnapshotEncoder(self)

    @classmethod
    def from_snapshot(cls, packed: Buffer) -> ClusterImage:
        """Raises `RemoteProtocolError` for bytes that are not a snapshot, `UnknownSnapshot` for a newer version's."""
        return run(cls.from_snapshot_in_steps(packed))

    @classmethod
    def from_snapshot_in_steps(cls, packed: Buffer) -> Generator[None, None, ClusterImage]:
        """The same, a slice at a time."""
        image = cls()
        yield from snapshot.decode_in_steps(image, packed)
        return image

    def check_invariants(self) -> None:
        """Raises `InvariantViolation`. Looks at everything: for tests and the simulator."""
        image_invariants.check(self)


def advance_time(state: ImageState, command: AdvanceTime, term: int) -> CommandResult:
    """The cluster's time goes on, by a bounded step, and never back; decided against the time as this entry finds it.

    Whatever a node believes about clocks, the image takes no step that was made for another time or by a controller
    that was deposed. Nothing that is stamped in the image (commits of offsets, ends of transactions, a group's last
    member) has another clock than this one, so no node's wall clock can make any of it old (S8).
    """
    now_ms = state.time.now_ms
    if command.term != term:
        return Refused("not_controller", f"a step of term {command.term} in an entry of term {term}")
    if state.feature_level < TIME_FEATURE_LEVEL:
        return Refused("unsupported_version", f"the feature level is {state.feature_level}, not {TIME_FEATURE_LEVEL}")
    if command.from_ms != now_ms:
        return Refused("invalid_request", f"the cluster's time is {now_ms}, not {command.from_ms}")
    if command.to_ms < max(now_ms, 1):
        return Refused("invalid_request", f"the cluster's time is {now_ms} and does not go back to {command.to_ms}")
    if now_ms and command.to_ms > now_ms + MAX_STEP_MS:
        return Refused("invalid_request", f"a step of {command.to_ms - now_ms} ms: at most {MAX_STEP_MS} are taken")
    leaps = command.to_ms > now_ms + STAMP_LAG_MS
    began_ms = command.to_ms if leaps else state.time.began_ms
    state.put_time(ClusterTime(command.to_ms, began_ms, command.agreed_ms))
    return Done()
