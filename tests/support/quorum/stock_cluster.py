"""Clusters of stock pysyncobj in one thread.

They consist of its nodes, a clock that the test moves, and a network of FIFO links on which each message waits until
the test delivers it. No part of this runs in the product.
"""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path
from typing import Any

import pysyncobj.syncobj
from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, replicated
from pysyncobj.config import SERIALIZER_STATE
from pysyncobj.node import Node
from pysyncobj.transport import Transport

STEP = 0.05


class Link(Transport):  # type: ignore[misc]
    """A node's transport: sent messages wait in the cluster."""

    def __init__(self, cluster: StockCluster, name: str) -> None:
        super().__init__(None, None, [])
        self._cluster = cluster
        self._name = name

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        self._cluster.queues[self._name, node.id].append(message)
        return True


class StockNode(SyncObj):  # type: ignore[misc]
    """A state machine that keeps a list."""

    def __init__(self, link: Link, name: str, others: list[str], configuration: SyncObjConf) -> None:
        super().__init__(Node(name), [Node(other) for other in others], configuration, transport=link)
        self.values: list[object] = []

    @replicated
    def add(self, value: object) -> None:
        self.values.append(value)


class StockCluster:
    """Nodes named by single letters. With a `folder`, each has a journal and a dump there."""

    def __init__(self, monkeypatch: Any, names: str = "abc", *, folder: Path | None = None, **settings: Any) -> None:
        self.now = 0.0
        monkeypatch.setattr(pysyncobj.syncobj, "monotonicTime", lambda: self.now)
        monkeypatch.setattr(pysyncobj.syncobj, "random", random.Random(1))
        self.names = names
        self.queues: dict[tuple[str, str], deque[dict[str, Any]]] = {
            (sender, receiver): deque() for sender in names for receiver in names if sender != receiver
        }
        self.cut: set[str] = set()
        """Directions (from, to) whose messages are lost."""
        self._folder = folder
        self._settings = settings
        self.nodes: dict[str, StockNode] = {}
        self.start()

    def start(self) -> None:
        """Restart all nodes from their files; messages in flight are lost."""
        self.close()
        for queue in self.queues.values():
            queue.clear()
        for name in self.names:
            link = Link(self, name)
            others = [other for other in self.names if other != name]
            self.nodes[name] = StockNode(link, name, others, self._configuration(name))
            for other in others:
                link._onNodeConnected(Node(other))

    def close(self) -> None:
        """Close the journals, as the end of a killed process does."""
        for node in self.nodes.values():
            node._SyncObj__raftLog._destroy()
        self.nodes.clear()

    def _configuration(self, name: str) -> SyncObjConf:
        files = {}
        if self._folder is not None:
            files = {"journalFile": str(self._folder / f"{name}.journal"), "fullDumpFile": str(self._folder / name)}
        return SyncObjConf(autoTick=False, useFork=False, **files, **self._settings)

    # --- Network and time ---

    def deliver(self, sender: str, receiver: str, count: int | None = None) -> None:
        """The next messages of a link, or all that wait there now."""
        queue = self.queues[sender, receiver]
        for _ in range(len(queue) if count is None else count):
            message = queue.popleft()
            if not self.cut & {sender, receiver}:
                self.nodes[receiver]._SyncObj__transport._onMessageReceived(Node(sender), message)

    def tick(self, *names: str) -> None:
        for name in names or self.names:
            self.nodes[name].doTick()

    def run(self, steps: int = 40, *, at_most: int | None = None) -> None:
        """Let time pass and deliver everything, or a number of messages of a link between two ticks."""
        for _ in range(steps):
            self.now += STEP
            self.tick()
            for (sender, receiver), queue in self.queues.items():
                self.deliver(sender, receiver, None if at_most is None else min(at_most, len(queue)))

    def elect(self, name: str) -> StockNode:
        """Only this node's election timer expires, and it is elected."""
        self.now += 2.0
        self.tick(name)
        for peer in self.names.replace(name, ""):
            self.deliver(name, peer)
            self.deliver(peer, name)
        node = self.nodes[name]
        assert node._isLeader()
        self.tick(name)
        for peer in self.names.replace(name, ""):
            self.deliver(name, peer)
            self.deliver(peer, name)
        return node

    # --- Commands ---

    def add(self, name: str, values: list[int]) -> list[int]:
        """Send a value to a node. Values appear in the returned list when it reports success."""
        succeeded: list[int] = []
        for value in values:
            self.nodes[name].add(
                value,
                callback=lambda result, reason, value=value: (
                    succeeded.append(value) if reason == FAIL_REASON.SUCCESS else None
                ),
            )
        return succeeded

    def compact(self, name: str) -> None:
        """Write a full dump, and shorten the log to it."""
        self.nodes[name].forceLogCompaction()
        self.tick(name)
        self.tick(name)

    def begin_dump(self, name: str) -> None:
        """A full dump by a child process that outlives its parent: the file appears, but the parent is never
        notified."""
        node = self.nodes[name]
        node.forceLogCompaction()
        self.tick(name)
        node._SyncObj__serializer.checkSerializing = lambda: (SERIALIZER_STATE.SERIALIZING, None)
