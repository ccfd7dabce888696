"""`raftlog-prepare`: the settings and the data folder of a container, as Compose and Kubernetes have them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftlog.broker.identity import NODE_FILE
from raftlog.config import NodeConfig, NodeFile

DEPLOY = Path(__file__).parents[3] / "deploy"
SCRIPT = DEPLOY / "docker" / "raftlog-prepare"
VOTERS = "0@raftlog-0.raftlog:9641,1@raftlog-1.raftlog:9641,2@raftlog-2.raftlog:9641"


class Container:
    """One container's file systems and environment."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.settings = folder / "node.toml"
        self.data = folder / "volume" / "data"
        (folder / "volume").mkdir(parents=True, exist_ok=True)
        self._environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAFTLOG_CLUSTER_ID": "c",
            "RAFTLOG_VOTERS": VOTERS,
            "RAFTLOG_FOLDER": str(self.data),
            "RAFTLOG_SETTINGS": str(self.settings),
            "RAFTLOG_MORE_SETTINGS": str(DEPLOY / "docker" / "insecure.toml"),
            **environment,
        }

    def prepare(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", str(SCRIPT)], env={**self._environment, **environment}, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip

    @property
    def config(self) -> NodeConfig:
        file = NodeFile(self.settings.read_text())
        assert file.problems == [] and file.value is not None
        return file.value

    @property
    def identity(self) -> dict[str, Any]:
        return msgspec.json.decode((self.data / NODE_FILE).read_bytes(), type=dict[str, Any])


def test_the_first_start_of_a_pod_prepares_it_and_later_ones_need_no_permission(tmp_path: Path) -> None:
    pod = Container(tmp_path, HOSTNAME="raftlog-1", RAFTLOG_HOST_SUFFIX=".raftlog")
    done = pod.prepare(RAFTLOG_PREPARE="yes")
    assert done.returncode == 0, done.stderr
    assert (pod.identity["node_id"], sorted(pod.identity["voters"])) == (1, ["0", "1", "2"])
    before = pod.identity
    again = pod.prepare(RAFTLOG_ALLOWED_HOSTS="raftlog,raftlog.example.org", RAFTLOG_RACK="b")
    assert again.returncode == 0 and pod.identity == before, again.stderr
    config = pod.config
    assert config.data.advertised is not None and str(config.data.advertised.endpoint) == "raftlog-1.raftlog:9641"
    assert config.allowed_hosts == ("raftlog", "raftlog.example.org") and config.rack == "b"
    assert (config.data_folder, config.security.insecure) == (str(pod.data), True)
    assert pod.settings.stat().st_mode & 0o077 == 0


def test_an_empty_volume_is_never_a_first_start_by_itself_s9(tmp_path: Path) -> None:
    pod = Container(tmp_path, HOSTNAME="raftlog-1", RAFTLOG_HOST_SUFFIX=".raftlog")
    done = pod.prepare()
    assert done.returncode == 1 and "its disk was lost" in done.stderr
    assert not pod.data.exists()


def test_a_further_pod_is_an_observer(tmp_path: Path) -> None:
    pod = Container(tmp_path, HOSTNAME="raftlog-3", RAFTLOG_HOST_SUFFIX=".raftlog")
    assert pod.prepare(RAFTLOG_PREPARE="yes").returncode == 0
    assert pod.identity["node_id"] == 3 and "3" not in pod.identity["voters"]


def test_a_wrong_address_or_setting_is_found_before_the_node_starts(tmp_path: Path) -> None:
    pod = Container(tmp_path, HOSTNAME="raftlog-1", RAFTLOG_HOST_SUFFIX=".elsewhere")
    done = pod.prepare(RAFTLOG_PREPARE="yes")
    assert done.returncode == 1 and "node 1 is a voter whose address is raftlog-1.raftlog:9641" in done.stdout
    (tmp_path / "more.toml").write_text("fsync_treads = 1\n")
    done = pod.prepare(RAFTLOG_MORE_SETTINGS=str(tmp_path / "more.toml"))
    assert done.returncode == 1 and "fsync_threads" in done.stdout


@pytest.mark.parametrize("name", ["RAFTLOG_CLUSTER_ID", "RAFTLOG_VOTERS"])
def test_what_is_missing_is_named(tmp_path: Path, name: str) -> None:
    done = Container(tmp_path, HOSTNAME="raftlog-0").prepare(**{name: ""})
    assert done.returncode != 0 and f"{name} is not set" in done.stderr
