"""All nodes of a cluster, and what can be done to each: the shape that both layouts share.

`NodeCluster` implements `RealCluster`. Beyond it, it has what faults are made with: `links`, and where the layout and
the machine allow it `disks` whose power can be cut and `clocks` that can be set. `capabilities` names what it can do;
a nemesis that needs more is refused before anything runs (`nemeses/`).

Closing a cluster removes all of it, step by step in the opposite order; a step that fails does not keep the next ones
from being made.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import signal
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from .clocks import Clocks
from .commands import in_thread, to_the_end
from .links import Links
from .node import START_SECONDS, NodeProcess
from .power_loss import Volume
from .proxy import ProxyLinks

VOTER_COUNTS = (5, 3, 1)

T = TypeVar("T")

SMALL_LOGS: Mapping[str, str] = {
    "retention_check_ms": "5000",
    "scrub_bytes_per_second": "16777216",
    "metadata_snapshot_entries": "50",
}
"""Settings under which rare code runs often."""


@dataclass(slots=True, kw_only=True)
class NodeCluster:
    """Nodes as processes. Belongs to one event loop; `close` it, or use it with `async with`."""

    folder: Path
    processes: Mapping[str, NodeProcess]
    links: Links
    capabilities: frozenset[str]
    """What faults it can be given, as `capabilities.py` names them."""
    disks: Mapping[str, Volume] = field(default_factory=dict)
    clocks: Clocks | None = None
    exits: AsyncExitStack = field(default_factory=AsyncExitStack)
    """What removes it, after its processes: the last one first."""
    cluster_id: str = ""
    """Once it is prepared."""
    claimed: set[str] = field(default_factory=set)
    """What somebody breaks just now, such as a node's process: others leave it alone."""

    @property
    def nodes(self) -> Sequence[str]:
        """See `RealCluster`."""
        return tuple(self.processes)

    @property
    def bootstrap(self) -> Sequence[str]:
        """See `RealCluster`."""
        return tuple(str(node.api) for node in self.processes.values())

    @property
    def proxies(self) -> ProxyLinks | None:
        """Its links, where a proxy is on each."""
        return self.links if isinstance(self.links, ProxyLinks) else None

    def node_id(self, node: str) -> int:
        return self.processes[node].number

    def name_of(self, node_id: int) -> str:
        return self.nodes[node_id]

    def pid(self, node: str) -> int | None:
        """See `RealCluster`."""
        return self.processes[node].pid

    def data_folder(self, node: str) -> Path:
        """See `RealCluster`."""
        return self.processes[node].data_folder

    def log_file(self, node: str) -> Path:
        """See `RealCluster`."""
        return self.processes[node].log_file

    # --- Life ---------------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """`raftlog server init` for each node, once. Raises `CommandFailed`."""
        ordered = list(self.processes.values())
        count = max(count for count in VOTER_COUNTS if count <= len(ordered))
        voters = {node.number: node.data for node in ordered[:count]}
        self.cluster_id = secrets.token_urlsafe(16)
        await to_the_end(_all_of([asyncio.to_thread(node.prepare, self.cluster_id, voters) for node in ordered]))

    async def prepare_anew(self, node: str, voters: Sequence[str]) -> None:
        """A node that does not run loses all that it had, and is prepared to observe these voters, as one whose disk
        was replaced. Raises `CommandFailed`."""
        known = {self.processes[voter].number: self.processes[voter].data for voter in voters if voter != node}
        await in_thread(shutil.rmtree, self.data_folder(node))
        await in_thread(self.processes[node].prepare, self.cluster_id, known)

    async def start(self, nodes: Sequence[str] = (), within: float = START_SECONDS) -> None:
        """All, or those that are named; returns when their processes listen. Raises `NodeEnded` for the first that does
        not, when all that can have started have."""
        chosen = [self.processes[node] for node in nodes or self.nodes]
        await to_the_end(_all_of([asyncio.to_thread(node.start) for node in chosen]))
        await _all_of([node.listens(within) for node in chosen])

    async def kill(self, nodes: Sequence[str]) -> None:
        """SIGKILL to all, and wait until they are gone."""
        for node in nodes:
            self.processes[node].signal(signal.SIGKILL)
        await to_the_end(_all_of([asyncio.to_thread(self.processes[node].reap) for node in nodes]))

    async def stop(self, nodes: Sequence[str] = ()) -> dict[str, int | None]:
        """In order, all or those that are named. Their exit codes; None for those that did not run, -9 for those that
        had to be killed."""
        chosen = list(nodes or self.nodes)
        codes = await to_the_end(_all_of([asyncio.to_thread(self.processes[node].stop) for node in chosen]))
        return dict(zip(chosen, codes, strict=True))

    async def close(self) -> None:
        """See `RealCluster`. Every step is made, whatever became of the others; raises what failed."""
        self.exits.push_async_callback(self.kill, self.nodes)
        await to_the_end(self.exits.aclose())

    async def __aenter__(self) -> NodeCluster:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


async def _all_of(works: Sequence[Awaitable[T]]) -> list[T]:
    """Every result, when all have ended. Raises the first error then."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
