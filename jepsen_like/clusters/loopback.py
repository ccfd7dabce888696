"""Nodes on separate loopback addresses with a proxy on every directed link: the layout that needs no root.

    n1  127.77.K.10      clients dial it directly, other nodes through
    n1>n2  127.77.K.112  the proxy at which n1 dials n2 (`[peers]` in n1's settings)

All nodes share the machine's disk, so there is no power to cut. Some faults need a proxy and exist only here: delays,
stalls, resets, and late bytes of broken connections.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from contextlib import AsyncExitStack

from raftlog.config import BASE_PORT
from raftlog.errors import InvalidRequest
from raftlog.model import Endpoint

from .capabilities import FAKETIME, LOOPBACK_GIVE, LOOPBACK_NEED, require
from .clocks import Clocks, library
from .cluster import NodeCluster
from .commands import in_thread
from .leftovers import remove_leftovers
from .links import link
from .node import PROGRAM, NodeProcess
from .ownership import LINK_ADDRESSES, NODE_ADDRESSES, NODES_MAX, Subnet, new_folder
from .proxy import ProxyLinks
from .security import ClusterSecurity


async def open_loopback(
    count: int = 3,
    *,
    settings: Mapping[str, str] | None = None,
    clocks: bool = False,
    seed: int = 0,
    program: tuple[str, ...] = PROGRAM,
    secured: bool = False,
) -> NodeCluster:
    """Return a prepared cluster that is not started yet.

    `settings`: further lines of every `node.toml`. `clocks`: make wall clocks settable, which slows down every clock
    call. `seed`: determines the jitter. `program`: the command that runs as a node. `secured`: require credentials.
    Raises `InvalidRequest`, naming what this machine lacks.
    """
    if not 1 <= count <= NODES_MAX:
        raise InvalidRequest("invalid_request", f"a cluster has 1 to {NODES_MAX} nodes, not {count}")
    able = await in_thread(require, LOOPBACK_NEED, LOOPBACK_GIVE)
    await in_thread(remove_leftovers)
    async with AsyncExitStack() as exits:
        folder = new_folder()
        exits.push_async_callback(in_thread, shutil.rmtree, folder, ignore_errors=True)
        subnet = Subnet()
        exits.callback(subnet.close)
        names = [f"n{number + 1}" for number in range(count)]
        links = ProxyLinks(names, random.Random(seed))
        exits.push_async_callback(links.close)
        preload = library() if clocks and FAKETIME in able else None
        cluster = NodeCluster(
            folder=folder,
            processes={},
            links=links,
            capabilities=able if preload else able - {FAKETIME},
            clocks=Clocks(folder / "clocks", names, preload) if preload else None,
            security=ClusterSecurity(folder / "security") if secured else None,
        )
        everybody = {
            number: Endpoint(subnet.loopback(NODE_ADDRESSES + number), BASE_PORT + 1) for number in range(count)
        }
        cluster.processes = {
            name: NodeProcess(
                name,
                number,
                folder / name,
                folder / name / "data",
                Endpoint(everybody[number].host, BASE_PORT),
                everybody[number],
                {other: _proxy_at(subnet, number, other) for other in range(count) if other != number},
                program=program,
                settings=dict(settings or {}),
                environment=cluster.clocks.environment(name) if cluster.clocks else {},
            )
            for number, name in enumerate(names)
        }
        for number, name in enumerate(names):
            for other, endpoint in everybody.items():
                if other != number:
                    await links.listen(link(name, names[other]), _proxy_at(subnet, number, other), endpoint)
        await cluster.prepare()
        cluster.exits = exits.pop_all()
        return cluster


def _proxy_at(subnet: Subnet, dialling: int, dialled: int) -> Endpoint:
    return Endpoint(subnet.loopback(LINK_ADDRESSES + 10 * dialling + dialled), BASE_PORT + 1)
