"""Hundreds of short worlds, each drawn from its seed.

They have crashes, power losses, cuts, lost, late and duplicate messages, and snapshots. The safety properties of Raft
are checked after each event, and progress after each world (S7).
"""

from __future__ import annotations

import pytest

from metadata.raft import pysyncobj_engine
from tests.support.quorum.world import Network, World

SEEDS = 300
PER_TEST = 25


def storm(seed: int, seconds: float = 4.0) -> World:
    """The faults of one world."""
    world = World(seed, size=3 if seed % 4 else 5)
    rng = world.rng
    world.network = Network(
        drop=rng.choice([0.0, 0.02, 0.2]),
        duplicate=rng.choice([0.0, 0.05, 0.3]),
        late=rng.choice([0.0, 0.02, 0.2]),
    )
    end = world.now + seconds

    def work() -> None:
        for node in world.nodes.values():
            if node.up and (node.live().is_leader or rng.random() < 0.05):
                for _ in range(rng.randrange(1, 8)):
                    world.propose(node.number)
        if world.now < end:
            world.schedule(rng.uniform(0.005, 0.05), work)

    def trouble() -> None:
        number = rng.randrange(1, world.size + 1)
        node = world.nodes[number]
        match rng.randrange(9):
            case 0 | 1:
                if node.up:
                    world.crash(number, power=rng.random() < 0.7)
            case 2:
                node.disk.crash_countdown = rng.randrange(1, 12) if node.up else 0
            case 3:
                world.isolate(number)
            case 4:
                world.network.cuts.add((number, rng.randrange(1, world.size + 1)))
            case 5:
                world.network.cuts.clear()
            case 6:
                node.paused_until = world.now + rng.uniform(0.1, 1.0)
            case 7:
                world.compact(number)
            case 8:
                for other in list(world.nodes.values()):
                    if other.up:
                        world.crash(other.number, power=True)
        for other in world.nodes.values():
            if not other.up and rng.random() < 0.6:
                world.start(other.number)
        if world.now < end:
            world.schedule(rng.uniform(0.02, 0.4), trouble)

    world.schedule(rng.uniform(0.0, 1.0), work)
    world.schedule(rng.uniform(0.0, 1.0), trouble)
    world.run(seconds + 0.5)
    world.settle()
    world.check_acked_survive()
    return world


@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_safety_and_progress_in_many_worlds(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pysyncobj_engine, "TRAILING_ENTRIES", 8)
    acked = sum(len(storm(seed).acked) for seed in range(first, first + PER_TEST))
    assert acked > PER_TEST * 10


def test_a_seed_gives_the_same_world_twice() -> None:
    one, two = storm(7), storm(7)
    assert one.applied == two.applied
    assert [a.index for a in one.acked] == [a.index for a in two.acked]
    assert one.leaders == two.leaders


@pytest.mark.soak
def test_safety_and_progress_in_very_many_worlds(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if "soak" not in request.config.getoption("-m"):
        pytest.skip("a long run: ask for it by -m soak")
    monkeypatch.setattr(pysyncobj_engine, "TRAILING_ENTRIES", 8)
    for seed in range(10_000, 13_000):
        storm(seed)
