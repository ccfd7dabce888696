"""One run: a node, a canary's producer, and a fuzzer at one of the node's ports; then the checks.

The process is alive and stops in order, its log has no unforeseen error, its memory is bounded, the canary's records
are there once and in order (S1, S2), and without a right nothing was changed (S12).
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from jepsen_like.provenance.product import commit_of_the_product
from raftlog import Admin
from raftlog.cli.nodes.local_cluster import LocalCluster, LocalNode
from raftlog.client.credentials import Credentials
from tests.support.clusters.cluster import running_cluster
from tests.support.clusters.forged import Present
from tests.support.clusters.traffic import Traffic, check_exactly

from .captures import TOPIC, Capture, captures
from .sender import Sender

CANARY = "watched-by-nobody-else"
MOST_GROWTH_BYTES = 400 * 2**20
"""Limit of the growth of a node's memory: the budgets of its ports, and the records of the canary."""
SAMPLE_S = 0.5
WRONG_TOKEN = "Bearer rlt_abcdefghijkl_" + "A" * 43
SECRETS = ("/v1/topics", "/v1/groups", "/v1/users", "/v1/acls", "/v1/quotas", "/v1/transactions", "/v1/positions")
"""Lists that only an administrator may change in a secured node."""


class FuzzingResult(msgspec.Struct, frozen=True, kw_only=True):
    """One run, a line of `jepsen_like/results/fuzzing.jsonl`."""

    at: str
    commit: str
    port: str
    node: str
    """`plain` or `secured`."""
    seed: int
    seconds: float
    connections: int
    sent_bytes: int
    refused: int
    """Connections that the node, or its TLS, ended before everything was sent."""
    canary_records: int
    longest_wait_s: float
    """The longest time between two acknowledgements of the canary's records."""
    growth_mib: float
    """The most that the node's resident memory was above its size at the start."""
    findings: list[str]


def fuzz(port: str, seed: int, seconds: float, *, secured: bool) -> FuzzingResult:
    """Run one fuzzer; its findings are in the result."""
    node = "secured" if secured else "plain"
    run = Run(port, seed, seconds, secured=secured)
    try:
        with running_cluster(1, secure=secured) as cluster:
            asyncio.run(run.on(cluster))
    except AssertionError as error:
        run.findings.append(str(error)[:2_000])
    waits = [later - earlier for earlier, later in zip(run.acknowledged_at, run.acknowledged_at[1:], strict=False)]
    return FuzzingResult(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit_of_the_product(),
        port=port,
        node=node,
        seed=seed,
        seconds=seconds,
        connections=run.connections,
        sent_bytes=run.sent_bytes,
        refused=run.refused,
        canary_records=run.canary_records,
        longest_wait_s=round(max(waits, default=0.0), 3),
        growth_mib=round(run.growth / 2**20, 1),
        findings=run.findings,
    )


