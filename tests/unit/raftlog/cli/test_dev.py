"""`raftlog dev`: the content of the folder, ports, Ctrl-C once and twice.

Nodes as processes: `tests/integration/cluster/test_restart.py`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftlog.broker.identity import NODE_FILE, begin_start
from raftlog.broker.security.administration.first_administrator import read_first_administrator
from raftlog.broker.tls.files import load_tls_files
from raftlog.broker.tls.names import NodeNames
from raftlog.cli.nodes import local_cluster
from raftlog.cli.nodes.local_cluster import PREPARING_FILE, LocalCluster, LocalNode, free_base_port
from raftlog.config import load_node_config
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.model import BrokerId
from raftlog.system.disk import LocalDisk
from tests.support.cli_runner import PATIENCE_S, run

Prepare = Callable[..., None]

NODE: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "raftlog-data")


@pytest.fixture
def prepare(folder: str) -> Prepare:
    def prepare(nodes: int = 3) -> None:
        LocalCluster(folder, nodes).prepare()

    return prepare


def identity(folder: str, number: int) -> bytes:
    return (Path(folder) / f"node-{number}" / "data" / NODE_FILE).read_bytes()


# --- The folder -------------------------------------------------------------------------------------------------------


def test_a_folder_is_prepared_once(folder: str, prepare: Prepare) -> None:
    prepare()
    before = [identity(folder, number) for number in range(3)]
    prepare()
    assert [identity(folder, number) for number in range(3)] == before
    assert not (Path(folder) / PREPARING_FILE).exists()


@pytest.mark.parametrize(("there", "asked"), [(3, 1), (4, 3), (5, 4)])
def test_a_cluster_of_another_size_is_named(folder: str, prepare: Prepare, there: int, asked: int) -> None:
    prepare(there)
    with pytest.raises(InvalidRequest, match=f"cluster of {there} nodes: start it with --nodes {there}"):
        prepare(asked)


def test_a_lost_node_is_named(folder: str, prepare: Prepare) -> None:
    prepare()
    shutil.rmtree(Path(folder) / "node-1")
    with pytest.raises(InvalidRequest, match="lost the folder of node 1"):
        prepare()
    assert not (Path(folder) / "node-1").exists()


@pytest.mark.parametrize(("nodes", "voters"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (7, 5)])
def test_the_first_one_three_or_five_nodes_vote(folder: str, prepare: Prepare, nodes: int, voters: int) -> None:
    prepare(nodes)
    for number in range(nodes):
        found = NODE.decode(identity(folder, number))
        assert sorted(found["voters"]) == [str(voter) for voter in range(voters)], number


def test_a_cluster_grows_by_observers(folder: str, prepare: Prepare) -> None:
    prepare(1)
    before = identity(folder, 0)
    prepare(3)
    assert identity(folder, 0) == before
    found = [NODE.decode(identity(folder, number)) for number in range(3)]
    assert [sorted(node["voters"]) for node in found] == [["0"], ["0"], ["0"]]
    assert len({node["cluster_id"] for node in found}) == 1
    assert len({node["directory_id"] for node in found}) == 3


def test_an_interrupted_growth_is_repeated_and_touches_no_other_node(folder: str, prepare: Prepare) -> None:
    prepare(1)
    begin_start(LocalDisk(str(Path(folder) / "node-0" / "data")), folder)
    before = identity(folder, 0)
    (Path(folder) / "node-1" / "data" / "quorum").mkdir(parents=True)
    (Path(folder) / PREPARING_FILE).touch()
    prepare(3)
    assert identity(folder, 0) == before and identity(folder, 1) and identity(folder, 2)


def test_nodes_of_different_clusters_are_not_started_together(folder: str, prepare: Prepare) -> None:
    prepare()
    shutil.rmtree(Path(folder) / "node-2")
    shutil.copytree(Path(folder) / "node-1", Path(folder) / "node-2")
    with pytest.raises(InvalidRequest, match="different clusters"):
        prepare()


def test_other_folders_are_left_alone(folder: str, prepare: Prepare) -> None:
    other = Path(folder) / "node-1" / "data" / "thesis.tex"
    other.parent.mkdir(parents=True)
    other.write_text("years of work")
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="choose another folder"):
            prepare()
    assert other.read_text() == "years of work"


@pytest.mark.parametrize("at", range(3))
def test_an_interrupted_first_start_is_repeated(
    folder: str, prepare: Prepare, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """In the middle of a node's folder."""

    class Killed(BaseException):
        pass

    def init(path: str, *, node_id: int, **others: object) -> None:
        if node_id == at:
            os.makedirs(path)
            (Path(path) / "quorum").mkdir()
            raise Killed
        whole(path, node_id=node_id, **others)

    whole = local_cluster.init_data_folder
    monkeypatch.setattr(local_cluster, "init_data_folder", init)
    with pytest.raises(Killed):
        prepare()
    monkeypatch.undo()
    prepare()
    assert [bool(identity(folder, number)) for number in range(3)] == [True] * 3


