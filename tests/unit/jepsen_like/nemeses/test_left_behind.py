"""A replica that returns when the one that continued without it is offline."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jepsen_like.nemeses import crafted_steps, left_behind
from jepsen_like.nemeses.injection import FaultNotMade
from jepsen_like.nemeses.left_behind import LeavingBehind
from raftlog.errors import RetriableError

STEP = crafted_steps.LeaveBehind(("n2", "n1"), "", "t", 1)


class Nodes:
    """Records the actions on nodes; each start is another process."""

    bootstrap = ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")

    def __init__(self, told: list[str]) -> None:
        self.told = told
        self.pids = {"n1": 1, "n2": 2, "n3": 3}

    def node_id(self, node: str) -> int:
        return int(node[1:]) - 1

    def pid(self, node: str) -> int:
        return self.pids[node]

    async def kill(self, nodes: tuple[str, ...]) -> None:
        self.told += [f"kill {node}" for node in nodes]

    async def start(self, nodes: tuple[str, ...]) -> None:
        self.told += [f"start {node}" for node in nodes]
        self.pids |= {node: self.pids[node] + 10 for node in nodes}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The actions and requests: the replica leaves the ISR at the third check."""
    done: list[str] = []
    isrs = [[0, 1], [0, 1], [0]]

    class Admin:
        def __init__(self, bootstrap: list[str]) -> None:
            self.asked = bootstrap

        async def __aenter__(self) -> Admin:
            return self

        async def __aexit__(self, *_: object) -> None:
            return None

        async def describe_topic(self, name: str) -> Any:
            done.append(f"{name} at {self.asked[0]}")
            isr = isrs.pop(0) if len(isrs) > 1 else isrs[0]
            others = SimpleNamespace(partition=0, isr=[2])
            return SimpleNamespace(partitions=[others, SimpleNamespace(partition=1, isr=isr)])

    monkeypatch.setattr(left_behind, "Admin", Admin)
    monkeypatch.setattr(left_behind, "ALONE_SECONDS", 0.0)
    return done


async def test_it_returns_after_it_was_out_of_the_isr_and_the_other_is_gone(told: list[str]) -> None:
    nodes: Any = Nodes(told)
    fault = LeavingBehind(STEP, nodes)
    await fault.begin()
    assert told == ["kill n2", *["t at 127.0.0.1:1"] * 3, "kill n1", "start n2"]
    assert await fault.prove() == {"behind": "n2", "partition": "t/1"}
    assert await fault.heal() == {"pids": {"n2": [2, 22], "n1": [1, 11]}}
    assert told[-2:] == ["start n2", "start n1"]


async def test_a_replica_that_stays_in_the_isr_voids_it(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_behind, "SHRUNK_SECONDS", 0.0)
    nodes: Any = Nodes(told)
    fault = LeavingBehind(STEP, nodes)
    with pytest.raises(RetriableError, match="n2 has left the ISR"):
        await fault.begin()
    assert "kill n1" not in told
    nodes.start = nodes.kill  # a caller that starts nothing
    with pytest.raises(FaultNotMade, match="was not restarted"):
        await fault.heal()
