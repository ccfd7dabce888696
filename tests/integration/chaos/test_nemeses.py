"""Every fault affects a real cluster, proves it, is healed, and every partition accepts records again in time (S10).

One cluster of three nodes serves for all faults of a layout, under a little load. Faults that this machine does not
support are skipped, with the missing ability as the reason. `make test` injects the faults that take a moment; each
start of a node costs seconds of work, so faults that need one are soak tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from jepsen_like.clusters.capabilities import (
    DESCRIPTORS,
    FAKETIME,
    LOOPBACK,
    NAMESPACES_NEED,
    READ_ONLY,
    STRACE,
    TIME_NAMESPACE,
)
from jepsen_like.clusters.cluster import NodeCluster
from jepsen_like.clusters.loopback import open_loopback
from jepsen_like.clusters.namespaces import open_namespaces
from jepsen_like.nemeses import crafted_steps, steps
from jepsen_like.nemeses.steps import Step
from jepsen_like.nemeses.targets import apart
from tests.support.clusters.nemeses import bite_together, bites, need, under_load

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

NODES = ("n1", "n2", "n3")
ALL_LINKS = tuple(f"{a}>{b}" for a in NODES for b in NODES if a != b)
soak = pytest.mark.soak


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def in_namespaces() -> AsyncIterator[NodeCluster]:
    need(*NAMESPACES_NEED)
    async with under_load(open_namespaces()) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def behind_proxies() -> AsyncIterator[NodeCluster]:
    need(LOOPBACK)
    async with under_load(open_loopback()) as cluster:
        yield cluster


# --- A network and a disk per node ------------------------------------------------------------------------------------


async def test_paused_nodes_stand_still(in_namespaces: NodeCluster) -> None:
    fault = await bites(in_namespaces, steps.Pause(("n1", "n2"), "majority"))
    assert fault.evidence["states"] == {"n1": "T", "n2": "T"}


async def test_one_direction_is_lost_and_the_other_is_not(in_namespaces: NodeCluster) -> None:
    fault = await bites(in_namespaces, steps.Cut(("n2>n1", "n3>n1"), "one-way-in"))
    assert set(fault.evidence["stopped"]) <= {"n2>n1", "n3>n1"}


async def test_a_node_is_isolated(in_namespaces: NodeCluster) -> None:
    cut = apart([("n3",)], NODES)
    fault = await bites(in_namespaces, steps.Cut(cut, "one"))
    assert set(fault.evidence["stopped"]) <= set(cut)


async def test_clocks_disks_and_fsyncs_fail_beside_one_another(in_namespaces: NodeCluster) -> None:
    """Each has its own target, so none undoes another: all are injected, proved and healed at the same time."""
    need(FAKETIME, STRACE)
    leap, strobe, full, slow = await bite_together(
        in_namespaces,
        steps.Bump(("n1", "n2"), (-288.0, 30.0)),
        steps.Strobe(("n3",), 100.0, 0.05),
        steps.FullDisk(("n2",), "one"),
        steps.SlowSync(("n1",), "one", delay_ms=100),
        hold=1.5,
    )
    assert leap.evidence["offsets"]["n1"] == pytest.approx(-288, abs=3)
    assert strobe.evidence["leaps"] > 3
    assert full.evidence["refused"] == "ENOSPC"
    assert slow.evidence["calls"]["n1"] > 0


@pytest.mark.parametrize("spare", [0, 16])
async def test_nodes_without_descriptors_recover_when_they_have_some(in_namespaces: NodeCluster, spare: int) -> None:
    need(DESCRIPTORS)
    fault = await bites(in_namespaces, steps.FewDescriptors(("n1", "n3"), "minority", spare))
    assert set(fault.evidence["open"]) == {"n1", "n3"} and not fault.evidence["ended"]


async def test_a_voter_is_removed_and_added_again(in_namespaces: NodeCluster) -> None:
    fault = await bites(in_namespaces, steps.RemoveVoter("n3"), hold=0.0)
    assert fault.evidence == {"before": [0, 1, 2], "after": [0, 1]}


async def test_partitions_move_and_move_back(in_namespaces: NodeCluster) -> None:
    moves = (("broken", 0, ("n3", "n2")), ("broken", 1, ("n2", "n1", "n3")))
    fault = await bites(in_namespaces, steps.Reassign(moves), hold=0.0)
    assert set(fault.evidence["moved"]) <= {"broken/0", "broken/1"}


@soak
async def test_the_power_of_a_disk_fails(in_namespaces: NodeCluster) -> None:
    fault = await bites(in_namespaces, steps.Power(("n2",), "one", survivors=("parts",), seed=3), hold=0.0)
    assert fault.evidence["lost"]["n2"]["witness"] > 0


@soak
@pytest.mark.parametrize(
    "step",
    [
        steps.Kill(NODES, "all"),
        steps.Power(("n2", "n1", "n3"), "all", survivors=("parts", "nothing", "names"), seed=3),
        steps.AmnesiaInTheMiddle(("n1",), ("n2",), ("n3",), "pause", 2.0, "nothing"),
        steps.AmnesiaInTheMiddle(("n1",), ("n2",), ("n3",), "cut", 2.0, "nothing"),
        steps.AmnesiaInTheMiddle(("n1",), ("n2",), ("n3",), "pause", 2.0, "nothing", slow_ms=100),
        steps.AmnesiaInTheMiddle((), ("n2", "n3"), ("n1",), "", 0.0, "nothing", slow_ms=100),
        crafted_steps.SlowKill(("n1",), "controller", ("n2", "n3"), 100),
        steps.SlowPower(NODES, "all", ("nothing", "names", "parts"), 3, 100),
        steps.PowerAndRot(NODES, "all", ("nothing", "names", "parts"), 3, rotten="n1"),
        steps.PowerAndRot(NODES, "all", ("nothing", "names", "parts"), 3, rotten="n1", each=True),
        steps.Flip("n1", ("segment",), 5, bits=2, running=True),
        *(steps.Flip("n1", (what,), 5, bits=2) for what in ("segment", "index", "checkpoint", "journal", "hard-state")),
        steps.Flip("n1", ("voters",), 5, bits=2),
        *(steps.Truncate("n1", (what,), 5, bytes=61) for what in ("segment", "time-index", "epoch-history", "journal")),
        steps.RollBack("n1", ("segment",), 5, age=1.0),
    ],
    ids=lambda step: f"{step.kind}-{','.join(getattr(step, 'files', ())) or getattr(step, 'aim', '')}",
)
async def test_nodes_recover_from_faults_that_need_a_start(in_namespaces: NodeCluster, step: Step) -> None:
    await bites(in_namespaces, step, hold=1.0)


@soak
@pytest.mark.parametrize(
    ("step", "ability"),
    [
        (steps.MonotonicOffset(("n3",), "one", seconds=10_000_000), TIME_NAMESPACE),
        (steps.WrongStart(("n2",), (2_000_000.0,)), FAKETIME),
        (steps.ReadOnly(("n2",), "one"), READ_ONLY),
        (steps.FailSync(("n3",), "one", first=1), STRACE),
        (steps.IdleConnections(("n2",), "one", 1024, 300), DESCRIPTORS),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
async def test_nodes_recover_from_broken_clocks_and_disks(in_namespaces: NodeCluster, step: Step, ability: str) -> None:
    need(ability)
    await bites(in_namespaces, step, hold=1.0)


# --- A proxy on every link --------------------------------------------------------------------------------------------


@soak
@pytest.mark.parametrize(
    "step",
    [
        steps.Kill(("n1",), "one"),
        steps.Cut(apart([("n2",)], NODES), "one"),
        steps.Cut(("n1>n3", "n2>n3"), "one-way-in"),
        steps.Slow(ALL_LINKS, "some", delay_ms=50, jitter_ms=50),
        steps.Stall(ALL_LINKS, "some", seed=1),
        steps.Reset(("n1>n2", "n3>n2"), "some", period_ms=200),
        steps.Linger(ALL_LINKS, "some", delay_ms=30, linger_ms=300),
    ],
    ids=lambda step: step.kind,
)
async def test_links_behind_proxies_are_broken_and_healed(behind_proxies: NodeCluster, step: Step) -> None:
    await bites(behind_proxies, step, hold=1.5)


@soak
async def test_a_ring_of_five_has_no_majority_that_two_nodes_see() -> None:
    """And a broker of five is drained."""
    need(LOOPBACK)
    async with under_load(open_loopback(5)) as five:
        nodes = tuple(five.nodes)
        ring = [f"{nodes[a]}>{nodes[b]}" for a in range(5) for b in range(5) if (a - b) % 5 in (2, 3)]
        await bites(five, steps.Cut(tuple(sorted(ring)), "majorities-ring"), hold=3.0)
        await bites(five, steps.Drain("n1"), hold=0.0)
