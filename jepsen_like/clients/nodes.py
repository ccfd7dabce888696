"""An administrator who asks one node at a time: for what a node says of itself to mean something.

Any node may answer a question to the cluster, and an `Admin` that knows several asks the next one when an answer is
late. Here it must be the same node that made a change and is asked afterwards: its view has the change, and with it
everything that was decided before (S7). Where it cannot be reached at all, nothing was done, and the next operation
goes to the next node.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from raftlog.client import Admin
from raftlog.client.cluster.api import parse_endpoint
from raftlog.errors import RaftlogError

from .messages import CertainlyNot

CONNECT_SECONDS = 1.0


class NodeAdmin:
    """Belongs to one event loop; `close` it."""

    def __init__(self, bootstrap: tuple[str, ...]) -> None:
        self._addresses = list(bootstrap)
        self._admin: Admin | None = None

    async def admin(self) -> Admin:
        """Of a node that takes connections now. Raises `CertainlyNot`."""
        for _ in range(len(self._addresses)):
            if await _takes_connections(self._addresses[0]):
                if self._admin is None:
                    self._admin = Admin(self._addresses[0])
                return self._admin
            await self.another()
        raise CertainlyNot("no node takes connections")

    async def another(self) -> None:
        """The next node from now on."""
        self._addresses.append(self._addresses.pop(0))
        await self.close()

    async def close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()


@contextlib.asynccontextmanager
async def looking(nodes: NodeAdmin) -> AsyncIterator[Admin]:
    """For what changes nothing: where it fails, it certainly did nothing, and another node is asked the next time."""
    try:
        yield await nodes.admin()
    except RaftlogError as error:
        await nodes.another()
        raise CertainlyNot(str(error)) from None


async def _takes_connections(address: str) -> bool:
    endpoint = parse_endpoint(address)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
