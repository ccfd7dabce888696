"""An outage is reported after a few seconds, then now and then, and once when it ends."""

from __future__ import annotations

from raftlog.client.cluster.outage import AGAIN_AFTER, FIRST_AFTER, Outage
from raftlog.errors import RetriableError

DOWN = RetriableError("connection_lost", "cannot connect to 10.0.0.1:9640")


def test_a_short_failure_is_not_reported() -> None:
    outage = Outage("consumer of topic orders")
    assert outage.failed(DOWN, 100.0) is None
    assert outage.failed(DOWN, 100.0 + FIRST_AFTER - 0.1) is None
    assert outage.succeeded(100.0 + FIRST_AFTER) is None
    assert outage.failed(DOWN, 100.0 + FIRST_AFTER + 0.1) is None, "the time starts again with each success"


def test_an_outage_is_reported_now_and_then_with_its_cause_and_its_end() -> None:
    outage = Outage("consumer of topic orders")
    outage.failed(DOWN, 100.0)
    first = outage.failed(DOWN, 100.0 + FIRST_AFTER)
    assert first is not None
    assert first.startswith("consumer of topic orders: the cluster has not answered for 3 s")
    assert "cannot connect to 10.0.0.1:9640" in first
    assert outage.failed(DOWN, 100.0 + FIRST_AFTER + AGAIN_AFTER - 0.1) is None
    assert "for 33 s" in str(outage.failed(DOWN, 100.0 + FIRST_AFTER + AGAIN_AFTER))
    assert outage.succeeded(150.0) == "consumer of topic orders: answered again after 50 s"
    assert outage.succeeded(151.0) is None
