"""The calculator: its costs are those of docs/performance.md, its answers add up, and the page shows its output."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tidy.sources import ROOT

PATH = ROOT / "docs" / "site" / "capacity.py"
PAGE = ROOT / "docs" / "capacity.md"


def load_calculator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("capacity", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["capacity"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


capacity = load_calculator()


@pytest.mark.parametrize("cost", capacity.COSTS, ids=lambda cost: cost.text)
def test_each_cost_is_in_the_document_with_its_command(cost: capacity.Measured) -> None:
    document = (ROOT / "docs" / "performance.md").read_text()
    assert cost.text in document
    assert cost.command in document
    assert f"`{cost.command}`" in PAGE.read_text()


def test_what_a_node_does_adds_up() -> None:
    load = capacity.Load(write_mb=100, readers=2, replicas=3, retention_hours=1)
    use = capacity.use_of(load, 5)
    assert use.received_mb * 5 == pytest.approx(300)
    assert use.sent_mb * 5 == pytest.approx(400), "two followers and two readers"
    assert use.disk_gb * 5 == pytest.approx(100 * 3 * 3600 / 1000 * 1.04)
    assert use.loop * 5 == pytest.approx(0.3 * 2.4 + 0.2 * 1.45)
    assert use.cpu * 5 == pytest.approx(0.3 * 4.8 + 0.2 * 1.45)
    assert capacity.use_of(load, 2).received_mb * 2 == pytest.approx(200), "at most one replica on a node"


loads = st.builds(
    capacity.Load,
    write_mb=st.floats(0, 500),
    readers=st.floats(0, 10),
    replicas=st.integers(1, 5),
    retention_hours=st.floats(0, 500),
    commits=st.floats(0, 5000),
    lone_records=st.floats(0, 500),
)


@given(loads, st.integers(1, 50))
def test_more_nodes_do_less_each(load: capacity.Load, nodes: int) -> None:
    few, more = capacity.use_of(load, nodes), capacity.use_of(load, nodes + 1)
    if nodes >= load.replicas:
        assert more.loop <= few.loop and more.cpu <= few.cpu and more.disk_gb <= few.disk_gb


@given(loads)
def test_the_answer_is_the_smallest_that_is_enough(load: capacity.Load) -> None:
    nodes = capacity.nodes_needed(load)
    if nodes is None:
        assert not capacity.is_enough(load, capacity.use_of(load, capacity.NODES_MAX - 1))
        return
    assert capacity.is_enough(load, capacity.use_of(load, nodes - 1))
    if nodes > max(load.replicas, 3):
        assert not capacity.is_enough(load, capacity.use_of(load, nodes - 2))


def test_the_page_shows_what_the_calculator_prints() -> None:
    page = PAGE.read_text()
    command, output = re.findall(r"^```(?:sh|text)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    words = shlex.split(command)
    assert words[:2] == ["python", "docs/site/capacity.py"]
    done = subprocess.run(
        [sys.executable, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == output


@pytest.mark.parametrize("arguments", [["--write-mb", "-1"], ["--write-mb", "1", "--cores", "0"], []])
def test_a_load_that_cannot_be_is_refused(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, PATH, *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and "error: " in done.stderr


def test_a_load_that_is_too_large_says_what_helps() -> None:
    load = capacity.Load(write_mb=10_000, retention_hours=10_000, disk_gb=1)
    assert "More than 1000 nodes" in capacity.report(load)
