"""Power failures and the actions around them, without a disk: slow fsyncs before, a flipped bit after."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jepsen_like.clusters.power_loss import FaultDidNotBite, Lost
from jepsen_like.clusters.replica_logs import last_batch, read_log
from jepsen_like.nemeses import crafted_steps, files, power, sluggish, steps
from jepsen_like.nemeses.injection import FaultNotMade
from jepsen_like.nemeses.power import Blackout, BlackoutAndRot, Forgetting
from jepsen_like.nemeses.sluggish import KillingWhileSlow, Sluggish
from raftlog.records.batch import encode, stamp

REPLICA = Path("partitions") / f"{'0a' * 16}-0"


def cluster(tmp_path: Path) -> Any:
    return SimpleNamespace(
        folder=tmp_path, nodes=("n1", "n2"), pid=lambda node: int(node[1:]), data_folder=lambda node: tmp_path / node
    )


class Calls:
    """Stands for strace."""

    made: list[Calls]
    touched = 3

    def __init__(self, pid: int, trace: Path, what: str) -> None:
        self.pid, self.what, self.is_on = pid, what, False
        self.made.append(self)

    def begin(self) -> None:
        self.is_on = True

    def count(self) -> int:
        return self.touched

    def end(self) -> None:
        self.is_on = False


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> type[Calls]:
    Calls.made, Calls.touched = [], 3
    monkeypatch.setattr(sluggish, "SystemCalls", Calls)
    monkeypatch.setattr(sluggish, "SLUGGISH_SECONDS", 0.0)
    return Calls


async def test_fsyncs_are_slow_until_it_is_over(tmp_path: Path, calls: type[Calls]) -> None:
    slow = Sluggish(cluster(tmp_path), 100)
    await slow.begin(("n1", "n2"))
    assert [(one.pid, one.what, one.is_on) for one in calls.made] == [
        (1, "delay_enter=100000", True),
        (2, "delay_enter=100000", True),
    ]
    assert slow.touched == {"n1": 3, "n2": 3}
    await slow.end()
    await slow.end()
    assert not any(one.is_on for one in calls.made)


async def test_without_fsync_calls_nothing_was_slow(tmp_path: Path, calls: type[Calls]) -> None:
    calls.touched = 0
    with pytest.raises(FaultNotMade, match="no process called fsync"):
        await Sluggish(cluster(tmp_path), 100).begin(("n1",))


class Nodes:
    """Records the actions on nodes and links, in order. Each start is another process."""

    nodes = ("n1", "n2", "n3")
    bootstrap = ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")

    def node_id(self, node: str) -> int:
        return self.nodes.index(node)

    def __init__(self, folder: Path, told: list[str]) -> None:
        self.folder, self.told, self.links = folder, told, self
        self.disks = {name: Disk(name, told) for name in self.nodes}
        self.pids = {name: number for number, name in enumerate(self.nodes, 1)}

    def pid(self, node: str) -> int:
        return self.pids[node]

    async def kill(self, nodes: tuple[str, ...]) -> None:
        self.told += [f"kill {node}" for node in nodes]

    async def start(self, nodes: tuple[str, ...]) -> None:
        self.told += [f"start {node}" for node in nodes]
        self.pids |= {node: self.pids[node] + 10 for node in nodes}

    async def cut(self, links: tuple[str, ...]) -> None:
        self.told.append(f"cut {' '.join(links)}")

    async def heal(self) -> None:
        self.told.append("heal")


async def test_the_survivors_are_slow_when_the_others_are_killed(tmp_path: Path, calls: type[Calls]) -> None:
    told: list[str] = []
    nodes: Any = Nodes(tmp_path, told)
    fault = KillingWhileSlow(crafted_steps.SlowKill(("n1",), "controller", ("n2", "n3"), 100), nodes)
    await fault.begin()
    assert told == ["kill n1"] and [one.pid for one in calls.made] == [2, 3]
    assert not any(one.is_on for one in calls.made), "what is under way is decided by those that are left"
    assert await fault.prove() == {"aim": "controller", "slowed": {"n2": 3, "n3": 3}}
    assert await fault.heal() == {"pids": {"n1": [1, 11]}}


async def test_followers_lose_power_together_and_return_without_their_leader(
    tmp_path: Path, calls: type[Calls], monkeypatch: pytest.MonkeyPatch, held: list[set[int]]
) -> None:
    told: list[str] = []
    nodes: Any = Nodes(tmp_path, told)
    step = steps.AmnesiaInTheMiddle((), ("n2", "n3"), ("n1",), "", 0.0, "nothing", 3, 100)
    assert step.kind == "followers-forget"
    monkeypatch.setattr(power, "ANSWER_SECONDS", 0.0)
    fault = Forgetting(step, nodes)
    await fault.begin()
    assert await fault.prove() == {"slowed": {"n2": 3, "n3": 3}, "killed": {"n1": 1}}
    assert [one.pid for one in calls.made] == [2, 3]
    assert set().union(*held) == {2, 3}, "the leader runs until it is killed"
    assert sorted(told[:4]) == ["aim n2", "aim n3", "shut n2", "shut n3"]
    assert told[4:7] == ["kill n2", "kill n3", "kill n1"] and told[-2:] == ["start n2", "start n3"]


async def test_a_node_that_lost_nothing_has_forgotten_nothing(
    tmp_path: Path, calls: type[Calls], monkeypatch: pytest.MonkeyPatch, held: list[set[int]]
) -> None:
    def nothing_lost() -> Lost:
        raise FaultDidNotBite("n2 lost nothing")

    nodes: Any = Nodes(tmp_path, [])
    nodes.disks["n2"].restore = nothing_lost
    monkeypatch.setattr(power, "ANSWER_SECONDS", 0.0)
    fault = Forgetting(steps.AmnesiaInTheMiddle((), ("n2",), ("n1",), "", 0.0, "nothing", 3, 100), nodes)
    await fault.begin()
    with pytest.raises(FaultNotMade, match="n2 lost nothing"):
        await fault.heal()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The processes that were stopped, call by call."""
    found: list[set[int]] = []
    monkeypatch.setattr(power, "hold", lambda pids: found.append(set(pids)))
    return found


