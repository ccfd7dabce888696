"""The assembled security of a node. S11, S12."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from metadata.records.events import RulesChanged
from metadata.view import ClusterView
from raftlog.broker.node.security import NodeSecurity
from raftlog.broker.security.unauthenticated import Unauthenticated
from raftlog.config import SecurityConfig
from raftlog.errors import RetriableError
from raftlog.model import BrokerId
from raftlog.security.acls import Operation, ResourceType
from raftlog.system.clock import SystemClock
from raftlog.system.runtime import ThreadWorker
from tests.support.security.authenticated_world import basic
from tests.support.security.rules import allow

pytestmark = pytest.mark.integration


async def test_a_node_that_knows_no_users_yet_refuses_no_credential_for_good_s11(tmp_path: Path) -> None:
    """Its clients retry elsewhere; a 401 would end them."""
    view, clock = ClusterView(), SystemClock()
    worker = ThreadWorker(asyncio.get_running_loop(), 1, "worker")
    knows, none = [False], Any
    security = NodeSecurity(
        SecurityConfig(mode="required"),
        cluster_id="c1",
        node_id=BrokerId(0),
        folder=str(tmp_path),
        view=view,
        knows_cluster=lambda: knows[0],
        clock=clock,
        now_ms=clock.wall_ms,
        names_a_node=lambda certificate: False,
        worker=worker,
        produce=none,
    )
    try:
        with pytest.raises(RetriableError) as behind:
            await security.authenticate(basic("alice", "correct horse"))
        assert behind.value.code == "quorum_unavailable"
        knows[0] = True
        with pytest.raises(Unauthenticated):
            await security.authenticate(basic("alice", "correct horse"))
        told: list[bool] = []
        security.access.subscribe(lambda: told.append(True))
        view.on_events(1, [RulesChanged((allow(Operation.READ, ResourceType.TOPIC, "orders"),), ())])
        assert told == [True], "streams that last are checked again when rules change"
    finally:
        await security.close()
        await asyncio.to_thread(worker.close)
