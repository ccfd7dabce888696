"""Voters change on real processes: a lost one is replaced by an observer, and the next loss is survived (S7, S9)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from raftlog import Admin
from raftlog.api.quorum import QuorumInfo, VotersChange
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.errors import InvalidRequest
from tests.support.cli_runner import run
from tests.support.clusters.cluster import eventually, log_lines, running_cluster
from tests.support.clusters.traffic import Traffic, check_exactly

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster(4) as running:
        yield running


async def test_a_permanently_lost_voter_is_replaced_and_another_loss_is_survived(cluster: LocalCluster) -> None:
    """Three voters, node 3 observes. Two voters die one after the other; an idempotent producer loses nothing."""
    async with Admin(cluster.bootstrap) as admin:
        before = await admin.quorum()
        assert sorted(before.voters) == [0, 1, 2]
        assert (await admin.cluster()).nodes[3].id == 3, "the observer is a broker like any other"
        await admin.create_topic("kept", 1, replication_factor=4, configs={"min.insync.replicas": "2"})
        async with Traffic(cluster.bootstrap, "kept", 1) as traffic:
            await traffic.grows()
            lost = next(node for node in before.voters if node != before.leader)
            await asyncio.to_thread(cluster.kill_node, lost)
            refused = next(node for node in before.voters if node not in (before.leader, lost))
            await eventually(lambda: _is_refused(admin, refused), "the second loss is not made worse")
            planned = await asyncio.to_thread(
                run, "--bootstrap", cluster.bootstrap, "quorum", "remove", str(lost), "--plan"
            )
            assert planned.code == 0 and "would be" in planned.text, planned.stderr
            for action, node in (("remove", lost), ("add", 3)):
                done = await asyncio.to_thread(run, "--bootstrap", cluster.bootstrap, "quorum", action, str(node))
                assert done.code == 0 and "are now" in done.text, done.stderr
            await traffic.grows()
            after = await admin.quorum()
            assert sorted(after.voters) == sorted({0, 1, 2, 3} - {lost})
            await asyncio.to_thread(cluster.kill_node, after.leader)
            survivors = sorted({0, 1, 2, 3} - {lost, after.leader})
            alive = ",".join(str(cluster.nodes[node].api) for node in survivors)
            async with Admin(alive) as left:
                elected = await eventually(lambda: _led_by(left, survivors), "one of the two that are left leads")
                assert 3 in elected.voters
                await traffic.grows()
                await left.create_topic("after", 1, replication_factor=2)
        await asyncio.to_thread(cluster.start_node, after.leader)
        await asyncio.to_thread(cluster.start_node, lost)
        await eventually(lambda: _follows(admin, lost), "the removed voter observes when it comes back")
        assert (await admin.remove_voter(after.leader, plan=True)).applied is False
        await check_exactly(cluster.bootstrap, traffic)
    assert any(line["event"] == "quorum_voters" for line in log_lines(cluster.nodes[3]))


async def _is_refused(admin: Admin, node: int) -> bool:
    try:
        planned: VotersChange = await admin.remove_voter(node, plan=True)
    except InvalidRequest as error:
        return error.code == "quorum_majority_at_risk"
    return planned.applied


async def _led_by(admin: Admin, survivors: list[int]) -> QuorumInfo | None:
    status = await admin.quorum()
    return status if status.leader in survivors else None


async def _follows(admin: Admin, node: int) -> bool:
    status = await admin.quorum()
    return node not in status.voters and status.match_index.get(str(node), -1) >= status.commit_index - 5
