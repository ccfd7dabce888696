"""Power failures: of some or all disks while nodes run, and schedules in which a node returns without its memory.

Everything that was not fsynced is lost from a disk whose power failed (`jepsen_like/clusters/power_loss.py`), and each
failure proves that it lost something. The nodes are killed right after: running on without a disk is another fault.
"""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from jepsen_like.clusters.cluster import NodeCluster
from jepsen_like.clusters.commands import in_thread
from jepsen_like.clusters.power_loss import FaultDidNotBite, Lost, Survivors, hold
from jepsen_like.clusters.replica_logs import last_batch
from raftlog.client.admin import Admin
from raftlog.errors import RaftlogError

from . import damage, steps
from .files import flip, sizes_below
from .injection import Evidence, FaultNotMade
from .networks import counted
from .processes import STOPPED, await_state, pause, process_state, resume, running
from .sluggish import Sluggish
from .targets import apart

ANSWER_SECONDS = 3.0
APART_SECONDS = 5.0
"""A recovery election waits for three seconds."""


class Outage:
    """The power of some of a cluster's disks: cut and restored."""

    def __init__(self, cluster: NodeCluster) -> None:
        self._cluster = cluster
        self._dark: tuple[str, ...] = ()
        self.lost: dict[str, Lost] = {}
        self._without_proof: list[str] = []

    async def cut(self, survivors: dict[str, str], seed: int) -> None:
        """Cut all disks, together or in this order, and send SIGKILL to the nodes.

        Raises `FaultNotMade` if a node has no disk of its own, `FaultDidNotBite` if a node cannot be held for the cut.
        """
        for node in survivors:
            if node not in self._cluster.disks:
                raise FaultNotMade(f"{node} has no disk of its own")
        self._dark = tuple(survivors)
        await in_thread(self._cut, survivors, seed)
        await self._cluster.kill(self._dark)

    def _cut(self, survivors: dict[str, str], seed: int) -> None:
        """In half of the cases all disks are cut together, since an acknowledgement that came too early may rest on
        what one disk still syncs while others are already dark. Otherwise they are cut one by one, each after its
        surviving parts are written out, and the others run on meanwhile. A node whose disk is dark does nothing any
        more.
        """
        disks = {node: self._cluster.disks[node] for node in survivors}
        together = random.Random(f"{seed} together").random() < 0.5
        for node, disk in disks.items():
            disk.aim(Survivors(survivors[node]), random.Random(f"{seed} {node}"))
            if not together:
                hold(self._processes(node))
                disk.shut()
        if together:
            hold(pid for node in disks for pid in self._processes(node))
            with ThreadPoolExecutor(len(disks)) as pool:
                for shut in [pool.submit(disk.shut) for disk in disks.values()]:
                    shut.result()

    def _processes(self, node: str) -> tuple[int, ...]:
        pid = self._cluster.pid(node)
        return () if pid is None else (pid,)

    async def end(self) -> None:
        """Restore the power without starting nodes. Idempotent."""
        dark, self._dark = self._dark, ()
        await self._cluster.kill(dark)
        for node in dark:
            try:
                self.lost[node] = await in_thread(self._cluster.disks[node].restore)
            except FaultDidNotBite as error:
                self._without_proof.append(str(error))

    @property
    def was_cut(self) -> bool:
        """Whether some disk was cut and restored, even if it lost nothing."""
        return bool(self.lost or self._without_proof)

    def proof(self) -> Evidence:
        """Return the bytes that were written and lost. Raises `FaultNotMade`."""
        if self._without_proof:
            raise FaultNotMade("; ".join(self._without_proof))
        return {
            "lost": {
                node: {"witness": lost.witness, "bytes": sum(lost.files.values()), "files": len(lost.files)}
                for node, lost in self.lost.items()
            }
        }


class Blackout:
    """`steps.Power`, `steps.SlowPower`."""

    def __init__(self, step: steps.Power, cluster: NodeCluster) -> None:
        self._step = step
        self._cluster = cluster
        self._outage = Outage(cluster)
        self._sluggish = Sluggish(cluster, step.slow_ms)
        self._began = False

    async def begin(self) -> None:
        running(self._cluster, self._step.nodes)
        self._began = True
        if self._step.slow_ms:
            await self._sluggish.begin(self._step.nodes)
        await self._outage.cut(dict(zip(self._step.nodes, self._step.survivors, strict=True)), self._step.seed)

    async def prove(self) -> Evidence:
        slowed = {"slowed": self._sluggish.touched} if self._sluggish.touched else {}
        return {"aim": self._step.aim, "survivors": list(self._step.survivors), **slowed}

    async def heal(self) -> Evidence:
        if not self._began:
            return {}
        await self._sluggish.end()
        await self._outage.end()
        rotten = await in_thread(self._rot)
        await self._start()
        return {**self._outage.proof(), **rotten}

    async def _start(self) -> None:
        await self._cluster.start(self._step.nodes)

    def _rot(self) -> Evidence:
        """Damage nothing after a plain power failure."""
        return {}


