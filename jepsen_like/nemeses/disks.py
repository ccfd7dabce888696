"""Disks that are full, read-only, or whose fsyncs fail or take long.

Proofs: a write that is refused; fsyncs that strace tells it touched. A node may end by itself of a disk that is
read-only or fails (the metadata quorum stops a node whose disk it cannot write to); the heal starts it again, as its
keeper would. Of a full disk it may not, and nobody makes room on that but the product (S10).
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
"""Retention removes after half a minute what it may; other faults of a mix may hold that up for as long as they last,
and a clock that is believed to be late by a minute."""


class Filling:
    """`steps.FullDisk`. Nobody heals it but the product: the filler stays, and room comes of what retention removes.

    So first every node gets records that are kept for seconds, and only then the filler takes the rest. It goes when
    the next disks are filled, which have all been well beside it by then; the last one stays for the rest of a run.
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
                    f"retention can remove {found} bytes from {node}'s disk, and with less than {wanted} nobody goes on"
                )
        for node, volume in disks.items():
            # Told before it is so: a disk that was filled by half has to heal as well.
            self._taken[node] = 0
            self._taken[node] = await in_thread(disk_faults.fill, volume)
            self._left[node] = expendable.free(volume)

    async def prove(self) -> Evidence:
        """The filler's last block was refused. Another write need not be: the node gives up ballast as soon as it meets
        the full disk."""
        for node, taken in self._taken.items():
            if not taken:
                raise FaultNotMade(f"nothing of {node}'s disk was free to be taken")
        return {"taken": self._taken, "refused": "ENOSPC", "left": self._left}

    async def heal(self) -> Evidence:
        """Wait for it: nobody makes room, and nobody starts a node, which may not have ended for want of it. Raises
        `Stuck` where the cluster does not come back."""
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
            raise Stuck(f"nodes ended of a full disk: {', '.join(gone)}")


class TurningReadOnly:
    """`steps.ReadOnly`."""

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
    """`steps.FailSync` and `steps.SlowSync`. A disk whose fsync failed is not believed again before its node has read
    it anew: those nodes are started again at the heal."""

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
            raise FaultNotMade("nobody called fsync")
        return {"calls": counts, "ended": ended(self._cluster, self._step.nodes)}

    async def heal(self) -> Evidence:
        for calls in self._calls.values():
            await in_thread(calls.end)
        if isinstance(self._step, steps.FailSync):
            await self._cluster.kill(tuple(self._calls))
        await self._cluster.start(self._step.nodes)
        return {}


def ended(cluster: NodeCluster, nodes: tuple[str, ...]) -> list[str]:
    """Those that do not run any more."""
    return [node for node in nodes if cluster.pid(node) is None]


def _named(number: int | None) -> str:
    return "no error" if number is None else errno.errorcode.get(number, str(number))
