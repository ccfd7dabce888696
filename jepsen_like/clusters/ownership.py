"""Ownership of resources: names that carry the id of the process that created them, and subnets that no two runs share.

Everything that outlives a process (namespaces, interfaces, folders, mounts) is named after the process that created it,
so that a later cleanup can tell the leftovers of a killed run (`leftovers.py`) from what is in use.

A cluster's addresses lie in a subnet of its own, the n-th of 10.77.0.0/16 and of 127.77.0.0/16: `Subnet` takes a free
n. It is released when this process ends, in whatever way.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

from raftlog.errors import RetriableError

FOLDER_PREFIX = "raftlog-cluster-"
NODES_MAX = 9
NODE_ADDRESSES = 10
"""Node i has the subnet's address 10 + i."""
LINK_ADDRESSES = 100
"""The proxy on the link from node a to node b has the address 100 + 10 a + b."""
HOST_ADDRESS = 1

_NAMESPACE = re.compile(r"raftlog-(?P<pid>\d+)-(?P<serial>\d+)-\w+")
_INTERFACE = re.compile(r"rl(?P<pid>\d+)x(?P<serial>\d+)\w+")
_FOLDER = re.compile(r"raftlog-(?:cluster|power)-(?P<pid>\d+)-\w+")

_serials = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Tag:
    """The name of one cluster: the process that created it, and a serial number within it."""

    pid: int
    serial: int

    @classmethod
    def new(cls) -> Tag:
        return cls(os.getpid(), next(_serials))

    def namespace(self, node: str) -> str:
        """Return the name of a node's network namespace, for `ip netns`."""
        return f"raftlog-{self.pid}-{self.serial}-{node}"

    def interface(self, end: str) -> str:
        """Return an interface name of at most 15 characters, Linux's limit: a process id has at most 7."""
        name = f"rl{self.pid}x{self.serial % 1000}{end}"
        assert len(name) <= 15, name
        return name


class Subnet:
    """A subnet number that no other living process uses. `close` releases it."""

    def __init__(self) -> None:
        """Raises `RetriableError` if no number is free."""
        for number in range(1, 255):
            sign = socket.socket(socket.AF_UNIX)
            try:
                sign.bind(
                    f"\0raftlog-subnet-{number}"
                )  # An abstract socket: the kernel releases the name with the process.
            except OSError:
                sign.close()
                continue
            self.number = number
            self._sign = sign
            return
        raise RetriableError("overloaded", "254 clusters are running on this machine: no subnet is free for another")

    def loopback(self, host: int) -> str:
        return f"127.77.{self.number}.{host}"

    def bridged(self, host: int) -> str:
        return f"10.77.{self.number}.{host}"

    def close(self) -> None:
        self._sign.close()


def new_folder() -> Path:
    """Create the folder that holds all files of one cluster."""
    return Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-"))


def owner(name: str) -> int | None:
    """Return the process that created a namespace, interface or folder of this name; None if the name is not one of
    ours.
    """
    for pattern in (_NAMESPACE, _INTERFACE, _FOLDER):
        found = pattern.fullmatch(name)
        if found is not None:
            return int(found["pid"])
    return None


def folder_owners(command_line: str) -> set[int]:
    """Return the processes that created the folders named in a command line."""
    return {int(found["pid"]) for found in _FOLDER.finditer(command_line)}


def is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
