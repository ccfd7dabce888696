"""Commands made from functions: a parameter says its type, its default and its help text in one place.

    @command(topic)
    def create(
        admin: Admin,
        name: Annotated[str, argument()],
        partitions: Annotated[int, click.IntRange(1), "Number of partitions."] = 1,
    ) -> None:
        \"""Create a topic.\"""

An option is annotated by its help text, after a click type if it does not take every value of the parameter's type;
`option` says more about it. It is required if its parameter has no default. A parameter whose type is a struct stands
for the options that its fields declare. `admin` and `connection` do not come from the command's own arguments: they
are a client of the cluster, which is closed after the command, and the cluster's addresses with the access to it
(`context.obj` finds them when they are needed). The result is the exit code; None is 0.

The docstring is the help. It ends with `Examples:` and one command on each line, indented; a test parses them.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import UnionType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
import rich_click as click

from raftlog.errors import InvalidRequest, RaftlogError

from .nearest import did_you_mean, quoted_name

Decorator = Callable[[Any], Any]


class Declared(NamedTuple):
    """An option or an argument, except for what its parameter says."""

    add: Callable[..., Decorator]
    """`click.option` or `click.argument`."""
    names: tuple[str, ...]
    attributes: dict[str, Any]

    def decorator(self, name: str, kind: Any, default: Any) -> Decorator:
        """Return the decorator that adds it to a command as the parameter `name` of the type `kind`."""
        is_option = self.add is click.option
        names = self.names or ((f"--{name.replace('_', '-')}",) if is_option else ())
        attributes: dict[str, Any] = {"required": default is inspect.Parameter.empty}
        if get_origin(kind) is tuple:
            attributes |= {"multiple": True} if is_option else {"nargs": -1}
        if get_origin(kind) in (tuple, UnionType):
            kind = get_args(kind)[0]
        if kind is bool:
            attributes["is_flag"] = True
        else:
            attributes["type"] = click.Choice(get_args(kind)) if get_origin(kind) is Literal else kind
            if default not in (inspect.Parameter.empty, None, ()):
                attributes |= {"default": default, "show_default": True} if is_option else {"default": default}
        return self.add(*names, name, **(attributes | self.attributes))


def option(help: str, *names: str, **attributes: Any) -> Declared:
    """Declare an option, by default with the parameter's name. `attributes` are those of `click.option`."""
    return Declared(click.option, names, {"help": help, **attributes})


def argument(**attributes: Any) -> Declared:
    """Declare an argument. `attributes` are those of `click.argument`."""
    return Declared(click.argument, (), attributes)


class Verb(click.RichCommand):
    """A command whose help ends with examples."""

    examples: Sequence[str] = ()

    def format_epilog(self, ctx: click.RichContext, formatter: click.RichHelpFormatter) -> None:  # type: ignore[override]
        super().format_epilog(ctx, formatter)
        if self.examples:
            from rich.text import Text

            lines = "\n".join(f"   {line}" for line in self.examples)
            formatter.write(Text(f" Examples:\n{lines}\n", no_wrap=True, overflow="ignore"))


def command(group: click.Group | None = None, name: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a function a command of a group, by default with the function's name."""

    def make(function: Callable[..., int | None]) -> click.Command:
        hints = _hints(function)
        structs = {name: hint for name, hint in hints.items() if _is_struct(hint) and name not in _SUPPLIED}
        supplied = {name: supply for name, supply in _SUPPLIED.items() if name in hints}

        @functools.wraps(function)
        def run(context: click.Context, /, **given: Any) -> None:
            for name, struct in structs.items():
                given[name] = struct(**{field: given.pop(field) for field in struct.__struct_fields__})
            for name, supply in supplied.items():
                given[name] = supply(context)
            try:
                code = function(**given)
            except InvalidRequest as error:
                raise _with_suggestion(context, error) from None
            if code:
                context.exit(code)

        decorated: Any = click.pass_context(run)
        for decorator in reversed(list(_decorators(function))):
            decorated = decorator(decorated)
        help, _, examples = (inspect.getdoc(function) or "").partition("\n\nExamples:\n")
        made = click.command(name or function.__name__, cls=Verb, help=help)(decorated)
        made.examples = tuple(map(str.strip, examples.splitlines()))
        if group is not None:
            group.add_command(made)
        return made

    return make


def options_of(struct: type[msgspec.Struct]) -> Decorator:
    """Return the decorator that adds the options which the fields of a struct declare."""

    def decorate(function: Any) -> Any:
        for decorator in reversed(list(_decorators(struct))):
            function = decorator(function)
        return function

    return decorate


def _decorators(owner: Callable[..., Any]) -> Iterator[Decorator]:
    """Yield the decorators for the parameters of a function or the fields of a struct."""
    hints = _hints(owner)
    for name, parameter in inspect.signature(owner).parameters.items():
        if name in _SUPPLIED:
            continue
        if _is_struct(hints[name]):
            yield from _decorators(hints[name])
        else:
            kind, *marks = get_args(hints[name])
            declared = [mark for mark in marks if isinstance(mark, Declared)] or [_plain(*marks)]
            yield from (one.decorator(name, kind, parameter.default) for one in declared)


def _plain(*marks: Any) -> Declared:
    *limits, help = marks
    return option(help, type=limits[0]) if limits else option(help)


def _hints(owner: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of parameters. Modules import the client only for type checkers, so its name is supplied."""
    return get_type_hints(owner, localns={"Admin": object}, include_extras=True)


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _admin(context: click.Context) -> Any:
    """Return a client of the cluster. Raises `RetriableError` at once if no node can be reached."""
    from raftlog.sync import Admin

    connection = context.obj()
    asyncio.run(connection.reach())
    return context.with_resource(Admin(connection.bootstrap, **connection.keywords))


_KNOWN: dict[str, Callable[[Any], list[str]]] = {
    "unknown_topic": lambda admin: [one.name for one in admin.list_topics()],
    "unknown_group": lambda admin: [one.group for one in admin.list_groups()],
    "unknown_user": lambda admin: [one.name for one in admin.list_users()],
}
"""The names that exist, by the code of the error about one that does not."""


def _with_suggestion(context: click.Context, error: InvalidRequest) -> InvalidRequest:
    """Return an error about an unknown name with the known names that are close to it."""
    from raftlog.sync import Admin

    name = quoted_name(error.detail)
    if error.code not in _KNOWN or name is None:
        return error
    connection = context.obj()
    try:
        with Admin(connection.bootstrap, **connection.keywords) as admin:
            suggestion = did_you_mean(name, _KNOWN[error.code](admin))
    except RaftlogError:  # the error itself is worth more
        return error
    return InvalidRequest(error.code, f"{error.detail}.{suggestion}") if suggestion else error


_SUPPLIED: dict[str, Callable[[click.Context], Any]] = {"admin": _admin, "connection": lambda context: context.obj()}
"""The parameters that do not come from the command line."""