class BlackoutAndRot(Blackout):
    def __init__(self, step: steps.PowerAndRot, cluster: NodeCluster) -> None:
        super().__init__(step, cluster)
        self._rotten = step.rotten
        self._each = step.each

    async def heal(self) -> Evidence:
        evidence = await super().heal()
        if self._began and "rot" not in evidence:
            raise FaultNotMade(f"{self._rotten} has no batch to damage")
        return evidence

    async def _start(self) -> None:
        """If all replicas of a node are damaged, start it with just enough others for an election, and the rest seconds
        later: it must not lead while every replica with more records is down.
        """
        if self._each:
            others = [node for node in self._cluster.nodes if node != self._rotten]
            await self._cluster.start((self._rotten, *others[: len(others) // 2]))
            await asyncio.sleep(APART_SECONDS)
        await super()._start()

    def _rot(self) -> Evidence:
        folder = self._cluster.data_folder(self._rotten)
        rng = random.Random(f"{self._step.seed} rot")
        sizes = sizes_below(folder)
        if self._each:
            rotten = [_rotten(folder, segment, rng) for segment in damage.fitting("segment", sizes, growing=True)]
            told = [one for one in rotten if one]
            return {"rot": {"node": self._rotten, "replicas": told}} if told else {}
        segment = damage.chosen("segment", sizes, rng, growing=True)
        one = {} if segment is None else _rotten(folder, segment, rng)
        return {"rot": {"node": self._rotten, **one}} if one else {}


def _rotten(folder: Path, segment: str, rng: random.Random) -> Evidence:
    """Flip a bit of the segment's last batch, and return the evidence; empty if there is no batch."""
    at = last_batch(folder / segment)
    if at is None:
        return {}
    place = (rng.randrange(*at), rng.randrange(8))
    flip(folder / segment, place)
    return {"file": segment, "batch": at, "bit": place}


class Forgetting:
    def __init__(self, step: steps.AmnesiaInTheMiddle, cluster: NodeCluster) -> None:
        self._step = step
        self._cluster = cluster
        self._outage = Outage(cluster)
        self._sluggish = Sluggish(cluster, step.slow_ms)
        self._evidence: Evidence = {}
        self._pids: dict[str, int] = {}

    async def begin(self) -> None:
        step, cluster = self._step, self._cluster
        running(cluster, step.targets)
        if step.minority:
            await self._send_away()
            await asyncio.sleep(step.phase_seconds)
            await self._prove_away()
        if step.slow_ms:
            await self._sluggish.begin(step.victims)
        if not step.minority:
            await self._answered(step.others[0])
        await self._outage.cut(dict.fromkeys(step.victims, step.survivors), step.seed)
        if not step.minority:
            # Killed rather than cut off: clients would wait for a cut-off leader for all the time in which a loss could
            # show.
            self._pids = running(cluster, step.others)
            await cluster.kill(step.others)
        await self._sluggish.end()
        await self._outage.end()
        if step.minority:
            await cluster.links.cut(apart([step.others], cluster.nodes))
            resume(cluster, step.minority)
        await cluster.start(step.victims)

    async def _answered(self, leader: str) -> None:
        """Send a request of our own: records that are acknowledged at the same time are as recent as possible."""
        with suppress(RaftlogError, TimeoutError):
            async with (
                asyncio.timeout(ANSWER_SECONDS),
                Admin(self._cluster.bootstrap[self._cluster.node_id(leader)]) as one,
            ):
                await one.position("of no program")

    async def _send_away(self) -> None:
        step = self._step
        if step.by == "pause":
            pids = running(self._cluster, step.minority)
            pause(self._cluster, step.minority)
            await await_state(pids, stopped=True)
        else:
            await self._cluster.links.cut(apart([step.minority], self._cluster.nodes))

    async def _prove_away(self) -> None:
        step = self._step
        if step.by == "pause":
            states = {node: process_state(pid) for node, pid in running(self._cluster, step.minority).items()}
            if set(states.values()) != {STOPPED}:
                raise FaultNotMade(f"the minority was not paused: its process states are {states}")
            self._evidence["states"] = states
        else:
            self._evidence["first"] = counted(await self._cluster.links.stopped(), "stopped")

    async def prove(self) -> Evidence:
        slowed = {"slowed": self._sluggish.touched} if self._sluggish.touched else {}
        if not self._step.minority:
            return {**slowed, "killed": self._pids}
        return {**self._evidence, **slowed, **counted(await self._cluster.links.stopped(), "stopped")}

    async def heal(self) -> Evidence:
        await self._cluster.links.heal()
        resume(self._cluster, self._step.minority)
        await self._sluggish.end()
        await self._outage.end()
        await self._cluster.start(self._step.targets)
        return self._outage.proof() if self._outage.was_cut else {}
