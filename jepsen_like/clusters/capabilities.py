"""The capabilities of this machine: each is probed, and a missing one is reported with the package that provides it.

A fault that is not supported here is never skipped silently: `require` refuses the run, and `python -m
jepsen_like.clusters` prints all capabilities. A nemesis needs capabilities, a layout provides them. Both layouts can
kill, pause and cut links. Some capabilities come from the layout itself (`links`, `proxies`, `disks`); the others
belong to the machine and are probed for real, on resources that the probe creates and removes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from raftlog.errors import InvalidRequest

from . import power_loss, probes
from .commands import CommandFailed

LINKS = "links"
PROXIES = "proxies"
DISKS = "disks"
LOOPBACK = "loopback"
ROOT = "root"
NAMESPACES = "namespaces"
NFTABLES = "nftables"
POWER_LOSS = "power-loss"
READ_ONLY = "read-only"
FAKETIME = "faketime"
TIME_NAMESPACE = "time-namespace"
STRACE = "strace"
DESCRIPTORS = "descriptors"


@dataclass(frozen=True, slots=True)
class Capability:
    """An ability that a machine has or lacks."""

    name: str
    means: str
    """The faults that it makes possible."""
    package: str
    """The Debian package that provides it; empty if no package does."""
    probe: Callable[[], None]
    """Tries it. Raises `CommandFailed`, `PowerLossUnavailable` or `OSError` if it does not work."""


CAPABILITIES = (
    Capability(ROOT, "what changes networks, mounts and other processes", "", probes.root),
    Capability(LOOPBACK, "an address a node without root (Linux)", "", probes.loopback),
    Capability(NAMESPACES, "a network a node", "iproute2", probes.namespaces),
    Capability(NFTABLES, "packets that are dropped and counted, one direction alone", "nftables", probes.nftables),
    Capability(POWER_LOSS, "power failures; disks of their own, which can be full", "e2fsprogs", probes.power_loss),
    Capability(READ_ONLY, "file systems that turn read-only", "e2fsprogs", probes.read_only),
    Capability(FAKETIME, "wall clocks that jump", "faketime", probes.faketime),
    Capability(TIME_NAMESPACE, "monotonic clocks that differ", "", probes.time_namespace),
    Capability(STRACE, "fsyncs that fail or take long", "strace", probes.strace),
    Capability(DESCRIPTORS, "processes that run out of file descriptors", "util-linux", probes.descriptors),
)
"""The capabilities that depend on the machine."""

NAMESPACES_NEED = frozenset({ROOT, NAMESPACES, NFTABLES, POWER_LOSS})
NAMESPACES_GIVE = frozenset({LINKS, DISKS, POWER_LOSS, READ_ONLY, FAKETIME, TIME_NAMESPACE, STRACE, DESCRIPTORS})
LOOPBACK_NEED = frozenset({LOOPBACK})
LOOPBACK_GIVE = frozenset({LINKS, PROXIES, FAKETIME, TIME_NAMESPACE, STRACE, DESCRIPTORS})

_BY_NAME = {capability.name: capability for capability in CAPABILITIES}


@functools.cache
def lack(name: str) -> str | None:
    """Return why this machine lacks the capability and what would provide it, or None if it has it.

    Each capability is probed once per process. Blocks.
    """
    capability = _BY_NAME[name]
    try:
        capability.probe()
    except (CommandFailed, power_loss.PowerLossUnavailable, power_loss.FaultDidNotBite, OSError) as error:
        hint = f" (Debian: apt-get install {capability.package})" if capability.package else ""
        return f"{name}: {error}{hint}"
    return None


def require(need: Iterable[str], give: Iterable[str]) -> frozenset[str]:
    """Return the capabilities of a layout on this machine: those of `give` that the machine does not lack.

    Raises `InvalidRequest`, naming every capability of `need` that is missing. Blocks.
    """
    lacks = [why for name in sorted(need) if (why := lack(name)) is not None]
    if lacks:
        raise InvalidRequest("invalid_request", "this machine lacks " + "; ".join(lacks))
    return frozenset(name for name in give if name not in _BY_NAME or lack(name) is None)


def table() -> list[tuple[str, str, str]]:
    """Return (name, faults, reason why it is missing or "") for every capability of the machine. Blocks."""
    return [(capability.name, capability.means, lack(capability.name) or "") for capability in CAPABILITIES]
