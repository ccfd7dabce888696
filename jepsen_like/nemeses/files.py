"""Damaged files of a node: flipped bits, truncated ends, older contents. Only files of a fixed minority are damaged.

A node is killed, one of its files is changed and read back (the proof), and the node is started and reads the file. A
node may refuse to start because of what it finds, and should if its vote is at stake (S9); then the heal restores the
original bytes, as an operator with a backup would. A node that runs keeps the damage: the cluster has to find and
repair it, and the heal asks the node to scrub all of its data. A voter that runs but is not readmitted by the others,
which remember more, gets a new disk.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

from jepsen_like.clusters.cluster import NodeCluster
from jepsen_like.clusters.commands import in_thread
from jepsen_like.clusters.node import NodeEnded
from raftlog.api.scrubs import Scrub, StartScrub
from raftlog.client.cluster.api import HttpApi
from raftlog.errors import RaftlogError

from . import damage, steps
from .injection import Evidence, FaultNotMade
from .replacement import is_taken_back, replace_disk

COPY_BYTES_MAX = 64 * 1024 * 1024
VERIFY_SECONDS = 30.0
POLL_SECONDS = 0.1


class Damaging:
    """`steps.Flip` and `steps.Truncate`."""

    def __init__(self, step: steps.Flip | steps.Truncate, cluster: NodeCluster) -> None:
        self._step = step
        self._cluster = cluster
        self._rng = random.Random(step.seed)
        self._undo: list[tuple[Path, int, bytes]] = []
        """(file, position, original bytes)."""
        self._refused = ""
        self._what = ""

    async def begin(self) -> None:
        step, cluster = self._step, self._cluster
        self._what = await in_thread(_first_there, cluster, step)
        if not (isinstance(step, steps.Flip) and step.running and self._what in damage.PARTITION_FILES):
            await cluster.kill((step.node,))
        self._evidence = await in_thread(self._damage)
        try:
            await cluster.start((step.node,))
        except NodeEnded as error:
            self._refused = last_word(error)

    async def prove(self) -> Evidence:
        if self._cluster.pid(self._step.node) is None:
            why = self._refused or last_line(self._cluster.processes[self._step.node].log_tail())
            return {**self._evidence, "node": "refused", "why": why}
        return {**self._evidence, "node": "runs"}

    async def heal(self) -> Evidence:
        node = self._step.node
        if self._cluster.pid(node) is None:
            if self._refused or not self._undo:
                await in_thread(self._put_back)
            await self._start_or_put_back()
            return {}
        if self._what in damage.PARTITION_FILES:
            return {"found": await self._verify()} if self._undo else {}
        # A voter that started with less than it had promised is not readmitted by those that remember more.
        if self._undo and not await is_taken_back(self._cluster, node):
            await replace_disk(self._cluster, node)
            return {"healed": "on a new disk"}
        return {}

    async def _start_or_put_back(self) -> None:
        """Start the node; if it ends again, restore the original bytes first.

        A node that ended some time after its start is first tried as it is.
        """
        try:
            await self._cluster.start((self._step.node,))
        except NodeEnded:
            await in_thread(self._put_back)
            await self._cluster.start((self._step.node,))

    def _damage(self) -> Evidence:
        step = self._step
        folder = self._cluster.data_folder(step.node)
        name = damage.chosen(self._what, sizes_below(folder), self._rng)
        if name is None:
            raise FaultNotMade(f"{step.node} has no {self._what} any more")
        path = folder / name
        size = path.stat().st_size
        if isinstance(step, steps.Truncate):
            count = min(step.bytes, size)
            self._remember(path, size - count, count)
            os.truncate(path, size - count)
            changed: Evidence = {"cut_bytes": count}
            if path.stat().st_size != size - count:
                raise FaultNotMade(f"{path} still has its old length")
        else:
            at = damage.bits(self._what, size, step.bits, self._rng)
            for byte, bit in at:
                self._flip(path, byte, bit)
            changed = {"bits": [list(place) for place in at]}
        return {"what": self._what, "file": name, "size": size, **changed}

    def _flip(self, path: Path, byte: int, bit: int) -> None:
        self._remember(path, byte, 1)
        flip(path, (byte, bit))

    def _remember(self, path: Path, position: int, count: int) -> None:
        self._undo.append((path, position, _read(path, position, count)))

    def _put_back(self) -> None:
        """Restore the original bytes, the last change first: a byte may have been changed twice."""
        undo, self._undo = self._undo, []
        for path, position, before in reversed(undo):
            if path.exists():
                _write(path, position, before)

    async def _verify(self) -> int | str:
        """Return the number of findings of a complete scrub, or why it was not made."""
        api = HttpApi(self._cluster.api_of(self._step.node))
        try:
            async with api, asyncio.timeout(VERIFY_SECONDS):
                scrub = await api.change("POST", "/v1/scrub", Scrub, StartScrub())
                while scrub.running:
                    await asyncio.sleep(POLL_SECONDS)
                    scrub = await api.get("/v1/scrub", Scrub)
                return len(scrub.findings)
        except (RaftlogError, TimeoutError) as error:
            return f"not checked: {error!r}"


class RollingBack:
    def __init__(self, step: steps.RollBack, cluster: NodeCluster) -> None:
        self._step = step
        self._cluster = cluster
        self._rng = random.Random(step.seed)
        self._path: Path | None = None
        self._old = cluster.folder / f"{step.node}.old"
        self._new = cluster.folder / f"{step.node}.new"
        self._evidence: Evidence = {}
        self._refused = ""
        self._what = ""

    async def begin(self) -> None:
        await in_thread(self._copy)
        await asyncio.sleep(self._step.age)
        await self._cluster.kill((self._step.node,))
        self._evidence = await in_thread(self._restore)
        try:
            await self._cluster.start((self._step.node,))
        except NodeEnded as error:
            self._refused = last_word(error)

    async def prove(self) -> Evidence:
        runs = self._cluster.pid(self._step.node) is not None
        return {**self._evidence, "node": "runs" if runs else "refused", **({} if runs else {"why": self._refused})}

    async def heal(self) -> Evidence:
        if self._refused and self._path is not None:
            await in_thread(_copy_file, self._new, self._path)
        await self._cluster.start((self._step.node,))
        await in_thread(self._forget)
        return {}

    def _copy(self) -> None:
        folder = self._cluster.data_folder(self._step.node)
        self._what = _first_there(self._cluster, self._step)
        name = damage.chosen(self._what, sizes_below(folder), self._rng, growing=True)
        if name is None:
            raise FaultNotMade(f"{self._step.node} has no {self._what} any more")
        self._path = folder / name
        if self._path.stat().st_size > COPY_BYTES_MAX:
            raise FaultNotMade(f"{name} is too large to be copied")
        _copy_file(self._path, self._old)

    def _restore(self) -> Evidence:
        assert self._path is not None
        name = str(self._path.relative_to(self._cluster.data_folder(self._step.node)))
        if not self._path.exists():
            raise FaultNotMade(f"{name} was removed meanwhile")
        _copy_file(self._path, self._new)
        old, new = self._old.read_bytes(), self._new.read_bytes()
        if old == new:
            raise FaultNotMade(f"{name} has not changed within {self._step.age} s")
        _copy_file(self._old, self._path)
        if self._path.read_bytes() != old:
            raise FaultNotMade(f"{name} does not have its old content")
        return {"what": self._what, "file": name, "bytes_now": len(old), "bytes_before": len(new)}

    def _forget(self) -> None:
        self._old.unlink(missing_ok=True)
        self._new.unlink(missing_ok=True)


def _first_there(cluster: NodeCluster, step: steps.Flip | steps.Truncate | steps.RollBack) -> str:
    """Return the kind of file to damage. Raises `FaultNotMade` if the node has none of the step's kinds."""
    what = damage.first_there(step.files, sizes_below(cluster.data_folder(step.node)))
    if what is None:
        raise FaultNotMade(f"{step.node} has no {' or '.join(dict.fromkeys(step.files))} yet")
    return what


