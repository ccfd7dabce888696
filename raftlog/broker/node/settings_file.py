"""Reading `node.toml`: the settings with absolute paths, and the check of a file without a start."""

from __future__ import annotations

import os

import msgspec

from raftlog.broker.identity import NODE_FILE, STARTS_FILE, read_identity
from raftlog.broker.tls.files import load_tls_files
from raftlog.broker.tls.names import NodeNames
from raftlog.config import NodeConfig, NodeFile, TlsConfig
from raftlog.errors import InvalidRequest
from raftlog.model import BrokerId
from raftlog.system.disk import LocalDisk

from .addresses import address_problem


class CheckedFile(msgspec.Struct, frozen=True):
    """The result of `check_settings_file`."""

    problems: list[str]
    """A node with this file does not start."""
    notes: list[str]
    """Things that could not be checked, and what the file was compared with."""


def read_settings(path: str) -> tuple[NodeConfig, str]:
    """Return the settings in a file, and the data folder that they name. Relative paths are made absolute.

    Raises `InvalidRequest`, which names the line.
    """
    config = NodeFile(_read(path)).checked(path)
    return _absolute(config, path)


def check_settings_file(path: str) -> CheckedFile:
    """Check a file as a start would, and change nothing. Raises `InvalidRequest` if it cannot be read."""
    file = NodeFile(_read(path))
    problems = [f"{path}:{f'{problem.line}:' if problem.line else ''} {problem}" for problem in file.problems]
    if file.value is None or problems:
        return CheckedFile(problems, [])
    config, folder = _absolute(file.value, path)
    disk = LocalDisk(folder)
    if not os.path.isdir(folder) or not disk.exists(NODE_FILE):
        missing = _missing(config.tls) if config.tls is not None else {}
        problems += [f"{path}:{file.line_of('tls', name)}: {reason}" for name, reason in missing.items()]
        return CheckedFile(problems, [f"{folder} is not prepared yet (raftlog server init): nothing to compare with"])
    try:
        node = read_identity(disk, folder)
        problem = address_problem(config, node.node_id, node.voter_address, started_before=disk.exists(STARTS_FILE))
        if problem:
            problems.append(f"{path}:{file.line_of('data', 'listen')}: {problem}")
        if config.tls is not None:
            load_tls_files(config.tls, NodeNames(config.tls.node_name, node.cluster_id), BrokerId(node.node_id))
    except InvalidRequest as error:
        return CheckedFile([*problems, f"{path}: {error.detail}"], [])
    return CheckedFile(problems, [f"{folder} is the folder of node {node.node_id} of cluster {node.cluster_id}"])


def _missing(tls: TlsConfig) -> dict[str, str]:
    """Return the files that are not there, by their setting. Their content is checked once the identity is known."""
    return {
        name: f"tls.{name} is {path}, which is no file" for name, path in tls.paths.items() if not os.path.isfile(path)
    }


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise InvalidRequest("invalid_config", f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            "invalid_config", f"{path} is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from None


def _absolute(config: NodeConfig, path: str) -> tuple[NodeConfig, str]:
    """Return the settings with absolute paths, and the data folder."""
    beside = os.path.dirname(os.path.abspath(path))
    if config.tls is not None:
        files = {name: os.path.join(beside, file) for name, file in config.tls.paths.items()}
        config = msgspec.structs.replace(config, tls=msgspec.structs.replace(config.tls, **files))
    oidc = config.security.oidc
    if oidc is not None:
        local = {} if not oidc.jwks or oidc.jwks_is_a_url else {"jwks": os.path.join(beside, oidc.jwks)}
        if oidc.authority:
            local["authority"] = os.path.join(beside, oidc.authority)
        security = msgspec.structs.replace(config.security, oidc=msgspec.structs.replace(oidc, **local))
        config = msgspec.structs.replace(config, security=security)
    return config, os.path.join(beside, config.data_folder)
