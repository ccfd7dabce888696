"""Changes of topics on their way to the quorum: nothing is refused by an old view, nothing takes effect twice (S7)."""

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


async def test_a_topic_is_said_to_exist_only_on_the_quorums_word(here: Here) -> None:
    """S7: this node's view may be behind, whatever it shows; the state machine is asked."""
    view = view_of(HERE)
    register(view, HERE, THERE)
    quorum = Quorum(Outcome(Fate.APPLIED, 1, Refused("topic_exists", "there it is")), Outcome(Fate.APPLIED, 1, Done()))
    router = router_of(view, here, Others(), quorum)
    with pytest.raises(InvalidRequest, match="there it is"):
        await router.topics.create("t", 1, None, {})
    await router.topics.create("t", 1, None, {})
    assert [type(command) for command in quorum.proposed] == [CreateTopic] * 2


async def test_a_topic_is_laid_out_over_the_brokers_that_the_quorum_knows(here: Here, quorum: Quorum) -> None:
    """S7: a node that is behind would make it with one replica, or refuse it for want of brokers."""
    view = view_of(HERE)
    register(view, HERE)
    quorum.before_barrier = lambda: register(view, THERE) if view.broker(THERE) is None else None
    router = router_of(view, here, Others(), quorum)
    await router.topics.create("u", 1, None, {})
    await router.topics.create("v", 1, 2, {})
    assert [len(command.replicas[0]) for command in quorum.proposed if isinstance(command, CreateTopic)] == [2, 2]


async def test_a_creation_raises_no_feature_level(here: Here) -> None:
    """An operator ends an upgrade, not the first use of something new."""
    view = view_of(HERE)
    for broker in (HERE, THERE):
        register(view, broker, level=CREATED_INDEX_FEATURE_LEVEL)
    quorum = Quorum(Outcome(Fate.APPLIED, 1, Done()))
    await router_of(view, here, Others(), quorum).topics.create("u", 1, None, {})
    assert [type(command) for command in quorum.proposed] == [CreateTopic]


async def test_settings_are_those_of_the_topic_that_has_the_name_by_now(here: Here, quorum: Quorum) -> None:
    """S7: deleted and created again by another node; the id that this view shows is that of the old one."""
    view, other = view_of(HERE), TopicId(b"u" * 16)

    def again() -> None:
        view.on_events(view.index + 1, [TopicRemoved(TOPIC, "t"), TopicChanged(TopicRecord(other, "t", 0, 2))])

    quorum.before_barrier = again
    await router_of(view, here, Others(), quorum).topics.alter("t", {"retention.ms": "1000"}, ())
    assert quorum.proposed == [AlterTopic(other, (("retention.ms", "1000"),))]


async def test_without_a_quorum_nothing_is_asked_for_by_an_old_view(here: Here, quorum: Quorum) -> None:
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


async def test_a_change_of_unknown_fate_is_not_proposed_anew(here: Here) -> None:
    """A: x=1, no answer. B: x=2, answered. Were A proposed anew, x would be 1 although B came later: what may be in the
    log is repeated by the quorum alone, under one sequence of its session (S7)."""
    quorum = Quorum(UNKNOWN, Outcome(Fate.APPLIED, 1, Done()))
    with pytest.raises(RetriableError) as caught:
        await router_of(view_of(HERE), here, Others(), quorum).topics.alter("t", {"retention.ms": "1"}, ())
    assert (caught.value.code, caught.value.applied) == ("outcome_unknown", Applied.UNKNOWN)
    assert len(quorum.proposed) == 1
    assert quorum.timeouts == [pytest.approx(linearizable.DEADLINE_SECONDS, abs=1)], "it has all of the time"


async def test_what_reached_no_log_is_proposed_again(here: Here) -> None:
    quorum = Quorum(Outcome(Fate.REFUSED, detail="too many"), Outcome(Fate.APPLIED, 1, Done()))
    await router_of(view_of(HERE), here, Others(), quorum).topics.alter("t", {"retention.ms": "1"}, ())
    assert [type(command) for command in quorum.proposed] == [AlterTopic] * 2


async def test_a_deletion_whose_answer_was_lost_is_done_if_the_topic_is_gone(here: Here) -> None:
    view = view_of(HERE)
    quorum = Quorum(UNKNOWN)
    quorum.before = lambda: view.on_events(view.index + 1, [TopicRemoved(TOPIC, "t")])
    await router_of(view, here, Others(), quorum).topics.delete("t")
    assert [type(command) for command in quorum.proposed] == [DeleteTopic]


async def test_the_topic_that_is_meant_is_deleted_and_no_other_of_its_name(here: Here, quorum: Quorum) -> None:
    """S7: another was created between the asking and the quorum's word."""
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


async def test_a_topic_has_grown_if_it_is_seen_so_though_the_answer_was_lost(here: Here) -> None:
    view = view_of(HERE)
    register(view, HERE, THERE)
    quorum = Quorum(UNKNOWN)

    def grow() -> None:
        view.on_events(view.index + 1, [TopicChanged(TopicRecord(TOPIC, "t", 2, 2))])
        lead(view, 1, THERE)

    quorum.before = grow
    await router_of(view, here, Others(), quorum).topics.add_partitions("t", 2)
    assert [type(command) for command in quorum.proposed] == [AddPartitions]


async def test_what_may_have_been_decided_is_never_called_undecided(
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
