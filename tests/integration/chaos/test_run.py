"""A whole run: a real cluster whose nodes are killed, checked, plotted and added to the scoreboard."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from jepsen_like.chaos import chaos
from jepsen_like.clusters.capabilities import LOOPBACK, NAMESPACES_NEED, lack
from jepsen_like.run_records import RunFolder, read_faults

pytestmark = [pytest.mark.integration, pytest.mark.soak]


@pytest.mark.parametrize("layout", ["namespaces", "loopback"])
def test_a_run(layout: str, tmp_path: Path) -> None:
    lacks = [why for name in (NAMESPACES_NEED if layout == "namespaces" else [LOOPBACK]) if (why := lack(name))]
    if lacks:
        pytest.skip("; ".join(lacks))
    arguments = ["run", "--nemesis", "kill", "--time", "15", "--rate", "40", "--seed", "7", "--layout", layout]
    options = ["--option", "hold=[1, 2]", "--option", "quiet=[1, 2]", "--runs", str(tmp_path)]
    done = CliRunner().invoke(chaos, [*arguments, *options, "-o", "json"])
    assert done.exit_code == 0, done.output
    folder = RunFolder(next(path for path in tmp_path.iterdir() if path.is_dir()))
    told = json.loads(folder.outcome.read_bytes())
    assert told["valid"] is True and told["operations"]["ok"] > 50 and told["faults"]["kill"] >= 2
    assert all(fault.evidence for fault in read_faults(folder.faults))
    assert "valid</span>" in folder.report.read_text()
    assert len((tmp_path / "results.jsonl").read_bytes().splitlines()) == 1
    own = f"raftlog-{os.getpid()}-"
    assert not [path for path in Path("/run").glob("netns/*") if path.name.startswith(own)]
