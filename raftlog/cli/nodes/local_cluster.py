"""A cluster of child processes on this machine, for `raftlog dev`, the demo and the integration tests.

Each node is `python -P -m raftlog.cli.main server` with its own folder below one data folder, which survives restarts:
the first start prepares it, later ones reuse it. `-P` keeps the working folder out of the children's import path, so
that a user's file cannot shadow a module of raftlog.

Children end with their parent, however that ends: each holds the read end of a pipe whose only write end is here, and
stops in order when it closes (`server --stop-with-stdin`).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from raftlog.broker.identity import (
    NODE_FILE,
    STARTS_FILE,
    VOTER_COUNTS,
    NodeFile,
    init_data_folder,
    new_cluster_id,
    read_identity,
)
from raftlog.config import BASE_PORT
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.model import Endpoint
from raftlog.system.disk import LocalDisk

from .local_security import LocalSecurity

PORTS_PER_NODE = 10
NODES_MAX = 9
STOP_SECONDS = 15.0
DATA_FOLDER = "data"
"""The data folder below a node's folder, beside its settings and its log."""
LOG_FILE = "log.jsonl"
SETTINGS_FILE = "node.toml"
PROCESS_FILE = "pid"
"""In a node's folder while this program runs the node: the number of its process."""
ENVIRONMENT_FILE = "environment.sh"
"""In the cluster's folder: the variables with which other commands reach it, for the shell's `source`."""
PREPARING_FILE = "preparing"
"""A marker file in the cluster's folder: it exists from before the first node's folder is prepared until the last
one is."""


class LocalNode(msgspec.Struct):
    """One child: its folder, its addresses, and its process while it runs."""

    node_id: int
    folder: str
    api: Endpoint
    data: Endpoint
    process: subprocess.Popen[bytes] | None = None
    expected_to_run: bool = False

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def log_path(self) -> str:
        return os.path.join(self.folder, LOG_FILE)

    def log_tail(self, lines: int = 15) -> str:
        """Return the end of the node's log, for people."""
        with contextlib.suppress(FileNotFoundError), open(self.log_path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - 64 * 1024, 0))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
        return ""


