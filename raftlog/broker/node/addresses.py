"""The addresses of a node, compared with those under which its cluster was prepared. Pure.

Other nodes dial an initial voter at the address in `raftlog server init --voters` until it has registered. If it
listens elsewhere they never find it, and nothing but missing links would tell.
"""

from __future__ import annotations

from ipaddress import ip_address

from raftlog.config import NodeConfig
from raftlog.model import Endpoint


def address_problem(config: NodeConfig, node_id: int, prepared: Endpoint | None, *, started_before: bool) -> str:
    """Return why this node must not start at the addresses of its settings; empty if it may.

    `prepared`: its data address among the initial voters; None if it is no initial voter. Once a node has started, its
    cluster follows its registration, so it may move to another fixed address.
    """
    listen, advertised = config.data.listen.endpoint, config.data.advertised
    known = advertised.endpoint if advertised is not None else listen
    if prepared is None or not prepared.port:
        return ""
    remedy = (
        f"Set data.listen in node.toml to {prepared} (or data.advertised, if the node listens at an address that "
        "others cannot dial), or prepare all nodes again with the right --voters"
    )
    if not known.port:
        return (
            f"node {node_id} is a voter whose address is {prepared} (`raftlog server init --voters`), but its settings "
            f"give the data listener no port, so no other node would find it. {remedy}"
        )
    if started_before or (known.port == prepared.port and _may_be_one_host(known.host, prepared.host)):
        return ""
    if listen == prepared:  # it is found, although clients get another address, as behind a proxy
        return ""
    how = "advertises" if advertised is not None else "listens at"
    return (
        f"node {node_id} is a voter whose address is {prepared} (`raftlog server init --voters`), but by its settings "
        f"it {how} {known}, where no other node looks for it. {remedy}"
    )


def _may_be_one_host(one: str, other: str) -> bool:
    """Return whether two texts may mean one host. A name and an address may; names are not looked up."""
    one, other = one.lower().rstrip("."), other.lower().rstrip(".")
    if _is_address(one) and _is_address(other):
        return ip_address(one) == ip_address(other)
    if _is_address(one) or _is_address(other) or one == other:
        return True
    # The short name of a host, and its whole one.
    return one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
