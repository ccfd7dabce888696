"""Histories of other projects with known verdicts, in the folder that `RAFTLOG_CORPORA` names; they are not part of
this project.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from jepsen_like.check import check
from jepsen_like.corpora import reading
from jepsen_like.histories.formats import load

CORPORA = Path(os.environ.get("RAFTLOG_CORPORA") or "RAFTLOG_CORPORA is not set")

SETS = {"porcupine": "linearizable registers and text by key", "knossos": "registers and locks with many crashes"}


def known(folder: str) -> dict[str, Any]:
    path = CORPORA / folder / "expected.json"
    if not path.is_file():
        pytest.skip(f"{folder}'s histories, {SETS[folder]}, are not here: {path}")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("folder", SETS)
def test_every_history_gets_its_known_verdict(folder: str) -> None:
    expected = known(folder)
    wrong = {}
    for name, case in expected["cases"].items():
        model, kind = reading(folder, name, case["model"])
        verdict = check(load((CORPORA / folder / name).read_bytes(), kind), model, kind)
        if verdict.valid is not case["linearizable"]:
            wrong[name] = verdict
        first = expected.get("first_illegal_op", {}).get(name)
        if first is not None:
            assert verdict.anomalies["nonlinearizable"][0]["op"] == first
    assert wrong == {}
    assert len(expected["cases"]) > 50


def cases() -> list[dict[str, Any]]:
    path = CORPORA / "kafka_cases.json"
    if not path.is_file():
        pytest.skip(f"a log's cases are not here: {path}")
    found: list[dict[str, Any]] = json.loads(path.read_text())["cases"]
    return found


def test_every_case_of_a_log_shows_exactly_its_anomalies() -> None:
    for case in cases():
        verdict = check(load(json.dumps(case).encode(), "json"), "kafka", "json")
        everything = "__all__" in case["expect"]
        for name, expected in case["expect"].items():
            if name != "__all__":
                found = verdict.anomalies.get(name, [])
                assert len(found) == len(expected), (case["id"], name, found)
                assert all(any(contains(one, part) for one in found) for part in expected), (case["id"], name, found)
        assert not everything or not verdict.anomalies, case["id"]
        assert not set(case["expect_absent"]) & set(verdict.anomalies), case["id"]
        assert set(verdict.anomalies) == set(case["derived_error_types"]), case["id"]


def contains(whole: Any, part: Any) -> bool:
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and contains(whole[key], one) for key, one in part.items())
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(contains, whole, part))
    return bool(whole == part)
