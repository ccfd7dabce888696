"""The broker beside a quorum node: registered, watched, fenced, released; and foreign links and disks."""

from __future__ import annotations

import pytest

from metadata.commands.cluster import REGISTRATION_FEATURE_LEVEL, GrantProducerIds, NoOp, ReplaceRegistration
from metadata.commands.envelope import ClientSession
from metadata.commands.results import ProducerIdsGranted, Refused, Registered
from metadata.quorum.port import Fate, Outcome
from metadata.quorum.protocol import EngineFrame
from metadata.quorum.protocol import encode as encode_frame
from raftlog.errors import InvalidRequest, RemoteProtocolError
from raftlog.model import BrokerId
from raftlog.ports import Link
from raftlog.version import FEATURE_LEVEL
from tests.support.quorum.cluster import QuorumCluster, SimLink, incarnation_of, others, ready_cluster

SESSION = 0.9
ELECTION = 0.6


# --- Brokers and the controller --------------------------------------------------------------------------------------


def test_a_registration_is_repeated_until_it_is_answered_and_is_idempotent() -> None:
    cluster = QuorumCluster(2)
    outcomes: list[Outcome] = []
    cluster.node(1).register(cluster.registration(1), outcomes.append)
    cluster.run_until(lambda: bool(outcomes))
    assert isinstance(outcomes[0].result, Registered)
    again = cluster.register(1)
    assert again.result == outcomes[0].result
    stale: list[Outcome] = []
    cluster.node(1).register(cluster.registration(1, start=0), stale.append)
    cluster.run_until(lambda: bool(stale))
    assert isinstance(stale[0].result, Refused) and stale[0].result.code == "stale_incarnation"


def test_silent_brokers_are_fenced_and_returned_ones_unfenced() -> None:
    cluster, leader = ready_cluster()
    silent = others(cluster, leader)[0]
    cluster.members[silent].kill()
    began = cluster.heap.now
    cluster.run_until(lambda: not cluster.members[leader].view.alive(BrokerId(silent)), 3.0)
    assert SESSION * 0.6 <= cluster.heap.now - began <= SESSION * 2
    cluster.members[silent].start()
    cluster.register(silent)
    cluster.run_until(lambda: cluster.members[leader].view.alive(BrokerId(silent)), 3.0)


def test_a_new_controller_grants_everyone_a_full_session_and_fences_only_the_dead() -> None:
    cluster, leader = ready_cluster(seed=6)
    rest = others(cluster, leader)
    began = cluster.heap.now
    cluster.members[leader].kill()
    cluster.run_until(lambda: not cluster.members[rest[0]].view.alive(BrokerId(leader)), 5.0)
    assert cluster.heap.now - began <= ELECTION + SESSION + 0.3
    assert all(cluster.members[rest[0]].view.alive(BrokerId(number)) for number in rest)


def test_a_stopping_broker_is_fenced_at_once_and_stays_so() -> None:
    cluster, leader = ready_cluster()
    for number in (others(cluster, leader)[0], leader):
        ended: list[bool] = []
        cluster.node(number).stop_broker(ended.append, timeout=2.0)
        began = cluster.heap.now
        cluster.run_until(lambda e=ended: bool(e))  # type: ignore[misc]
        assert ended == [True] and cluster.heap.now - began < 0.2
        cluster.run(1.0)
        assert ended == [True]
        assert not cluster.members[number].view.alive(BrokerId(number))


def test_a_stop_without_a_quorum_ends_in_time() -> None:
    cluster, leader = ready_cluster()
    for number in others(cluster, leader):
        cluster.members[number].kill()
    ended: list[bool] = []
    cluster.node(leader).stop_broker(ended.append, timeout=0.5)
    cluster.run(0.6)
    assert ended == [False]


def test_heartbeats_of_another_broker_are_a_protocol_violation() -> None:
    from metadata.quorum.protocol import BrokerHeartbeat

    cluster, leader = ready_cluster()
    first, second = others(cluster, leader)
    with pytest.raises(RemoteProtocolError):
        cluster.node(leader).on_message(BrokerId(first), encode_frame(BrokerHeartbeat(second, 5, 5, False)))


# --- Disks and links -------------------------------------------------------------------------------------------------


