"""One node's files and addresses: settings, identity and permissions of the data folder, listeners, other voters."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterable

from raftlog.broker.identity import LOCK_FILE, NodeFile, read_identity
from raftlog.cli.nodes.node_settings import NodeSettings
from raftlog.config import ListenerConfig, NodeConfig
from raftlog.errors import RaftlogError
from raftlog.model import Endpoint
from raftlog.system.disk import LocalDisk

from .findings import Finding, ok, problem, warning

CONNECT_SECONDS = 2.0
Dial = Callable[[Endpoint], str | None]
"""Return why there is no connection to an address, or None if there is."""


def check_folder(folder: str) -> tuple[list[Finding], NodeFile | None, bool]:
    """Return the findings about a data folder, its identity if it has one, and whether a node runs on it."""
    try:
        found = os.stat(folder)
    except OSError as error:
        told = f"{folder}: {error.strerror}"
        remedy = "prepare it with `raftlog server init`, or correct data_folder in node.toml"
        return [problem("data folder", told, remedy)], None, False
    findings = []
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o022:
        told = f"{folder} can be changed by other users (mode {mode:04o})"
        findings.append(problem("data folder", told, f"run `chmod go-w {folder}`"))
    elif mode & 0o055:
        told = f"{folder} can be read by other users (mode {mode:04o}): records, and hashes of passwords"
        findings.append(warning("data folder", told, f"run `chmod 700 {folder}`"))
    if found.st_uid != os.geteuid():
        told = f"{folder} belongs to user {found.st_uid}, and this is user {os.geteuid()}"
        findings.append(warning("data folder", told, "run the node, and this command, as the folder's owner"))
    try:
        identity = read_identity(LocalDisk(folder), folder)
    except RaftlogError as error:
        findings.append(problem("data folder", error.detail, "prepare a new folder with `raftlog server init`"))
        return findings, None, False
    runs = is_locked(folder)
    state = "a node runs on it" if runs else "no node runs on it"
    told = f"{folder} is that of node {identity.node_id} of cluster {identity.cluster_id}; {state}"
    findings.append(ok("data folder", told))
    return findings, identity, runs


def is_locked(folder: str, locks: str = "/proc/locks") -> bool:
    """Return whether a node holds the folder's lock; False if this system does not say.

    The lock itself is not tried: a node that starts at that moment would fail.
    """
    try:
        inode = os.stat(os.path.join(folder, LOCK_FILE)).st_ino
        with open(locks, encoding="ascii") as file:
            held = [line.split() for line in file]
    except OSError:
        return False
    return any("FLOCK" in words and words[-3].rpartition(":")[2] == str(inode) for words in held if len(words) > 5)


def check_addresses(
    settings: NodeSettings, identity: NodeFile | None, *, runs: bool, dial: Dial | None = None
) -> list[Finding]:
    """Return the findings about listeners, advertised addresses, and the addresses of the other voters."""
    dial = dial or dial_address
    config = settings.config
    findings: list[Finding] = []
    for name, listener in (("api", config.api), ("data", config.data)):
        findings += _check_listener(settings, name, listener, runs=runs, dial=dial)
    if identity is not None:
        findings += _check_voters(config, identity, dial)
    return findings


def _check_listener(
    settings: NodeSettings, name: str, listener: ListenerConfig, *, runs: bool, dial: Dial
) -> list[Finding]:
    at = listener.listen.endpoint
    shown = listener.advertised.endpoint if listener.advertised is not None else at
    if not at.port:
        told = f"{name}.listen has no port, so the node listens on another one after every start"
        return [problem("addresses", told, f"set {name}.listen in {settings.path}")]
    if runs:
        why = dial(shown)
        if why is None:
            return [ok("addresses", f"{name}: {shown} answers")]
        told = f"the node runs, and the address that it announces for {name}, {shown}, cannot be reached: {why}"
        return [problem("addresses", told, f"correct {name}.advertised, the firewall or the name server")]
    why = bind_address(at)
    if why is None:
        return [ok("addresses", f"{name}: {at} is free")]
    remedy = f"correct {name}.listen in {settings.path}, or stop the program that uses the port"
    return [problem("addresses", f"the {name} listener cannot listen at {at}: {why}", remedy)]


def _check_voters(config: NodeConfig, identity: NodeFile, dial: Dial) -> Iterable[Finding]:
    own = config.data.advertised or config.data.listen
    for number, voter in sorted(identity.voters.items()):
        at = Endpoint(voter.host, voter.port)
        if number == identity.node_id:
            if own.port and (own.host, own.port) != (at.host, at.port):
                told = f"the other voters dial this node at {at}, and its data listener is announced as {own.endpoint}"
                yield problem(
                    "addresses", told, "set data.listen or data.advertised to the address given to `server init`"
                )
            continue
        peer = config.peers.get(str(number))
        dialed = at if peer is None else peer.data.endpoint
        why = dial(dialed)
        if why is None:
            yield ok("addresses", f"voter {number} answers at {dialed}")
        else:
            told = f"voter {number} cannot be reached at {dialed}: {why}"
            yield warning(
                "addresses", told, "start it, or correct the firewall, the name server or [peers] in node.toml"
            )


def dial_address(at: Endpoint) -> str | None:
    try:
        socket.create_connection((at.host, at.port), CONNECT_SECONDS).close()
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    return None


def bind_address(at: Endpoint) -> str | None:
    """Return why nothing can listen at an address, or None if a node could."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(at.host, at.port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return None


def check_settings(settings: NodeSettings) -> list[Finding]:
    """Return the findings about settings that are valid, but unwise."""
    changed = [one.name for one in settings.settings() if one.source != "default"]
    findings = [ok("settings", f"{settings.path} is valid, and sets {len(changed)} settings")]
    config = settings.config
    if config.security.insecure and config.exposed:
        told = f"{' and '.join(config.exposed)}: everybody who reaches the address can read and delete everything"
        findings.append(warning("settings", told, "set up security (docs/security.md), or listen on a trusted network"))
    if config.tls is not None and config.tls.migrating:
        told = "tls.migrating is true: anybody who reaches the data listener can be a node"
        findings.append(warning("settings", told, "remove it when every node has [tls]"))
    if config.disk_reserved_bytes == 0:
        told = "disk_reserved_bytes is 0: batches are accepted until the disk is full"
        findings.append(warning("settings", told, "remove the setting, so that deletions always have room"))
    return findings
