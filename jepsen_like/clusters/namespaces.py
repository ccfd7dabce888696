"""Nodes in separate network namespaces on a bridge, each on its own disk: needs root, and supports the most faults.

    root namespace    bridge 10.77.K.1/24     clients dial from here
    n1                10.77.K.10              its disk: an ext4 image behind a loop device, whose power can be cut
    n2                10.77.K.11              ...

A namespace has only this network and no route out of it, so a node reaches only the cluster and its clients. Packets
between nodes are dropped by rules in their own namespaces (`firewall.py`); clients always reach every node, as Jepsen's
do. The machine's own network is not changed: a subnet that overlaps another route is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from raftlog.config import BASE_PORT
from raftlog.errors import InvalidRequest
from raftlog.model import Endpoint

from .capabilities import FAKETIME, NAMESPACES_GIVE, NAMESPACES_NEED, require
from .clocks import Clocks, library
from .cluster import NodeCluster
from .commands import CommandFailed, in_thread, run
from .firewall import Firewall
from .leftovers import remove_interface, remove_leftovers, remove_namespace
from .node import PROGRAM, NodeProcess
from .ownership import HOST_ADDRESS, NODE_ADDRESSES, NODES_MAX, Subnet, Tag
from .power_loss import IMAGE_BYTES, Volumes
from .security import ClusterSecurity

INSECURE = "{ insecure = true }"
"""The value of `security` in `node.toml`: the nodes listen on addresses of namespaces, which only this machine reaches.
"""


async def open_namespaces(
    count: int = 3,
    *,
    settings: Mapping[str, str] | None = None,
    image_bytes: int = IMAGE_BYTES,
    clocks: bool = True,
    program: tuple[str, ...] = PROGRAM,
    secured: bool = False,
) -> NodeCluster:
    """Return a prepared cluster that is not started yet.

    `settings`: further lines of every `node.toml`. `clocks`: make wall clocks settable if libfaketime is installed,
    which slows down every clock call. `program`: the command that runs as a node. `secured`: require credentials.
    Raises `InvalidRequest`, naming what this machine lacks, and `CommandFailed` if it refuses.
    """
    if not 1 <= count <= NODES_MAX:
        raise InvalidRequest("invalid_request", f"a cluster has 1 to {NODES_MAX} nodes, not {count}")
    able = await in_thread(require, NAMESPACES_NEED, NAMESPACES_GIVE)
    await in_thread(remove_leftovers)
    async with AsyncExitStack() as exits:
        volumes = Volumes()
        exits.push_async_callback(in_thread, volumes.close)
        subnet = Subnet()
        exits.callback(subnet.close)
        names = [f"n{number + 1}" for number in range(count)]
        network = Network(Tag.new(), subnet, names)
        exits.push_async_callback(in_thread, network.remove)
        await in_thread(network.make)
        firewall = Firewall(network.namespaces, network.addresses)
        await firewall.heal()
        disks = {name: await in_thread(volumes.add, f"disk-{name}", image_bytes) for name in names}
        preload = library() if clocks and FAKETIME in able else None
        folder = Path(volumes.folder)
        cluster = NodeCluster(
            folder=folder,
            processes={},
            links=firewall,
            capabilities=able if preload else able - {FAKETIME},
            disks=disks,
            clocks=Clocks(folder / "clocks", names, preload) if preload else None,
            security=ClusterSecurity(folder / "security") if secured else None,
        )
        everybody = {number: Endpoint(network.addresses[name], BASE_PORT + 1) for number, name in enumerate(names)}
        cluster.processes = {
            name: NodeProcess(
                name,
                number,
                folder / name,
                Path(disks[name].data),
                Endpoint(network.addresses[name], BASE_PORT),
                everybody[number],
                {other: endpoint for other, endpoint in everybody.items() if other != number},
                prefix=network.enter(name),
                program=program,
                settings={"security": INSECURE, **(settings or {})},
                environment=cluster.clocks.environment(name) if cluster.clocks else {},
            )
            for number, name in enumerate(names)
        }
        await cluster.prepare()
        cluster.exits = exits.pop_all()
        return cluster


class Network:
    """A bridge, and a namespace for each node."""

    def __init__(self, tag: Tag, subnet: Subnet, nodes: list[str]) -> None:
        self._tag = tag
        self._subnet = subnet
        self._bridge = tag.interface("br")
        self.namespaces = {node: tag.namespace(node) for node in nodes}
        self.addresses = {node: subnet.bridged(NODE_ADDRESSES + number) for number, node in enumerate(nodes)}

    def enter(self, node: str) -> tuple[str, ...]:
        """Return the command prefix that runs a program in a node's network, in the same process."""
        return ("nsenter", f"--net=/run/netns/{self.namespaces[node]}", "--")

    def make(self) -> None:
        """Create the network. Raises `CommandFailed`. Blocks."""
        self._check_routes()
        lines = [
            f"link add {self._bridge} type bridge",
            f"addr add {self._subnet.bridged(HOST_ADDRESS)}/24 dev {self._bridge}",
            f"link set {self._bridge} up",
        ]
        for node, namespace in self.namespaces.items():
            outer = self._tag.interface(node)
            lines += [
                f"netns add {namespace}",
                f"link add {outer} type veth peer name eth0 netns {namespace}",
                f"link set {outer} master {self._bridge}",
                f"link set {outer} up",
            ]
        ip(*lines)
        for node, namespace in self.namespaces.items():
            inside = ["link set lo up", f"addr add {self.addresses[node]}/24 dev eth0", "link set eth0 up"]
            ip(*inside, namespace=namespace)

    def remove(self) -> None:
        """Remove what exists of the network. Raises `CommandFailed`. Blocks."""
        for namespace in self.namespaces.values():
            remove_namespace(namespace)
        for node in self.namespaces:
            remove_interface(self._tag.interface(node))
        remove_interface(self._bridge)

    def _check_routes(self) -> None:
        """Refuse a subnet that would hide a route of the machine."""
        ours = self._subnet.bridged(HOST_ADDRESS)
        routes = run("ip", "-4", "route", "show", "match", ours).splitlines()
        overlapping = [route for route in routes if not route.startswith("default")]
        if overlapping:
            raise CommandFailed(f"{ours}/24 would cover a route of this machine: {overlapping[0].strip()}")


def ip(*lines: str, namespace: str | None = None) -> None:
    """Run lines of `ip -batch`, up to the first that fails. Raises `CommandFailed`. Blocks."""
    where = () if namespace is None else ("-n", namespace)
    run("ip", *where, "-batch", "-", given="\n".join([*lines, ""]))
