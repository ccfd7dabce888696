"""Apache Kafka as a peer: its brokers as processes on this machine, and its jars by Maven.

Maven fetches the published artifacts (`org.apache.kafka:kafka_2.13`, Spark's connector) into folders below `build/`,
once for each version; after that no network is needed. Brokers are combined KRaft nodes (KIP-500, KIP-595): each broker
also votes as a controller. Their JVM gets the options of Kafka's own start script, and their topics the replication and
`min.insync.replicas` of raftlog's. They are ended by SIGKILL, since their data is removed with them, and always end
with this process.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from raftlog.cli.nodes.local_cluster import PORTS_PER_NODE, free_base_port

HOST = "127.0.0.1"
SCALA = "2.13"
"""The only Scala version for which Kafka is built since 4.0, and PySpark since 4.0."""
JARS = Path(__file__).resolve().parents[1] / "build" / "kafka-peer"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
FETCH_SECONDS, FORMAT_SECONDS, START_SECONDS = 900.0, 60.0, 90.0

JVM_OPTIONS = (
    "-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)  # fmt: skip
"""The options of `kafka-server-start.sh`; the last one is added, so that the log of a failed start contains the
reason."""

TOLD_LINES = 15
PR_SET_PDEATHSIG = 1


class Missing(Exception):
    """A prerequisite of the comparison is missing on this machine. The text says what to do."""


# --- Jars ---


class Artifact(NamedTuple):
    """An artifact that Maven fetches, with its dependencies at run time."""

    group: str
    name: str
    version: str

    def __str__(self) -> str:
        return ":".join(self)


def broker_artifacts(version: str) -> list[Artifact]:
    """Return the artifacts of a broker, and of a logger that writes to standard error."""
    return [
        Artifact("org.apache.kafka", f"kafka_{SCALA}", version),
        Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
    ]


def connector_artifacts(version: str) -> list[Artifact]:
    """Return Spark's connector, for a version of Spark."""
    return [Artifact("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA}", version)]


def project(artifacts: Sequence[Artifact]) -> str:
    """Return the `pom.xml` of a project that only has these dependencies."""
    needed = "".join(
        f"<dependency><groupId>{escape(one.group)}</groupId><artifactId>{escape(one.name)}</artifactId>"
        f"<version>{escape(one.version)}</version></dependency>\n"
        for one in artifacts
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>\n'
        "<groupId>peer</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>\n"
        f"<dependencies>\n{needed}</dependencies></project>\n"
    )


def fetch(artifacts: Sequence[Artifact], java_home: Path) -> list[Path]:
    """Return the jars of these artifacts and their dependencies, from `build/` or by Maven. Raises `Missing`."""
    folder = JARS / f"{artifacts[0].name}-{artifacts[0].version}"
    if not folder.exists():
        if shutil.which("mvn") is None:
            raise Missing("Maven fetches the jars, but there is no mvn on the PATH; on Debian: apt-get install maven")
        JARS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=JARS) as place:
            Path(place, "pom.xml").write_text(project(artifacts))
            # -U: an artifact that Maven Central did not have yesterday may exist today.
            command = ["mvn", "-B", "-q", "-U", "-f", f"{place}/pom.xml", COPY]
            command += ["-DincludeScope=runtime", f"-DoutputDirectory={place}/jars"]
            run(command, f"Maven could not fetch {artifacts[0]}", java_home)
            # The folder is renamed when it is complete, so that an interrupted fetch is repeated.
            os.rename(f"{place}/jars", folder)
    return sorted(folder.glob("*.jar"))


def jar_name(jar: Path) -> str:
    """Return a jar's name without its version: `kafka-clients` for `kafka-clients-3.9.2.jar`."""
    return re.sub(r"-\d+(\.\d+)+([.-][^-]*)?$", "", jar.stem)


def beside(jars: Sequence[Path], there: Sequence[Path]) -> list[Path]:
    """Return the jars that do not exist in any version yet: Spark's own libraries stay as they are."""
    known = {jar_name(jar) for jar in there}
    return [jar for jar in jars if jar_name(jar) not in known]


def run(command: Sequence[str], failed: str, java_home: Path, seconds: float = FETCH_SECONDS) -> None:
    """Run a program that ends by itself. If it fails or takes too long, raises `Missing` with its first lines of
    output."""
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=seconds, check=False, env={**os.environ, "JAVA_HOME": str(java_home)}, preexec_fn=end_with_parent,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Missing(f"{failed}: {command[0]} had not ended after {seconds:.0f} s") from error
    if ran.returncode:
        raise Missing(f"{failed}; {command[0]} ended with {ran.returncode}:\n{what_it_said(ran.stdout)}")


