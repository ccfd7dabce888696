"""The page about the REST Proxy API: its requests, sent by curl to a real node, get the answers that it shows."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess

import pytest

from raftlog import Admin
from tests.support.clusters.cluster import running_cluster
from tests.tidy.sources import ROOT

pytestmark = pytest.mark.integration

PAGE = ROOT / "docs" / "rest-proxy.md"
EXAMPLE = re.compile(r"^```sh\n((?:(?!```).)*)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECONDS = 60


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page's requests are sent by curl")
def test_the_page_shows_what_a_node_answers() -> None:
    examples = EXAMPLE.findall(PAGE.read_text())
    assert len(examples) == 5
    with running_cluster(1) as cluster:
        api = cluster.nodes[0].api

        async def prepare() -> None:
            async with Admin(str(api)) as admin:
                await admin.create_topic("orders", 2)

        asyncio.run(prepare())
        for requests, answers in examples:
            # curl ends no line, and each answer is one.
            script = f"export API=http://{api}\n" + re.sub(r"^curl -s", "echo; curl -s", requests, flags=re.MULTILINE)
            told = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=SECONDS)
            assert told.returncode == 0, told.stderr
            assert [line for line in told.stdout.splitlines() if line] == answers.splitlines()
