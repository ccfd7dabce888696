"""For any commands: the invariants hold, epochs rise, snapshots are exact, followers see the same.

A simple model of the election rules is written from the sentences that describe them.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.commands.cluster import ElectLeaders
from metadata.commands.envelope import ENVELOPE_VERSION, Envelope
from metadata.commands.fields import Election
from metadata.commands.results import Elected, ReassignmentsAltered, Refused
from metadata.image.image import ClusterImage
from metadata.image.invariants import check
from metadata.snapshot.encoder import encode_snapshot
from metadata.view import ClusterView
from raftlog.model import BrokerId, PartitionRecord
from tests.support.metadata.at_once import apply, decode_snapshot, diff
from tests.support.metadata.cluster import check_step
from tests.support.metadata.commands import RandomCommands

SEEDS = st.integers(0, 2**32 - 1)
LENGTHS = st.integers(1, 150)


def seen(view: ClusterView) -> tuple[object, ...]:
    """Everything that a view shows."""
    partitions = view.partitions()
    reasons = [view.explain_offline(record.topic_partition) for record in partitions]
    configs = [view.topic_config(topic.topic_id) for topic in view.topics()]
    moves = (view.throttle, view.reassigning())
    assert moves[1] == [record for record in partitions if record.target_replicas]
    return (view.index, view.feature_level, moves, view.brokers(), view.topics(), partitions, reasons, configs)


def fresh(image: ClusterImage) -> ClusterView:
    view = ClusterView()
    view.on_events(image.index, diff(ClusterImage(), image))
    return view


@settings(max_examples=150, deadline=None)
@given(SEEDS, LENGTHS)
def test_the_invariants_hold_and_a_follower_sees_all(seed: int, length: int) -> None:
    image, view = ClusterImage(), ClusterView()
    commands = RandomCommands(image, seed)
    for index in range(1, length + 1):
        before = dict(image.partitions)
        result, events = apply(image, index, 1, commands.next())
        assert not (isinstance(result, Refused) and result.code == "internal_error")
        check(image)
        for topic_partition, record in image.partitions.items():
            check_step(before.get(topic_partition, record), record)
        view.on_events(index, events)
    assert seen(view) == seen(fresh(image))


@settings(max_examples=100, deadline=None)
@given(SEEDS, LENGTHS, LENGTHS)
def test_a_snapshot_is_the_same_state_with_the_same_future(seed: int, past: int, future: int) -> None:
    image = ClusterImage()
    commands = RandomCommands(image, seed)
    for index in range(1, past + 1):
        apply(image, index, 1, commands.next())
    restored = decode_snapshot(encode_snapshot(image))
    assert encode_snapshot(restored) == encode_snapshot(image)
    assert diff(image, restored) == []
    check(restored)
    for index in range(past + 1, past + future + 1):
        envelope = commands.next()
        assert apply(image, index, 1, envelope) == apply(restored, index, 1, envelope)
    assert encode_snapshot(restored) == encode_snapshot(image)


@settings(max_examples=100, deadline=None)
@given(SEEDS, LENGTHS, LENGTHS)
def test_the_difference_leads_a_follower_to_the_present(seed: int, past: int, missed: int) -> None:
    image, view = ClusterImage(), ClusterView()
    commands = RandomCommands(image, seed)
    for index in range(1, past + 1):
        view.on_events(index, apply(image, index, 1, commands.next())[1])
    old = decode_snapshot(encode_snapshot(image))
    for index in range(past + 1, past + missed + 1):
        apply(image, index, 1, commands.next())
    new = decode_snapshot(encode_snapshot(image))
    view.on_events(new.index, diff(old, new))
    assert seen(view) == seen(fresh(image))


# --- The model -------------------------------------------------------------------------------------------------------


def twin_may_lead(image: ClusterImage, record: PartitionRecord, candidate: BrokerId, recovery: bool) -> bool:
    """The rules of `docs/metadata.md`, sentence by sentence."""
    live = {b for b, broker in image.brokers.items() if not broker.fenced}
    eligible = (set(record.isr) | set(record.commit_set)) - set(record.not_eligible)
    in_sync = set(record.isr) & live & eligible
    if record.leader != -1:
        return candidate in in_sync and not recovery
    below_minimum = len(set(record.isr) & eligible) < record.min_insync_replicas
    if_in_sync = set(record.commit_set) & live & eligible if below_minimum or not in_sync else set()
    if not recovery:
        return candidate in in_sync | if_in_sync
    if in_sync | if_in_sync:
        return False
    tickets = image.tickets_of(record.topic_partition)
    logs = {
        t.broker_id: (t.last_epoch, t.stable_end_offset) for t in tickets if t.has_directory and t.broker_id in live
    }
    return len(logs) >= record.min_insync_replicas and candidate in logs and logs[candidate] == max(logs.values())


@settings(max_examples=200, deadline=None)
@given(SEEDS, LENGTHS)
def test_elections_agree_with_the_twin(seed: int, length: int) -> None:
    image = ClusterImage()
    commands = RandomCommands(image, seed)
    for index in range(1, length + 1):
        apply(image, index, 1, commands.next())
    for topic_partition, record in sorted(image.partitions.items()):
        for candidate in record.replicas:
            for recovery in (False, True):
                trial = decode_snapshot(encode_snapshot(image))
                election = Election(
                    topic_partition.topic_id,
                    topic_partition.partition,
                    candidate,
                    image.brokers[candidate].incarnation,
                    record.partition_epoch,
                    recovery,
                )
                command = Envelope(ENVELOPE_VERSION, None, None, ElectLeaders((election,)))
                result, _ = apply(trial, image.index + 1, 1, command)
                assert isinstance(result, Elected)
                expected = twin_may_lead(image, record, candidate, recovery)
                assert (result.refusals == (None,)) == expected, (str(record), candidate, recovery, result)


def test_the_random_commands_reach_every_answer() -> None:
    """Otherwise the properties above would prove little."""
    answers: Counter[str] = Counter()
    states: Counter[str] = Counter()
    for seed in range(250):
        image = ClusterImage()
        commands = RandomCommands(image, seed)
        for index in range(1, 151):
            envelope = commands.next()
            result, _ = apply(image, index, 1, envelope)
            if envelope.session is not None:
                continue
            refusals = result.refusals if isinstance(result, Elected | ReassignmentsAltered) else (result,)
            for place, refusal in enumerate(refusals):
                if isinstance(envelope.command, ElectLeaders) and refusal is None:
                    answers["recovery ok"] += envelope.command.elections[place].recovery
                name = refusal.code if isinstance(refusal, Refused) else "ok"
                answers[f"{type(envelope.command).__name__} {name}"] += 1
        states["throttled"] += bool(image.throttle)
        for record in image.partitions.values():
            states["marked"] += bool(record.not_eligible)
            states["leaderless"] += not record.has_leader
            states["set aside"] += record.commit_set != record.isr
            states["moving"] += bool(record.adding_replicas)
            states["let go"] += record.let_go
            states["led uncleanly"] += bool(record.unclean_leader_epochs)
    expected = {
        "RegisterBroker ok", "RegisterBroker unsupported_version", "FenceBroker ok", "FenceBroker stale_incarnation",
        "UnfenceBroker ok", "CreateTopic ok", "CreateTopic topic_exists", "CreateTopic invalid_topic_name",
        "CreateTopic invalid_config", "CreateTopic not_enough_replicas", "DeleteTopic ok", "DeleteTopic unknown_topic",
        "AlterTopic ok", "AlterTopic invalid_config", "AddPartitions ok", "ElectLeaders ok",
        "ElectLeaders not_eligible", "ElectLeaders stale_partition_epoch", "ElectLeaders stale_incarnation",
        "AlterIsr ok", "AlterIsr not_eligible", "AlterIsr stale_partition_epoch", "AlterIsr stale_incarnation",
        "AlterIsr fenced_leader_epoch", "AlterIsr unknown_leader_epoch", "AlterIsr invalid_request",
        "AlterIsr not_leader", "GrantProducerIds ok", "SetFeatureLevel ok", "NoOp not_controller",
        "AlterReassignments ok", "AlterReassignments reassignment_in_progress", "AlterReassignments not_eligible",
        "AlterReassignments not_enough_replicas", "AlterReassignments stale_partition_epoch", "BeginMoves ok",
        "BeginMoves no_reassignment_in_progress", "BeginMoves not_eligible", "UnregisterBroker ok",
        "UnregisterBroker invalid_request", "ElectUnclean ok", "ElectUnclean invalid_request",
        "ReportRoom unsupported_version",
        "ReportLoss ok", "ReportLoss not_eligible", "ReportLoss fenced_leader_epoch", "ReportLoss stale_incarnation",
        "RenewLeadership ok", "RenewLeadership not_leader", "RenewLeadership fenced_leader_epoch",
        "ThrottleReassignments ok", "ThrottleReassignments reassignment_in_progress",
    }  # fmt: skip
    assert expected - set(answers) == set()
    assert answers["recovery ok"] > 5
    assert min(states.values()) > 5, states
