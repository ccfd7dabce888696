"""The application of the metadata log to the cluster image: the replicated state machine of every node.

`apply` is deterministic and total: the same commands give the same image and the same answers on every node, and a
command that decodes is carried out or refused with a code, never half and never with an exception. Everything that a
proposer assumed is checked again here, so a controller or leader that is behind can only propose.

Two checks precede every command. *A deposed controller*: a command made under a term is refused in another. *A retry*:
a command with a client session is carried out once; a retry gets the first answer, or `outcome_unknown` if that has
been evicted (`client_sessions.py`).

A command that touches many partitions is applied in steps (`apply_in_steps`), so that the caller can do other work in
between. It is one change all the same: until it has ended, nothing else is applied and the state is not read.
"""

from __future__ import annotations

from collections.abc import Generator

from metadata.commands.cluster import (
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
    GrantProducerIdsTo,
    NoOp,
    RegisterBroker,
    ReportRoom,
    SetFeatureLevel,
    UnfenceBroker,
)
from metadata.commands.envelope import Command, Envelope
from metadata.commands.groups import ChangeGroups, ChangeGroupsAs
from metadata.commands.instances import (
    INSTANCES_FEATURE_LEVEL,
    AnyGroupChange,
    ChangeGroupsAndInstances,
    ClaimInstance,
    PutInstance,
    RemoveInstance,
    SubscribeInstance,
)
from metadata.commands.leases import AcknowledgeLease, BeginLeases, RenewLease, TakeLease
from metadata.commands.replicas import (
    AlterReassignments,
    BeginMoves,
    ElectUnclean,
    RenewLeadership,
    ReportLoss,
    ThrottleReassignments,
    UnregisterBroker,
)
from metadata.commands.results import CommandResult, Done, ProducerIdsGranted, Refused
from metadata.commands.security import SECURITY_FEATURE_LEVEL, BootstrapSecurity, ChangeSecurity
from metadata.commands.transactions import ChangeTransactions, ChangeTransactionsAs
from raftlog.errors import InvariantViolation
from raftlog.model import UNTHROTTLED, ClusterTime, ProducerId

from . import brokers as image_brokers
from . import partitions as image_partitions
from . import reassignments as image_reassignments
from . import topics as image_topics
from .groups import change_group, change_groups, in_order_of, topic_removed
from .image import ClusterImage, Steps
from .instances import change_instance, forget_topic
from .leases import change_lease, forget_leases_of
from .security import bootstrap_security, change_security
from .shares import own_ids
from .transactions import change_transactions, strike_topic

MAX_PRODUCER_IDS_PER_GRANT = 100_000


def apply_in_steps(image: ClusterImage, index: int, term: int, envelope: Envelope) -> Steps:
    """Carry out a command, a slice at a time if it touches many partitions.

    Until it has ended this image is of no index: the caller must not read its partitions, nor apply anything else. The
    events are left in `take_events`.
    """
    if index <= image.index:
        raise InvariantViolation(f"entry {index} is applied after entry {image.index}")
    image.index = index
    if envelope.term is not None and envelope.term != term:
        return Refused("not_controller", f"a command of term {envelope.term} in an entry of term {term}")
    session = envelope.session
    if session is not None:
        known = image.sessions.first_answer(session)
        if known is not None:
            return known
    result = _carry_out(image, envelope.command, index, term)
    if isinstance(result, Generator):
        result = yield from result
    if image.throttle and not image.reassigning:
        image.put_throttle(UNTHROTTLED)
    if session is not None:
        image.sessions.remember(session, index, result)
    return result


