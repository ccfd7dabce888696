"""A Spark cluster of one master and a worker on each of several hosts, all of them loopback addresses of this machine.

Spark starts a speculative attempt only on another host, so one host, or `local-cluster`, never runs one. Linux answers
to the whole of 127.0.0.0/8, so workers with the addresses 127.0.0.2 and 127.0.0.3 are two hosts for Spark. The
processes use the jars of pyspark; each logs to a file of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from spark_source import java
from tests.support.clusters.cluster import PATIENCE_S, POLL_S

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
EXECUTOR_MEMORY_MB = 600
"""The memory of each worker's only executor; Spark accepts no less than 450."""
NEEDED_MB = 3_000
"""Master, workers, executors, the driver and their Python processes."""
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Successfully registered with master"


def skip_unless_there_can_be_hosts(hosts: Sequence[str]) -> None:
    """Skip the calling test, with the missing ability of this machine."""
    try:
        java.find()
    except java.NoJava as error:
        pytest.skip(str(error))
    for host in hosts:
        try:
            with socket.create_server((host, 0)):
                pass
        except OSError as error:
            pytest.skip(f"no two hosts can be had here: nobody may listen on {host}: {error}")
    free = _free_mb()
    if free < NEEDED_MB:
        pytest.skip(f"a Spark cluster of two hosts needs {NEEDED_MB} MB of memory, and {free} are free")


@contextlib.contextmanager
def spark_cluster(hosts: Sequence[str], folder: Path) -> Iterator[str]:
    """One core and one executor on each of these hosts. Returns its `spark://` address."""
    home = java.find()
    with contextlib.ExitStack() as exits:
        master = _Process("master", home, folder, [MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"])
        exits.callback(master.end)
        url = master.until_it_says(_MASTER_URL)
        for host in hosts:
            work = folder / f"work-{host}"
            more = ["--host", host, "--port", "0", "--webui-port", "0", "--cores", "1", "--work-dir", str(work)]
            worker = _Process(host, home, folder, [WORKER, *more, "--memory", f"{EXECUTOR_MEMORY_MB + 100}m", url])
            exits.callback(worker.end)
            worker.until_it_says(re.compile(f"({_REGISTERED})"))
        yield url


class _Process:
    """One of Spark's processes, with its children."""

    def __init__(self, name: str, java_home: Path, folder: Path, command: Sequence[str]) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        self._log = folder / f"{name}.log"
        # Its own scripts tell Spark its Scala version; there is no other way to find the jars for an executor.
        (core,) = (home / "jars").glob("spark-core_*.jar")
        scala = core.name.partition("_")[2].partition("-")[0]
        environment = {"SPARK_HOME": str(home), "JAVA_HOME": str(java_home), "SPARK_SCALA_VERSION": scala}
        program = [str(java_home / "bin" / "java"), "-Xmx200m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [*program, "-cp", f"{home}/jars/*", *command],
                env=os.environ | environment,
                stdout=output,
                stderr=output,
            )

    def until_it_says(self, wanted: re.Pattern[str]) -> str:
        """Wait for the pattern in its log, and return the pattern's group."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            told = self._log.read_text()
            found = wanted.search(told)
            if found is not None:
                return found[1]
            assert self._process.poll() is None and time.monotonic() < deadline, told[-4_000:]
            time.sleep(POLL_S)

    def end(self) -> None:
        """End it in order, if it does so in time: a worker ends its executors."""
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _free_mb() -> int:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return NEEDED_MB
    found = re.search(r"MemAvailable:\s+(\d+) kB", text)
    return NEEDED_MB if found is None else int(found[1]) // 1024
