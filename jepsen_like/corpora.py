"""Comparison of our checkers with other projects' histories of known verdict.

The histories are not part of this project; the caller names their folder: `porcupine/` and `knossos/`, each with an
`expected.json`, and `kafka_cases.json`. In a log's case every anomaly has to be found, and no other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from jepsen_like.histories.formats import load

from .check import check

LINEARIZABLE = ("porcupine", "knossos")
LOG_CASES = "kafka_cases.json"


class Agreement(msgspec.Struct, frozen=True):
    """One line of results."""

    corpus: str
    cases: int
    agreed: int
    commit: str
    wrong: list[str]
    """Cases in which our verdict differs."""


def agreements(folder: Path, commit: str) -> Iterator[Agreement]:
    """Yield the agreement with each corpus that exists."""
    for name in LINEARIZABLE:
        if (folder / name / "expected.json").is_file():
            cases = json.loads((folder / name / "expected.json").read_text())["cases"]
            wrong = [case for case, told in cases.items() if not _linearizable(folder / name / case, name, told)]
            yield Agreement(name, len(cases), len(cases) - len(wrong), commit, wrong)
    if (folder / LOG_CASES).is_file():
        listed = json.loads((folder / LOG_CASES).read_text())["cases"]
        wrong = [case["id"] for case in listed if not _log(case)]
        yield Agreement("kafka", len(listed), len(listed) - len(wrong), commit, wrong)


def reading(corpus: str, name: str, model: str) -> tuple[str, str]:
    """Return the model and the format of a history."""
    if corpus == "porcupine":
        return ("cas-register", "etcd-log") if name.endswith(".log") else ("kv", "kv-edn")
    return model.partition(",")[0].partition(" ")[0], "edn"


def _linearizable(file: Path, corpus: str, told: dict[str, Any]) -> bool:
    model, kind = reading(corpus, file.name, told["model"])
    return check(load(file.read_bytes(), kind), model, kind).valid is told["linearizable"]


def _log(case: dict[str, Any]) -> bool:
    verdict = check(load(json.dumps(case).encode(), "json"), "kafka", "json")
    return set(verdict.anomalies) == set(case["derived_error_types"])
