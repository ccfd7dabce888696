"""The output of commands: `-o table|wide|json|yaml`.

A table is for people and for `awk`: columns separated by at least two spaces, one header line, no borders, never cut to
the width of a terminal. `wide` has more columns. `json` and `yaml` are for programs: all data, under the names of the
HTTP API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
import rich_click as click

from .command import option

FORMATS = ("table", "wide", "json", "yaml")
NOTHING = "none"
"""Kafka's tools show this for a partition without leader."""

OUTPUT = option("Output format.", "-o", "--output", type=click.Choice(FORMATS))
Output: TypeAlias = Annotated[str, OUTPUT]
"""The parameter `output` of a command, with the default `table`."""

Row: TypeAlias = Sequence[object]
Command = TypeVar("Command", bound=Callable[..., Any])


def output_option(command: Command) -> Command:
    """Add `-o` to a command that click declares, as the parameter `output`."""
    decorated: Command = OUTPUT.decorator("output", str, "table")(command)
    return decorated


def show(output: str, data: Any, text: Callable[[bool], str]) -> None:
    """Print `data` (what msgspec encodes) as JSON or YAML, or else `text(wide)`."""
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(data), indent=2))
    elif output == "yaml":
        click.echo(msgspec.yaml.encode(data), nl=False)
    elif shown := text(output == "wide"):
        click.echo(shown)


def table(columns: Sequence[str], rows: Iterable[Row]) -> str:
    """Return aligned columns below their names."""
    lines = [tuple(columns), *(tuple(map(cell, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    header, *others = (
        "  ".join(entry.ljust(width) for entry, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
    return "\n".join([click.style(header, bold=True), *others])


def listing(columns: Sequence[str], rows: Sequence[Row], wide_columns: Sequence[str] = ()) -> Callable[[bool], str]:
    """Return a table as `show` takes it. The rows have an entry for each wide column too."""

    def text(wide: bool) -> str:
        shown = (*columns, *wide_columns) if wide else columns
        return table(shown, [row[: len(shown)] for row in rows])

    return text


def fields(pairs: Mapping[str, object]) -> str:
    """Return one line for each name and its value."""
    width = max(map(len, pairs), default=0) + 1
    lines = []
    for name, value in pairs.items():
        padding = " " * (width - len(name))
        lines.append(f"{click.style(name + ':', bold=True)}{padding}{cell(value)}")
    return "\n".join(lines)


def counted(count: int, noun: str) -> str:
    """Return `1 partition` or `2 partitions`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def dash(value: object) -> object:
    """Return a dash in place of what is unknown or absent."""
    return "-" if value is None else value


def cell(value: object) -> str:
    """Return a value as text on one line, without control characters for the terminal."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        value = [f"{name}={entry}" for name, entry in value.items()]
    if isinstance(value, list | tuple):
        return ",".join(map(cell, value)) or "-"
    return "".join(c if c.isprintable() else "?" for c in str(value)) or "-"
