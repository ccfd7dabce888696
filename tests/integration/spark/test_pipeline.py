"""`make pipeline` with its query killed in the middle: it continues from its checkpoint, and counts every flight once
(S13).

Run it by hand: `python -P -m pytest -q -m soak tests/integration/spark/test_pipeline.py`. It takes a minute of CPU.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_source import java
from tests.support.spark.session import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.soak]

SECONDS = 900


def test_a_killed_pipeline_continues_and_counts_every_flight_once_s13(tmp_path: Path) -> None:
    try:
        java.find()
    except java.NoJava as error:
        pytest.skip(str(error))
    plot = tmp_path / "pipeline.svg"
    command = [sys.executable, "examples/pipeline.py", "--kill", "--flights", "200000", "--plot", str(plot)]
    ran = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS, check=False
    )
    assert ran.returncode == 0, ran.stdout[-4_000:]
    assert "SIGKILL to Spark in the middle of the query" in ran.stdout
    assert "Every flight was counted once" in ran.stdout
    assert plot.read_text().startswith("<?xml")