class Disk:
    """Records when it is selected and cut."""

    def __init__(self, name: str, told: list[str]) -> None:
        self.name, self.told = name, told

    def aim(self, survivors: object, rng: object) -> None:
        self.told.append(f"aim {self.name}")

    def shut(self) -> None:
        self.told.append(f"shut {self.name}")

    def restore(self) -> Lost:
        return Lost(1, {})


async def test_disks_are_cut_together_or_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And each under a stopped process."""

    async def killed(nodes: tuple[str, ...]) -> None:
        assert nodes == ("n2", "n1")

    seen = set()
    for seed in range(20):
        told: list[str] = []
        monkeypatch.setattr(power, "hold", lambda pids, told=told: told.append(f"hold {sorted(pids)}"))
        powered = cluster(tmp_path)
        powered.disks = {name: Disk(name, told) for name in ("n1", "n2")}
        powered.kill = killed
        await power.Outage(powered).cut({"n2": "parts", "n1": "nothing"}, seed)
        assert sorted(one for one in told if "hold" not in one) == ["aim n1", "aim n2", "shut n1", "shut n2"]
        seen.add(tuple(told[:4]))
    one_by_one = {("aim n2", "hold [2]", "shut n2", "aim n1")}
    together = {("aim n2", "aim n1", "hold [1, 2]", f"shut {node}") for node in ("n1", "n2")}
    assert one_by_one <= seen <= one_by_one | together and seen & together


def batches(*values: bytes) -> list[bytes]:
    made = (stamp(encode([value], base_timestamp_ms=1), number, 7) for number, value in enumerate(values))
    return [b"".join(map(bytes, one)) for one in made]


def test_a_bit_of_the_last_batch_is_flipped_and_no_other(tmp_path: Path) -> None:
    segment = tmp_path / "n1" / REPLICA / f"{0:020d}.log"
    segment.parent.mkdir(parents=True)
    first, second = batches(b"one", b"two")
    segment.write_bytes(first + second + first[:20])
    assert last_batch(segment) == (len(first), len(first) + len(second)), "a torn tail is none"
    step = steps.PowerAndRot(("n1",), "all", ("nothing",), 5, rotten="n1")
    told = BlackoutAndRot(step, cluster(tmp_path))._rot()["rot"]
    assert (told["node"], told["batch"]) == ("n1", (len(first), len(first) + len(second)))
    after = segment.read_bytes()
    assert after[: len(first)] == first and after[len(first) + len(second) :] == first[:20]
    changed = [at for at, (a, b) in enumerate(zip(first + second, after, strict=False)) if a != b]
    assert changed == [told["bit"][0]]
    # A bit of the header's first bytes may hide the batch; a checksum finds any other.
    assert [batch.sound for batch in read_log(segment.parent).batches][:1] == [True]


def test_the_last_batch_of_each_replica_is_damaged(tmp_path: Path) -> None:
    content = b"".join(batches(b"one", b"two"))
    for number in range(2):
        segment = tmp_path / "n1" / f"{REPLICA}{number}" / f"{0:020d}.log"
        segment.parent.mkdir(parents=True)
        segment.write_bytes(content)
    step = steps.PowerAndRot(("n1",), "all", ("nothing",), 5, rotten="n1", each=True)
    told = BlackoutAndRot(step, cluster(tmp_path))._rot()["rot"]["replicas"]
    assert len({one["file"] for one in told}) == 2
    for one in told:
        after = (tmp_path / "n1" / one["file"]).read_bytes()
        assert [at for at, (a, b) in enumerate(zip(content, after, strict=True)) if a != b] == [one["bit"][0]]


@pytest.mark.usefixtures("held")
async def test_the_damaged_node_starts_in_a_bare_majority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power, "APART_SECONDS", 0.0)
    segment = tmp_path / "n2" / REPLICA / f"{0:020d}.log"
    segment.parent.mkdir(parents=True)
    segment.write_bytes(b"".join(batches(b"one", b"two")))
    everybody = ("n1", "n2", "n3")

    async def starts_after(step: steps.PowerAndRot) -> list[str]:
        told: list[str] = []
        nodes: Any = Nodes(tmp_path, told)
        nodes.data_folder = lambda node: tmp_path / node
        fault = BlackoutAndRot(step, nodes)
        await fault.begin()
        assert "rot" in await fault.heal()
        return [one.removeprefix("start ") for one in told if one.startswith("start ")]

    apart = await starts_after(steps.PowerAndRot(everybody, "all", ("nothing",) * 3, 5, rotten="n2", each=True))
    assert apart == ["n2", "n1", *everybody]
    together = await starts_after(steps.PowerAndRot(everybody, "all", ("nothing",) * 3, 5, rotten="n2"))
    assert together == [*everybody]


async def test_a_node_without_a_batch_has_nothing_to_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the fault is void, whatever the power failure lost."""
    step = steps.PowerAndRot(("n1",), "all", ("nothing",), 5, rotten="n1")
    (tmp_path / "n1" / REPLICA).mkdir(parents=True)
    fault = BlackoutAndRot(step, cluster(tmp_path))
    assert fault._rot() == {}
    (tmp_path / "n1" / REPLICA / f"{0:020d}.log").write_bytes(b"torn")
    assert fault._rot() == {} and last_batch(tmp_path / "n1" / REPLICA / f"{0:020d}.log") is None

    async def healed(self: Blackout) -> dict[str, Any]:
        return {"lost": {"n1": 1}}

    monkeypatch.setattr(Blackout, "heal", healed)
    assert await fault.heal() == {"lost": {"n1": 1}}, "it was never begun"
    fault._began = True
    with pytest.raises(FaultNotMade, match="has no batch to damage"):
        await fault.heal()


def test_a_flip_is_verified_by_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(8))
    files.flip(file, (3, 7))
    assert file.read_bytes() == bytes((0, 0, 0, 128, 0, 0, 0, 0))
    monkeypatch.setattr(files, "_write", lambda path, position, content: None)
    with pytest.raises(FaultNotMade, match="is unchanged"):
        files.flip(file, (random.Random(1).randrange(8), 0))