def _carry_out(image: ClusterImage, command: Command, index: int, term: int) -> CommandResult | Steps:
    if isinstance(command, ChangeGroupsAndInstances) and image.feature_level < INSTANCES_FEATURE_LEVEL:
        level = image.feature_level
        return Refused("unsupported_version", f"the feature level is {level}, not {INSTANCES_FEATURE_LEVEL}")
    if isinstance(command, ChangeGroupsAs | ChangeGroupsAndInstances | ChangeTransactionsAs | GrantProducerIdsTo):
        if image.feature_level < SECURITY_FEATURE_LEVEL:
            level = image.feature_level
            return Refused("unsupported_version", f"the feature level is {level}, not {SECURITY_FEATURE_LEVEL}")
        if not isinstance(command, GrantProducerIdsTo) and len(command.principals) != len(command.changes):
            return Refused("invalid_request", f"{len(command.principals)} principals of {len(command.changes)} changes")
    match command:
        case AlterIsr():
            return image_partitions.alter_isr(image, command)
        case ElectLeaders():
            return image_partitions.elect_leaders(image, command)
        case RegisterBroker():
            return image_brokers.register_broker(image, command, index)
        case FenceBroker():
            return image_brokers.fence_broker(image, command)
        case UnfenceBroker():
            return image_brokers.unfence_broker(image, command)
        case CreateTopic():
            return image_topics.create_topic(image, command, index)
        case DeleteTopic():
            return _delete_topic(image, command, index)
        case ChangeGroups():
            return change_groups(image, command, index, term)
        case ChangeGroupsAndInstances():
            return _change_groups_and_instances(image, command, index, term)
        case ChangeTransactions():
            return change_transactions(image, command, index, term)
        case AlterTopic():
            return image_topics.alter_topic(image, command)
        case AddPartitions():
            return image_topics.add_partitions(image, command)
        case GrantProducerIds():
            return _grant_producer_ids(image, command)
        case SetFeatureLevel():
            return _set_feature_level(image, command)
        case NoOp():
            return Done()
        case AdvanceTime():
            return advance_time(image, command, term)
        case AlterReassignments():
            return image_reassignments.alter_reassignments(image, command)
        case BeginMoves():
            return image_reassignments.begin_moves(image, command)
        case UnregisterBroker():
            return image_reassignments.unregister_broker(image, command)
        case ElectUnclean():
            return image_reassignments.elect_unclean(image, command)
        case ReportLoss():
            return image_brokers.report_loss(image, command)
        case RenewLeadership():
            return image_partitions.renew_leadership(image, command)
        case ReportRoom():
            return image_brokers.report_room(image, command)
        case ThrottleReassignments():
            return image_reassignments.throttle_reassignments(image, command)
        case ChangeSecurity():
            return change_security(image, command, index)
        case BootstrapSecurity():
            return bootstrap_security(image, command, index)


def _delete_topic(image: ClusterImage, command: DeleteTopic, index: int) -> Steps:
    topic_removed(image, command.topic_id, index)
    forget_topic(image, command.topic_id)
    forget_leases_of(image, command.topic_id)
    yield from strike_topic(image, command.topic_id)
    return (yield from image_topics.delete_topic(image, command))


def _change_groups_and_instances(
    image: ClusterImage, command: ChangeGroupsAndInstances, index: int, term: int
) -> CommandResult:
    def change_one(change: AnyGroupChange, principal: str) -> Refused | None:
        if isinstance(change, PutInstance | ClaimInstance | SubscribeInstance | RemoveInstance):
            return change_instance(image, change, index, principal)
        if isinstance(change, BeginLeases | TakeLease | AcknowledgeLease | RenewLease):
            return change_lease(image, change, index, principal)
        return change_group(image, change, principal, index=index, term=term)

    return in_order_of(command.changes, command.principals, change_one)


def _grant_producer_ids(image: ClusterImage, command: GrantProducerIds) -> CommandResult:
    broker = image.brokers.get(command.broker_id)
    if broker is None or broker.incarnation != command.incarnation:
        return Refused("stale_incarnation", f"broker {command.broker_id} is not at {command.incarnation}")
    if not 1 <= command.count <= MAX_PRODUCER_IDS_PER_GRANT:
        return Refused("invalid_request", f"a block has 1 to {MAX_PRODUCER_IDS_PER_GRANT} producer ids")
    first = image.next_producer_id
    if isinstance(command, GrantProducerIdsTo):
        own_ids(image, command.principal, first, command.count)
    image.next_producer_id = ProducerId(first + command.count)
    return ProducerIdsGranted(first, command.count)


def _set_feature_level(image: ClusterImage, command: SetFeatureLevel) -> CommandResult:
    if command.level < image.feature_level:
        return Refused("unsupported_version", f"the feature level is {image.feature_level} and never falls")
    behind = [b for b in sorted(image.brokers) if image.brokers[b].feature_level < command.level]
    if behind:
        level = image.brokers[behind[0]].feature_level
        return Refused("unsupported_version", f"broker {behind[0]} understands feature level {level} at most")
    if command.level != image.feature_level:
        image.put_feature_level(command.level)
    return Done()


def advance_time(state: ClusterImage, command: AdvanceTime, term: int) -> CommandResult:
    """Advance the cluster's time, by a bounded step and never back, compared with the time as this entry finds it.

    Whatever a node assumes about clocks, the image accepts no step made for another time or by a deposed controller.
    Everything stamped in the image (offset commits, ends of transactions, a group's last member) uses this clock only,
    so no node's wall clock can make any of it old (S8).
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
