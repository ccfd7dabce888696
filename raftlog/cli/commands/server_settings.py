"""`raftlog server settings` and `check-config`: the list of settings, and the check of a `node.toml`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import rich_click as click

from raftlog.cli.terminal.command import argument, command
from raftlog.cli.terminal.exit_codes import EXIT_FAILED
from raftlog.cli.terminal.output import Output, listing, show

if TYPE_CHECKING:
    from raftlog.settings import Setting

PAGE_HEAD = """# Settings

Every setting of a node and of a topic. This page is made from the code by `make settings-page`; a test keeps it
current. `raftlog server settings` prints the same, and `raftlog server check-config node.toml` names line and reason of
all that is wrong in a file, without a start. [node.md](node.md) describes how to set up nodes. A complete example with
comments is `deploy/node.toml`.

*Unit* and *range* are those of a number. A duration or a size may also be a text with a unit of its own: `"500ms"`,
`"7d"`, `"64MiB"` (for topics without quotation marks, on the command line). Numbers are shown with
commas, and written without.

## Settings of a node (`node.toml`)

The two listeners need an address; every other setting may be left out. The tables have the full names, as they are
written at the top of the file: `timing.broker_session_ms = 800`. Below the heading `[timing]` the section is left out.
"""
TOPIC_HEAD = """## Settings of a topic

They are given when the topic is created (`raftlog topic create --config NAME=VALUE`), and can be changed later
(`raftlog topic alter --set NAME=VALUE`), in the whole cluster. Names, units and defaults are
Kafka's, except for `flush`, `restoring` and the default of `min.insync.replicas`.
"""
COLUMNS = ("setting", "type", "default", "unit", "range", "takes effect", "meaning")


@command()
def settings(
    page: Annotated[bool, "Print docs/settings.md."] = False,
    output: Output = "table",
) -> None:
    """List every setting of node.toml and of topics, with default, range and meaning.

    Examples:
        raftlog server settings -o wide
    """
    from raftlog.settings import node_sections, topic_settings

    if page:
        click.echo(settings_page(), nl=False)
        return
    node = [setting for section in node_sections() for setting in section.settings]
    topic = topic_settings()
    rows = [(s.name, s.default, s.unit, s.range, s.type, s.effect, s.meaning) for s in (*node, *topic)]
    names = ("Setting", "Default", "Unit", "Range")
    show(
        output,
        {"node": node, "topic": topic},
        listing(names, [[text.replace("`", "") for text in row] for row in rows], ("Type", "TakesEffect", "Meaning")),
    )


def settings_page() -> str:
    """Return the text of `docs/settings.md`."""
    from raftlog.settings import node_sections, topic_settings

    parts = [PAGE_HEAD]
    for section in node_sections():
        if section.name:
            parts.append(f"### [{section.name}]\n\n{section.meaning}\n")
        if section.settings:
            parts.append(_markdown_table(section.settings))
    return "\n".join([*parts, TOPIC_HEAD, _markdown_table(topic_settings())])


def _markdown_table(settings: Iterable[Setting]) -> str:
    rows: list[Sequence[str]] = [COLUMNS, ["---"] * len(COLUMNS)]
    rows += [(f"`{s.name}`", s.type, s.default, s.unit, s.range, s.effect, s.meaning) for s in settings]
    return "\n".join(f"| {' | '.join(text.replace('|', chr(92) + '|') for text in row)} |" for row in rows) + "\n"


class CheckedConfig(msgspec.Struct, frozen=True):
    """The outcome of `check-config`."""

    file: str
    valid: bool
    problems: list[str]
    """Each begins with the file and, if it is known, the line."""
    notes: list[str]


@command(name="check-config")
def check_config(
    file: Annotated[str, argument(type=click.Path(dir_okay=False))],
    output: Output = "table",
) -> int:
    """Check a node.toml without starting the node.

    Names each problem with its line. Certificates are read, and if the data folder is prepared, its identity is
    compared with the addresses. The exit code is 1 if the node would not start with this file.

    Examples:
        raftlog server check-config /etc/raftlog/node.toml
    """
    from raftlog.broker.node.settings_file import check_settings_file

    found = check_settings_file(file)
    checked = CheckedConfig(file, not found.problems, found.problems, found.notes)
    verdict = f"{file} is valid" if checked.valid else f"{file} is not valid"
    show(output, checked, lambda wide: "\n".join([*checked.problems, *checked.notes, verdict]))
    return 0 if checked.valid else EXIT_FAILED
