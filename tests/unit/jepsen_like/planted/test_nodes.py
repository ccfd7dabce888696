"""Nodes of real clusters with a planted bug: the bug is in the process, which runs the product."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jepsen_like.clusters import loopback
from jepsen_like.clusters.node import PROGRAM, NodeProcess
from jepsen_like.planted import node
from jepsen_like.planted.bugs import BUGS
from jepsen_like.planted.patches import Outdated, Planted
from jepsen_like.scoreboard.cells import cell
from raftlog.model import Endpoint
from raftlog.version import __version__

BUG = "log_without_fsync"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["node", *arguments])
    # As in a process of its own, which has not loaded it before.
    monkeypatch.delitem(sys.modules, node.PRODUCT, raising=False)
    with pytest.raises(SystemExit) as ended:
        node.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_bug_is_in_the_product_while_it_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    patch = BUGS[BUG].patches[0]
    before = getattr(patch.owner, patch.name)
    seen = []
    real = node.runpy.run_module
    monkeypatch.setattr(
        node.runpy, "run_module", lambda *a, **k: (seen.append(getattr(patch.owner, patch.name)), real(*a, **k))
    )
    assert run(monkeypatch, BUG, "--version") == 0
    assert __version__ in capsys.readouterr().out
    assert seen == [patch.by] and getattr(patch.owner, patch.name) is before


@pytest.mark.parametrize("arguments", [(), ("no_such_bug", "--version")])
def test_an_unknown_bug_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    assert run(monkeypatch, *arguments) == node.EXIT_USAGE


def test_a_bug_for_other_code_is_not_planted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(bug: Planted, pins: object) -> None:
        raise Outdated("it has changed since")

    monkeypatch.setattr("jepsen_like.planted.patches.check_pins", check)
    assert run(monkeypatch, BUG, "--version") == node.EXIT_OUTDATED
    assert "it has changed since" in capsys.readouterr().err


def test_nodes_are_the_product_unless_a_bug_is_requested(tmp_path: Path) -> None:
    place = Endpoint("127.0.0.1", 1)
    made = NodeProcess("n1", 0, tmp_path, tmp_path, place, place, {})
    assert made.program == PROGRAM
    assert node.program(BUG)[-2:] == ("jepsen_like.planted.node", BUG)
    assert cell("R1").plan(seed=1, seconds=1).planted == ""
    assert loopback.PROGRAM is PROGRAM
