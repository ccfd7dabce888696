"""The documentation site builds strictly, and its pages ask no other host for anything.

It needs MkDocs (`pip install -e '.[docs]'`, or `make docs`), which `make test` does not install.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from raftlog.errors import CODES
from tests.tidy.sources import ROOT

pytest.importorskip("mkdocs", reason="MkDocs is not installed: `make docs` installs it")
pytestmark = pytest.mark.integration

SECONDS = 300


class Requests(HTMLParser):
    """Collects the addresses that a browser loads by itself for a page, and the page's diagrams."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.diagrams = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        if tag == "link" and found.get("rel") not in ("canonical", "next", "prev", "alternate"):
            self.loaded.append(found.get("href") or "")
        elif tag in ("script", "img", "iframe", "source", "video", "object", "embed"):
            self.loaded.append(found.get("src") or found.get("data") or "")
        self.diagrams += tag == "pre" and "mermaid" in (found.get("class") or "").split()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_pages_load_nothing_from_another_host(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    diagrams = 0
    for page in pages:
        requests = Requests()
        requests.feed(page.read_text())
        assert [address for address in requests.loaded if "//" in address] == [], page
        for address in requests.loaded:
            path = address.partition("?")[0].partition("#")[0]
            if path and page.name != "404.html" and not path.startswith("data:"):
                assert (page.parent / path).exists(), (page, address)
        # Without its own script, the theme would load one from another host.
        assert (requests.diagrams > 0) == any("mermaid" in address for address in requests.loaded), page
        diagrams += requests.diagrams
    assert diagrams > 0


def test_the_references_are_complete(site: Path) -> None:
    python = (site / "python-reference.html").read_text()
    for name in ("Producer.send_many", "GroupConsumer.commit", "Admin.create_topic", "ProducerSettings.linger_ms"):
        assert f".{name}" in python, name
    http = (site / "http-reference.html").read_text()
    for path in ("/v1/topics/{topic}/records", "/v1/groups/{group}", "/v1/cluster"):
        assert path in re.sub(r"<[^>]*>", "", http), path
    errors = (site / "errors.html").read_text()
    assert [code for code in CODES if f'id="{code}"' not in errors] == []
