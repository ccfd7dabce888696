"""All planted bugs by name, and the seeds that detect them.

`detections.json` has for each bug the first seed that detected it, the guarantee that it broke, and the number of seeds
tried; `python -m jepsen_like.planted search` writes it. The test of a bug runs that one seed, in the kind of world for
which the bug is made: the quorum alone, or whole clusters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from jepsen_like.simulator.shards.seeds import RUNNERS, Verdict
from jepsen_like.simulator.shards.shrink import law_of

from .bugs import BUGS, OF_CLUSTERS, OF_THE_QUORUM
from .patches import Outdated, Planted, plant

__all__ = [
    "BUGS",
    "OF_CLUSTERS",
    "OF_THE_QUORUM",
    "Detection",
    "load_detections",
    "run_planted",
    "save_detections",
    "search",
]

DETECTIONS = Path(__file__).with_name("detections.json")

SECONDS: Mapping[str, float] = {
    "quorum": 30.0,
    "cluster": 40.0,
    "groups": 30.0,
    "consumers": 30.0,
    "security": 30.0,
    "transactions": 40.0,
    "clients": 30.0,
}
"""Kind of world → virtual seconds of faults per seed."""


CRASHES = ("TypeError", "AttributeError", "NameError")
"""Errors of a bug that was written against other code."""


@dataclass(frozen=True, slots=True)
class Detection:
    """How a bug was detected."""

    seed: int
    law: str
    seeds_tried: int
    """Number of seeds of the search that found it, which may have begun anywhere."""
    virtual_seconds: float
    """Virtual time of the detection within the seed."""


def load_detections() -> dict[str, Detection]:
    """Return the detections by bug."""
    held = json.loads(DETECTIONS.read_text(encoding="utf-8"))
    return {name: Detection(**found) for name, found in held.items()}


def save_detections(detections: Mapping[str, Detection]) -> None:
    rows = {name: asdict(found) for name, found in sorted(detections.items())}
    DETECTIONS.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def run_planted(bug: Planted, seed: int) -> Verdict:
    """Run one seed with the bug in the product.

    Raises `Outdated` if the bug crashes the product because the code has changed: such a detection shows nothing.
    """
    with plant(bug):
        verdict = RUNNERS[bug.world](seed, SECONDS[bug.world])
    if law_of(verdict.violation) in CRASHES:
        raise Outdated(f"the planted bug {bug.name!r} crashes the product: {verdict.violation}")
    return verdict


def search(bug: Planted, *, first: int = 1, seeds: int = 1000) -> Detection | None:
    """Return the first seed that detects the bug, within a number of seeds."""
    for seed in range(first, first + seeds):
        verdict = run_planted(bug, seed)
        if not verdict.passed:
            return Detection(seed, law_of(verdict.violation), seed - first + 1, round(verdict.seconds, 1))
    return None
