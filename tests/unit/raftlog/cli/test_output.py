"""The output of data, for people and for programs; starting positions; the entry point."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import msgspec
import pytest

from raftlog.cli.main import COMMANDS, cli
from raftlog.cli.terminal.options import parse_from
from raftlog.cli.terminal.output import cell, fields, show, table
from raftlog.cli.terminal.progress import summary
from tests.support.cli_runner import run


class Thing(msgspec.Struct):
    name: str
    leader: int | None
    replicas: list[int]


def test_columns_are_aligned_and_never_cut() -> None:
    shown = table(("Name", "N"), [("a", 1), ("b" * 300, 22), ("", 3)])
    lines = [line.rstrip() for line in shown.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()]
    assert {line.rindex(last) for line, last in zip(lines, ["N", "1", "22", "3"], strict=True)} == {302}
    assert lines[2].startswith("b" * 300)
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "none"),
        (True, "yes"),
        (False, "no"),
        (0, "0"),
        ("", "-"),
        ([], "-"),
        ([1, 2, 3], "1,2,3"),
        ({"a": "1", "b": "2"}, "a=1,b=2"),
        ("evil\x1b[2Jname\n", "evil?[2Jname?"),
        ("müller", "müller"),
    ],
)
def test_a_cell_is_text_of_one_line(value: object, shown: str) -> None:
    assert cell(value) == shown


def test_fields_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    show("table", None, lambda wide: fields({"A": 1, "LongName": 2}))
    assert capsys.readouterr().out == "A:        1\nLongName: 2\n"


def test_programs_get_everything_whatever_the_text_shows(capsys: pytest.CaptureFixture[str]) -> None:
    things = [Thing("yes", None, [1, 2]), Thing("0x1F", 3, [])]
    expected = msgspec.to_builtins(things)
    show("json", things, lambda wide: "not this")
    assert msgspec.json.decode(capsys.readouterr().out) == expected
    show("yaml", things, lambda wide: "not this")
    assert msgspec.yaml.decode(capsys.readouterr().out) == expected
    for output in ("table", "wide"):
        show(output, things, lambda wide: f"wide={wide}")
        assert capsys.readouterr().out == f"wide={output == 'wide'}\n"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("0", 0),
        ("12345678901", 12345678901),
        ("@0", "@0"),
        ("@1970-01-01T00:00:01Z", "@1000"),
        ("@1970-01-02", "@86400000"),
        ("@1970-01-01T01:00:00.250+01:00", "@250"),
        ("1970-01-01T00:00:01Z", "@1000"),
    ],
)
def test_starting_positions(text: str, start: str | int) -> None:
    assert parse_from(text) == start


def test_the_summary_is_one_line_of_sums(capsys: pytest.CaptureFixture[str]) -> None:
    summary("sent", 1000, 2_000_000, 0.5)
    summary("sent", 1, 0, 1.0)
    assert capsys.readouterr().err.splitlines() == [
        "1000 records sent, 2000.0 records/s (4.00 MB/s) in 0.50 s",
        "1 record sent, 1.0 records/s (0.00 MB/s) in 1.00 s",
    ]


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_explains_itself(command: str) -> None:
    result = run(command, "--help")
    assert result.code == 0
    assert "Usage" in result.text and command in result.text


@pytest.mark.parametrize("noun", ["topic", "cluster", "partition", "quorum"])
def test_every_verb_takes_all_formats(noun: str) -> None:
    group = cli.get_command(None, noun)  # type: ignore[arg-type]
    for verb in group.commands.values():  # type: ignore[union-attr]
        (option,) = [parameter for parameter in verb.params if parameter.name == "output"]
        assert "-o" in option.opts and list(option.type.choices) == ["table", "wide", "json", "yaml"]


def options(command: click.Command, name: str) -> Iterator[tuple[str, click.Option]]:
    """The options of a command and of those below it."""
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield f"{name} {parameter.opts[0]}", parameter
    if isinstance(command, click.Group):
        context = click.Context(command)
        for verb in command.list_commands(context):
            below = command.get_command(context, verb)
            assert below is not None
            yield from options(below, f"{name} {verb}")


def test_every_option_of_every_command_has_a_help_text() -> None:
    found = dict(options(cli, "raftlog"))
    assert {"raftlog --bootstrap", "raftlog topic create --partitions"} <= set(found)
    assert [name for name, option in found.items() if not option.help] == []


def test_help_loads_neither_client_nor_broker() -> None:
    script = (
        "import sys\n"
        "from raftlog.cli.main import cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        "heavy = {'aiohttp', 'pyarrow', 'raftlog.broker.node.main', 'pysyncobj'} & set(sys.modules)\n"
        "print('loaded:', sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"
