"""Every Python example of the README and of the clients' pages runs as it is, except for the address.

An example without imports continues the previous ones: it gets a producer and some values. An example that prints
forever has shown enough after a few lines.
"""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import raftlog
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.sync import Admin, Producer
from tests.support.clusters.cluster import PATIENCE_S, running_cluster
from tests.support.clusters.tls import Authority
from tests.tidy.sources import ROOT

pytestmark = pytest.mark.integration

DOCUMENTS = ("README.md", "docs/client.md", "docs/groups.md", "docs/moving-from-kafka.md")
ADDRESS = "127.0.0.1:9640"
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
ENOUGH_LINES = 2


def examples() -> list[Any]:
    found = []
    for document in DOCUMENTS:
        text = (ROOT / document).read_text()
        for match in PYTHON.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(pytest.param(match.group(1), id=f"{document}:{line}"))
    return found


class Enough(Exception):
    """It has printed enough lines."""


class Output:
    """The `print` of an example."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, *what: object) -> None:
        self.lines.append(" ".join(map(str, what)))
        if len(self.lines) >= ENOUGH_LINES:
            raise Enough


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster(node_count=1) as running:
        with Admin(running.bootstrap) as admin, Producer(running.bootstrap) as producer:
            for topic in ("greetings", "orders"):
                admin.create_topic(topic, partitions=1)
                producer.send_many(topic, [b"one", b"two", b"three"])
            producer.flush()
        yield running


@pytest.fixture
def beside_an_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working folder of an example that names the certificate of an authority."""
    (tmp_path / "authority.pem").write_bytes(Authority().pair[0])
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("beside_an_authority")
@pytest.mark.parametrize("example", examples())
def test_the_examples_run(cluster: LocalCluster, example: str) -> None:
    source = example.replace(ADDRESS, cluster.bootstrap).replace('"orders", partitions=3', '"fresh", partitions=3')
    code = compile(source, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    output = Output()
    names: dict[str, Any] = {"print": output, "bootstrap": cluster.bootstrap, "topic": "orders"}
    names.update(raftlog=raftlog, Consumer=raftlog.Consumer)
    try:
        run(code, names, given="import" not in source)
    except Enough:
        assert len(output.lines) == ENOUGH_LINES
    assert bool(output.lines) == ("print" in source)


def test_the_example_of_the_readme_is_a_whole_program(cluster: LocalCluster) -> None:
    found = PYTHON.search((ROOT / "README.md").read_text())
    assert found is not None
    done = subprocess.run(
        [sys.executable, "-P", "-c", found[1].replace(ADDRESS, cluster.bootstrap)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert {line.split(" ", 2)[2] for line in lines} >= {"b'hello'", "b'salut'", "b'hallo'"}


def run(code: Any, names: dict[str, Any], *, given: bool) -> None:
    """Run it on a loop of its own if it awaits outside of functions; it gets a producer if it only continues."""

    async def on_loop() -> None:
        async with asyncio.timeout(PATIENCE_S), raftlog.Producer(names["bootstrap"]) as producer:
            names.update(producer=producer, values=[b"x"] * 2500)
            await producer.prepare("orders")
            going = eval(code, names)  # noqa: S307  our own documents
            if isinstance(going, Coroutine):
                await going

    if given:
        asyncio.run(on_loop())
        return
    going = eval(code, names)  # noqa: S307  our own documents
    if isinstance(going, Coroutine):
        asyncio.run(asyncio.wait_for(going, PATIENCE_S))
