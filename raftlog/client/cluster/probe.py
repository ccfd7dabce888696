"""One attempt to reach the data listeners, without retries, for a person who waits; and the nodes' clocks.

A client keeps trying, since a node may be starting. But if the client and the data listeners differ in TLS, or a
certificate is not accepted, every attempt fails in the same way: that is worth an answer at once.
"""

from __future__ import annotations

import asyncio
import time
from email.utils import parsedate_to_datetime

import aiohttp

from raftlog.api.cluster import ClusterInfo, NodeInfo
from raftlog.errors import RaftlogError, RetriableError
from raftlog.http2.dialer import connect
from raftlog.http2.tls_accept import PLAIN_REFUSED
from raftlog.model import Endpoint

from .api import CONNECT_TIMEOUT, PLAIN, SECURE, HttpApi, parse_endpoint


async def reach_data(api: HttpApi) -> None:
    """Return unless the data listener of every node refuses this client's kind of connection.

    Nodes that do not answer at all are left to the client, which waits for them or uses the HTTP API. Raises
    `RetriableError` (`connection_lost`) with the reason, and a `RaftlogError` if the nodes cannot be listed.
    """
    nodes = (await api.get("/v1/cluster", ClusterInfo)).nodes
    reasons = await asyncio.gather(*(_refusal(api, node) for node in nodes if not node.fenced))
    differing = [reason for reason in reasons if reason is not None]
    if not reasons or len(differing) < len(reasons):
        return
    hint = (
        "give the authority of its certificate (--tls-authority)" if api.data_tls is None else "check --tls-authority"
    )
    raise RetriableError("connection_lost", f"no records can pass: {differing[0]}; {hint}")


async def clock_difference(api: HttpApi, address: str) -> tuple[float, float]:
    """Return by how many seconds a node's wall clock is ahead of this machine's, and the error of that.

    The node's time is that of its answer (RFC 9110 section 6.6.1), in whole seconds. Raises `RetriableError`.
    """
    node = parse_endpoint(address)
    scheme, tls = (SECURE, api.security.api_context()) if api.https else (PLAIN, True)
    timeout = aiohttp.ClientTimeout(total=2 * CONNECT_TIMEOUT)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            began = time.time()
            async with session.get(f"{scheme}{node}/v1/health", ssl=tls, allow_redirects=False) as response:
                ended = time.time()
                theirs = parsedate_to_datetime(response.headers.get("Date", "")).timestamp()
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        raise RetriableError("connection_lost", f"{node} did not say its time: {error}") from None
    return theirs + 0.5 - (began + ended) / 2, 0.5 + (ended - began) / 2


async def _refusal(api: HttpApi, node: NodeInfo) -> str | None:
    """Return why the node's data listener refuses this kind of connection; None if it does not, or is not there."""
    endpoint = parse_endpoint(node.data)
    try:
        connection = await connect(endpoint.host, endpoint.port, ssl=api.data_tls)
    except RaftlogError as error:
        # Without TLS here, a listener that speaks it says so; any other failure may be on the way to it.
        lasting = PLAIN_REFUSED in error.detail if api.data_tls is None else await _listens(endpoint)
        return f"node {node.id} at {error.detail}" if lasting else None
    connection.close("it was only a question")
    await connection.wait_closed()
    return None


async def _listens(endpoint: Endpoint) -> bool:
    """Return whether anything accepts a connection there."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