def test_a_folder_that_was_ever_started_is_never_created_again(folder: str, prepare: Prepare) -> None:
    """A power failure may restore the note that the preparation is not complete."""
    prepare(1)
    data = os.path.join(folder, "node-0", "data")
    begin_start(LocalDisk(data), data)
    before = identity(folder, 0)
    (Path(folder) / PREPARING_FILE).touch()
    prepare(1)
    assert identity(folder, 0) == before


def test_a_port_in_use_is_named(folder: str) -> None:
    base = free_base_port(1)
    with socket.create_server(("127.0.0.1", base + 1)):
        result = run("dev", "--nodes", "1", "--base-port", str(base), "--data-folder", folder)
    assert result.code == 1
    assert f"127.0.0.1:{base + 1}" in result.stderr and "--base-port" in result.stderr
    assert "Traceback" not in result.stderr


def test_free_ports_are_reserved_while_its_nodes_are_down() -> None:
    mine = free_base_port(3)
    ask = (
        "from raftlog.cli.nodes import local_cluster\n"
        f"local_cluster._BASE_PORTS = range({mine}, {mine + 1})\n"
        "local_cluster.free_base_port(1)"
    )
    asked = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert asked.returncode == 1
    assert "no free ports were found" in asked.stderr
    assert free_base_port(3) not in (mine, mine + 10, mine + 20)


@pytest.mark.parametrize("arguments", [("--nodes", "10"), ("--base-port", "65530"), ("--base-port", "-1")])
def test_invalid_arguments_are_reported_in_one_line(folder: str, arguments: tuple[str, ...]) -> None:
    result = run("dev", "--data-folder", folder, *arguments)
    assert result.code == 1 and result.stderr.count("\n") == 1
    assert not os.path.exists(folder)


# --- Security ---------------------------------------------------------------------------------------------------------


def files(folder: str) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_a_secure_cluster_has_an_authority_certificates_and_one_administrator(folder: str) -> None:
    cluster = LocalCluster(folder, 3, secure=True)
    cluster.prepare()
    security = cluster.security
    assert security is not None
    private = [security.authority.key, security.token_file, *(f"{folder}/node-{n}/node-{n}.key" for n in range(3))]
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in private] == [0o600] * 5
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    for node in cluster.nodes:
        cluster.write_settings(node)
        config = load_node_config((Path(node.folder) / "node.toml").read_text())
        assert config.security.mode == "required" and config.tls is not None
        paths = {name: os.path.join(node.folder, path) for name, path in config.tls.paths.items()}
        cluster_id = NODE.decode(identity(folder, node.node_id))["cluster_id"]
        names = NodeNames(config.tls.node_name, cluster_id)
        load_tls_files(msgspec.structs.replace(config.tls, **paths), names, BrokerId(node.node_id))
    found = [read_first_administrator(LocalDisk(f"{node.folder}/data"), "data") for node in cluster.nodes]
    assert [one is not None for one in found] == [True, False, False]
    assert found[0] is not None
    assert found[0].token_sha256 == hashlib.sha256(security.token().encode()).hexdigest()
    secret = security.token().encode()
    assert [name for name, content in files(folder).items() if secret in content] == ["admin.token"]