def test_a_voter_that_lost_its_disk_gets_the_log_and_elects_nobody() -> None:
    cluster, leader = ready_cluster(seed=3)
    lost = others(cluster, leader)[0]
    other = others(cluster, leader)[1]
    cluster.members[lost].kill()
    cluster.members[lost].replace_disk()
    cluster.members[lost].start()
    registered = cluster.register(lost)
    assert isinstance(registered.result, Registered)
    cluster.run_until(lambda: cluster.members[lost].view.index == cluster.members[leader].view.index)
    cluster.members[leader].kill()
    cluster.run(5.0)
    assert cluster.propose(other, NoOp(), timeout=0.5).fate is Fate.REFUSED, "one voter with its disk is no majority"
    cluster.members[leader].start()
    cluster.await_leader()
    assert cluster.propose(other, NoOp()).fate is Fate.APPLIED


def test_nodes_of_another_cluster_and_strangers_are_dropped() -> None:
    from metadata.quorum.links import QuorumLinks
    from metadata.quorum.protocol import PROTOCOL_VERSION, Hello

    cluster, leader = ready_cluster()
    hellos = [
        Hello(PROTOCOL_VERSION, "another", 2, bytes(16)),
        Hello(PROTOCOL_VERSION, "cluster", leader, bytes(16)),
        EngineFrame(b"no hello"),
    ]
    for hello in hellos:
        closed: list[Link] = []

        class Stranger:
            def on_opened(self, link: Link, hello: object = hello) -> None:
                link.send([encode_frame(hello)])  # type: ignore[arg-type]

            def on_message(self, link: Link, message: memoryview) -> None:
                raise AssertionError("it was answered")

            def on_closed(self, link: Link, closed: list[Link] = closed) -> None:
                closed.append(link)

        cluster.network.dial(7, leader, type("Life", (), {"alive": True})(), Stranger(), lambda: None)
        cluster.run(0.1)
        assert len(closed) == 1 and isinstance(closed[0], SimLink)
    assert len(cluster.members[leader].dropped) == len(hellos)
    assert isinstance(QuorumLinks(cluster.members[leader].identity), QuorumLinks)


def test_a_node_that_is_no_voter_does_not_start() -> None:
    from msgspec.structs import replace

    cluster = QuorumCluster(1)
    member = cluster.members[1]
    member.identity = replace(member.identity, voters=(BrokerId(2), BrokerId(3)))
    with pytest.raises(InvalidRequest):
        member.start()


def test_sessions_of_clients_are_kept_in_the_log_not_in_the_node() -> None:
    """Two different proposals of one node never share an answer."""
    cluster, leader = ready_cluster()
    incarnation = incarnation_of(cluster, leader)
    first = cluster.propose(leader, GrantProducerIds(BrokerId(leader), incarnation, 10))
    second = cluster.propose(leader, GrantProducerIds(BrokerId(leader), incarnation, 10))
    assert isinstance(first.result, ProducerIdsGranted) and isinstance(second.result, ProducerIdsGranted)
    assert second.result.first == first.result.first + 10
    assert ClientSession(bytes(16), 1, 1) != ClientSession(bytes(16), 2, 1)


def test_a_process_that_was_replaced_while_it_registered_is_refused_s5() -> None:
    """Its proposal was in flight when its successor registered from another disk, and arrives after that."""
    cluster = QuorumCluster(4, 4, voters=3)
    leader = cluster.await_leader()
    for number in (1, 2, 3):
        cluster.register(number, level=FEATURE_LEVEL)
    assert cluster.node(leader).image.feature_level == FEATURE_LEVEL, "a new cluster has all that its first node knows"
    first = cluster.register(4, level=FEATURE_LEVEL)
    assert isinstance(first.result, Registered)
    late = ReplaceRegistration.after(cluster.registration(4, 2, level=FEATURE_LEVEL), first.result.incarnation)
    cluster.members[4].kill()
    cluster.members[4].replace_disk()
    cluster.members[4].start()
    second = cluster.register(4, level=FEATURE_LEVEL)
    assert isinstance(second.result, Registered) and second.result.incarnation > first.result.incarnation
    answer = cluster.propose(4, late)
    assert isinstance(answer.result, Refused) and answer.result.code == "stale_incarnation"
    cluster.run_until(lambda: incarnation_of(cluster, 4) == second.result.incarnation)


def test_below_the_feature_level_a_registration_is_one_that_every_node_knows() -> None:
    """Some node of a cluster that is upgraded may be older."""
    cluster = QuorumCluster(4, 4, voters=3)
    cluster.await_leader()
    cluster.register(1, level=REGISTRATION_FEATURE_LEVEL - 1)
    for number in (2, 4):
        outcome = cluster.register(number, level=FEATURE_LEVEL)
        assert isinstance(outcome.result, Registered)
    entries = [command for command, _, _ in cluster.node(1).engine.journal.entries]
    assert sum(b"register_broker.1" in command for command in entries) == 3
    assert not any(b"register_broker.2" in command for command in entries)
