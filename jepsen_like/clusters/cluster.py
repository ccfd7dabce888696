"""A cluster of node processes and the operations on them: the shape that both layouts share.

`NodeCluster` implements `RealCluster` and adds the handles for faults: `links`, and where the layout and the machine
allow it `disks` whose power can be cut and `clocks` that can be set. `capabilities` names the supported faults; a
nemesis that needs more is refused before the run starts (`nemeses/`).

Closing a cluster undoes the setup in reverse order; a step that fails does not prevent the next ones.
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
from .security import ClusterSecurity

VOTER_COUNTS = (5, 3, 1)

T = TypeVar("T")

SMALL_LOGS: Mapping[str, str] = {
    "retention_check_ms": "5000",
    "scrub_bytes_per_second": "16777216",
    "metadata_snapshot_entries": "50",
}
"""Settings that make rarely executed code run often."""


@dataclass(slots=True, kw_only=True)
class NodeCluster:
    """Nodes as processes. Belongs to one event loop; `close` it, or use it with `async with`."""

    folder: Path
    processes: Mapping[str, NodeProcess]
    links: Links
    capabilities: frozenset[str]
    """The faults that it supports, by the names of `capabilities.py`."""
    disks: Mapping[str, Volume] = field(default_factory=dict)
    clocks: Clocks | None = None
    security: ClusterSecurity | None = None
    """None: everybody may do everything, without TLS."""
    exits: AsyncExitStack = field(default_factory=AsyncExitStack)
    """Cleanup callbacks, which run after the processes have ended, in reverse order."""
    cluster_id: str = ""
    """Set by `prepare`."""
    claimed: set[str] = field(default_factory=set)
    """Resources that a fault uses at the moment, such as a node's process; other faults leave them alone."""

    @property
    def nodes(self) -> Sequence[str]:
        return tuple(self.processes)

    @property
    def bootstrap(self) -> Sequence[str]:
        return tuple(self.api_of(node) for node in self.processes)

    def api_of(self, node: str) -> str:
        """Return the address of a node's API as clients write it."""
        return f"{'https://' if self.security is not None else ''}{self.processes[node].api}"

    @property
    def proxies(self) -> ProxyLinks | None:
        """The links, if they run through proxies."""
        return self.links if isinstance(self.links, ProxyLinks) else None

    def node_id(self, node: str) -> int:
        return self.processes[node].number

    def name_of(self, node_id: int) -> str:
        return self.nodes[node_id]

    def pid(self, node: str) -> int | None:
        return self.processes[node].pid

    def data_folder(self, node: str) -> Path:
        return self.processes[node].data_folder

    def log_file(self, node: str) -> Path:
        return self.processes[node].log_file

    # --- Life ---------------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Run `raftlog server init` for each node, once. Raises `CommandFailed`."""
        ordered = list(self.processes.values())
        count = max(count for count in VOTER_COUNTS if count <= len(ordered))
        voters = {node.number: node.data for node in ordered[:count]}
        self.cluster_id = secrets.token_urlsafe(16)
        if self.security is not None:
            for node in ordered:
                self.security.sign_node(node.name, self.cluster_id, node.number, node.api.host)
                node.settings = {**node.settings, **self.security.settings(node.name)}
        await to_the_end(_all_of([asyncio.to_thread(node.prepare, self.cluster_id, voters) for node in ordered]))
        if self.security is not None:
            self.security.add_administrator(ordered[0].data_folder)

    async def prepare_anew(self, node: str, voters: Sequence[str]) -> None:
        """Wipe a node that is not running and prepare it as an observer of these voters, as if its disk had been
        replaced.

        Raises `CommandFailed`.
        """
        known = {self.processes[voter].number: self.processes[voter].data for voter in voters if voter != node}
        await in_thread(shutil.rmtree, self.data_folder(node))
        await in_thread(self.processes[node].prepare, self.cluster_id, known)

    async def start(self, nodes: Sequence[str] = (), within: float = START_SECONDS) -> None:
        """Start the named nodes, or all, and return when they listen.

        If some do not, the others are awaited first; then `NodeEnded` is raised for the first that failed.
        """
        chosen = [self.processes[node] for node in nodes or self.nodes]
        await to_the_end(_all_of([asyncio.to_thread(node.start) for node in chosen]))
        await _all_of([node.listens(within) for node in chosen])

    async def kill(self, nodes: Sequence[str]) -> None:
        """Send SIGKILL to these nodes and wait until they have ended."""
        for node in nodes:
            self.processes[node].signal(signal.SIGKILL)
        await to_the_end(_all_of([asyncio.to_thread(self.processes[node].reap) for node in nodes]))

    async def stop(self, nodes: Sequence[str] = ()) -> dict[str, int | None]:
        """Stop the named nodes, or all, in order, and return their exit codes.

        None stands for a node that was not running, -9 for one that had to be killed.
        """
        chosen = list(nodes or self.nodes)
        codes = await to_the_end(_all_of([asyncio.to_thread(self.processes[node].stop) for node in chosen]))
        return dict(zip(chosen, codes, strict=True))

    async def close(self) -> None:
        """Run every cleanup step, even after one has failed; raise the failures at the end."""
        self.exits.push_async_callback(self.kill, self.nodes)
        await to_the_end(self.exits.aclose())

    async def __aenter__(self) -> NodeCluster:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


async def _all_of(works: Sequence[Awaitable[T]]) -> list[T]:
    """Return every result once all have completed; raise the first error then."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