def test_a_secure_cluster_stays_so_and_grows(folder: str) -> None:
    LocalCluster(folder, 1, secure=True).prepare()
    before = files(folder)
    LocalCluster(folder, 1).prepare()
    assert files(folder) == before
    grown = LocalCluster(folder, 3)
    grown.prepare()
    after = files(folder)
    assert after.items() >= before.items() and grown.security is not None
    assert {"node-1/node-1.pem", "node-2/node-2.pem"} <= after.keys()
    assert "node-1/data/first-administrator.json" not in after


def test_a_cluster_without_security_is_not_made_secure_by_the_way(folder: str, prepare: Prepare) -> None:
    prepare()
    before = files(folder)
    with pytest.raises(InvalidRequest, match="without security: choose another folder"):
        LocalCluster(folder, 3, secure=True).prepare()
    assert files(folder) == before


@pytest.mark.parametrize("at", ["node-0/node-0.pem", "admin.token", "node-2/authority.pem", "authority/authority.pem"])
def test_an_interrupted_preparation_of_a_secure_cluster_is_repeated(folder: str, at: str) -> None:
    LocalCluster(folder, 3, secure=True).prepare()
    (Path(folder) / at).unlink()
    (Path(folder) / PREPARING_FILE).touch()
    cluster = LocalCluster(folder, 3, secure=True)
    cluster.prepare()
    assert cluster.security is not None and (Path(folder) / at).exists()
    found = read_first_administrator(LocalDisk(f"{folder}/node-0/data"), "data")
    assert found is not None
    assert found.token_sha256 == hashlib.sha256(cluster.security.token().encode()).hexdigest()


def test_the_greeting_of_a_secure_cluster_shows_where_the_token_is_and_not_the_token(
    folder: str, monkeypatch: pytest.MonkeyPatch, signals: None
) -> None:
    def ready(cluster: LocalCluster, *, interrupted: Callable[[], bool]) -> None:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    monkeypatch.setattr(LocalCluster, "start", LocalCluster.prepare)
    monkeypatch.setattr(LocalCluster, "wait_ready", ready)
    result = run("dev", "--secure", "--nodes", "1", "--data-folder", folder)
    assert result.code == 0, result.stderr
    token = (Path(folder) / "admin.token").read_text().strip()
    assert f"  source {folder}/environment.sh\n" in result.text
    assert "https://127.0.0.1:9640/v1/cluster" in result.text and token not in result.text + result.stderr


@pytest.mark.integration
def test_a_running_cluster_tells_where_it_is_and_its_processes(folder: str) -> None:
    cluster = LocalCluster(folder, 1, free_base_port(1), secure=True)
    cluster.start()
    process = cluster.nodes[0].process
    try:
        assert process is not None and (Path(folder) / "node-0" / "pid").read_text() == f"{process.pid}\n"
        shell = f". {folder}/environment.sh; env | grep ^RAFTLOG_ | sort"
        told = subprocess.run(
            ["sh", "-c", shell], capture_output=True, text=True, timeout=PATIENCE_S, env={}, check=True
        )
        assert told.stdout.splitlines() == [
            f"RAFTLOG_BOOTSTRAP={cluster.bootstrap}",
            f"RAFTLOG_TLS_AUTHORITY={folder}/authority/authority.pem",
            f"RAFTLOG_TOKEN_FILE={folder}/admin.token",
        ]
    finally:
        cluster.kill_all()
    assert not (Path(folder) / "node-0" / "pid").exists()


# --- Settings ---------------------------------------------------------------------------------------------------------