class LocalCluster(msgspec.Struct):
    """Nodes 0 to n-1 on loopback. `start` prepares missing folders and starts nodes that are not running."""

    folder: str
    node_count: int = 3
    base_port: int = BASE_PORT
    host: str = "127.0.0.1"
    racks: bool = False
    """Whether each node is in its own rack."""
    settings: Mapping[str, str] = {}
    """Further settings for every `node.toml`: name → TOML value."""
    program: Sequence[str] = (sys.executable, "-P", "-m", "raftlog.cli.main")
    """The command that runs a node, without arguments. Tests replace it by one that breaks something first."""
    secure: bool = False
    """Whether a new cluster has TLS and an administrator. A cluster that was made so has them in any case."""
    nodes: list[LocalNode] = []

    def __post_init__(self) -> None:
        if not 1 <= self.node_count <= NODES_MAX:
            raise InvalidRequest(
                "invalid_config", f"a local cluster must have 1 to {NODES_MAX} nodes, not {self.node_count}"
            )
        if not 1 <= self.base_port <= 65535 - PORTS_PER_NODE * self.node_count:
            raise InvalidRequest("invalid_config", f"base port {self.base_port} is out of range for the nodes' ports")
        for node_id in range(self.node_count):
            port = self.base_port + PORTS_PER_NODE * node_id
            folder = os.path.join(self.folder, f"node-{node_id}")
            self.nodes.append(LocalNode(node_id, folder, Endpoint(self.host, port), Endpoint(self.host, port + 1)))

    @property
    def bootstrap(self) -> str:
        """The API addresses in the form that clients take."""
        scheme = "" if self.security is None else "https://"
        return ",".join(f"{scheme}{node.api}" for node in self.nodes)

    @property
    def security(self) -> LocalSecurity | None:
        """The security of the cluster, once its folder is prepared; None: it has none."""
        found = LocalSecurity(self.folder)
        return found if found.is_set_up else None

    @property
    def environment_file(self) -> str:
        """The file with the variables that make other commands use this cluster, once it was started."""
        return os.path.join(self.folder, ENVIRONMENT_FILE)

    # --- Start ---

    def start(self) -> None:
        """Prepare the folder on the first start, then start every node. Raises `InvalidRequest` if that is
        impossible."""
        self.prepare()
        for node in self.nodes:
            if not node.running:
                self._check_ports(node)
        self._write_environment()
        for node in self.nodes:
            self.start_node(node.node_id)

    def start_node(self, node_id: int) -> None:
        """Start one node, if it is not running."""
        node = self.nodes[node_id]
        if node.running:
            return
        self.write_settings(node)
        command = [*self.program, "server", "run", "--stop-with-stdin"]
        command += ["--config", os.path.join(node.folder, SETTINGS_FILE)]
        with open(node.log_path, "ab") as log:
            node.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # The parent handles Ctrl-C at the terminal: it stops the nodes in order.
                start_new_session=True,
            )
        node.expected_to_run = True
        with open(os.path.join(node.folder, PROCESS_FILE), "w") as file:
            file.write(f"{node.process.pid}\n")

    def wait_ready(self, timeout: float = 30.0, *, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Wait until every node accepts requests.

        Raises `RetriableError` with the last log lines of a node that died or was not ready in time, or if the wait is
        interrupted.
        """
        deadline = time.monotonic() + timeout
        security = self.security
        for node in self.nodes:
            while not is_ready(node.api, security=security):
                if interrupted():
                    raise RetriableError("shutting_down", "interrupted while the nodes were starting")
                if node.process is not None and node.process.poll() is not None:
                    raise RetriableError(
                        "shutting_down",
                        f"node {node.node_id} ended with exit code {node.process.returncode}:\n{node.log_tail()}",
                    )
                if time.monotonic() > deadline:
                    raise RetriableError(
                        "request_timed_out",
                        f"node {node.node_id} is not ready after {timeout:.0f} s:\n{node.log_tail()}",
                    )
                time.sleep(0.05)

    # --- Stop ---

    def kill_node(self, node_id: int) -> None:
        """Send SIGKILL: nothing is flushed, and no peer is notified."""
        self._kill([self.nodes[node_id]])

    def kill_all(self) -> None:
        """Send SIGKILL to all nodes before waiting for any."""
        self._kill(self.nodes)

    def pause_node(self, node_id: int) -> None:
        """Send SIGSTOP."""
        self._signal(node_id, signal.SIGSTOP)

    def resume_node(self, node_id: int) -> None:
        """Send SIGCONT."""
        self._signal(node_id, signal.SIGCONT)

    def stop(self) -> dict[int, int]:
        """Stop all nodes in order; kill those that do not stop in time. Return the exit codes by node."""
        for node in self.nodes:
            node.expected_to_run = False
            if node.running and node.process is not None:
                node.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        codes = {}
        for node in self.nodes:
            if node.process is None:
                continue
            try:
                node.process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                node.process.kill()
            codes[node.node_id] = self._reap(node)
        return codes

    def hurry(self) -> None:
        """Send SIGKILL to all running nodes, so that a `stop` in progress ends at once. Signal handlers may call it."""
        for node in self.nodes:
            if node.process is not None:
                node.process.kill()

    def died(self) -> list[LocalNode]:
        """Return the nodes that should run and do not."""
        return [node for node in self.nodes if node.expected_to_run and not node.running]

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- Inside ---

    def prepare(self) -> None:
        """Prepare every node's folder before the first start; `start` calls this too.

        Raises `InvalidRequest` if the folder holds another cluster.
        """
        disk = LocalDisk(self.folder)
        self._clear_unfinished(disk)
        self._clear_moved(disk)
        found = self._identities(disk)
        if found:
            self._check_identities(found)
            if self.secure and self.security is None:
                raise InvalidRequest(
                    "invalid_config", f"{self.folder} holds a cluster without security: choose another folder"
                )
        new = [node for node in self.nodes if node.node_id not in found]
        for node in new:
            if disk.list(_data_folder(node.node_id)):
                folder = os.path.join(self.folder, _data_folder(node.node_id))
                raise InvalidRequest("invalid_config", f"{folder} contains other files: choose another folder")
        if not new:
            return
        os.makedirs(self.folder, mode=0o700 if self.secure else 0o777, exist_ok=True)
        disk.replace(PREPARING_FILE, b"")
        if self.secure:
            LocalSecurity(self.folder).set_up()
        security = self.security
        cluster_id = found[0].cluster_id if found else new_cluster_id()
        voting = initial_voters(self.node_count) if not found else sorted(found[0].voters)
        voters = {voter: self.nodes[voter].data for voter in voting}
        for node in new:
            disk.make_directory(f"node-{node.node_id}")
            folder = os.path.join(self.folder, _data_folder(node.node_id))
            observer = node.node_id not in voters
            init_data_folder(folder, cluster_id=cluster_id, node_id=node.node_id, voters=voters, observer=observer)
            if security is not None:
                security.add_node(os.path.join(self.folder, f"node-{node.node_id}"), cluster_id, node.node_id)
                if node.node_id == voting[0]:
                    security.add_administrator(folder)
        disk.remove(PREPARING_FILE)
        disk.fsync_directory("")

    def _clear_unfinished(self, disk: LocalDisk) -> None:
        """Remove the rest of an interrupted preparation, which was never used, so that it is repeated."""
        if not disk.exists(PREPARING_FILE):
            return
        for number in range(NODES_MAX):
            if not disk.exists(f"{_data_folder(number)}/{STARTS_FILE}"):
                disk.remove(_data_folder(number))
        disk.remove(PREPARING_FILE)

    def _clear_moved(self, disk: LocalDisk) -> None:
        """Remove folders that were prepared for other ports and never used: a voter starts first at its own address."""
        found = self._identities(disk)
        started = any(disk.exists(f"{_data_folder(number)}/{STARTS_FILE}") for number in found)
        whole = [(number, node.node_id) for number, node in sorted(found.items())] == [
            (n.node_id,) * 2 for n in self.nodes
        ]
        if started or not whole or len({node.cluster_id for node in found.values()}) > 1:
            return
        if any(found[node.node_id].voter_address not in (None, node.data) for node in self.nodes):
            for number in found:
                disk.remove(_data_folder(number))

    def _identities(self, disk: LocalDisk) -> dict[int, NodeFile]:
        """Return the identities in the folders, by the number in the folder's name."""
        found = [number for number in range(NODES_MAX) if disk.exists(f"{_data_folder(number)}/{NODE_FILE}")]
        folders = {number: os.path.join(self.folder, _data_folder(number)) for number in found}
        return {number: read_identity(LocalDisk(folder), folder) for number, folder in folders.items()}

    def _check_identities(self, found: Mapping[int, NodeFile]) -> None:
        size = max(found) + 1
        strangers = [number for number, node in found.items() if node.node_id != number]
        voting = {voter for node in found.values() for voter in node.voters}
        missing = sorted({*range(size), *voting} - set(found))
        if len({node.cluster_id for node in found.values()}) > 1 or strangers:
            why = "holds nodes of different clusters: choose another folder"
        elif missing:
            lost = ", ".join(map(str, missing))
            why = f"has lost the folder of node {lost}: restore it, or choose another folder"
        elif size > self.node_count:
            why = f"holds a cluster of {size} nodes: start it with --nodes {size}, or choose another folder"
        else:
            return
        raise InvalidRequest("invalid_config", f"{self.folder} {why}")

    def write_settings(self, node: LocalNode) -> None:
        """Write the node's settings. Its folder exists since `prepare`."""
        lines = [f'data_folder = "{DATA_FOLDER}"']
        if self.racks:
            lines.append(f'rack = "rack-{node.node_id}"')
        lines += [f"{name} = {value}" for name, value in self.settings.items()]
        sections = {"api.listen": node.api, "data.listen": node.data}
        # The peers' ports may have changed since the folder was prepared: they follow from this start's base port.
        sections |= {f"peers.{peer.node_id}.data": peer.data for peer in self.nodes if peer is not node}
        for name, endpoint in sections.items():
            lines += [f"[{name}]", f"host = {json.dumps(endpoint.host)}", f"port = {endpoint.port}"]
        if self.security is not None:
            lines += self.security.settings(node.node_id)
        with open(os.path.join(node.folder, SETTINGS_FILE), "w") as file:
            file.write("\n".join(lines) + "\n")

    def _write_environment(self) -> None:
        security = self.security
        variables = {"RAFTLOG_BOOTSTRAP": self.bootstrap, **({} if security is None else security.environment)}
        lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        with open(self.environment_file, "w") as file:
            file.write("\n".join(lines) + "\n")

    def _check_ports(self, node: LocalNode) -> None:
        for endpoint in (node.api, node.data):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((endpoint.host, endpoint.port))
                except OSError as error:
                    raise InvalidRequest(
                        "invalid_config",
                        f"cannot listen at {endpoint}: {error.strerror}. Is another cluster running? "
                        "Choose other ports with --base-port",
                    ) from None

    def _kill(self, nodes: Sequence[LocalNode]) -> None:
        for node in nodes:
            node.expected_to_run = False
            if node.process is not None:
                node.process.kill()
        for node in nodes:
            self._reap(node)

    def _signal(self, node_id: int, number: signal.Signals) -> None:
        process = self.nodes[node_id].process
        if process is not None:
            process.send_signal(number)

    @staticmethod
    def _reap(node: LocalNode) -> int:
        if node.process is None:
            return 0
        code = node.process.wait()
        if node.process.stdin is not None:
            node.process.stdin.close()
        node.process = None
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(node.folder, PROCESS_FILE))
        return code


