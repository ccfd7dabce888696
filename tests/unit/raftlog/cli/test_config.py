"""`raftlog config`: effective settings with their sources; the line of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.cli.nodes.node_settings import load_settings
from raftlog.config import NodeConfig
from raftlog.errors import InvalidRequest
from tests.support.cli_runner import run

TEXT = """\
data_folder = "d"   # beside it
fsync_threads = 4

[api]
listen = { host = "127.0.0.1", port = 9640 }

[data]
listen = { host = "127.0.0.1", port = 9641 }

[timing]
broker_session_ms = 800
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "node.toml"
    path.write_text(text)
    return str(path)


class TestShow:
    def test_every_setting_has_value_source_and_default(self, tmp_path: Path) -> None:
        path = write(tmp_path, TEXT)
        result = run("config", "show", "--config", path, bootstrap=None)
        rows = {row[0]: row[1:] for row in result.table("Setting")[1:]}
        assert rows["fsync_threads"] == ["4", "node.toml:2", "2"]
        assert rows["api.listen"] == ["127.0.0.1:9640", "node.toml:5", "127.0.0.1:0"]
        assert rows["timing.broker_session_ms"] == ["800", "node.toml:11", "900"]
        assert rows["worker_threads"] == ["2", "default", "2"]
        fields = {name.partition(".")[0] for name in rows}
        assert fields == set(NodeConfig.__struct_fields__)

    def test_only_some(self, tmp_path: Path) -> None:
        path = write(tmp_path, TEXT)
        timing = run("config", "show", "timing", "--config", path, "-o", "json", bootstrap=None).json
        assert {one["name"].partition(".")[0] for one in timing} == {"timing"} and len(timing) > 3
        changed = run("config", "show", "--changed", "--config", path, bootstrap=None)
        assert [row[0] for row in changed.table("Setting")[1:]] == [
            "data_folder", "api.listen", "data.listen", "timing.broker_session_ms", "fsync_threads",
        ]  # fmt: skip
        wrong = run("config", "show", "fsync", "--config", path, bootstrap=None)
        assert wrong.code == 1 and "Did you mean 'fsync_threads'?" in wrong.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = \n", ", line 1: it is no TOML"),
        ("fsync_thread = 3\n", ", line 1: fsync_thread is no setting of the top level; did you mean fsync_threads?"),
        (
            "rack = 'a'\n[timing]\nbroker_session_ms = 'x'\n",
            ", line 3: timing.broker_session_ms must be a whole number",
        ),
    ],
)
def test_a_wrong_file_is_told_with_line_and_reason(tmp_path: Path, text: str, told: str) -> None:
    path = write(tmp_path, text)
    for command in (("server", "--config", path), ("config", "show", "--config", path)):
        result = run(*command, bootstrap=None)
        assert result.code == 1 and f"{path}{told}" in result.stderr


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="No such file"):
        load_settings(str(tmp_path / "none"))
    (tmp_path / "node.toml").write_bytes(b"\xff")
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        load_settings(str(tmp_path / "node.toml"))
