"""Clusters of real processes for tests: started once per module, watched, and checked when they stop.

`running_cluster` is a `LocalCluster` whose end is a check: running nodes are stopped in order and must exit with 0,
every line of every log is JSON that names cluster and node, and no line reports a broken invariant or an exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

import aiohttp
import msgspec
from multidict import CIMultiDict

from raftlog import Admin
from raftlog.api.topics import PartitionInfo, TopicDescription
from raftlog.cli.nodes.local_cluster import SETTINGS_FILE, LocalCluster, LocalNode, free_base_port
from raftlog.errors import RaftlogError
from raftlog.model import Endpoint
from tests.support.http.api_client import Answer, Api

PATIENCE_S = 60.0
"""A timeout for operations of well under a second on a quiet machine: tests run in parallel on busy machines."""

POLL_S = 0.05

T = TypeVar("T")


# --- Clusters ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running_cluster(node_count: int = 3, *, secure: bool = False, **settings: str) -> Iterator[LocalCluster]:
    """A cluster whose nodes accept requests. `settings` are additional lines of every `node.toml`."""
    # A crash in native code leaves its traceback in the node's log.
    os.environ["PYTHONFAULTHANDLER"] = "1"
    with tempfile.TemporaryDirectory(prefix="raftlog-test-") as folder:
        base_port = free_base_port(node_count)
        cluster = LocalCluster(folder, node_count, base_port, settings=settings, secure=secure)
        with started(cluster):
            yield cluster


@contextlib.contextmanager
def started(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Start the nodes, and stop and check them at the end. After an error they are killed, and their logs are shown."""
    try:
        cluster.start()
        cluster.wait_ready(PATIENCE_S)
        yield cluster
    except BaseException:
        cluster.kill_all()
        tell(cluster)
        raise
    stop_and_check(cluster)


def stop_and_check(cluster: LocalCluster) -> None:
    """Stop the running nodes; each must stop in order, and no log may report an error of the product."""
    running = [node.node_id for node in cluster.nodes if node.running]
    died = {node.node_id: node.process and node.process.returncode for node in cluster.died()}
    codes = cluster.stop()
    for node_id, code in died.items():
        raise AssertionError(f"node {node_id} died, exit code {code}:\n{cluster.nodes[node_id].log_tail()}")
    for node_id in running:
        assert codes[node_id] == 0, f"node {node_id} ended with {codes[node_id]}:\n{cluster.nodes[node_id].log_tail()}"
    check_logs(cluster)


def check_logs(cluster: LocalCluster) -> list[dict[str, Any]]:
    """Check every line of every log: it must be well-formed and report no event that must not happen."""
    lines = []
    for node in cluster.nodes:
        for line in log_lines(node):
            assert line.get("cluster") and line.get("node") == str(node.node_id), line
            assert line.get("timestamp") and line.get("level") and "event" in line, line
            assert not str(line["event"]).startswith("INVARIANT"), line
            assert "exception" not in line and "Traceback" not in str(line), line
            lines.append(line)
    assert len({line["cluster"] for line in lines}) == 1
    return lines


def log_lines(node: LocalNode) -> list[dict[str, Any]]:
    """Return a node's log. Fails on a line that is no JSON object."""
    with open(node.log_path, "rb") as file:
        raw = file.read().splitlines()
    found = []
    for line in raw:
        try:
            found.append(msgspec.json.decode(line, type=dict[str, Any]))
        except msgspec.DecodeError:
            raise AssertionError(f"node {node.node_id} logged what is no JSON: {line!r}") from None
    return found


def tell(cluster: LocalCluster) -> None:
    """Print the nodes' last log lines, for readers of the failed test's output."""
    for node in cluster.nodes:
        print(f"--- node {node.node_id}", node.log_tail(30), sep="\n")  # noqa: T201


# --- Waiting ----------------------------------------------------------------------------------------------------------


async def eventually(holds: Callable[[], Awaitable[T | None]], what: str, *, within: float = PATIENCE_S) -> T:
    """Retry until the answer is neither None nor False; errors of the cluster count as "not yet"."""
    deadline = time.monotonic() + within
    last: object = None
    while True:
        try:
            last = await holds()
            if last is not None and last is not False:
                return last
        except RaftlogError as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within:.0f} s: {what}; last seen: {last}")
        await asyncio.sleep(POLL_S)


