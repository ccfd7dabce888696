"""A TOML text as a typed struct, with line, reason and suggestion for everything that is wrong with it.

The struct's types and `msgspec.Meta` say what is right. A number with a unit of time or size may also be a text with a
unit of its own: `"7d"`, `"64MiB"`. Every setting is checked on its own, so that one pass finds all problems. A struct
that checks relations between its settings raises `WrongSetting`, which names them.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from itertools import islice
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from .errors import InvalidRequest
from .quantities import UNITS_OF_TIME_MS, in_unit

TEXT_MAX = 256 * 1024
"""Longest text that is parsed, in characters."""
STATEMENT_LINES_MAX = 1_000
"""Longest statement in the search for a line number, in lines. After a longer one no line is named."""
PROBLEMS_MAX = 20
"""Most problems of one text that are reported."""
SHOWN_MAX = 64
"""Longest part of a value that a reason repeats, in characters."""

T = TypeVar("T")
Table = Mapping[str, Any]
Path = tuple[str, ...]

_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_KINDS = {int: "a whole number", float: "a number", str: "a text in quotation marks", bool: "true or false"}


class WrongSetting(ValueError):
    """A relation between settings of a struct that does not hold, found by its `__post_init__`."""

    def __init__(self, reason: str, *settings: str) -> None:
        """`settings` are the names inside the struct of those that it is about, the most likely cause first."""
        super().__init__(reason)
        self.settings = settings


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong with a text."""

    line: int
    """Line of the setting, from 1 on; 0 if the text does not have it."""
    setting: str
    """Name with the names of its sections; empty for an error of the syntax."""
    reason: str

    def __str__(self) -> str:
        return f"{self.setting} {self.reason}" if self.setting else self.reason


