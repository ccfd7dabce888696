"""Processes without descriptors, or with crowds of connections: the proof, and that they get all of them back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jepsen_like.clusters.capabilities import DESCRIPTORS, lack
from jepsen_like.clusters.commands import CommandFailed
from jepsen_like.clusters.descriptors import (
    IdleConnections,
    free_below,
    limit_leaving,
    open_numbers,
    set_soft_limit,
    soft_limit,
)
from jepsen_like.nemeses import descriptors, steps
from jepsen_like.nemeses.descriptors import Crowding, LogsSince, RunningOut
from jepsen_like.nemeses.injection import FaultNotMade
from raftlog.model import Endpoint
from tests.support.http.api_client import eventually
from tests.support.recorded import recorded

PATIENCE_S = 30.0
HOST = "127.0.0.1"
MOST = 8
"""Connections that a listener keeps."""

SERVER = f"""
import json, select, socket, sys, time
listening = [socket.create_server(("{HOST}", 0), backlog=64) for _ in range(2)]
kept = [[], []]
print(*(one.getsockname()[1] for one in listening), flush=True)
poll = select.poll()
for one in listening:
    poll.register(one, select.POLLIN)
while True:
    ready = [number for number, _ in poll.poll()]
    for which, one in enumerate(listening):
        if one.fileno() not in ready:
            continue
        try:
            accepted, _ = one.accept()
        except OSError as error:
            told = {{"event": "no descriptor for a connection", "error": error.errno}}
            print(json.dumps(told), file=sys.stderr, flush=True)
            time.sleep(0.02)  # It rests, as a node does: the connection is still there to be taken.
            continue
        kept[which].append(accepted)
        if len(kept[which]) > {MOST}:
            accepted = kept[which].pop()
            if which == 0:
                accepted.sendall(b"HTTP/1.1 503\\r\\n\\r\\noverloaded")
            accepted.close()
"""
"""Keeps some connections at each of two ports, closes all others, and reports when it has no descriptor."""


@dataclass
class Node:
    """A running node."""

    log: Path
    process: subprocess.Popen[str] | None = None
    api: Endpoint = field(default=Endpoint(HOST, 1))
    data: Endpoint = field(default=Endpoint(HOST, 1))
    descriptors: int | None = None

    def start(self) -> None:
        if self.process is not None:
            return
        limit = () if self.descriptors is None else ("prlimit", f"--nofile={self.descriptors}:{self.descriptors}")
        with self.log.open("ab") as log:
            command = [*limit, sys.executable, "-P", "-c", SERVER]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        self.api, self.data = (Endpoint(HOST, int(port)) for port in self.process.stdout.readline().split())

    def kill(self) -> None:
        if self.process is not None:
            with self.process:
                self.process.kill()
            self.process = None


class Nodes:
    """A cluster of the one node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.processes = {"n1": node}

    def pid(self, name: str) -> int | None:
        return None if self.node.process is None else self.node.process.pid

    def log_file(self, name: str) -> Path:
        return self.node.log

    async def kill(self, names: tuple[str, ...]) -> None:
        self.node.kill()

    async def start(self, names: tuple[str, ...]) -> None:
        self.node.start()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Any]:
    if (why := lack(DESCRIPTORS)) is not None:
        pytest.skip(why)
    node = Node(tmp_path / "log.jsonl")
    node.start()
    try:
        yield Nodes(node)
    finally:
        node.kill()


# --- Limits -----------------------------------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 60)), st.integers(0, 20))
def test_a_limit_leaves_its_number_and_closes_nothing_that_is_open(taken: set[int], spare: int) -> None:
    limit = limit_leaving(spare, taken)
    assert free_below(limit, taken) == spare and limit not in taken
    assert sum(number not in taken for number in range(limit)) == spare


def test_a_processs_descriptors_are_counted() -> None:
    if (why := lack(DESCRIPTORS)) is not None:
        pytest.skip(why)
    pid = os.getpid()
    before = soft_limit(pid)
    with open(os.devnull, encoding="ascii") as file:
        assert file.fileno() in open_numbers(pid)
    try:
        set_soft_limit(pid, before - 1)
        assert soft_limit(pid) == before - 1
    finally:
        set_soft_limit(pid, before)


# --- Running out ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spare", [0, 3])
async def test_a_running_process_has_none_left_and_then_as_many_as_before(nodes: Any, spare: int) -> None:
    pid, before = nodes.pid("n1"), soft_limit(nodes.pid("n1"))
    fault = RunningOut(steps.FewDescriptors(("n1",), "one", spare), nodes)
    await fault.begin()
    try:
        evidence = await fault.prove()
        await until_said(nodes)
    finally:
        assert await fault.heal() == {}
    assert evidence["limits"]["n1"] <= evidence["open"]["n1"] + spare and not evidence["ended"]
    assert nodes.pid("n1") == pid and soft_limit(pid) == before
    await until_answered(nodes.node.api)


async def test_a_process_with_some_left_is_no_proof(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "TAKEN_SECONDS", 0.0)
    monkeypatch.setattr(descriptors, "MORE_THAN_SPARE", -3)
    fault = RunningOut(steps.FewDescriptors(("n1",), "one", 4), nodes)
    await fault.begin()
    try:
        with pytest.raises(FaultNotMade, match=r"has [2-4] descriptors left below its limit"):
            await fault.prove()
    finally:
        await fault.heal()


