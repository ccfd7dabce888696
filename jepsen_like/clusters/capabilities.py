"""What this machine can do to a cluster: each ability is tried, and what is missing is named with what would bring it.

A fault that cannot be made here is never left out in silence: whoever asks for it is told (`require`), and
`python -m jepsen_like.clusters` prints all of them. An ability is what a nemesis needs and a layout gives: both
layouts can kill, pause and cut links; some abilities come from the layout itself (`links`, `proxies`, `disks`), the
others are the machine's, and are tried for real, on things of their own that are removed again.
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
    """Something that a machine can do or not."""

    name: str
    means: str
    """What faults it is for."""
    package: str
    """Debian's, that brings it; empty where none does."""
    probe: Callable[[], None]
    """Tries it. Raises `CommandFailed`, `PowerLossUnavailable` or `OSError` where it fails."""


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
"""All that are the machine's."""

NAMESPACES_NEED = frozenset({ROOT, NAMESPACES, NFTABLES, POWER_LOSS})
NAMESPACES_GIVE = frozenset({LINKS, DISKS, POWER_LOSS, READ_ONLY, FAKETIME, TIME_NAMESPACE, STRACE, DESCRIPTORS})
LOOPBACK_NEED = frozenset({LOOPBACK})
LOOPBACK_GIVE = frozenset({LINKS, PROXIES, FAKETIME, TIME_NAMESPACE, STRACE, DESCRIPTORS})

_BY_NAME = {capability.name: capability for capability in CAPABILITIES}


@functools.cache
def lack(name: str) -> str | None:
    """Why this machine cannot do it, and what would change that; None: it can. Tried once a process. Blocks."""
    capability = _BY_NAME[name]
    try:
        capability.probe()
    except (CommandFailed, power_loss.PowerLossUnavailable, power_loss.FaultDidNotBite, OSError) as error:
        hint = f" (Debian: apt-get install {capability.package})" if capability.package else ""
        return f"{name}: {error}{hint}"
    return None


def require(need: Iterable[str], give: Iterable[str]) -> frozenset[str]:
    """What a layout can do here: all of `give` but what the machine lacks. Raises `InvalidRequest` naming whatever of
    `need` it lacks. Blocks."""
    lacks = [why for name in sorted(need) if (why := lack(name)) is not None]
    if lacks:
        raise InvalidRequest("invalid_request", "this machine lacks " + "; ".join(lacks))
    return frozenset(name for name in give if name not in _BY_NAME or lack(name) is None)


def table() -> list[tuple[str, str, str]]:
    """Name, what it is for, and what is lacking (empty: nothing), of all that are the machine's. Blocks."""
    return [(capability.name, capability.means, lack(capability.name) or "") for capability in CAPABILITIES]
