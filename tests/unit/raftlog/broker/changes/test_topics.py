"""Changes of topics on their way to the quorum: an old view refuses nothing, and no change takes effect twice (S7)."""

from __future__ import annotations

import pytest

from metadata.commands.cluster import AddPartitions, AlterTopic, CreateTopic, DeleteTopic
from metadata.commands.results import Done, Refused
from metadata.image.topics import CREATED_INDEX_FEATURE_LEVEL
from metadata.quorum.port import Fate, Outcome
from metadata.view import BrokerChanged, ClusterView, TopicChanged, TopicRemoved
from raftlog.broker.changes import proposer as linearizable
from raftlog.errors import Applied, InvalidRequest, RetriableError
from raftlog.model import BrokerId, BrokerRecord, DirectoryId, Endpoint, Incarnation, TopicId, TopicRecord
from tests.unit.raftlog.broker.test_service import HERE, THERE, TOPIC, Here, Others, Quorum, lead, router_of, view_of

UNKNOWN = Outcome(Fate.UNKNOWN, detail="no answer")


@pytest.fixture
def here() -> Here:
    return Here()


@pytest.fixture
def quorum() -> Quorum:
    return Quorum(Outcome(Fate.APPLIED, 1, Done()))


def register(view: ClusterView, *brokers: BrokerId, level: int = 1) -> None:
    endpoint = Endpoint("h", 1)
    for broker in brokers:
        record = BrokerRecord(broker, Incarnation(1), DirectoryId(bytes(16)), 1, endpoint, endpoint, "", False, level)
        view.on_events(view.index + 1, [BrokerChanged(record)])


async def test_only_the_state_machine_refuses_a_topic_that_exists(here: Here) -> None:
    """S7: this node's view may be behind; the state machine decides."""
    view = view_of(HERE)
    register(view, HERE, THERE)
    quorum = Quorum(Outcome(Fate.APPLIED, 1, Refused("topic_exists", "there it is")), Outcome(Fate.APPLIED, 1, Done()))
    router = router_of(view, here, Others(), quorum)
    with pytest.raises(InvalidRequest, match="there it is"):
        await router.topics.create("t", 1, None, {})
    await router.topics.create("t", 1, None, {})
    assert [type(command) for command in quorum.proposed] == [CreateTopic] * 2


async def test_a_topic_is_placed_on_the_brokers_that_the_quorum_knows(here: Here, quorum: Quorum) -> None:
    """S7: a node that is behind would create it with one replica, or refuse it for lack of brokers."""
    view = view_of(HERE)
    register(view, HERE)
    quorum.before_barrier = lambda: register(view, THERE) if view.broker(THERE) is None else None
    router = router_of(view, here, Others(), quorum)
    await router.topics.create("u", 1, None, {})
    await router.topics.create("v", 1, 2, {})
    assert [len(command.replicas[0]) for command in quorum.proposed if isinstance(command, CreateTopic)] == [2, 2]


async def test_a_creation_does_not_raise_the_feature_level(here: Here) -> None:
    """An operator ends an upgrade; the first use of a new feature does not."""
    view = view_of(HERE)
    for broker in (HERE, THERE):
        register(view, broker, level=CREATED_INDEX_FEATURE_LEVEL)
    quorum = Quorum(Outcome(Fate.APPLIED, 1, Done()))
    await router_of(view, here, Others(), quorum).topics.create("u", 1, None, {})
    assert [type(command) for command in quorum.proposed] == [CreateTopic]


async def test_settings_are_changed_on_the_present_topic_of_the_name(here: Here, quorum: Quorum) -> None:
    """S7: the topic was deleted and created again through another node; the id in this view is that of the deleted
    one."""
    view, other = view_of(HERE), TopicId(b"u" * 16)

    def again() -> None:
        view.on_events(view.index + 1, [TopicRemoved(TOPIC, "t"), TopicChanged(TopicRecord(other, "t", 0, 2))])

    quorum.before_barrier = again
    await router_of(view, here, Others(), quorum).topics.alter("t", {"retention.ms": "1000"}, ())
    assert quorum.proposed == [AlterTopic(other, (("retention.ms", "1000"),))]


