"""Karapace's own tests of its REST proxy, in the checkout that `RAFTLOG_KARAPACE` names; it is no part of this project.

    RAFTLOG_KARAPACE=/path/to/karapace pytest tests/integration/http_api/test_karapace.py

Each test passes, or is in the table of `docs/rest-proxy.md` with the reason.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.support.clusters.cluster import running_cluster
from tests.tidy.sources import ROOT

pytestmark = pytest.mark.integration

CHECKOUT = Path(os.environ.get("RAFTLOG_KARAPACE") or "RAFTLOG_KARAPACE is not set")
TESTS = CHECKOUT / "tests" / "integration" / "kafka_rest_apis"
ADAPTER = ROOT / "tests" / "support" / "karapace"
TESTS_SECONDS = 900.0


def documented() -> set[str]:
    """Return the tests in the table, by their names."""
    text = (ROOT / "docs" / "rest-proxy.md").read_text(encoding="utf-8")
    section = text.partition("## Karapace's own tests")[2]
    return set(re.findall(r"`(test_\w+)`", section))


def outcomes(results: Path) -> dict[str, str]:
    """Return the worst outcome of each test by its name, over all its parameters: passed, skipped or failed."""
    found: dict[str, str] = {}
    order = ("passed", "skipped", "failed")
    for case in ElementTree.parse(results).getroot().iter("testcase"):
        name = case.attrib["name"].partition("[")[0]
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        found[name] = max(found.get(name, "passed"), outcome, key=order.index)
    return found


def test_each_test_of_karapace_passes_or_is_documented(tmp_path: Path) -> None:
    if not TESTS.is_dir():
        pytest.skip(f"Karapace's tests are not here: {CHECKOUT}")
    results = tmp_path / "results.xml"
    with running_cluster(1) as cluster:
        environment = {
            **os.environ,
            "RAFTLOG_API": str(cluster.nodes[0].api),
            "PYTHONPATH": os.pathsep.join(map(str, (CHECKOUT, ADAPTER, ROOT))),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "raftlog_for_karapace", "--noconftest"]
        command += ["-c", os.devnull, "--rootdir", str(CHECKOUT), "-o", "asyncio_mode=auto", f"--junitxml={results}"]
        command += ["--import-mode=importlib", str(TESTS / "test_rest.py"), str(TESTS / "test_rest_consumer.py")]
        done = subprocess.run(
            command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=TESTS_SECONDS, check=False
        )
    assert results.is_file(), done.stdout + done.stderr
    found = outcomes(results)
    assert len(found) > 20, "the checkout has other tests than expected"
    not_passed = {name for name, outcome in found.items() if outcome != "passed"}
    assert not_passed == documented() & found.keys(), done.stdout[-8_000:]
