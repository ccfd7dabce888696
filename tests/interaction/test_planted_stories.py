"""Removing a rule changes the outcome of the story that was written for it (S1, S6, S10)."""

from __future__ import annotations

import pytest

from jepsen_like.planted.catalogue import BUGS
from jepsen_like.planted.patches import plant
from jepsen_like.planted.stories import STORIES
from raftlog.errors import RaftlogError

from .datadriven import run_story
from .environment import Environment
from .test_replication_stories import STORIES as FILES

PATHS = {path.stem: path for path in FILES}


@pytest.mark.parametrize(("name", "story"), sorted(STORIES.items()))
def test_a_story_ends_differently_with_the_planted_bug(name: str, story: str) -> None:
    environment = Environment()
    with plant(BUGS[name]), pytest.raises((AssertionError, RaftlogError)):
        run_story(PATHS[story], environment.execute, rewrite=False)
        environment.check()
    environment = Environment()
    run_story(PATHS[story], environment.execute, rewrite=False)
    environment.check()
