"""A node's doors under random callers, and the planted bugs that they find. S12."""

from __future__ import annotations

import pytest

from jepsen_like.planted.door_bugs import DOOR_BUGS
from jepsen_like.planted.patches import Planted, plant
from tests.support.security.door_world import run_doors

SEEDS = 60


def test_no_door_opens_without_a_right_s12() -> None:
    assert {seed: broken for seed in range(SEEDS) if (broken := run_doors(seed))} == {}


@pytest.mark.parametrize("bug", DOOR_BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_of_the_doors_is_found_s12(bug: Planted) -> None:
    with plant(bug):
        assert any(run_doors(seed) for seed in range(SEEDS)), bug.hole
