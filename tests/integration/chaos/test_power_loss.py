"""Power failure of all nodes at once, under load: no acknowledged data is lost (S1, S2, S6, S7, S10).

One round takes about twenty seconds, so these are soak tests; `make power-loss` runs twenty rounds and stores the
results. If power cannot be cut they are skipped, with the missing ability as the reason.
"""

from __future__ import annotations

import os
import sys

import pytest

from jepsen_like.clusters.power_loss import WITNESS_BYTES
from raftlog.errors import RaftlogError
from tests.support import clusters
from tests.support.clusters.power_rounds import NODES, powered_cluster, skip_unless_power_can_be_cut

pytestmark = [pytest.mark.integration, pytest.mark.soak]

WITHOUT_FSYNC = os.path.join(os.path.dirname(os.path.abspath(clusters.__file__)), "node_without_fsync.py")
SEEDS = (101, 102, 103)


async def test_a_power_failure_of_all_nodes_loses_nothing_acknowledged() -> None:
    skip_unless_power_can_be_cut()
    with powered_cluster() as powered:
        await powered.prepare()
        for seed in SEEDS:
            result = await powered.round(seed)
            assert result.acknowledged_lost == []
            assert result.changes_acknowledged >= 1000 and result.records_acknowledged > 0
            assert result.witness_bytes_lost == NODES * WITNESS_BYTES, "the fault did not bite"


async def test_nodes_that_do_not_fsync_fail() -> None:
    """The same round with nodes whose fsyncs do nothing: acknowledged changes are missing, or the cluster detects that
    its disks lie and does not recover."""
    skip_unless_power_can_be_cut()
    program = (sys.executable, "-P", WITHOUT_FSYNC)
    found: list[str] = []
    cuts = 0
    try:
        with powered_cluster(program) as powered:
            await powered.prepare()
            try:
                found = (await powered.round(SEEDS[0], changes=200)).acknowledged_lost
            finally:
                cuts = powered.cuts
    except (AssertionError, RaftlogError) as error:
        found.append(str(error))
    assert found
    assert cuts == 1, f"it failed before anything was cut: {found}"
