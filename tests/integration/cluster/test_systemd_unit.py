"""`deploy/systemd/raftlog.service`: valid, hardened, and still enough for a node to run under it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raftlog import Admin, Producer
from raftlog.cli.nodes.local_cluster import LocalCluster, free_base_port
from raftlog.config import NodeConfig
from tests.support.clusters.cluster import PATIENCE_S, eventually, stop_and_check

pytestmark = pytest.mark.integration

UNIT = Path(__file__).parents[3] / "deploy" / "systemd" / "raftlog.service"
EXPOSURE_MAX = 20
"""Tenths of a point of `systemd-analyze security`, which calls up to 2.0 "OK"."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def values(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def installed(folder: Path) -> Path:
    """The unit with a program that is installed here."""
    unit = folder / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/raftlog/bin/raftlog", sys.executable))
    return unit


@needs_systemd
def test_systemd_accepts_every_line(tmp_path: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", str(installed(tmp_path))], capture_output=True, text=True, timeout=60, check=False
    )
    # A machine without a running systemd reports that about other units, never about this one.
    assert [line for line in done.stderr.splitlines() if UNIT.name in line] == []


@needs_systemd
def test_the_unit_is_hardened(tmp_path: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(installed(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot judge a file (it is older than 250)")
    assert done.returncode == 0, done.stdout[-2000:]


def test_systemd_waits_longer_than_the_node_takes_to_stop() -> None:
    (stop,) = values("TimeoutStopSec")
    assert int(stop) * 1000 > NodeConfig().shutdown_timeout_ms
    assert values("KillSignal") == ["SIGTERM"] and values("KillMode") == ["mixed"]


@needs_systemd
@needs_strace
async def test_a_node_makes_no_other_system_calls_than_those_allowed(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    # The tracer is a grandchild, so that the signal that stops the node reaches the node.
    trace = ["strace", "-D", "--follow-forks", "--quiet=all", "--summary-only", "--output", str(calls)]
    await run_node(tmp_path / "cluster", [*trace, sys.executable, "-P", "-m", "raftlog.cli.main"])

    async def is_complete() -> bool:
        return calls.exists() and " total\n" in calls.read_text()

    await eventually(is_complete, "the tracer writes its summary")
    made = {line.split()[-1] for line in calls.read_text().splitlines() if re.match(r"^ +[\d.]+ ", line)} - {"total"}
    assert {"fsync", "accept4", "epoll_wait"} & made, "nothing was traced"
    assert made - allowed() == set()


def allowed() -> set[str]:
    """The system calls of the unit's filters, as systemd combines them."""
    found: set[str] = set()
    for line in values("SystemCallFilter"):
        names = {call for name in line.lstrip("~").split() for call in expanded(name)}
        found = found - names if line.startswith("~") else found | names
    return found | expanded("@default")


def expanded(name: str) -> set[str]:
    if not name.startswith("@"):
        return {name}
    shown = subprocess.run(
        ["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    names = [line.strip() for line in shown.splitlines()[1:]]
    return {call for one in names if one and not one.startswith("#") for call in expanded(one)}


_WITHOUT_EXECUTABLE_MEMORY = """
import ctypes, sys
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN: Linux 6.3
    raise SystemExit("prctl failed")
from raftlog.cli.main import main
main()
"""


async def test_a_node_needs_no_memory_that_is_writable_and_executable(tmp_path: Path) -> None:
    assert values("MemoryDenyWriteExecute") == ["yes"]
    program = [sys.executable, "-P", "-c", _WITHOUT_EXECUTABLE_MEMORY]
    if not accepted([*program, "--version"]):
        pytest.skip("this kernel cannot deny it")
    await run_node(tmp_path / "cluster", program)


def accepted(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


async def run_node(folder: Path, program: list[str]) -> None:
    """Run a node by this program; write, read and stop."""
    cluster = LocalCluster(str(folder), 1, free_base_port(1), program=program)
    try:
        cluster.start()
        cluster.wait_ready(PATIENCE_S)
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topic("t", 1, 1)
        async with Producer(cluster.bootstrap, compression="zstd") as producer:
            await producer.send_many("t", [b"%d" % n for n in range(1000)])
    except BaseException:
        cluster.kill_all()
        raise
    stop_and_check(cluster)