def sizes_below(folder: Path) -> dict[str, int]:
    """Return path below the folder → size in bytes, of every file."""
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            try:
                found[str(path.relative_to(folder))] = path.stat().st_size
            except FileNotFoundError:
                continue  # it was replaced or removed meanwhile
    return found


def flip(path: Path, place: tuple[int, int]) -> None:
    """Flip one bit, given as (byte, bit in it), and read it back. Raises `FaultNotMade`."""
    byte, bit = place
    after = damage.flipped(_read(path, byte, 1), ((0, bit),))
    _write(path, byte, after)
    if _read(path, byte, 1) != after:
        raise FaultNotMade(f"{path} is unchanged")


def last_word(error: NodeEnded) -> str:
    return last_line(error.tail)


def last_line(text: str) -> str:
    lines = text.splitlines()
    return lines[-1][:500] if lines else ""


def _read(path: Path, position: int, count: int) -> bytes:
    with path.open("rb") as file:
        file.seek(position)
        return file.read(count)


def _write(path: Path, position: int, content: bytes) -> None:
    """Write durably, so that the bytes survive whatever comes next."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _copy_file(source: Path, target: Path) -> None:
    content = source.read_bytes()
    target.write_bytes(content)
    with target.open("r+b") as file:
        os.fsync(file.fileno())
