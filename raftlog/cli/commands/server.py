"""`raftlog server init` and `raftlog server run`: one node of a cluster."""

from __future__ import annotations

import functools
import os
import shlex
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec
import rich_click as click

from raftlog.cli.terminal.command import command, option
from raftlog.cli.terminal.options import NODE_NUMBER
from raftlog.errors import InvalidRequest
from raftlog.model import Endpoint

from .server_settings import check_config, settings

if TYPE_CHECKING:
    from raftlog.cli.nodes.authority import AuthorityFiles

FILE = click.Path(dir_okay=False)


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


for about_settings in (check_config, settings):
    server.add_command(about_settings)


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


class SecureOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a node that is made secure."""

    secure: Annotated[
        bool,
        "Make a secure node: its certificate, its node.toml, and on the first of the voters the first administrator.",
    ] = False
    config: Annotated[str, FILE, "With --secure: the node.toml to write. Certificates are written beside it."] = (
        "node.toml"
    )
    authority_folder: Annotated[
        str,
        click.Path(file_okay=False),
        "With --secure: folder with authority.pem and authority.key, which are created if they are missing. "
        "All nodes of a cluster use the same.",
    ] = "authority"
    authority: Annotated[str | None, FILE, "With --secure: certificate of an authority, in place of the folder."] = None
    authority_key: Annotated[str | None, FILE, "With --secure: key of that authority."] = None
    api: Annotated[
        str | None,
        option(
            "With --secure: address of the HTTP API (default: the host of the data listener, one port below).",
            metavar="HOST:PORT",
        ),
    ] = None
    data: Annotated[
        str | None,
        option("With --secure: address of the data listener (default: that in --voters).", metavar="HOST:PORT"),
    ] = None
    host: Annotated[
        tuple[str, ...],
        "With --secure: further name or address by which clients reach the node; repeatable.",
    ] = ()
    administrator: Annotated[str, "With --secure: name of the first administrator."] = "admin"
    credential_file: Annotated[
        str | None, FILE, "With --secure: write the administrator's token to this new file instead of showing it."
    ] = None

    def check_unused(self) -> None:
        """Raise `InvalidRequest` if one of the options is given without `secure`."""
        default = SecureOptions()
        for field in self.__struct_fields__:
            if getattr(self, field) != getattr(default, field):
                name = field.replace("_", "-")
                raise InvalidRequest("invalid_request", f"--{name} belongs to a secure node: give --secure as well")

    @property
    def files(self) -> AuthorityFiles:
        """The files of the authority. Raises `InvalidRequest` if one is named without the other."""
        from raftlog.cli.nodes.authority import AuthorityFiles

        if self.authority is None and self.authority_key is None:
            return AuthorityFiles.in_folder(self.authority_folder)
        if self.authority is None or self.authority_key is None:
            raise InvalidRequest("invalid_request", "give both --authority and --authority-key, or neither")
        return AuthorityFiles(self.authority, self.authority_key)


@command(server)
def init(
    data_folder: Annotated[str, click.Path(file_okay=False), "An empty or missing folder."],
    node_id: Annotated[int, NODE_NUMBER, "Number of this node, unique in the cluster."],
    cluster_id: Annotated[str, "Text of up to 64 characters, the same on all nodes."],
    voters: Annotated[str, option("Data listeners of the first 1, 3 or 5 nodes.", metavar="ID@HOST:PORT,...")],
    observer: Annotated[bool, "Follow without a vote; --voters then names the current voters."] = False,
    *,
    security: SecureOptions,
) -> None:
    """Prepare a data folder, once.

    With --secure the node is ready to run, with TLS and required credentials. For several nodes, copy the authority's
    folder from the first machine to the others before they are prepared.

    A voter that lost its disk must be prepared again as an observer, then be removed from the quorum and added again.

    Examples:
        raftlog server init --data-folder data --node-id 0 --cluster-id orders --voters 0@10.0.0.1:9641
        raftlog server init --data-folder data --node-id 0 --cluster-id orders --voters 0@10.0.0.1:9641 --secure
    """
    from raftlog.broker.identity import init_data_folder

    initial = parse_voters(voters)
    if node_id not in initial and not observer:
        raise InvalidRequest(
            "invalid_request",
            f"node {node_id} is not an initial voter {sorted(initial)}: give --observer if it should follow them",
        )
    identity = functools.partial(
        init_data_folder, data_folder, cluster_id=cluster_id, node_id=node_id, voters=initial, observer=observer
    )
    if security.secure:
        _init_secure(identity, data_folder, cluster_id, node_id, initial, security)
    else:
        security.check_unused()
        identity()
    click.echo(f"{data_folder} is prepared for node {node_id} of cluster {cluster_id}")


def _init_secure(
    prepare: Callable[[], None],
    data_folder: str,
    cluster_id: str,
    node_id: int,
    voters: Mapping[int, Endpoint],
    options: SecureOptions,
) -> None:
    """Prepare a node with its certificate and settings. `prepare` prepares its data folder."""
    from raftlog.cli.nodes.authority import create_authority
    from raftlog.cli.nodes.pem_files import check_absent
    from raftlog.cli.nodes.secure import SecureNode, make_administrator, write_credential
    from raftlog.client.cluster.api import parse_endpoint
    from raftlog.security.principals import check_user_name

    check_user_name(options.administrator)
    data = parse_endpoint(options.data) if options.data else voters.get(node_id)
    if data is None:
        raise InvalidRequest("invalid_request", "give the address of the data listener of this observer with --data")
    api = parse_endpoint(options.api) if options.api else Endpoint(data.host, data.port - 1)
    node = SecureNode(
        cluster_id=cluster_id,
        node_id=node_id,
        data_folder=data_folder,
        settings_file=options.config,
        api=api,
        data=data,
        hosts=options.host,
        authority=options.files,
    )
    node.check()
    is_first = node_id == min(voters)
    check_absent([options.credential_file] if options.credential_file and is_first else [])
    if options.authority is None and not node.authority.exists:
        if not is_first:
            raise InvalidRequest(
                "invalid_request",
                f"there is no authority in {options.authority_folder}: copy the folder that was created with node "
                f"{min(voters)}, or name it with --authority-folder; all nodes of a cluster share it",
            )
        for path in create_authority(options.authority_folder):
            click.echo(f"wrote {path}")
    signed = node.sign()  # before the data folder is prepared, since that cannot be repeated
    os.makedirs(data_folder, mode=0o700, exist_ok=True)
    prepare()
    for path in node.write(*signed):
        click.echo(f"wrote {path}")
    if not is_first:
        return
    token = make_administrator(data_folder, options.administrator)
    if options.credential_file:
        write_credential(options.credential_file, token)
        click.echo(f"wrote {options.credential_file}")
    click.echo(f"The first administrator is {options.administrator}. For the other commands:")
    click.echo(f"  export RAFTLOG_BOOTSTRAP=https://{api}")
    click.echo(f"  export RAFTLOG_TLS_AUTHORITY={shlex.quote(os.path.join(node.folder, 'authority.pem'))}")
    if options.credential_file:
        click.echo(f"  export RAFTLOG_TOKEN_FILE={shlex.quote(os.path.abspath(options.credential_file))}")
    else:
        click.echo(f"  export RAFTLOG_TOKEN={token.reveal()}")
        click.echo("The token is not shown again.")


@command(server)
def run(
    config: Annotated[str, click.Path(dir_okay=False), "Path of node.toml."],
    stop_with_stdin: Annotated[
        bool, option("Stop when standard input, which the parent holds, ends.", hidden=True)
    ] = False,
) -> int:
    """Run a node until SIGTERM or Ctrl-C.

    It then hands its leaderships over, answers the requests in progress and writes its logs out, within
    shutdown_timeout_ms. A second signal ends it at once.

    Examples:
        raftlog server --config node.toml
    """
    from raftlog.broker.node.main import run_node

    if stop_with_stdin:
        threading.Thread(target=_stop_when_parent_ends, daemon=True).start()
    return run_node(config)


def _stop_when_parent_ends() -> None:
    """Wait for the end of the pipe that the parent holds, then stop as by a signal."""
    while os.read(0, 1024):
        pass
    from raftlog.broker.node.main import PARENT_ENDED

    os.kill(os.getpid(), PARENT_ENDED)