def initial_voters(node_count: int) -> list[int]:
    """Return the initial voters: the first 1, 3 or 5 nodes."""
    return list(range(max(count for count in VOTER_COUNTS if count <= node_count)))


def _data_folder(node_id: int) -> str:
    """Return a node's data folder, relative to the cluster's folder."""
    return f"node-{node_id}/{DATA_FOLDER}"


def is_ready(api: Endpoint, timeout: float = 1.0, *, security: LocalSecurity | None = None) -> bool:
    """Return whether the node behind this API accepts requests; of a secure cluster: those of its administrator."""
    connection = http.client.HTTPConnection(api.host, api.port, timeout=timeout)
    if security is not None:
        connection = http.client.HTTPSConnection(api.host, api.port, timeout=timeout, context=security.client_context())
    try:
        connection.request("GET", "/v1/ready")
        ready = connection.getresponse()
        ready.read()
        if security is None or ready.status != 200:
            return ready.status == 200
        connection.request("GET", "/v1/cluster", headers={"Authorization": f"Bearer {security.token()}"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def free_base_port(node_count: int, host: str = "127.0.0.1") -> int:
    """Return a base port at which all ports of `node_count` nodes are free now, for tests and demonstrations.

    While this process lives, no other process gets the same base port, even if a node is down and its ports are free.
    """
    start = os.getpid() % len(_BASE_PORTS)
    turned: list[int] = [*_BASE_PORTS[start:], *_BASE_PORTS[:start]]
    # Earlier results of this process come last, because a cluster on them may have a node down.
    for base in sorted(turned, key=lambda base: base in _reserved):
        ports = [base + PORTS_PER_NODE * node + offset for node in range(node_count) for offset in (0, 1)]
        if all(_is_free(host, port) for port in ports) and _reserve(base):
            return base
    raise RetriableError("overloaded", "no free ports were found")


_BASE_PORTS = range(20_000, 32_000, PORTS_PER_NODE * NODES_MAX)
"""Candidates below 32768: from there on Linux uses ports for outgoing connections, even while a node is down."""

_reserved: dict[int, int] = {}
"""Base port → the descriptor of a socket that reserves it against other processes until this one ends."""


def _reserve(base: int) -> bool:
    if base in _reserved or sys.platform != "linux":
        return True
    sign = socket.socket(socket.AF_UNIX)
    try:
        sign.bind(f"\0raftlog-base-port-{base}")  # The name is not in a file system: it vanishes with the process.
    except OSError:
        sign.close()
        return False
    _reserved[base] = sign.detach()
    return True


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
