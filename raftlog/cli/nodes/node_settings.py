"""The effective settings of a node: those of its `node.toml`, with their lines, and the defaults of the others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from raftlog.config import NodeConfig, NodeFile
from raftlog.errors import InvalidRequest


class NodeSetting(msgspec.Struct, frozen=True):
    """One setting of a node."""

    name: str
    """With the names of its sections: `timing.broker_session_ms`."""
    value: Any
    """None: it is not set, and has no default."""
    source: str
    """`default`, or the line of the file that sets it."""
    default: Any


class NodeSettings:
    """A valid file of settings."""

    def __init__(self, path: str, text: str) -> None:
        """Raises `InvalidRequest`, which names the line."""
        self.path = path
        self._file = NodeFile(text)
        self.config: NodeConfig = self._file.checked(path)

    @property
    def folder(self) -> str:
        """The folder of the file, to which relative paths in it are relative."""
        return os.path.dirname(os.path.abspath(self.path))

    @property
    def data_folder(self) -> str:
        return os.path.join(self.folder, self.config.data_folder)

    def settings(self) -> list[NodeSetting]:
        """Return every setting in the order of the declarations, with its default."""
        values, defaults = (dict(_flat(msgspec.to_builtins(one))) for one in (self.config, NodeConfig()))
        return [NodeSetting(name, value, self._source(name), defaults.get(name)) for name, value in values.items()]

    def _source(self, name: str) -> str:
        path = name.split(".")
        return f"{os.path.basename(self.path)}:{self._file.line_of(*path)}" if self._file.has(*path) else "default"


def load_settings(path: str) -> NodeSettings:
    """Return the settings of a file. Raises `InvalidRequest`, which names the line and the reason."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise InvalidRequest("invalid_config", f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        told = f"{path} is not UTF-8 text: {error.reason} at byte {error.start}"
        raise InvalidRequest("invalid_config", told) from None
    return NodeSettings(path, text)


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield name and value of each setting; an address is one value."""
    for name, value in settings.items():
        path = f"{before}{name}"
        if isinstance(value, Mapping) and set(value) == {"host", "port"}:
            yield path, f"{value['host']}:{value['port']}"
        elif isinstance(value, Mapping) and value:
            yield from _flat(value, f"{path}.")
        else:
            yield path, value
