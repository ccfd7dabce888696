"""`raftlog doctor`: checks of this machine, of one node's files, and of the cluster, each with its remedy.

With `--config` it checks a node, running or not: its settings, certificates, data folder, disk and addresses. The
machine is always checked, and the cluster if there is an address: that of `--bootstrap`, a profile or a variable, or
that of the node's own API while the node runs.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Annotated

import msgspec
import rich_click as click

from raftlog.cli.doctor.findings import Finding, Report, problem
from raftlog.cli.nodes.node_settings import NodeSettings, load_settings
from raftlog.cli.terminal.command import command, option
from raftlog.cli.terminal.connection import DEFAULT_BOOTSTRAP, Connection
from raftlog.cli.terminal.exit_codes import EXIT_FAILED
from raftlog.cli.terminal.output import Output, counted, show
from raftlog.config import NodeConfig, TlsConfig
from raftlog.errors import InvalidRequest

STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}


@command()
def doctor(
    connection: Connection,
    config: Annotated[
        str | None, option("Check the node of this node.toml, running or not.", type=click.Path(dir_okay=False))
    ] = None,
    data_folder: Annotated[
        str | None, option("Check this data folder instead of the one in node.toml.", type=click.Path(file_okay=False))
    ] = None,
    output: Output = "table",
) -> int:
    """Check this machine, a node and the cluster. Every problem names its remedy. Exit code 1: there are problems.

    Examples:
        raftlog doctor
        raftlog doctor --config /etc/raftlog/node.toml
        raftlog doctor --bootstrap node0.example.org:9640 -o json
    """
    report = Report.of(examine(connection, config, data_folder))
    show(output, report, lambda wide: _text(report, wide))
    return 0 if report.healthy else EXIT_FAILED


def examine(connection: Connection, config: str | None, data_folder: str | None) -> list[Finding]:
    """Return all findings."""
    from raftlog.cli.doctor.cluster import check_cluster
    from raftlog.cli.doctor.machine import check_machine

    findings = check_machine()
    settings, runs = None, False
    if config is not None:
        try:
            settings = load_settings(config)
        except InvalidRequest as error:
            remedy = "correct the file; `raftlog server settings` lists all settings"
            findings += [problem("settings", told, remedy) for told in _wrong(config) or [error.detail]]
    if settings is not None or data_folder is not None:
        found, runs = _examine_node(settings, data_folder)
        findings += found
    given = connection.bootstrap != DEFAULT_BOOTSTRAP
    if settings is not None and runs and not given:
        connection = _of_node(connection, settings)
    # Without a node or an address, only a cluster at the default address is looked for, and none is no problem.
    if given or runs or config is None:
        findings += asyncio.run(check_cluster(connection, expected=given or runs))
    return findings


def _examine_node(settings: NodeSettings | None, data_folder: str | None) -> tuple[list[Finding], bool]:
    from raftlog.cli.doctor.certificates import check_certificates
    from raftlog.cli.doctor.disk import check_disk
    from raftlog.cli.doctor.node_files import check_addresses, check_folder, check_settings

    folder = data_folder if data_folder is not None or settings is None else settings.data_folder
    assert folder is not None, "one of them is given"
    findings = [] if settings is None else check_settings(settings)
    found, identity, runs = check_folder(folder)
    findings += found
    if os.path.isdir(folder):
        reserved = (NodeConfig() if settings is None else settings.config).disk_reserved_bytes
        findings += check_disk(folder, reserved)
    if settings is not None:
        findings += check_addresses(settings, identity, runs=runs)
        if settings.config.tls is not None and identity is not None:
            tls = _absolute(settings.config.tls, settings.folder)
            findings += check_certificates(tls, identity.cluster_id, identity.node_id, time.time())
    return findings, runs


def _wrong(config: str) -> list[str]:
    """Return all that is wrong with a file of settings; nothing if it cannot be read."""
    from raftlog.broker.node.settings_file import check_settings_file

    try:
        return check_settings_file(config).problems
    except InvalidRequest:
        return []


def _absolute(tls: TlsConfig, folder: str) -> TlsConfig:
    paths = {name: os.path.join(folder, path) for name, path in tls.paths.items()}
    return msgspec.structs.replace(tls, **paths)


def _of_node(connection: Connection, settings: NodeSettings) -> Connection:
    """Return the connection to the node's own API."""
    config = settings.config
    at = (config.api.advertised or config.api.listen).endpoint
    scheme = "https://" if config.tls is not None and config.security.is_on else ""
    authority = connection.tls_authority
    if config.tls is not None and authority is None:
        authority = os.path.join(settings.folder, config.tls.authority)
    return msgspec.structs.replace(connection, bootstrap=f"{scheme}{at}", tls_authority=authority)


def _text(report: Report, wide: bool) -> str:
    lines = []
    area_width = max(len(one.area) for one in report.findings)
    for one in report.findings:
        level = click.style(one.level.ljust(7), fg=STYLES[one.level])
        lines.append(f"{level}  {one.area.ljust(area_width)}  {one.text}")
        if one.remedy:
            lines.append(f"{'':7}  {'':{area_width}}  → {one.remedy}")
    counts = {level: sum(one.level == level for one in report.findings) for level in ("problem", "warning")}
    verdict = f"{counted(counts['problem'], 'problem')}, {counted(counts['warning'], 'warning')}."
    return "\n".join([*lines, "", verdict])
