"""Every example, in the help of a command and in `docs/cli.md`, is a command line that raftlog accepts."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from raftlog.cli.main import COMMANDS, cli
from tests.support.cli_runner import run

ROOT = Path(__file__).parents[4]
BEFORE_COMMAND = ("|", "&&", ";", "until", "do")
END_OF_COMMAND = ("|", "&&", "<", ">", ";", "2>")


def verbs(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """The commands without commands below them, by their full names."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for word in command.list_commands(context):
        below = command.get_command(context, word)
        assert below is not None
        yield from verbs(below, f"{name} {word}")


def own_verbs() -> list[tuple[str, click.Command]]:
    context = click.Context(cli)
    return [one for noun in COMMANDS for one in verbs(cli.get_command(context, noun), noun)]  # type: ignore[arg-type]


def command_lines(text: str) -> Iterator[list[str]]:
    """The words of every call of raftlog, without the rest of the shell's line."""
    for line in text.splitlines():
        words = shlex.split(line.replace(";", " ;"), comments=True)
        for position, word in enumerate(words):
            if word == "raftlog" and (not position or words[position - 1] in BEFORE_COMMAND):
                yield list(itertools.takewhile(lambda one: one not in END_OF_COMMAND, words[position + 1 :]))


def accept(words: list[str]) -> None:
    """Parse a command line as raftlog does, without carrying it out. Files that it reads are there."""
    command: click.Command = cli
    context = cli.make_context("raftlog", list(words))
    while isinstance(command, click.Group) and (remaining := [*context._protected_args, *context.args]):
        name, below, remaining = command.resolve_command(context, remaining)
        assert below is not None
        command = below
        context = command.make_context(name, remaining, parent=context)
    assert not isinstance(command, click.Group), f"{words} names no command"


@pytest.mark.parametrize(("name", "command"), own_verbs(), ids=[name for name, _ in own_verbs()])
def test_every_command_has_examples_of_itself(name: str, command: click.Command) -> None:
    examples = command.examples  # type: ignore[attr-defined]
    assert examples
    for example in examples:
        # `raftlog server --config` runs a node without naming the verb.
        named = ["server"] if name == "server run" else name.split()
        assert any(all(word in words for word in named) for words in command_lines(example)), example


def documented() -> list[str]:
    text = (ROOT / "docs" / "cli.md").read_text()
    return [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]


@pytest.mark.parametrize("line", [*(e for _, one in own_verbs() for e in one.examples), *documented()])  # type: ignore[attr-defined]
def test_an_example_is_accepted(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in command_lines(line):
        for word in words:
            if re.fullmatch(r"[\w/-]+\.(txt|ndjson|csv|log|index|toml)", word):
                words[words.index(word)] = name = word.rpartition("/")[2]
                (tmp_path / name).touch()
            elif word.startswith(("/var/lib/", "/etc/")):
                words[words.index(word)] = str(tmp_path)
        accept(words)


def test_help_ends_with_the_examples() -> None:
    shown = run("topic", "create", "--help").text
    assert "Examples:\n   raftlog topic create orders --partitions 6 --config retention.ms=7d" in shown
