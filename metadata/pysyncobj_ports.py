"""What pysyncobj sees of the world: its clock, its randomness and its journal, which it reads from module globals.

They are replaced, once, by dispatchers that look at the ports of the engine whose call is running on this thread, and
at pysyncobj's originals where none is.
"""

from __future__ import annotations

import threading
from typing import Any

import pysyncobj.syncobj

from raftlog.ports import Random

from .journal_face import JournalFace


class Ports:
    """What pysyncobj may see of the world while one engine's call runs."""

    __slots__ = ("journal", "now", "random")

    def __init__(self, now: float, random: Random) -> None:
        self.now = now
        self.random = random
        self.journal: JournalFace | None = None


class Running(threading.local):
    ports: Ports | None = None


class _RandomModule:
    """Stands where pysyncobj expects the module `random`."""

    def random(self) -> float:
        ports = running.ports
        return ports.random.random() if ports is not None else float(_originals["random"].random())


def _monotonic() -> float:
    ports = running.ports
    return ports.now if ports is not None else float(_originals["monotonicTime"]())


def _create_journal(path: str | None = None) -> Any:
    ports = running.ports
    return ports.journal if ports is not None else _originals["createJournal"](path)


class Active:
    """Within it pysyncobj sees one engine's ports. The calls of one engine do not nest; those of two may."""

    __slots__ = ("_outer", "_ports")

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._outer: Ports | None = None

    def __enter__(self) -> None:
        self._outer, running.ports = running.ports, self._ports

    def __exit__(self, *raised: object) -> None:
        running.ports = self._outer


running = Running()
_originals: dict[str, Any] = {}


def install_dispatchers() -> None:
    replaced = {"random": _RandomModule(), "monotonicTime": _monotonic, "createJournal": _create_journal}
    if not _originals:
        _originals.update({name: getattr(pysyncobj.syncobj, name) for name in replaced})
        for name, dispatcher in replaced.items():
            setattr(pysyncobj.syncobj, name, dispatcher)
