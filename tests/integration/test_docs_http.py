"""The page of examples of the HTTP API: its requests, sent by curl to a real node, get the answers that it shows."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.support.clusters.cluster import running_cluster
from tests.support.http.transcripts import examples_of, replayed
from tests.tidy.sources import ROOT

pytestmark = pytest.mark.integration

PAGE = ROOT / "docs" / "http.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page's requests are sent by curl")
def test_the_page_shows_what_a_node_answers() -> None:
    examples = examples_of(PAGE)
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) == len(blocks) - 1, "every block but the address has its answers"
    with running_cluster(1) as cluster:
        api = str(cluster.nodes[0].api)
        for requests, answers in examples:
            assert replayed(requests, api) == answers, requests
