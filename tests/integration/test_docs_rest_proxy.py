"""The page about the REST Proxy API: its requests, sent by curl to a real node, get the answers that it shows."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from raftlog import Admin
from tests.support.clusters.cluster import running_cluster
from tests.support.http.transcripts import examples_of, replayed
from tests.tidy.sources import ROOT

pytestmark = pytest.mark.integration


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page's requests are sent by curl")
@pytest.mark.parametrize("over", ["HTTP/1.1", "HTTP/2"])
def test_the_page_shows_what_a_node_answers(over: str) -> None:
    """Over HTTP/2 at the data listener; its empty commit needs answers whose delivery was confirmed."""
    examples = examples_of(ROOT / "docs" / "rest-proxy.md")
    assert len(examples) == 5
    with running_cluster(1) as cluster:
        api = str(cluster.nodes[0].api)

        async def prepare() -> None:
            async with Admin(api) as admin:
                await admin.create_topic("orders", 2)

        asyncio.run(prepare())
        before = [] if over == "HTTP/1.1" else ['curl() { command curl --http2-prior-knowledge "$@"; }']
        door = api if over == "HTTP/1.1" else str(cluster.nodes[0].data)
        for requests, answers in examples:
            assert replayed(requests, door, before=before) == answers