class TomlSettings(Generic[T]):
    """A parsed text. `value` is None if `problems` has any."""

    def __init__(self, text: str, kind: type[T]) -> None:
        self._text = text
        self._table: Table = {}
        self.value: T | None = None
        self.problems: list[Problem] = []
        """In the order of their lines."""
        self._places: Mapping[str, Path] = {}
        """Name of a setting → the sections to which it belongs."""
        self._parse(kind)

    def checked(self, name: str) -> T:
        """Return the value. `name` is that of the file.

        Raises `InvalidRequest` with the first problem.
        """
        if self.value is not None and not self.problems:
            return self.value
        first = self.problems[0]
        place = f"{name}, line {first.line}" if first.line else name
        others = len(self.problems) - 1
        more = f" ({others} more: `raftlog server check-config` shows all)" if others else ""
        raise InvalidRequest("invalid_config", f"{place}: {first}{more}")

    def has(self, *path: str) -> bool:
        """Whether the text has the setting at this path."""
        return _has(self._table, path)

    def line_of(self, *path: str) -> int:
        """Return the first line of the statement that sets the path, or the innermost section of it that the text has;
        0 if it has none."""
        while path:
            for line, table in self._statements():
                if _has(table, path):
                    return line
            path = path[:-1]
        return 0

    def add_problem(self, setting: str, reason: str) -> None:
        """Add a problem that was found elsewhere. `setting` has the names of its sections, with dots."""
        self.problems.append(Problem(self.line_of(*setting.split(".")), setting, reason))
        self.problems.sort(key=lambda problem: problem.line)

    # --- Inside ---

    def _parse(self, kind: type[T]) -> None:
        if len(self._text) > TEXT_MAX:
            self.problems.append(Problem(0, "", f"the text is longer than {TEXT_MAX} characters"))
            return
        try:
            self._table = tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            self.problems.append(self._syntax(str(error)))
            return
        except RecursionError:
            self.problems.append(Problem(0, "", "it is nested too deeply"))
            return
        self._places = dict(_places(kind, ()))
        table = _in_units(kind, self._table)
        found = islice(self._check_struct(kind, table, ()), PROBLEMS_MAX)
        self.problems = [Problem(self.line_of(*path), ".".join(path), reason) for path, reason in found]
        self.problems.sort(key=lambda problem: problem.line)
        if not self.problems:
            self.value = msgspec.convert(table, kind)

    def _syntax(self, message: str) -> Problem:
        place = _PLACE.search(message)
        if place is None:
            return Problem(0, "", f"it is no TOML: {message}")
        reason = f"it is no TOML: {message[: place.start()]}"
        if place[1] is None:
            return Problem(len(self._text.splitlines()), "", f"{reason} (at the end)")
        return Problem(int(place[1]), "", f"{reason} (column {place[2]})")

    def _check_struct(self, kind: Any, table: object, path: Path) -> Iterator[tuple[Path, str]]:
        """Yield path and reason of each problem of a table."""
        if not isinstance(table, Mapping):
            yield path, f"is a section with settings of its own, not {_shown(table)}"
            return
        hints = get_type_hints(kind, include_extras=True)
        known = {field.name: field for field in msgspec.structs.fields(kind)}
        found = [((*path, name), self._unknown(name, tuple(known), path)) for name in table if name not in known]
        for name, field in known.items():
            if name in table:
                found += self._check_value(hints[name], table[name], (*path, name))
            elif field.required:
                found.append(((*path, name), "is missing: the section needs it"))
        yield from found
        if not found:
            try:
                msgspec.convert(table, kind)
            except msgspec.ValidationError as error:
                cause = error.__cause__
                inside = (
                    [s for s in cause.settings if _has(table, s.split("."))] if isinstance(cause, WrongSetting) else []
                )
                reason = str(cause or error)
                place = (*path, *inside[0].split(".")) if inside else path
                yield place, f"is wrong: {reason}"

    def _check_value(self, hint: Any, value: object, path: Path) -> list[tuple[Path, str]]:
        inner = _without_none(_bare(hint))
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            return list(self._check_struct(inner, value, path))
        if get_origin(inner) is dict and isinstance(value, Mapping):
            return [problem for key, entry in value.items() for problem in self._check_entry(inner, key, entry, path)]
        try:
            msgspec.convert(value, hint)
        except msgspec.ValidationError:
            other = _other_form(hint) if isinstance(value, str) else ""
            return [(path, f"must be {expected(hint)}{other}, not {_shown(value)}")]
        return []

    def _check_entry(self, kind: Any, key: str, entry: object, path: Path) -> list[tuple[Path, str]]:
        of_key, of_entry = get_args(kind)
        try:
            msgspec.convert(key, of_key)
        except msgspec.ValidationError:
            return [((*path, key), "is no node id: a whole number of up to nine digits")]
        return self._check_value(of_entry, entry, (*path, key))

    def _unknown(self, name: str, known: tuple[str, ...], path: Path) -> str:
        close = difflib.get_close_matches(name, known, 1, cutoff=0.6)
        section = f"[{'.'.join(path)}]" if path else "the top level"
        place = self._places.get(name)
        if place is not None and name not in known:
            where = f"to [{'.'.join(place)}]" if place else "to the top of the file, before the first section"
            return f"is no setting of {section}; it belongs {where}"
        if close:
            return f"is no setting of {section}; did you mean {close[0]}?"
        return f"is no setting of {section}; it has {', '.join(sorted(known))}"

    def _statements(self) -> Iterator[tuple[int, Table]]:
        """Yield the first line of each statement, and the table that it alone makes.

        A statement is the smallest number of lines that parse by themselves.
        """
        lines = self._text.split("\n")
        section: Path = ()
        begin = 0
        for end in range(1, len(lines) + 1):
            if end - begin > STATEMENT_LINES_MAX:
                return
            try:
                table: Table = tomllib.loads("\n".join(lines[begin:end]))
            except tomllib.TOMLDecodeError:
                continue
            if table:
                if lines[begin].lstrip().startswith("["):
                    section = tuple(_only_path(table))
                    yield begin + 1, table
                else:
                    yield begin + 1, _nested(section, table)
            begin = end


def _places(kind: Any, path: Path) -> Iterator[tuple[str, Path]]:
    """Yield each setting's name with its sections, the innermost first, so that outer ones replace them in a dict."""
    hints = get_type_hints(kind, include_extras=True)
    for name in hints:
        inner = _without_none(_bare(hints[name]))
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            yield from _places(inner, (*path, name))
    yield from ((name, path) for name in hints)


