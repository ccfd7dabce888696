"""Apache Kafka as a peer: its brokers as processes of this machine, and jars by Maven.

Maven fetches what is published (`org.apache.kafka:kafka_2.13`, Spark's connector) into folders below `build/`, once for
each version; from then on no network is needed. Brokers are combined KRaft nodes (KIP-500, KIP-595): each broker also
votes as a controller. Their JVM gets the options that Kafka's own start script gives it, their topics the replication
and the `min.insync.replicas` that raftlog's get. They end by SIGKILL, since their data goes with them, and with this
process, however it ends.
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
"""Kafka has been built for no other since 4.0, PySpark since 4.0."""
JARS = Path(__file__).resolve().parents[1] / "build" / "kafka-peer"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
FETCH_SECONDS, FORMAT_SECONDS, START_SECONDS = 900.0, 60.0, 90.0

JVM_OPTIONS = (
    "-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)  # fmt: skip
"""Those of `kafka-server-start.sh`; the last one is ours, so that a log of a start that failed says why."""

TOLD_LINES = 15
PR_SET_PDEATHSIG = 1


class Missing(Exception):
    """What a comparison needs and this machine does not have. The text says what to do."""


# --- Jars ---


class Artifact(NamedTuple):
    """What Maven fetches, with all that it needs at run time."""

    group: str
    name: str
    version: str

    def __str__(self) -> str:
        return ":".join(self)


def broker_artifacts(version: str) -> list[Artifact]:
    """A broker, and what writes its log lines to standard error."""
    return [
        Artifact("org.apache.kafka", f"kafka_{SCALA}", version),
        Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
    ]


def connector_artifacts(version: str) -> list[Artifact]:
    """Spark's connector, of Spark's version."""
    return [Artifact("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA}", version)]


def project(artifacts: Sequence[Artifact]) -> str:
    """A `pom.xml` of a project that consists of its dependencies."""
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
    """The jars of these and of what they need, from `build/` or by Maven. Raises `Missing`."""
    folder = JARS / f"{artifacts[0].name}-{artifacts[0].version}"
    if not folder.exists():
        if shutil.which("mvn") is None:
            raise Missing("Maven fetches the jars, and there is no mvn on the PATH. Debian: apt-get install maven")
        JARS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=JARS) as place:
            Path(place, "pom.xml").write_text(project(artifacts))
            # -U: what Maven Central did not have yesterday it may have today.
            command = ["mvn", "-B", "-q", "-U", "-f", f"{place}/pom.xml", COPY]
            command += ["-DincludeScope=runtime", f"-DoutputDirectory={place}/jars"]
            run(command, f"Maven could not fetch {artifacts[0]}", java_home)
            # Renamed when it is whole: a fetch that was cut short is made again.
            os.rename(f"{place}/jars", folder)
    return sorted(folder.glob("*.jar"))


def jar_name(jar: Path) -> str:
    """Without its version: `kafka-clients` of `kafka-clients-3.9.2.jar`."""
    return re.sub(r"-\d+(\.\d+)+([.-][^-]*)?$", "", jar.stem)


def beside(jars: Sequence[Path], there: Sequence[Path]) -> list[Path]:
    """Those that are not there yet in any version: Spark's own libraries stay as it ships them."""
    known = {jar_name(jar) for jar in there}
    return [jar for jar in jars if jar_name(jar) not in known]


def run(command: Sequence[str], failed: str, java_home: Path, seconds: float = FETCH_SECONDS) -> None:
    """A program that ends by itself. Raises `Missing` with what it said first when it fails, or takes too long."""
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
    """Its first lines, without colours, and without the advice that Maven gives below an empty line of errors."""
    lines = (line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", output).splitlines())
    said = itertools.takewhile(lambda line: line != "[ERROR]", filter(None, lines))
    return "\n".join(itertools.islice(said, TOLD_LINES))


_libc = ctypes.CDLL(None)


def end_with_parent() -> None:
    """In a child: the kernel kills it when its parent ends, also by SIGKILL."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


# --- Brokers ---


@dataclass
class Broker:
    """One process; `node_id` and `process` are what `measuring.pids` asks for."""

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
    """So many KRaft nodes, not started yet."""

    def __init__(self, folder: Path, count: int, base_port: int) -> None:
        self.nodes = [
            Broker(number, base_port + PORTS_PER_NODE * number, folder / f"node-{number}") for number in range(count)
        ]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def settings(self, node: Broker) -> dict[str, str]:
        """Its `server.properties`. Replication as raftlog's by default: on all brokers, `min.insync.replicas` their
        majority; what is not named here has Kafka's own default."""
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
        """Formats their folders and starts them all. Raises `Missing`."""
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
        """Until all take connections. Raises `Missing` with the last lines of one that ended, or was too late."""
        deadline = time.monotonic() + seconds
        for node in self.nodes:
            while not listens(node.port):
                self.check()
                if time.monotonic() > deadline:
                    raise Missing(f"broker {node.node_id} does not listen after {seconds:.0f} s:\n{node.tail()}")
                time.sleep(0.1)

    def check(self) -> None:
        """Raises `Missing` with the last lines of a broker that ended."""
        for node in self.nodes:
            if node.process is not None and node.process.poll() is not None:
                raise Missing(f"broker {node.node_id} ended with {node.process.returncode}:\n{node.tail()}")

    def stop(self) -> None:
        """SIGKILL to all, and only then wait: a controlled shutdown would move leaderships that nobody needs."""
        running = [node.process for node in self.nodes if node.process is not None]
        for process in running:
            process.kill()
        for process in running:
            process.wait()


def as_properties(settings: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def cluster_id(noise: bytes) -> str:
    """Of 12 random bytes what Kafka takes as a cluster's id: 22 characters, the first of which is no dash."""
    return base64.urlsafe_b64encode(b"peer" + noise).decode().rstrip("=")


def listens(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def kafka(folder: str | None, count: int, version: str, java_home: Path) -> Iterator[Brokers]:
    """Brokers that take connections, in a folder of their own below `folder`; both gone when the block ends. Raises
    `Missing`."""
    jars = fetch(broker_artifacts(version), java_home)
    with tempfile.TemporaryDirectory(prefix="kafka-peer-", dir=folder, ignore_cleanup_errors=True) as place:
        brokers = Brokers(Path(place), count, free_base_port(count))
        try:
            brokers.start(jars, java_home)
            brokers.wait_listening()
            yield brokers
        finally:
            brokers.stop()