def test_settings_go_into_node_toml(folder: str, monkeypatch: pytest.MonkeyPatch, signals: None) -> None:
    monkeypatch.setattr(local_cluster, "LocalCluster", Cluster)
    given = ["timing.replica_lag_max_ms=1500ms", "fsync_threads=3", "metrics.partitions=topic", 'allowed_hosts=["a.b"]']
    result = run("dev", "--nodes", "1", "--data-folder", folder, *(part for one in given for part in ("--set", one)))
    assert result.code == 0, result.stderr
    cluster = LocalCluster(folder, 1, settings=made.pop().settings)
    cluster.prepare()
    cluster.write_settings(cluster.nodes[0])
    config = load_node_config((Path(folder) / "node-0" / "node.toml").read_text())
    assert (config.timing.replica_lag_max_ms, config.fsync_threads, config.metrics.partitions) == (1_500, 3, "topic")
    assert config.allowed_hosts == ("a.b",)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("fsync_threads", "must be NAME=VALUE"),
        ("a b=1", "must be NAME=VALUE"),
        ("fsync_thread=2", "did you mean fsync_threads?"),
        ("fsync_threads=many", "a whole number from 1 to 64 (threads)"),
        ("timing.broker_session_ms=7d", "from 1 to"),
        ("api.listen.port=1", "is set by `raftlog dev` itself"),
        ("fsync_threads=1\nrack='x'", "a whole number"),
    ],
)
def test_wrong_settings_stop_before_anything_is_made(folder: str, setting: str, told: str) -> None:
    result = run("dev", "--data-folder", folder, "--set", setting)
    assert result.code == 2 and told in " ".join(result.stderr.split()), result.stderr
    assert not os.path.exists(folder)


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


class Cluster:
    """The part of a cluster that `dev` uses; records the calls."""

    def __init__(
        self, folder: str, node_count: int, base_port: int, racks: bool, secure: bool, settings: dict[str, str]
    ) -> None:
        self.folder, self.node_count, self.settings = folder, node_count, settings
        self.nodes: list[LocalNode] = LocalCluster(folder, node_count, base_port).nodes
        self.calls: list[str] = []
        made.append(self)

    def start(self) -> None:
        self.calls.append("start")

    def wait_ready(self, *, interrupted: Callable[[], bool]) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted()
        raise RetriableError("shutting_down", "interrupted")

    def stop(self) -> None:
        self.calls.append("stop")
        os.kill(os.getpid(), signal.SIGTERM)

    def hurry(self) -> None:
        self.calls.append("hurry")


made: list[Cluster] = []


@pytest.fixture
def signals() -> Iterator[None]:
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    for number, handler in before:
        signal.signal(number, handler)


def test_ctrl_c_works_while_nodes_start_and_the_second_one_does_not_wait(
    folder: str, monkeypatch: pytest.MonkeyPatch, signals: None
) -> None:
    monkeypatch.setattr(local_cluster, "LocalCluster", Cluster)
    result = run("dev", "--nodes", "1", "--data-folder", folder)
    assert (result.code, result.stderr) == (0, "")
    assert made.pop().calls == ["start", "stop", "hurry"]


def test_nodes_that_will_not_be_ready_are_not_waited_for(folder: str) -> None:
    cluster = LocalCluster(folder, 1, free_base_port(1))
    with pytest.raises(RetriableError, match="interrupted"):
        cluster.wait_ready(interrupted=lambda: True)


@pytest.mark.integration
def test_a_hurried_stop_ends_although_a_node_does_not(folder: str) -> None:
    cluster = LocalCluster(folder, 1, free_base_port(1))
    codes: dict[int, int] = {}
    cluster.start()
    try:
        cluster.pause_node(0)
        process = cluster.nodes[0].process
        assert process is not None
        # Until then a process that is still starting may be ended by the signal to stop.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        stopping = threading.Thread(target=lambda: codes.update(cluster.stop()))
        stopping.start()
        cluster.hurry()
        stopping.join(PATIENCE_S)
        assert codes == {0: -signal.SIGKILL}
    finally:
        cluster.kill_all()


def test_folders_that_were_never_used_are_prepared_again_for_other_ports(folder: str) -> None:
    """A voter starts first at the address with which its cluster was prepared, and there may be another program."""
    for first_port in (20_000, 21_000):
        LocalCluster(folder, 3, first_port).prepare()
        for number in range(3):
            voters = NODE.decode(identity(folder, number))["voters"]
            assert [voters[str(voter)]["port"] for voter in range(3)] == [first_port + 10 * v + 1 for v in range(3)]
    begin_start(LocalDisk(str(Path(folder) / "node-1" / "data")), folder)
    before = [identity(folder, number) for number in range(3)]
    LocalCluster(folder, 3, 22_000).prepare()
    assert [identity(folder, number) for number in range(3)] == before