def _in_units(kind: Any, table: Table) -> Table:
    """Return a table with its durations and sizes, such as `"7d"` and `"64MiB"`, in the units of their settings."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: _value_in_unit(hints.get(name), value) for name, value in table.items()}


def _value_in_unit(hint: Any, value: object) -> object:
    inner = _without_none(_bare(hint))
    if isinstance(value, str) and inner in (int, float):
        number = in_unit(value, unit_of(hint))
        return value if number is None else number
    if isinstance(value, Mapping) and isinstance(inner, type) and issubclass(inner, msgspec.Struct):
        return _in_units(inner, value)
    if isinstance(value, Mapping) and get_origin(inner) is dict:
        return {key: _value_in_unit(get_args(inner)[1], entry) for key, entry in value.items()}
    return value


def expected(hint: Any) -> str:
    """Return what a value of this type must be, such as "a whole number from 1 to 64 (threads)"."""
    kind = _without_none(_bare(hint))
    unit = unit_of(hint)
    if get_origin(kind) is tuple:
        return "a list of texts in quotation marks"
    if choices := choices_of(kind):
        return f"{', '.join(choices[:-1])} or {choices[-1]}" if len(choices) > 1 else choices[0]
    bounds = bounds_of(hint)
    within = f" from {bounds[0]} to {bounds[1]}" if bounds else ""
    if kind is str and any(meta.min_length for meta in metas_of(hint)):
        within = " that is not empty"
    return f"{_KINDS.get(kind, 'a value of another kind')}{within}{f' ({unit})' if unit else ''}"


def _other_form(hint: Any) -> str:
    """Return the form of a text that stands for a number of this type; empty if there is none."""
    unit = unit_of(hint)
    if _without_none(_bare(hint)) not in (int, float) or not unit:
        return ""
    like = '"500ms" or "7d"' if unit in UNITS_OF_TIME_MS else '"64MiB"' if unit.split(" ")[0] == "bytes" else ""
    return f", or a text such as {like}" if like else ""


def choices_of(kind: Any) -> list[str]:
    """Return the values of a literal type, as TOML has them; none for any other type."""
    args = get_args(kind)
    return [f'"{choice}"' for choice in args] if args and all(isinstance(choice, str) for choice in args) else []


def metas_of(hint: Any) -> list[msgspec.Meta]:
    """Return the descriptions of an annotated type, the innermost first."""
    return [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, msgspec.Meta)]


def bounds_of(hint: Any) -> tuple[float, float] | None:
    """Return the smallest and the greatest number of an annotated type, if it has both."""
    low = [meta.ge for meta in metas_of(hint) if meta.ge is not None]
    high = [meta.le for meta in metas_of(hint) if meta.le is not None]
    return (low[-1], high[-1]) if low and high else None


def unit_of(hint: Any) -> str:
    """Return the unit of an annotated type; empty if it has none."""
    return next((meta.extra["unit"] for meta in metas_of(hint) if meta.extra and "unit" in meta.extra), "")


def _bare(hint: Any) -> Any:
    return hint.__origin__ if hasattr(hint, "__metadata__") else hint


def _without_none(kind: Any) -> Any:
    others = [part for part in get_args(kind) if part is not NoneType]
    return others[0] if NoneType in get_args(kind) and len(others) == 1 else kind


def _only_path(table: object) -> Iterator[str]:
    """Yield the names of a section's heading. Sections of arrays, which no setting has, end it."""
    while isinstance(table, Mapping) and table:
        name = next(iter(table))
        yield name
        table = table[name]


def _nested(path: Path, table: Table) -> Table:
    for name in reversed(path):
        table = {name: table}
    return table


def _has(table: object, path: Path | list[str]) -> bool:
    for name in path:
        if not isinstance(table, Mapping) or name not in table:
            return False
        table = table[name]
    return True


def _shown(value: object) -> str:
    """Return a value as TOML has it, bounded."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a section"
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value[:3]))}{', ...' if len(value) > 3 else ''}]"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
