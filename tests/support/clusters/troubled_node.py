"""A node that has faults while files of their names are in its folder: what a machine does to it, without the machine.

It runs raftlog's command line in this process (`LocalCluster.program`). `Fault` has the names.
"""

from __future__ import annotations

import enum
import os
import sys
import time
from collections.abc import Callable
from typing import Any


class Fault(enum.StrEnum):
    """The faults that a troubled node can have."""

    SLOW_DISK = "slow-disk"
    """Each fsync of a log takes `SLOW_SECONDS` longer."""
    NO_PUSHES = "no-pushes"
    """Records that the leader pushes are lost on their way; the link stays."""
    NO_QUORUM = "no-quorum"
    """Nothing of the metadata quorum arrives or leaves."""


SLOW_SECONDS = 0.5


def begin(fault: Fault, folder: str) -> None:
    """Let the node in this folder have a fault."""
    with open(os.path.join(folder, fault), "w"):
        pass


def end(fault: Fault, folder: str) -> None:
    """End a fault."""
    os.remove(os.path.join(folder, fault))


def _while(fault: Fault, folder: str, otherwise: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `instead` while there is the fault."""
    path = os.path.join(folder, fault)

    def chosen(*arguments: Any, **named: Any) -> Any:
        return (instead if os.path.exists(path) else otherwise)(*arguments, **named)

    return chosen


def _nothing(*arguments: Any, **named: Any) -> None:
    """Lose what was given."""


class _SlowFile:
    """A file of a log whose fsyncs may be slow."""

    def __init__(self, file: Any, pause: Callable[[], None]) -> None:
        self._file = file
        self._pause = pause

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def fsync(self) -> None:
        self._pause()
        self._file.fsync()

    def pwritev_stable(self, buffers: Any, position: int) -> int:
        self._pause()
        written: int = self._file.pwritev_stable(buffers, position)
        return written


def _main() -> None:
    from metadata.quorum.links import QuorumLinks
    from partitions.driver.driver import PartitionDriver
    from raftlog.cli.main import main
    from raftlog.system.disk import LocalDisk

    folder = os.path.dirname(os.path.abspath(sys.argv[sys.argv.index("--config") + 1]))
    opened = LocalDisk.open
    pause = _while(Fault.SLOW_DISK, folder, _nothing, lambda: time.sleep(SLOW_SECONDS))

    def open_slow(disk: LocalDisk, path: str, **options: Any) -> Any:
        file = opened(disk, path, **options)
        return _SlowFile(file, pause) if path.startswith("partitions/") else file

    LocalDisk.open = open_slow  # type: ignore[method-assign]
    pushed = PartitionDriver.on_pushed
    PartitionDriver.on_pushed = _while(Fault.NO_PUSHES, folder, pushed, _nothing)  # type: ignore[method-assign]
    QuorumLinks.send = _while(Fault.NO_QUORUM, folder, QuorumLinks.send, _nothing)  # type: ignore[method-assign]
    attached = QuorumLinks.attach

    def attach(links: QuorumLinks, node: Any) -> None:
        node.on_message = _while(Fault.NO_QUORUM, folder, node.on_message, _nothing)
        attached(links, node)

    QuorumLinks.attach = attach  # type: ignore[method-assign]
    main()


if __name__ == "__main__":
    _main()
