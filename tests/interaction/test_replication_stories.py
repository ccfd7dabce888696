"""Every story in `testdata/` is executed against real partition managers; `README.md` explains the columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from .datadriven import Command, run_story
from .environment import Environment

STORIES = sorted((Path(__file__).parent / "testdata").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path, rewrite: bool) -> None:
    environment = Environment()
    run_story(path, environment.execute, rewrite=rewrite)
    environment.check()


def test_a_story_with_other_output_fails(tmp_path: Path) -> None:
    story = tmp_path / "story.txt"
    story.write_text("# What is printed is compared.\nsay one\n----\none\n\nsay two\n----\nthree\n")
    said = lambda command: " ".join(command.args)  # noqa: E731
    with pytest.raises(AssertionError, match="say two"):
        run_story(story, said, rewrite=False)
    run_story(story, said, rewrite=True)
    assert story.read_text().endswith("say two\n----\ntwo\n")
    run_story(story, said, rewrite=False)


def test_commands_are_words_and_options() -> None:
    command = Command("produce 0 x acks=1 pid=7", 1)
    assert (command.name, command.args, command.options) == ("produce", ["0", "x"], {"acks": "1", "pid": "7"})


def test_there_are_stories() -> None:
    assert len(STORIES) >= 15
