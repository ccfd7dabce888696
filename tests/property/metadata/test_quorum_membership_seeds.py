"""Many short worlds in which voters are added, removed and lose disks between crashes, power losses and cuts.

The safety properties of Raft are checked after each event, and progress with the remaining voters after each world (S7,
S9).
"""

from __future__ import annotations

import pytest

from metadata.raft import pysyncobj_engine
from metadata.voters.changes import Action
from tests.support.quorum.membership_world import MembershipWorld
from tests.support.quorum.world import Network

SEEDS = 24
PER_TEST = 8


def storm(seed: int, seconds: float = 4.0) -> MembershipWorld:
    size, voters = ((4, 3), (5, 1), (5, 3), (6, 5))[seed % 4]
    world = MembershipWorld(seed, size, voters)
    rng = world.rng
    world.network = Network(
        drop=rng.choice([0.0, 0.02, 0.1]),
        duplicate=rng.choice([0.0, 0.05, 0.3]),
        late=rng.choice([0.0, 0.02, 0.1]),
    )
    end = world.now + seconds

    def work() -> None:
        leader = world.leader()
        if leader is not None:
            for _ in range(rng.randrange(1, 4)):
                world.propose(leader)
            if rng.random() < 0.5:
                world.step_voters(rng.choice(list(Action)), rng.randrange(1, size + 1))
                if rng.random() < 0.2 and world.nodes[leader].up:
                    # Between the append of a step and its first message, or in the middle of its write.
                    if rng.random() < 0.5:
                        world.crash(leader, power=True)
                    else:
                        world.nodes[leader].disk.crash_countdown = rng.randrange(1, 4)
        if world.now < end:
            world.schedule(rng.uniform(0.01, 0.08), work)

    def trouble() -> None:
        number = rng.randrange(1, size + 1)
        node = world.nodes[number]
        match rng.randrange(8):
            case 0 | 1:
                if node.up:
                    world.crash(number, power=rng.random() < 0.7)
            case 2:
                node.disk.crash_countdown = rng.randrange(1, 12) if node.up else 0
            case 3:
                world.isolate(number)
            case 4:
                world.network.cuts.clear()
            case 5:
                node.paused_until = world.now + rng.uniform(0.1, 0.6)
            case 6:
                world.compact(number)
            case 7:
                world.swap_disk(number)
        for other in world.nodes.values():
            if not other.up and rng.random() < 0.6:
                world.start(other.number)
        if world.now < end:
            world.schedule(rng.uniform(0.05, 0.5), trouble)

    world.schedule(rng.uniform(0.3, 1.0), work)
    world.schedule(rng.uniform(0.3, 1.0), trouble)
    world.run(seconds + 0.5)
    world.settle()
    world.check_acked_survive()
    world.check_history()
    return world


@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_voters_change_in_many_worlds(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pysyncobj_engine, "TRAILING_ENTRIES", 8)
    worlds = [storm(seed) for seed in range(first, first + PER_TEST)]
    assert sum(len(world.history) for world in worlds) > PER_TEST * 2
    assert sum(len(world.acked) for world in worlds) > PER_TEST * 10


@pytest.mark.soak
def test_voters_change_in_very_many_worlds(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "soak" not in request.config.getoption("-m"):
        pytest.skip("a long run: ask for it by -m soak")
    monkeypatch.setattr(pysyncobj_engine, "TRAILING_ENTRIES", 8)
    for seed in range(20_000, 22_000):
        storm(seed)