class Run:
    """A run at one port of one node."""

    def __init__(self, port: str, seed: int, seconds: float, *, secured: bool) -> None:
        self._port, self._seed, self._seconds, self._secured = port, seed, seconds, secured
        self.findings: list[str] = []
        self.connections = self.sent_bytes = self.refused = self.canary_records = self.growth = 0
        self.acknowledged_at: list[float] = []

    async def on(self, cluster: LocalCluster) -> None:
        """Fuzz, and check what can be checked while the node runs."""
        (node,) = cluster.nodes
        security = cluster.security
        client: dict[str, Any] = {}
        if security is not None:
            client = {"credentials": Credentials(token_file=security.token_file), "ssl": security.client_context()}
        async with Admin(cluster.bootstrap, **client) as admin:
            for topic in (TOPIC, CANARY):
                await admin.create_topic(topic, 1, replication_factor=1)
            now = await _present(admin)
        api = Api(node, None if security is None else security.token(), client.get("ssl"))
        authorizations = [""] if security is None else ["", WRONG_TOKEN, f"Bearer {await _mallory(api)}"]
        before = await api.state(now.topic_id) if self._secured else None
        found = self._captures(node, now, authorizations)
        target = node.api if self._port == "api" else node.data
        async with Traffic(cluster.bootstrap, CANARY, 1, records=5, pause=0.05, client=client) as traffic:
            await traffic.grows()
            sender = Sender(target, found, self._seed, tls=self._tls(client.get("ssl")))
            watch = asyncio.create_task(self._watch_memory(node))
            try:
                await sender.run(self._seconds)
            finally:
                self.connections, self.sent_bytes, self.refused = sender.connections, sender.sent_bytes, sender.refused
                watch.cancel()
            assert not cluster.died(), f"the node ended: {node.log_tail(50)}"
            await traffic.grows()
        (canary,) = traffic.partitions
        self.canary_records, self.acknowledged_at = canary.acknowledged_count, canary.acknowledged_at
        await check_exactly(cluster.bootstrap, traffic)
        assert await api.status("/v1/ready") == 200
        if before is not None:
            after = await api.state(now.topic_id)
            for path in before:
                if before[path] != after[path]:
                    self.findings.append(f"S12: {path} was {before[path]}, and is {after[path]}"[:2_000])
        if self.growth > MOST_GROWTH_BYTES:
            self.findings.append(f"memory grew by {self.growth / 2**20:.0f} MiB")

    def _captures(self, node: LocalNode, now: Present, authorizations: list[str]) -> list[Capture]:
        endpoint = node.api if self._port == "api" else node.data
        return [
            one
            for authorization in authorizations
            for one in captures(
                self._port, now, host=str(endpoint), authorization=authorization, plain=not self._secured
            )
        ]

    def _tls(self, context: ssl.SSLContext | None) -> ssl.SSLContext | None:
        if context is not None and self._port != "api":
            context.set_alpn_protocols(["h2"])
        return context

    async def _watch_memory(self, node: LocalNode) -> None:
        assert node.process is not None
        start = resident_bytes(node.process.pid)
        while True:
            await asyncio.sleep(SAMPLE_S)
            self.growth = max(self.growth, resident_bytes(node.process.pid) - start)


class Api:
    """The HTTP API of the node, as its administrator."""

    def __init__(self, node: LocalNode, token: str | None, context: ssl.SSLContext | None) -> None:
        self._base = f"{'http' if context is None else 'https'}://{node.api}"
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._context = context

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connector = aiohttp.TCPConnector(ssl=self._context if self._context is not None else True)
        async with (
            aiohttp.ClientSession(connector=connector, headers=self._headers) as session,
            session.request(method, self._base + path, json=body) as answer,
        ):
            text = await answer.text()
            return answer.status, json.loads(text) if text else None

    async def status(self, path: str) -> int:
        return (await self.ask("GET", path))[0]

    async def state(self, topic_id: bytes) -> dict[str, Any]:
        """Return what a stranger must not change."""
        paths = [*SECRETS, f"/v1/topics/{TOPIC}/partitions/0/offsets"]
        return {path: _without_times((await self.ask("GET", path))[1]) for path in paths}


def _without_times(document: Any) -> Any:
    """Return a document without what the canary moves: sizes, counts and times."""
    if isinstance(document, dict):
        moving = {"size_bytes", "last_used", "replicas_bytes"}
        return {key: _without_times(value) for key, value in document.items() if key not in moving}
    if isinstance(document, list):
        return [_without_times(one) for one in document]
    return document


async def _mallory(api: Api) -> str:
    """Return the token of a user without any right."""
    status, told = await api.ask("POST", "/v1/users", {"name": "mallory", "password": None})
    assert status < 300, told
    status, told = await api.ask("POST", "/v1/users/mallory/tokens", {})
    assert status < 300, told
    return str(told["token"])


async def _present(admin: Admin) -> Present:
    quorum, described, told = await admin.quorum(), await admin.describe_topic(TOPIC), await admin.cluster()
    return Present(
        told.cluster_id,
        bytes(16),
        told.nodes[0].incarnation,
        described.id_bytes,
        described.partitions[0].leader_epoch,
        quorum.term,
        quorum.last_index,
    )


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def random_seed() -> int:
    """Return a seed that differs from run to run."""
    return time.time_ns() % 2**31
