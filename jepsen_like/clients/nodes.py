"""An administrator that sends requests to one node at a time, for tests in which a node's own view matters.

Any node may answer a request to the cluster, and an `Admin` that knows several tries the next one when an answer is
late. Here the node that made a change must also answer the read after it: its view has the change, and with it
everything that was decided before (S7). If the node cannot be reached at all, nothing was done, and the next operation
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
        """Return the client of a node that accepts connections now. Raises `CertainlyNot`."""
        for _ in range(len(self._addresses)):
            if await _takes_connections(self._addresses[0]):
                if self._admin is None:
                    self._admin = Admin(self._addresses[0])
                return self._admin
            await self.another()
        raise CertainlyNot("no node accepts connections")

    async def another(self) -> None:
        """Switch to the next node."""
        self._addresses.append(self._addresses.pop(0))
        await self.close()

    async def close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()


@contextlib.asynccontextmanager
async def looking(nodes: NodeAdmin) -> AsyncIterator[Admin]:
    """A context for reads: a failed read certainly had no effect, and the next one goes to another node."""
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
