"""`raftlog server init` and `raftlog server run`: one node of a cluster."""

from __future__ import annotations

import os
import signal
import sys
import threading

import rich_click as click

from raftlog.errors import InvalidRequest
from raftlog.model import Endpoint


class ServerGroup(click.RichGroup):
    """A group whose default command is `run`: `raftlog server --config node.toml` works without it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in {"--help", "-h"}:
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=ServerGroup)
def server() -> None:
    """Prepare and run one node.

    `raftlog server --config node.toml` runs it; `raftlog server init` prepares its data folder once.
    """


def parse_voters(text: str) -> dict[int, Endpoint]:
    """Parse `0@host:port,1@host:port,...` into data listeners by node id. Raises `InvalidRequest`."""
    from raftlog.client.cluster.api import parse_endpoint

    voters: dict[int, Endpoint] = {}
    for item in text.split(","):
        number, at, address = item.strip().partition("@")
        if not at or not number.isdecimal() or int(number) in voters:
            raise InvalidRequest(
                "invalid_request", f"{item!r} is not a valid voter: give each once, as NODE_ID@HOST:DATA_PORT"
            )
        voters[int(number)] = parse_endpoint(address)
    return voters


@server.command()
@click.option("--data-folder", required=True, type=click.Path(file_okay=False), help="An empty or missing folder.")
@click.option("--node-id", required=True, type=click.IntRange(0, 2**31 - 1))
@click.option("--cluster-id", required=True, help="Text of up to 64 characters, the same on all nodes.")
@click.option(
    "--voters", required=True, metavar="ID@HOST:PORT,...", help="Data listeners of the first 1, 3 or 5 nodes."
)
@click.option("--observer", is_flag=True, help="Follow without a vote; --voters then names the current voters.")
def init(data_folder: str, node_id: int, cluster_id: str, voters: str, observer: bool) -> None:
    """Prepare a data folder, once.

    A voter that lost its disk must be prepared again as an observer, then be removed from the quorum and added again.
    """
    from raftlog.broker.identity import init_data_folder

    initial = parse_voters(voters)
    if node_id not in initial and not observer:
        raise InvalidRequest(
            "invalid_request",
            f"node {node_id} is none of the initial voters {sorted(initial)}: give --observer if it should follow them",
        )
    init_data_folder(data_folder, cluster_id=cluster_id, node_id=node_id, voters=initial, observer=observer)
    click.echo(f"{data_folder} is prepared for node {node_id} of cluster {cluster_id}")


@server.command()
@click.option("--config", "config_path", required=True, type=click.Path(dir_okay=False), help="Path of node.toml.")
@click.option(
    "--stop-with-stdin", is_flag=True, hidden=True, help="Stop when standard input, which the parent holds, ends."
)
def run(config_path: str, stop_with_stdin: bool) -> None:
    """Run a node until SIGTERM or Ctrl-C."""
    from raftlog.broker.node.main import run_node

    if stop_with_stdin:
        threading.Thread(target=_stop_when_parent_ends, daemon=True).start()
    sys.exit(run_node(config_path))


def _stop_when_parent_ends() -> None:
    """Wait for the end of the pipe that the parent holds, then stop as by a signal."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