@pytest.mark.parametrize("left", [1, 2, 5])
async def test_a_lower_limit_takes_the_descriptors_that_connections_leave(
    nodes: Any, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    monkeypatch.setattr(descriptors, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(descriptors, "MORE_THAN_SPARE", -1 - left)  # One to each listener.
    pid, before = nodes.pid("n1"), soft_limit(nodes.pid("n1"))
    first = limit_leaving(2 + left, open_numbers(pid))
    fault = RunningOut(steps.FewDescriptors(("n1",), "one", 2 + left), nodes)
    await fault.begin()
    try:
        assert (await fault.prove())["limits"]["n1"] == soft_limit(pid) < first
    finally:
        await fault.heal()
    assert soft_limit(pid) == before


async def test_a_process_whose_limit_was_restored_is_no_proof(nodes: Any) -> None:
    fault = RunningOut(steps.FewDescriptors(("n1",), "one", 0), nodes)
    await fault.begin()
    try:
        set_soft_limit(nodes.pid("n1"), 512)
        with pytest.raises(FaultNotMade, match="another process set the limit of n1 to 512"):
            await fault.prove()
    finally:
        await fault.heal()


async def test_a_process_that_ended_is_reported_and_not_restarted(nodes: Any) -> None:
    fault = RunningOut(steps.FewDescriptors(("n1",), "one", 0), nodes)
    await fault.begin()
    nodes.node.kill()
    assert (await fault.prove())["ended"] == ["n1"]
    assert await fault.heal() == {"ended": ["n1"]} and nodes.pid("n1") is None


async def test_a_replica_that_went_offline_is_not_healed(nodes: Any) -> None:
    nodes.node.log.write_bytes(b'{"event":"replica offline"}\n')
    fault = RunningOut(steps.FewDescriptors(("n1",), "one", 0), nodes)
    await fault.begin()
    with nodes.node.log.open("ab") as log:
        log.write(b'[1]\nTraceback\n{"event":"replica offline","partition":"t/0"}\n')
    with pytest.raises(CommandFailed, match=r"replicas went offline .*'n1': 1"):
        await fault.heal()
    assert LogsSince(nodes, ("n1",)).count("replica offline") == {"n1": 0}, "what was said before is another fault's"


# --- Crowds -----------------------------------------------------------------------------------------------------------


async def test_a_process_starts_with_few_and_turns_connections_away(nodes: Any) -> None:
    pid = nodes.pid("n1")
    fault = Crowding(steps.IdleConnections(("n1",), "one", limit=100, connections=MOST + 3), nodes)
    await fault.begin()
    try:
        evidence = await fault.prove()
        assert nodes.pid("n1") != pid and soft_limit(nodes.pid("n1")) == evidence["limit"] == 100
        told = evidence["nodes"]["n1"]
        assert told["api_ended"] >= 1 and told["data_ended"] >= 1 and 2 * MOST < told["open"] < 100
    finally:
        assert await fault.heal() == {}
    assert nodes.node.descriptors is None, "whoever starts it next"


async def test_a_crowd_that_is_accepted_is_no_proof(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "TAKEN_SECONDS", 0.2)
    fault = Crowding(steps.IdleConnections(("n1",), "one", limit=100, connections=1), nodes)
    await fault.begin()
    try:
        with pytest.raises(FaultNotMade, match="turned too few connections away: its API ended 0"):
            await fault.prove()
    finally:
        await fault.heal()


async def test_a_killed_node_is_restarted_at_any_stage(nodes: Any) -> None:
    async def cancelled(names: tuple[str, ...]) -> None:
        raise asyncio.CancelledError

    fault = Crowding(steps.IdleConnections(("n1",), "one", limit=100, connections=1), nodes)
    start, nodes.start = nodes.start, cancelled
    with pytest.raises(asyncio.CancelledError):
        await fault.begin()
    nodes.start = start
    assert nodes.pid("n1") is None
    await fault.heal()
    assert nodes.pid("n1") is not None and soft_limit(nodes.pid("n1")) != 100


async def test_connections_that_were_never_opened_were_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind((HOST, 0))
        nobody = Endpoint(HOST, closed.getsockname()[1])
        idle = IdleConnections((nobody,), 3)
        dialled: list[socket.socket] = recorded(monkeypatch, socket, "socket")
        await idle.begin()
        first = list(dialled)
        assert len(first) == 3

        def all_are_dialled_again() -> bool:
            idle.look()
            return all(one.fileno() < 0 for one in first) and len(dialled) >= 6

        await eventually(all_are_dialled_again)
        await idle.end()
        await idle.end()
    assert idle.ended == {nobody: 0}


def test_the_two_nemeses_do_not_touch_each_others_processes_and_clocks() -> None:
    few, idle = steps.FewDescriptors(("n1",), "one", 0), steps.IdleConnections(("n1",), "one", 1024, 300)
    assert few.claims & idle.claims == {"process:n1"}
    assert few.claims & steps.Bump(("n1",), (9.0,)).claims == {"clock:n1"}


# --- Helpers ----------------------------------------------------------------------------------------------------------


async def until_said(nodes: Any) -> None:
    """The process has reported that it has none."""
    await eventually(lambda: b"no descriptor" in nodes.node.log.read_bytes(), patience_s=PATIENCE_S)


async def until_answered(endpoint: Endpoint) -> None:
    """Behind the crowd, of which the process keeps as many as it can: the next connection is refused."""
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        with contextlib.closing(writer):
            assert b"overloaded" in await reader.read()
