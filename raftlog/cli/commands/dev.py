"""`raftlog dev`: a cluster on this machine in one command."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import signal
import threading
import tomllib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import rich_click as click

from raftlog.cli.terminal.command import command, option
from raftlog.cli.terminal.options import POSITIVE
from raftlog.config import BASE_PORT, NodeConfig
from raftlog.errors import RaftlogError, RetriableError
from raftlog.toml_settings import TomlSettings

if TYPE_CHECKING:
    from raftlog.cli.nodes.local_cluster import LocalCluster

WATCH_SECONDS = 0.5
_OWN_SETTINGS = ("data_folder", "rack", "api.listen", "data.listen", "peers", "tls", "security")
"""The settings, and the beginnings of their names, that `node.toml` of a local cluster has anyway."""


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
    settings: Annotated[
        tuple[str, ...],
        option("Setting of every `node.toml` for this start; may be repeated.", "--set", metavar="NAME=VALUE"),
    ] = (),
    secure: Annotated[
        bool, "Give a new cluster TLS and an administrator with a token. It keeps them without this option."
    ] = False,
) -> None:
    """Run a local cluster until Ctrl-C. A second Ctrl-C kills the nodes instead of waiting for an orderly stop.

    Examples:
        raftlog dev
        raftlog dev --nodes 1 --data-folder scratch
        raftlog dev --secure
        raftlog dev --set timing.replica_lag_max_ms=1500ms --set metrics.partitions=topic
    """
    from raftlog.cli.nodes.local_cluster import LocalCluster

    stop = threading.Event()
    cluster = LocalCluster(data_folder, nodes, base_port, racks=racks, secure=secure, settings=_toml_settings(settings))

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


def _toml_settings(texts: Sequence[str]) -> dict[str, str]:
    """Return settings of the form `NAME=VALUE` as TOML, in which any other value is a text. Raises `BadParameter`."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", name) is None:
            raise click.BadParameter(f"{text!r} is not a setting: it must be NAME=VALUE", param_hint="--set")
        if name in found:
            raise click.BadParameter(f"{name} is set more than once", param_hint="--set")
        if name.startswith(_OWN_SETTINGS):
            raise click.BadParameter(f"{name} is set by `raftlog dev` itself", param_hint="--set")
        found[name] = value if _is_toml(value) else json.dumps(value)
    wrong = TomlSettings("\n".join(f"{name} = {value}" for name, value in found.items()), NodeConfig).problems
    if wrong:
        raise click.BadParameter(str(wrong[0]), param_hint="--set")
    return found


def _is_toml(value: str) -> bool:
    try:
        return set(tomllib.loads(f"value = {value}")) == {"value"}
    except tomllib.TOMLDecodeError:
        return False


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
    place = "" if first.port == BASE_PORT else f" --bootstrap {first}"
    click.echo("Try, in another terminal:")
    curl = "curl"
    if security is not None:
        place = ""
        click.echo(f"  source {shlex.quote(cluster.environment_file)}")
        # The token reaches curl through a pipe, so that it is not in the list of processes.
        curl = 'sed "s/^/Authorization: Bearer /" "$RAFTLOG_TOKEN_FILE" | curl -H @- --cacert "$RAFTLOG_TLS_AUTHORITY"'
    click.echo(f"  raftlog{place} topic create greetings --partitions 3")
    click.echo(f"  echo hello | raftlog{place} produce greetings")
    click.echo(f"  raftlog{place} consume greetings --from earliest --max-records 1")
    click.echo(f"  {curl} {scheme}://{first}/v1/cluster")
    click.echo("Ctrl-C stops all nodes; the data stays.")