def what_it_said(output: str) -> str:
    """Return its first lines, without colours, and without Maven's advice below an empty line of errors."""
    lines = (line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", output).splitlines())
    said = itertools.takewhile(lambda line: line != "[ERROR]", filter(None, lines))
    return "\n".join(itertools.islice(said, TOLD_LINES))


_libc = ctypes.CDLL(None)


def end_with_parent() -> None:
    """Let the kernel kill this child process when its parent ends, including by SIGKILL."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


# --- Brokers ---


@dataclass
class Broker:
    """One broker process; `measuring.pids` uses `node_id` and `process`."""

    node_id: int
    port: int
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def controller_port(self) -> int:
        return self.port + 1

    @property
    def log(self) -> Path:
        return self.folder / "broker.log"

    def tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-TOLD_LINES:])


class Brokers:
    """A number of KRaft nodes, not started yet."""

    def __init__(self, folder: Path, count: int, base_port: int) -> None:
        self.nodes = [
            Broker(number, base_port + PORTS_PER_NODE * number, folder / f"node-{number}") for number in range(count)
        ]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def settings(self, node: Broker) -> dict[str, str]:
        """Return the `server.properties` of a broker. The replication is raftlog's default: on all brokers, with their
        majority as `min.insync.replicas`; all other settings are Kafka's defaults."""
        count = len(self.nodes)
        return {
            "process.roles": "broker,controller",
            "node.id": str(node.node_id),
            "controller.quorum.voters": ",".join(f"{n.node_id}@{HOST}:{n.controller_port}" for n in self.nodes),
            "listeners": f"PLAINTEXT://{HOST}:{node.port},CONTROLLER://{HOST}:{node.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{node.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(node.folder / "data"),
            "default.replication.factor": str(count),
            "min.insync.replicas": str(count // 2 + 1),
            "offsets.topic.replication.factor": str(count),
            "transaction.state.log.replication.factor": str(count),
            "transaction.state.log.min.isr": str(count // 2 + 1),
            "auto.create.topics.enable": "false",
        }

    def start(self, jars: Sequence[Path], java_home: Path) -> None:
        """Format the brokers' folders and start all of them. Raises `Missing`."""
        java = [str(java_home / "bin" / "java"), "-cp", ":".join(map(str, jars))]
        identity = cluster_id(os.urandom(12))
        for node in self.nodes:
            node.folder.mkdir(parents=True)
            properties = node.folder / "server.properties"
            properties.write_text(as_properties(self.settings(node)))
            tool = [*java, "-Xmx256m", "kafka.tools.StorageTool", "format", "-t", identity, "-c", str(properties)]
            run(tool, "Kafka's folder could not be formatted", java_home, FORMAT_SECONDS)
        for node in self.nodes:
            with node.log.open("ab") as log:
                node.process = subprocess.Popen(
                    [*java, *JVM_OPTIONS, "kafka.Kafka", str(node.folder / "server.properties")],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=node.folder,
                    start_new_session=True, preexec_fn=end_with_parent,
                )  # fmt: skip

    def wait_listening(self, seconds: float = START_SECONDS) -> None:
        """Wait until all brokers accept connections. Raises `Missing` with the last lines of a broker that ended or was
        too slow."""
        deadline = time.monotonic() + seconds
        for node in self.nodes:
            while not listens(node.port):
                self.check()
                if time.monotonic() > deadline:
                    raise Missing(f"broker {node.node_id} does not listen after {seconds:.0f} s:\n{node.tail()}")
                time.sleep(0.1)

    def check(self) -> None:
        """Raise `Missing` with the last lines of a broker that has ended."""
        for node in self.nodes:
            if node.process is not None and node.process.poll() is not None:
                raise Missing(f"broker {node.node_id} ended with {node.process.returncode}:\n{node.tail()}")

    def stop(self) -> None:
        """Send SIGKILL to all brokers before waiting for any: a controlled shutdown would move leaderships
        needlessly."""
        running = [node.process for node in self.nodes if node.process is not None]
        for process in running:
            process.kill()
        for process in running:
            process.wait()


def as_properties(settings: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def cluster_id(noise: bytes) -> str:
    """Return a cluster id in Kafka's form, from 12 random bytes: 22 characters, the first of which is no dash."""
    return base64.urlsafe_b64encode(b"peer" + noise).decode().rstrip("=")


def listens(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def kafka(folder: str | None, count: int, version: str, java_home: Path) -> Iterator[Brokers]:
    """Run brokers that accept connections, in a folder of their own below `folder`, and remove both when the block
    ends. Raises `Missing`."""
    jars = fetch(broker_artifacts(version), java_home)
    with tempfile.TemporaryDirectory(prefix="kafka-peer-", dir=folder, ignore_cleanup_errors=True) as place:
        brokers = Brokers(Path(place), count, free_base_port(count))
        try:
            brokers.start(jars, java_home)
            brokers.wait_listening()
            yield brokers
        finally:
            brokers.stop()
