"""A node that returns without its data, by the operator's procedure:

    raftlog quorum remove N, raftlog server init --observer, raftlog server run, raftlog quorum add N

Its broker keeps its number and has another directory: its replicas leave the ISR and are fetched again from the start.
The same procedure heals a voter that the others do not readmit because it forgot what it had promised.
"""

from __future__ import annotations

import json

from jepsen_like.clusters.cluster import NodeCluster
from jepsen_like.clusters.commands import in_thread
from raftlog.client.admin import Admin
from raftlog.errors import RetriableError

from . import steps
from .injection import Evidence, FaultNotMade
from .membership import BACK_SECONDS, until

ALIVE_SECONDS = 20.0
"""A node that listens and is not readmitted within this time will not be."""


async def is_taken_back(cluster: NodeCluster, node: str) -> bool:
    """Return whether the cluster counts the node as alive, within a bound."""

    async def alive() -> bool:
        return any(one.id == cluster.node_id(node) and not one.fenced for one in (await admin.cluster()).nodes)

    others = [cluster.api_of(other) for other in cluster.nodes if other != node]
    async with Admin(others) as admin:
        try:
            await until(alive, f"{node} is alive", ALIVE_SECONDS)
        except RetriableError:
            return False
        return True


async def replace_disk(cluster: NodeCluster, node: str) -> None:
    """Replace the node's disk by the whole procedure. Raises `RetriableError` if the cluster does not allow it within a
    bound.
    """
    number = cluster.node_id(node)
    others = [other for other in cluster.nodes if other != node]
    await cluster.kill((node,))
    async with Admin([cluster.api_of(other) for other in others]) as admin:
        voted = False

        async def is_no_voter() -> bool:
            nonlocal voted
            if number in (await admin.quorum()).voters:
                voted = True
                await admin.remove_voter(number)
            return True

        async def is_a_voter() -> bool:
            if number not in (await admin.quorum()).voters:
                await admin.add_voter(number)
            return True

        await until(is_no_voter, f"{node} is no voter", BACK_SECONDS)
        voters = [cluster.name_of(voter) for voter in (await admin.quorum()).voters]
        await cluster.prepare_anew(node, voters)
        await cluster.start((node,))
        if voted:
            await until(is_a_voter, f"{node} votes again", BACK_SECONDS)


def directory_of(cluster: NodeCluster, node: str) -> str:
    """Return the directory id of the node's data folder; empty if it has none."""
    try:
        return str(json.loads((cluster.data_folder(node) / "node.json").read_text())["directory_id"])
    except FileNotFoundError:
        return ""


class Replacing:
    def __init__(self, step: steps.ReplaceDisk, cluster: NodeCluster) -> None:
        self._node = step.node
        self._cluster = cluster
        self._before = ""
        self._began = False

    async def begin(self) -> None:
        self._before = await in_thread(directory_of, self._cluster, self._node)
        self._began = True
        await self._cluster.kill((self._node,))

    async def prove(self) -> Evidence:
        return {"before": self._before}

    async def heal(self) -> Evidence:
        if not self._began:
            return {}
        await replace_disk(self._cluster, self._node)
        after = await in_thread(directory_of, self._cluster, self._node)
        if after == self._before:
            raise FaultNotMade(f"{self._node} still has its old directory")
        return {"after": after}
