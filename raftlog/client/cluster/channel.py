"""Requests that any node answers, on the nodes' data connections.

`any_node.py` decides which nodes are asked, and when, as for calls of the HTTP API. If a node cannot be reached, the
nodes' addresses are read again. If no data listener can be reached at all, requests that the API serves as well go
through it (`transport.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TypeVar

import msgspec

from raftlog.errors import InvalidRequest, RaftlogError, RemoteProtocolError, error_from_code
from raftlog.wire import TRANSACTIONS_PATH, ErrorResponse, Request, Response, decode_request, encode

from .any_node import AnyNode, Attempt, NotSent
from .api import CONNECT_TIMEOUT, HttpApi, parse_endpoint
from .broker_request import BrokerRequest
from .connection_security import blames_credential
from .metadata import ClusterMetadata
from .refresher import MetadataRefresher
from .transport import Connection, Transport
from .transport_http1 import ApiConnection
from .waiters import Waiters

T = TypeVar("T", bound=Response)

API_PATHS = frozenset({TRANSACTIONS_PATH})
"""The paths of such requests that the API serves, too."""


class NodeChannel:
    """Data connections of one user. Belongs to one event loop; `close` it."""

    def __init__(self, api: HttpApi) -> None:
        self._api = api
        self._metadata = ClusterMetadata(api)
        self._refresher = MetadataRefresher(api, self._metadata, self._refreshed, lambda error: None)
        self._transport = Transport(self._changed, api, self._failed)
        self._nodes = AnyNode[int](())
        self._dialing: dict[int, Waiters] = {}
        """Callers that wait for a connection, by node."""
        self._why: RaftlogError | None = None
        """Error of the last attempt to connect."""

    @staticmethod
    def of(api: HttpApi) -> NodeChannel:
        """Return the channel that belongs to these connections of a user, and is closed with them."""
        channel = api.companions.get(NodeChannel)
        if channel is None:
            channel = api.companions[NodeChannel] = NodeChannel(api)
        assert isinstance(channel, NodeChannel)
        return channel

    async def repeatable(
        self, path: str, request: Request, kind: type[T], *, timeout: float, hedge_after: float | None = None
    ) -> T:
        """Return the answer to a request that may be sent several times.

        Raises a `RaftlogError`: the answer's, `connection_lost` if there is none in time, `invalid_request` if no node
        could decode the request, or `unsupported_version` if only the API can be reached and does not serve it. In the
        last two cases the request had no effect.
        """
        asking, left = await self._asking(path, request, kind, timeout)
        return await self._nodes.repeatable(asking, timeout=left, hedge_after=hedge_after)

    async def once(self, path: str, request: Request, kind: type[T], *, timeout: float) -> T:
        """Return the answer to a request that must not be applied twice.

        Raises as `repeatable`, and `outcome_unknown` if the answer is lost.
        """
        asking, left = await self._asking(path, request, kind, timeout)
        return await self._nodes.once(asking, timeout=left)

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            for part in (self._transport, self._refresher):
                stack.push_async_callback(part.close)

    # --- Inside -------------------------------------------------------------------------------------------------------

    async def _asking(
        self, path: str, request: Request, kind: type[T], timeout: float
    ) -> tuple[Attempt[int, T], float]:
        """Return how one node is asked, and what is left of the time once the nodes are known."""
        _check(request)
        left = await self._know_nodes(timeout)

        async def ask(node_id: int) -> T:
            connection = await self._connected(node_id)
            if isinstance(connection, ApiConnection) and path not in API_PATHS:
                raise InvalidRequest("unsupported_version", "no data listener can be reached")
            answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
            asking = BrokerRequest(
                path,
                lambda number: msgspec.structs.replace(request, correlation_id=number),
                left,
                answered=lambda response, _: None if answered.done() else answered.set_result(response),
                lost=lambda error: None if answered.done() else answered.set_exception(error),
            )
            try:
                connection.request(asking)
            except RaftlogError as error:
                raise NotSent(str(error)) from None
            response = await answered
            self._nodes.heard_from(node_id)
            if isinstance(response, ErrorResponse):
                raise error_from_code(response.error, response.detail)
            if not isinstance(response, kind):
                raise RemoteProtocolError(f"node {node_id} answered with a {type(response).__name__}")
            return response

        return ask, left

    async def _know_nodes(self, timeout: float) -> float:
        """Read the nodes' addresses, if they are not known; return what is left of the time."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if not self._nodes.nodes:
            await self._metadata.refresh((), timeout=timeout)
            self._refreshed({})
        return max(0.0, timeout - (loop.time() - began))

    async def _connected(self, node_id: int) -> Connection:
        """Return a connection. Raises `NotSent`, or `InvalidRequest` for a credential that must not go there."""
        connection = self._transport.connection(node_id)
        endpoint = self._metadata.data_endpoint(node_id)
        if connection is None and endpoint is not None:
            self._transport.dial(node_id, endpoint)
            waiters = self._dialing.setdefault(node_id, Waiters())
            await waiters.wait(asyncio.get_running_loop().time() + CONNECT_TIMEOUT)
            connection = self._transport.connection(node_id)
        if connection is None:
            if self._why is not None and blames_credential(self._why):
                raise self._why
            self._refresher.ask(())  # it may have moved
            raise NotSent(f"cannot connect to node {node_id}: {self._why or 'no answer'}")
        return connection

    def _refreshed(self, topics: Mapping[str, object]) -> None:
        """Take the cluster's nodes; new ones are asked in the order in which the API would be."""
        known, asked = self._metadata.nodes, self._nodes.nodes
        for node_id in [node_id for node_id in asked if node_id not in known]:
            self._nodes.remove(node_id)
        places = {address: place for place, address in enumerate(self._api.addresses)}
        new = [node for node_id, node in known.items() if node_id not in asked]
        new.sort(key=lambda node: places.get(parse_endpoint(node.api), len(places)))
        asked += [node.id for node in new]

    def _failed(self, error: RaftlogError) -> None:
        self._why = error

    def _changed(self, node_id: int) -> None:
        waiters = self._dialing.pop(node_id, None)
        if waiters is not None:
            waiters.wake()


def _check(request: Request) -> None:
    """Raise `InvalidRequest` for a request that no node could decode: a name that is too long, a negative offset."""
    try:
        message = b"".join(map(bytes, encode(request)))  # type: ignore[arg-type]
    except (UnicodeError, OverflowError) as error:
        raise InvalidRequest("invalid_request", f"malformed request: {error}") from None
    decode_request(message)
