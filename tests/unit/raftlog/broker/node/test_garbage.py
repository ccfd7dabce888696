"""Objects that are created in bulk are hidden from the garbage collector."""

from __future__ import annotations

import gc

import pytest

from raftlog.broker.node.garbage import REPLICAS_PER_FREEZE, BulkCreation, loading
from tests.support.partitions.replication_cluster import ReplicationCluster


def test_new_replicas_are_frozen_in_groups() -> None:
    frozen: list[bool] = []
    bulk = BulkCreation(lambda: frozen.append(True))
    for number in range(3 * REPLICAS_PER_FREEZE + 5):
        assert len(frozen) == number // REPLICAS_PER_FREEZE
        bulk.on_new_replica()


def test_a_manager_reports_each_replica_that_comes_into_service() -> None:
    cluster, new = ReplicationCluster(), list[bool]()
    manager = cluster.members[1].manager
    manager.on_new_replica = lambda: new.append(True)
    assert len(manager.drivers) == 1
    cluster.records |= {n: cluster._record(n, 0, 1, 1, cluster.replicas) for n in (1, 2)}
    cluster.tell(*cluster.records.values(), to=[1])
    cluster.settle()
    assert len(manager.drivers) == 3 and len(new) == 2


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_collected_during_a_large_load(monkeypatch: pytest.MonkeyPatch, enabled: bool) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ValueError, match="no disk"), loading():
            assert not gc.isenabled()
            raise ValueError("no disk")
        assert frozen == [False]
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()
