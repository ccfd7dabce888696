"""All planted bugs by name, and what is known of how they are found.

`detections.json` has, for each, the first seed that found it, the law that it broke, and how many seeds were tried:
written by `python -m jepsen_like.planted search`. The test of a bug runs that one seed, in the kind of world that the
bug is for: the quorum alone, or whole clusters.
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

SECONDS: Mapping[str, float] = {"quorum": 30.0, "cluster": 40.0, "groups": 30.0, "transactions": 40.0, "clients": 30.0}
"""Kind of world → virtual seconds of faults a seed."""


CRASHES = ("TypeError", "AttributeError", "NameError")
"""What a bug that was written against other code ends with."""


@dataclass(frozen=True, slots=True)
class Detection:
    """How a bug was found."""

    seed: int
    law: str
    seeds_tried: int
    """By the search that found it, from wherever that began."""
    virtual_seconds: float
    """Into the seed that found it."""


def load_detections() -> dict[str, Detection]:
    """By bug."""
    held = json.loads(DETECTIONS.read_text(encoding="utf-8"))
    return {name: Detection(**found) for name, found in held.items()}


def save_detections(detections: Mapping[str, Detection]) -> None:
    rows = {name: asdict(found) for name, found in sorted(detections.items())}
    DETECTIONS.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def run_planted(bug: Planted, seed: int) -> Verdict:
    """One seed with the bug in the product. Raises `Outdated` where the bug does not fit the product any more: what
    crashes is found, and shows nothing."""
    with plant(bug):
        verdict = RUNNERS[bug.world](seed, SECONDS[bug.world])
    if law_of(verdict.violation) in CRASHES:
        raise Outdated(f"the planted bug {bug.name!r} crashes the product: {verdict.violation}")
    return verdict


def search(bug: Planted, *, first: int = 1, seeds: int = 1000) -> Detection | None:
    """The first seed that finds the bug, if one of so many does."""
    for seed in range(first, first + seeds):
        verdict = run_planted(bug, seed)
        if not verdict.passed:
            return Detection(seed, law_of(verdict.violation), seed - first + 1, round(verdict.seconds, 1))
    return None
