"""Nodes that do not answer are asked with growing pauses up to a bound, and another node after every third attempt."""

from __future__ import annotations

import asyncio
from asyncio import sleep as turn
from typing import Any

import pytest

from raftlog.client.cluster.refresher import PAUSE_MAX, PAUSE_MIN, MetadataRefresher
from raftlog.errors import RaftlogError, RetriableError

ATTEMPTS = 8


class Api:
    def __init__(self) -> None:
        self.others = 0

    def prefer_another(self) -> None:
        self.others += 1


class Silent:
    async def refresh(self, topics: object, *, timeout: float) -> Any:
        await turn(0)
        raise RetriableError("connection_lost", "nobody answers")


async def test_nodes_that_do_not_answer_are_asked_with_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await turn(0)

    failures: list[RaftlogError] = []
    enough = asyncio.Event()

    def failed(error: RaftlogError) -> None:
        failures.append(error)
        if len(failures) >= ATTEMPTS:
            enough.set()

    api: Any = Api()
    silent: Any = Silent()
    monkeypatch.setattr(asyncio, "sleep", noted)
    refresher = MetadataRefresher(api, silent, lambda answers: None, failed)
    refresher.ask(["t"])
    await asyncio.wait_for(enough.wait(), 10)
    await refresher.close()
    wanted = [min(PAUSE_MIN * 2 ** min(number, 4), PAUSE_MAX) for number in range(ATTEMPTS - 1)]
    assert len(pauses) >= len(wanted)
    assert all(0 <= most - pause < most for pause, most in zip(pauses, wanted, strict=False))
    assert api.others == len(pauses) // 3
