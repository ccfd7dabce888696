"""`raftlog dev`: a cluster on this machine in one command."""

from __future__ import annotations

import contextlib
import shlex
import signal
import threading
from typing import TYPE_CHECKING, Annotated

import rich_click as click

from raftlog.cli.terminal.command import command
from raftlog.cli.terminal.options import POSITIVE
from raftlog.config import BASE_PORT
from raftlog.errors import RaftlogError, RetriableError

if TYPE_CHECKING:
    from raftlog.cli.nodes.local_cluster import LocalCluster

WATCH_SECONDS = 0.5


@command()
def dev(
    nodes: Annotated[
        int,
        POSITIVE,
        "Number of nodes. The first 1, 3 or 5 vote; the others observe. A larger number than before adds observers.",
    ] = 3,
    data_folder: Annotated[
        str, click.Path(file_okay=False), "Folder for data, which survives restarts."
    ] = "raftlog-data",
    base_port: Annotated[
        int, "First port. Node i uses BASE + 10 * i for the API, and the next port for data."
    ] = BASE_PORT,
    racks: Annotated[bool, "Put each node into its own rack."] = False,
    secure: Annotated[
        bool, "Give a new cluster TLS and an administrator with a token. It keeps them without this option."
    ] = False,
) -> None:
    """Run a local cluster until Ctrl-C. A second Ctrl-C kills the nodes instead of waiting for an orderly stop.

    Examples:
        raftlog dev
        raftlog dev --nodes 1 --data-folder scratch
        raftlog dev --secure
    """
    from raftlog.cli.nodes.local_cluster import LocalCluster

    stop = threading.Event()
    cluster = LocalCluster(data_folder, nodes, base_port, racks=racks, secure=secure)

    def interrupted(*_: object) -> None:
        if stop.is_set():
            cluster.hurry()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
    try:
        cluster.start()
        cluster.wait_ready(interrupted=stop.is_set)
        _greet(cluster)
        while not stop.wait(WATCH_SECONDS):
            _watch(cluster)
    except RaftlogError:
        if stop.is_set():
            return
        raise
    finally:
        # From here on another Ctrl-C does not wait.
        stop.set()
        with contextlib.suppress(OSError):
            click.echo("stopping ... (Ctrl-C again kills)")
        cluster.stop()


def _watch(cluster: LocalCluster) -> None:
    """Report nodes that ended by themselves. Raises `RetriableError` when none is left."""
    for node in cluster.died():
        code = node.process.returncode if node.process is not None else "?"
        click.echo(f"node {node.node_id} ended by itself (exit code {code}). Its last lines:", err=True)
        click.echo(node.log_tail(), err=True)
        node.expected_to_run = False
    if not any(node.running for node in cluster.nodes):
        raise RetriableError("shutting_down", "all nodes have ended")


def _greet(cluster: LocalCluster) -> None:
    security = cluster.security
    scheme = "http" if security is None else "https"
    click.echo(f"raftlog is running: {cluster.node_count} nodes, data in {cluster.folder}")
    for node in cluster.nodes:
        click.echo(f"  node {node.node_id}  api {scheme}://{node.api}  data {node.data}  log {node.log_path}")
    first = cluster.nodes[0].api
    option = "" if first.port == BASE_PORT else f" --bootstrap {first}"
    click.echo("Try, in another terminal:")
    curl = "curl"
    if security is not None:
        option = ""
        for name, value in {"RAFTLOG_BOOTSTRAP": cluster.bootstrap, **security.environment}.items():
            click.echo(f"  export {name}={shlex.quote(value)}")
        # The token reaches curl through a pipe, so that it is not in the list of processes.
        curl = 'sed "s/^/Authorization: Bearer /" "$RAFTLOG_TOKEN_FILE" | curl -H @- --cacert "$RAFTLOG_TLS_AUTHORITY"'
    click.echo(f"  raftlog{option} topic create greetings --partitions 3")
    click.echo(f"  echo hello | raftlog{option} produce greetings")
    click.echo(f"  raftlog{option} consume greetings --from earliest --max-records 1")
    click.echo(f"  {curl} {scheme}://{first}/v1/cluster")
    click.echo("Ctrl-C stops all nodes; the data stays.")
