"""Commands from signatures: types, defaults, options of structs, and exit codes."""

from __future__ import annotations

from typing import Annotated, Literal

import click
import msgspec
import pytest
from click.testing import CliRunner

from raftlog.cli.terminal.command import argument, command, option
from raftlog.cli.terminal.connection import Connection


class Times(msgspec.Struct, frozen=True):
    often: Annotated[int, click.IntRange(1), "How often."] = 2
    fast: Annotated[bool, "Without a pause."] = False


@command()
def greet(
    connection: Connection,
    names: Annotated[tuple[str, ...], argument()],
    *,
    times: Times,
    tone: Annotated[Literal["kind", "curt"], option("Tone of the greeting.", "-t", "--tone")] = "kind",
    code: Annotated[int, "Exit code."] = 0,
) -> int:
    """Greet people."""
    click.echo(f"{connection.bootstrap}: {names} {times} {tone}")
    return code


def call(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(greet, arguments, obj=lambda: Connection(bootstrap="host:1"))
    return result.exit_code, result.output


def test_defaults_are_those_of_the_signature() -> None:
    assert call("ann") == (0, "host:1: ('ann',) Times(often=2, fast=False) kind\n")


def test_options_reach_parameters_and_structs() -> None:
    shown = "host:1: ('ann', 'bob') Times(often=3, fast=True) curt\n"
    assert call("ann", "bob", "--often", "3", "--fast", "-t", "curt", "--code", "10") == (10, shown)


@pytest.mark.parametrize("arguments", [(), ("ann", "--often", "0"), ("ann", "--tone", "rude"), ("ann", "--code", "x")])
def test_invalid_arguments_are_usage_errors(arguments: tuple[str, ...]) -> None:
    code, shown = call(*arguments)
    assert code == 2 and "Usage" in shown


def test_help_stands_in_the_order_of_the_signature() -> None:
    shown = call("--help")[1]
    places = [shown.index(text) for text in ("Greet people", "--often", "--fast", "--tone", "--code")]
    assert places == sorted(places)
    assert "[default: 2]" in shown and "[default: 0]" in shown and "kind|curt" in shown
