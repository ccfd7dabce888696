"""A batch ahead of its turn gets a definite answer, whatever its sender's timeout (S1, S10)."""

from __future__ import annotations

import pytest

from partitions.manager import Produced
from partitions.replica.produces import PARK_SECONDS
from raftlog.errors import Applied, RaftlogError
from raftlog.model import Acks
from raftlog.records.batch import encode
from tests.support.partitions.replication_cluster import ReplicationCluster, tp


@pytest.mark.parametrize("patience", [0.3, 0.8 * PARK_SECONDS, 10.0])
def test_a_producer_without_state_gets_a_definite_error(patience: float) -> None:
    """Its former batches were deleted: after a mere timeout it would send the batch again, forever."""
    cluster = ReplicationCluster()
    answers: list[Produced | RaftlogError] = []
    batch = encode(
        [b"a"],
        base_timestamp_ms=cluster.scheduler.clock.wall_ms(),
        producer_id=7,
        producer_epoch=0,
        base_sequence=70,
    )
    manager = cluster.members[0].manager
    manager.produce(tp(0), batch, Acks.ALL, answers.append, timeout_ms=int(patience * 1000))
    cluster.settle()
    assert answers == [], "what is before it may still come"
    cluster.scheduler.advance(min(patience, PARK_SECONDS) + 0.2)
    cluster.settle()
    (answer,) = answers
    assert isinstance(answer, RaftlogError)
    assert (answer.code, answer.applied) == ("unknown_producer_id", Applied.NO)
    assert manager.drivers[tp(0)].quiet
