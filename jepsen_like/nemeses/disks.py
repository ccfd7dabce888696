"""Disks that are full or read-only, or whose fsyncs fail or are slow.

Proofs: a write that is refused; fsyncs that strace reports as affected. A node may end by itself if its disk is
read-only or fails (the metadata quorum stops a node whose disk it cannot write to); the heal starts it again, as its
supervisor would. Of a full disk it may not end, and only the product itself frees space on it (S10).
"""

from __future__ import annotations

import errno
import time

from jepsen_like.clusters import disk_faults, expendable
from jepsen_like.clusters.cluster import NodeCluster
from jepsen_like.clusters.commands import in_thread
from jepsen_like.clusters.health import NotWell
from jepsen_like.clusters.system_calls import Injection as SystemCalls

from . import steps
from .injection import Evidence, FaultNotMade, Stuck
from .processes import running

HEALED_SECONDS = 90.0
"""Retention deletes after half a minute what it may; other faults of a mix may delay that as long as they last, and a
clock that is a minute behind may delay it further.
"""


class Filling:
    """`steps.FullDisk`. The product has to heal it alone: the filler stays, and retention frees the space.

    So first every node gets records that expire within seconds, and then the filler takes the rest of the disk. The
    filler is removed when the next disks are filled, by when all nodes have been healthy beside it; the last one stays
    for the rest of the run.
    """

    def __init__(self, step: steps.FullDisk, cluster: NodeCluster) -> None:
        self._step = step
        self._cluster = cluster
        self._taken: dict[str, int] = {}
        self._left: dict[str, int] = {}

    async def begin(self) -> None:
        others = self._cluster.claimed - self._step.claims
        for node, volume in self._cluster.disks.items():
            if not others & steps.process_claims((node,)):
                await in_thread(disk_faults.empty, volume)
        disks = {node: self._cluster.disks[node] for node in self._step.nodes}
        needed = {node: expendable.room_needed(volume) for node, volume in disks.items()}
        topic_id = await expendable.write(
            self._cluster.bootstrap, max(needed.values(), default=0) + expendable.SLACK_BYTES
        )
        for node, wanted in needed.items():
            found = await in_thread(expendable.stored, self._cluster.data_folder(node), topic_id)
            if found < wanted:
                raise FaultNotMade(
                    f"retention can delete {found} bytes from {node}'s disk, but the node needs {wanted} to continue"
                )
        for node, volume in disks.items():
            # Recorded before the fill: a disk that is only half filled has to heal as well.
            self._taken[node] = 0
            self._taken[node] = await in_thread(disk_faults.fill, volume)
            self._left[node] = expendable.free(volume)

    async def prove(self) -> Evidence:
        """Prove that the filler's last block was refused.

        A later write may succeed: the node releases ballast as soon as it meets the full disk.
        """
        for node, taken in self._taken.items():
            if not taken:
                raise FaultNotMade(f"{node}'s disk had no free space to fill")
        return {"taken": self._taken, "refused": "ENOSPC", "left": self._left}

    async def heal(self) -> Evidence:
        """Wait for the cluster to heal by itself.

        No space is freed and no node is started from outside; a node must not have ended because of the full disk.
        Raises `Stuck` if the cluster does not recover.
        """
        if not self._taken:
            return {}
        began = time.monotonic()
        self._refuse_ended()
        disks = {self._cluster.node_id(node): self._cluster.disks[node] for node in self._taken}
        try:
            await expendable.until_room(self._cluster.bootstrap, disks, HEALED_SECONDS)
        except NotWell as error:
            self._refuse_ended()
            raise Stuck(f"the full disks of {', '.join(self._taken)} did not heal by themselves: {error}") from error
        self._refuse_ended()
        free = {node: expendable.free(self._cluster.disks[node]) for node in self._taken}
        return {"healed_s": round(time.monotonic() - began, 3), "free": free}

    def _refuse_ended(self) -> None:
        gone = ended(self._cluster, tuple(self._taken))
        if gone:
            raise Stuck(f"nodes ended because of a full disk: {', '.join(gone)}")


class TurningReadOnly:
    def __init__(self, step: steps.ReadOnly, cluster: NodeCluster) -> None:
        self._step = step
        self._cluster = cluster

    async def begin(self) -> None:
        for node in self._step.nodes:
            await in_thread(disk_faults.turn_read_only, self._cluster.disks[node])

    async def prove(self) -> Evidence:
        refused = {}
        for node in self._step.nodes:
            number = await in_thread(disk_faults.refusal, self._cluster.disks[node])
            if number not in {errno.EROFS, errno.EIO}:
                raise FaultNotMade(f"a write to {node}'s read-only disk gave {_named(number)}")
            refused[node] = _named(number)
        return {"refused": refused, "ended": ended(self._cluster, self._step.nodes)}

    async def heal(self) -> Evidence:
        await self._cluster.kill(self._step.nodes)
        for node in self._step.nodes:
            await in_thread(disk_faults.repair, self._cluster.disks[node])
        await self._cluster.start(self._step.nodes)
        return {}


class TouchingSyncs:
    """`steps.FailSync` and `steps.SlowSync`.

    After a failed fsync a disk is trusted again only when its node has read it from the start: those nodes are
    restarted at the heal.
    """

    def __init__(self, step: steps.FailSync | steps.SlowSync, cluster: NodeCluster) -> None:
        self._step = step
        self._cluster = cluster
        self._calls: dict[str, SystemCalls] = {}

    async def begin(self) -> None:
        step = self._step
        what = (
            f"delay_enter={step.delay_ms * 1000}"
            if isinstance(step, steps.SlowSync)
            else f"error=EIO:when={step.first}+"
        )
        for node, pid in running(self._cluster, step.nodes).items():
            calls = SystemCalls(pid, self._cluster.folder / f"{node}.strace", what)
            self._calls[node] = calls
            await in_thread(calls.begin)

    async def prove(self) -> Evidence:
        counts = {node: await in_thread(calls.count) for node, calls in self._calls.items()}
        if not any(counts.values()):
            raise FaultNotMade("no process called fsync")
        return {"calls": counts, "ended": ended(self._cluster, self._step.nodes)}

    async def heal(self) -> Evidence:
        for calls in self._calls.values():
            await in_thread(calls.end)
        if isinstance(self._step, steps.FailSync):
            await self._cluster.kill(tuple(self._calls))
        await self._cluster.start(self._step.nodes)
        return {}


def ended(cluster: NodeCluster, nodes: tuple[str, ...]) -> list[str]:
    """Return the nodes that are not running."""
    return [node for node in nodes if cluster.pid(node) is None]


def _named(number: int | None) -> str:
    return "no error" if number is None else errno.errorcode.get(number, str(number))