async def test_without_a_quorum_no_change_is_based_on_an_old_view(here: Here, quorum: Quorum) -> None:
    quorum.barrier = Outcome(Fate.UNKNOWN, detail="nobody leads")
    router = router_of(view_of(HERE), here, Others(), quorum)
    for asked in (
        router.topics.create("t", 1, None, {}),
        router.topics.alter("t", {"retention.ms": "1"}, ()),
        router.topics.add_partitions("t", 1),
        router.topics.delete("t"),
    ):
        with pytest.raises(RetriableError) as caught:
            await asked
        assert caught.value.code == "quorum_unavailable"
    assert quorum.proposed == []


async def test_a_change_with_an_unknown_outcome_is_not_proposed_again(here: Here) -> None:
    """Proposed again, A could take effect after a later change: A sets x=1 and has no answer, B sets x=2 and has
    one, and x would become 1. Only the quorum repeats what may be in the log, under one sequence number of its
    session (S7)."""
    quorum = Quorum(UNKNOWN, Outcome(Fate.APPLIED, 1, Done()))
    with pytest.raises(RetriableError) as caught:
        await router_of(view_of(HERE), here, Others(), quorum).topics.alter("t", {"retention.ms": "1"}, ())
    assert (caught.value.code, caught.value.applied) == ("outcome_unknown", Applied.UNKNOWN)
    assert len(quorum.proposed) == 1
    assert quorum.timeouts == [pytest.approx(linearizable.DEADLINE_SECONDS, abs=1)], "it has all of the time"


async def test_a_change_that_reached_no_log_is_proposed_again(here: Here) -> None:
    quorum = Quorum(Outcome(Fate.REFUSED, detail="too many"), Outcome(Fate.APPLIED, 1, Done()))
    await router_of(view_of(HERE), here, Others(), quorum).topics.alter("t", {"retention.ms": "1"}, ())
    assert [type(command) for command in quorum.proposed] == [AlterTopic] * 2


async def test_a_deletion_with_a_lost_answer_succeeded_if_the_topic_does_not_exist(here: Here) -> None:
    view = view_of(HERE)
    quorum = Quorum(UNKNOWN)
    quorum.before = lambda: view.on_events(view.index + 1, [TopicRemoved(TOPIC, "t")])
    await router_of(view, here, Others(), quorum).topics.delete("t")
    assert [type(command) for command in quorum.proposed] == [DeleteTopic]


async def test_only_the_requested_topic_is_deleted_and_no_other_of_its_name(here: Here, quorum: Quorum) -> None:
    """S7: another one was created between the request and the decision."""
    view, other = view_of(HERE), TopicId(b"u" * 16)

    def again() -> None:
        view.on_events(view.index + 1, [TopicRemoved(TOPIC, "t"), TopicChanged(TopicRecord(other, "t", 0, 2))])

    quorum.before_barrier = again
    router = router_of(view, here, Others(), quorum)
    with pytest.raises(InvalidRequest, match="was deleted"):
        await router.topics.delete("t", TOPIC)
    assert quorum.proposed == []
    quorum.before_barrier = lambda: None
    await router.topics.delete("t", other)
    assert quorum.proposed == [DeleteTopic(other)]


async def test_an_expansion_with_a_lost_answer_succeeded_if_the_view_shows_the_partitions(here: Here) -> None:
    view = view_of(HERE)
    register(view, HERE, THERE)
    quorum = Quorum(UNKNOWN)

    def grow() -> None:
        view.on_events(view.index + 1, [TopicChanged(TopicRecord(TOPIC, "t", 2, 2))])
        lead(view, 1, THERE)

    quorum.before = grow
    await router_of(view, here, Others(), quorum).topics.add_partitions("t", 2)
    assert [type(command) for command in quorum.proposed] == [AddPartitions]


async def test_a_change_that_may_be_decided_is_never_reported_as_undecided(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linearizable, "DEADLINE_SECONDS", 0.2)
    with pytest.raises(RetriableError) as caught:
        await router_of(view_of(HERE), here, Others(), Quorum(UNKNOWN)).topics.delete("t")
    assert caught.value.code == "outcome_unknown"
    quorum = Quorum(Outcome(Fate.REFUSED, detail="nobody leads"))
    with pytest.raises(RetriableError) as caught:
        await router_of(view_of(HERE), here, Others(), quorum).topics.delete("t")
    assert caught.value.code == "quorum_unavailable"
