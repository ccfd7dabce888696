"""Whose things are whose: names that carry the process which made them, and numbers that two runs never share.

Everything that outlives a process (namespaces, interfaces, folders, mounts) is named after the process that made it,
so that whoever comes later can tell what a run that was killed has left (`leftovers.py`) from what is in use.

A cluster's addresses lie in a network of their own, the n-th of 10.77.0.0/16 and of 127.77.0.0/16: `Subnet` takes a
free n. It is free again when this process ends, however it ends.
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
    """What this process's next cluster is called."""

    pid: int
    serial: int

    @classmethod
    def new(cls) -> Tag:
        return cls(os.getpid(), next(_serials))

    def namespace(self, node: str) -> str:
        """Of the network, as `ip netns` names it."""
        return f"raftlog-{self.pid}-{self.serial}-{node}"

    def interface(self, end: str) -> str:
        """At most 15 characters, as Linux has it: a process id has 7 at most."""
        name = f"rl{self.pid}x{self.serial % 1000}{end}"
        assert len(name) <= 15, name
        return name


class Subnet:
    """A number that no other living process has. `close` gives it back."""

    def __init__(self) -> None:
        """Raises `RetriableError` where none is free."""
        for number in range(1, 255):
            sign = socket.socket(socket.AF_UNIX)
            try:
                sign.bind(f"\0raftlog-subnet-{number}")  # Of no file system: it goes when the process does.
            except OSError:
                sign.close()
                continue
            self.number = number
            self._sign = sign
            return
        raise RetriableError("overloaded", "254 clusters run on this machine: there is no network left for another")

    def loopback(self, host: int) -> str:
        return f"127.77.{self.number}.{host}"

    def bridged(self, host: int) -> str:
        return f"10.77.{self.number}.{host}"

    def close(self) -> None:
        self._sign.close()


def new_folder() -> Path:
    """Of one cluster, for all that it leaves in the file system."""
    return Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-"))


def owner(name: str) -> int | None:
    """The process that made a namespace, an interface or a folder of this name; None: it is none of ours."""
    for pattern in (_NAMESPACE, _INTERFACE, _FOLDER):
        found = pattern.fullmatch(name)
        if found is not None:
            return int(found["pid"])
    return None


def folder_owners(command_line: str) -> set[int]:
    """Who made the folders that a command line names."""
    return {int(found["pid"]) for found in _FOLDER.finditer(command_line)}


def is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