async def all_in_sync(admin: Admin, *topics: str, within: float = PATIENCE_S) -> dict[str, TopicDescription]:
    """Wait until every partition of these topics has a leader and all replicas in its ISR. Returns the descriptions."""

    async def look() -> dict[str, TopicDescription] | None:
        found = {topic: await admin.describe_topic(topic) for topic in topics}
        full = all(
            partition.leader is not None and sorted(partition.isr) == sorted(partition.replicas)
            for description in found.values()
            for partition in description.partitions
        )
        return found if full else None

    return await eventually(look, f"all replicas of {', '.join(topics)} in sync", within=within)


async def next_leader(
    admin: Admin, topic: str, partition: int, epoch: int, within: float = PATIENCE_S
) -> PartitionInfo:
    """Wait until the partition has a leader in an epoch above `epoch`, and return it."""

    async def look() -> PartitionInfo | None:
        info = (await admin.describe_topic(topic)).partitions[partition]
        return info if info.leader is not None and info.leader_epoch > epoch else None

    return await eventually(look, f"a leader of {topic}/{partition} after epoch {epoch}", within=within)


# --- Nodes ------------------------------------------------------------------------------------------------------------


class NodeApi(Api):
    """One node's HTTP API, without the client: whole answers, problems, raw sockets."""

    def __init__(self, endpoint: Endpoint, session: aiohttp.ClientSession) -> None:
        self.port = endpoint.port
        self.session = session

    async def is_well(self) -> None:
        assert (await self.get("/v1/ready")).status == 200

    async def raw_answer(self, request: bytes) -> Answer:
        """Send bytes to the port, and return the one HTTP/1.1 answer that arrives before the node closes the
        connection."""
        head, _, body = (await self.raw(request, patience_s=PATIENCE_S)).partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = CIMultiDict(line.split(": ", 1) for line in lines)
        return Answer(int(first.split()[1]), headers, body)


@contextlib.asynccontextmanager
async def node_api(node: LocalNode) -> AsyncIterator[NodeApi]:
    """Without a proxy and without cookies of a session."""
    async with aiohttp.ClientSession(f"http://{node.api}") as session:
        yield NodeApi(node.api, session)


def stop_node(cluster: LocalCluster, node_id: int) -> int:
    """Send SIGTERM to one node. Returns its exit code, once it has ended."""
    node = cluster.nodes[node_id]
    node.expected_to_run = False
    process, node.process = node.process, None
    assert process is not None and process.stdin is not None
    process.terminate()
    try:
        return process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.stdin.close()


async def known_everywhere(cluster: LocalCluster, topic: str) -> TopicDescription:
    """Wait until every node's view, which lags a little behind the quorum, has this topic, with leaders."""

    async def look(node: LocalNode) -> TopicDescription | None:
        async with Admin(str(node.api)) as admin:
            found = await admin.describe_topic(topic)
        return found if all(p.leader is not None for p in found.partitions) else None

    for node in cluster.nodes:
        description = await eventually(lambda node=node: look(node), f"node {node.node_id} knows {topic}")  # type: ignore[misc]
    return description


_WARM = """
import os, sys
import http_api.app, metadata.quorum_thread.thread, raftlog.broker.node.main, raftlog.records.arrow
from raftlog.cli.main import main
import pyarrow.compute
warm = int(sys.argv.pop(1))
os.write(warm, b"!")
os.close(warm)
os.read(0, 1)
main()
"""


def warm_node(node: LocalNode) -> subprocess.Popen[bytes]:
    """Start a process that has imported everything and begins as this node when it reads one byte: as fast as a restart
    can be. Pass it to `start_warm`. Blocks until it is warm."""
    ready, warm = os.pipe()
    command = [sys.executable, "-P", "-c", _WARM, str(warm), "server", "run", "--stop-with-stdin"]
    command += ["--config", os.path.join(node.folder, SETTINGS_FILE)]
    try:
        with open(node.log_path, "ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, pass_fds=(warm,)
            )
        os.close(warm)
        assert os.read(ready, 1) == b"!", node.log_tail()
    finally:
        os.close(ready)
    return process


def start_warm(node: LocalNode, process: subprocess.Popen[bytes]) -> None:
    """Start the warm process in the place of the node's process, which is dead."""
    assert not node.running and process.stdin is not None
    node.process = process
    node.expected_to_run = True
    process.stdin.write(b"!")
    process.stdin.flush()


def process_is_gone(pid: int) -> bool:
    """Whether it has ended; it may not have been collected yet."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return True
