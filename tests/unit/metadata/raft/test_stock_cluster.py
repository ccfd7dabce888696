"""Losses and false promises of clusters of stock pysyncobj 0.3.17, each with the test that shows it closed here.

Its nodes are unmodified; the test controls only time and messages. See also `test_stock.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.quorum.stock_cluster import StockCluster

# It leaves its files open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def test_stock_reports_success_for_what_a_cut_off_leader_never_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: `test_a_leader_that_is_cut_off_acknowledges_nothing`.

    The others elect a leader, write, and compact past the old leader's entries; the first piece of the snapshot that it
    then gets commits its own log.
    """
    cluster = StockCluster(monkeypatch)
    cluster.elect("a")
    before = cluster.add("a", [-1])
    cluster.run()
    assert before == [-1]
    cluster.cut = {"a"}
    false = cluster.add("a", list(range(100)))
    cluster.tick("a")
    cluster.elect("b")
    true = cluster.add("b", list(range(1000, 1150)))
    cluster.run(10)
    assert len(true) == 150 and false == []
    cluster.compact("b")
    cluster.cut = set()
    cluster.run(at_most=1)  # the snapshot's pieces do not all arrive at once
    assert len(false) == 100, "every one was reported as done"
    for name in "bc":
        assert not set(false) & set(cluster.nodes[name].values), "and none of them is anywhere"
    assert set(true) <= set(cluster.nodes["b"].values)


def test_stock_loses_what_it_acknowledged_when_killed_while_it_dumps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ours: `test_kills_of_all_nodes_during_snapshots_lose_nothing`, `test_no_crash_in_a_compaction_loses_anything`.

    The dump's process outlives its parent, so at the next start there is a dump that is not where the journal begins;
    then the whole journal is thrown away, with all that came after the dump.
    """
    cluster = StockCluster(monkeypatch, folder=tmp_path)
    cluster.elect("a")
    dumped = cluster.add("a", list(range(10)))
    cluster.run()
    for name in "abc":
        cluster.begin_dump(name)
    acknowledged = cluster.add("a", list(range(100, 700)))
    cluster.run()
    assert len(dumped) == 10 and len(acknowledged) == 600
    assert all(set(acknowledged) <= set(node.values) for node in cluster.nodes.values()), "on all three, by journal"
    cluster.start()
    cluster.tick()
    cluster.elect("a")
    cluster.run()
    for node in cluster.nodes.values():
        assert node.values == dumped, "600 of 600 are gone, everywhere"
    cluster.close()


def test_stock_loses_committed_entries_when_an_append_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: `test_a_late_resend_truncates_nothing`, `test_lost_late_and_duplicate_appends_lose_no_acknowledged_entry`.

    An answer rewinds what the leader sends next while later appends are under way, so it sends them again; the follower
    throws away what follows the first of these, and dies before it has the rest.
    """
    cluster = StockCluster(monkeypatch, appendEntriesBatchSizeBytes=100)
    cluster.elect("a")
    cluster.run(3)
    cluster.queues["a", "c"].clear()
    acknowledged = cluster.add("a", list(range(40)))
    cluster.tick("a")
    cluster.now += 0.2
    cluster.tick("a")
    appends = len(cluster.queues["a", "b"])
    assert appends > 2, "the entries travel in several messages"
    cluster.queues["a", "c"].clear()
    cluster.deliver("a", "b")
    cluster.deliver("b", "a", 1)
    cluster.now += 0.2
    cluster.tick("a")  # sends again what is in flight
    assert len(cluster.queues["a", "b"]) > 1
    cluster.deliver("b", "a")
    cluster.tick("a")
    assert len(acknowledged) == 40, "b has them all and said so: committed"
    cluster.deliver("a", "b", 1)
    cluster.cut = {"a"}
    cluster.elect("b")
    cluster.run(10)
    kept = set(cluster.nodes["b"].values)
    assert len(kept & set(acknowledged)) < 40, "the new leader lacks what was acknowledged"
    assert set(cluster.nodes["c"].values) == kept
