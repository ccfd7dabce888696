"""`raftlog dev`: what is in the folder, ports, Ctrl-C once and twice. Nodes as processes:
`tests/integration/cluster/test_restart.py`."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftlog.broker.identity import NODE_FILE, begin_start
from raftlog.cli.nodes import local_cluster
from raftlog.cli.nodes.local_cluster import PREPARING_FILE, LocalCluster, LocalNode, free_base_port
from raftlog.errors import InvalidRequest, RetriableError
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


def test_growing_that_was_cut_short_begins_anew_and_touches_no_other_node(folder: str, prepare: Prepare) -> None:
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


def test_what_is_no_nodes_is_left_alone(folder: str, prepare: Prepare) -> None:
    other = Path(folder) / "node-1" / "data" / "thesis.tex"
    other.parent.mkdir(parents=True)
    other.write_text("years of work")
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="choose another folder"):
            prepare()
    assert other.read_text() == "years of work"


@pytest.mark.parametrize("at", range(3))
def test_a_first_start_that_was_killed_begins_anew(
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


def test_a_folder_that_was_ever_started_is_never_made_anew(folder: str, prepare: Prepare) -> None:
    """A power failure may bring the note back that preparing goes on."""
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


def test_free_ports_are_no_other_process_s_while_its_nodes_are_down() -> None:
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
def test_what_cannot_be_is_one_line(folder: str, arguments: tuple[str, ...]) -> None:
    result = run("dev", "--data-folder", folder, *arguments)
    assert result.code == 1 and result.stderr.count("\n") == 1
    assert not os.path.exists(folder)


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


class Cluster:
    """What `dev` sees of one; tells what was asked of it."""

    def __init__(self, folder: str, node_count: int, base_port: int, racks: bool) -> None:
        self.folder, self.node_count = folder, node_count
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


def test_ctrl_c_is_heard_while_nodes_start_and_the_second_one_does_not_wait(
    folder: str, monkeypatch: pytest.MonkeyPatch, signals: None
) -> None:
    monkeypatch.setattr(local_cluster, "LocalCluster", Cluster)
    result = run("dev", "--nodes", "1", "--data-folder", folder)
    assert (result.code, result.stderr) == (0, "")
    assert made.pop().calls == ["start", "stop", "hurry"]


def test_nobody_waits_for_nodes_that_will_not_be_ready(folder: str) -> None:
    cluster = LocalCluster(folder, 1, free_base_port(1))
    with pytest.raises(RetriableError, match="interrupted"):
        cluster.wait_ready(interrupted=lambda: True)


@pytest.mark.integration
def test_a_stop_that_is_hurried_ends_although_a_node_does_not(folder: str) -> None:
    cluster = LocalCluster(folder, 1, free_base_port(1))
    codes: dict[int, int] = {}
    cluster.start()
    try:
        cluster.pause_node(0)
        process = cluster.nodes[0].process
        assert process is not None
        # Until then a process that is still starting may be ended by what asks it to stop.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        stopping = threading.Thread(target=lambda: codes.update(cluster.stop()))
        stopping.start()
        cluster.hurry()
        stopping.join(PATIENCE_S)
        assert codes == {0: -signal.SIGKILL}
    finally:
        cluster.kill_all()
