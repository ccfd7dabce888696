"""Tests as text files: commands, a line of dashes, and their output. `--rewrite` writes the actual output.

    # A paragraph of comment, for the reader.
    command positional key=value
    ----
    the output

A command is one line; its output ends at the next empty line. This module knows nothing about the meaning of commands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SEPARATOR = "----"


@dataclass
class Command:
    """One line: a name, positional arguments, and `key=value` arguments."""

    line: str
    number: int
    name: str = ""
    args: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name, *words = self.line.split()
        for word in words:
            key, equals, value = word.partition("=")
            if equals:
                self.options[key] = value
            else:
                self.args.append(word)


def run_story(path: Path, execute: Callable[[Command], str], *, rewrite: bool) -> None:
    """Execute a file's commands in order, and compare their output with the file, or write it."""
    lines = path.read_text().splitlines()
    told: list[str] = []
    position = 0
    while position < len(lines):
        line = lines[position]
        told.append(line)
        position += 1
        if not line.strip() or line.startswith("#"):
            continue
        command = Command(line, position)
        where = f"{path.name}:{position}: {line}"
        assert position < len(lines) and lines[position] == SEPARATOR, f"{where}: a line {SEPARATOR!r} must follow"
        position += 1
        expected: list[str] = []
        while position < len(lines) and lines[position].strip():
            expected.append(lines[position])
            position += 1
        printed = [text.rstrip() or "." for text in execute(command).splitlines()] or ["ok"]
        told += [SEPARATOR, *printed]
        if not rewrite:
            assert printed == expected, (
                f"{where}\n\nprinted:\n" + "\n".join(printed) + "\n\nnot:\n" + "\n".join(expected)
            )
    if rewrite:
        path.write_text("\n".join(told) + "\n")
