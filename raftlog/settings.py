"""The settings as data: name, type, default, unit, range, moment of effect and meaning of each.

All of it is read from the types and descriptions in `raftlog/config.py`, so that there is one place to change.
`docs/settings.md` is made from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from .config import TOPIC_CONFIG_NAMES, Address, NodeConfig, TopicConfig
from .toml_settings import bounds_of, choices_of, metas_of, unit_of

_NO_UNIT = "-"
_TYPES = {int: "whole number", float: "number", str: "text", bool: "true or false", Address: "address"}
_RANGES = {str: "any text", bool: "`true`, `false`", Address: '`{ host = "...", port = 0 to 65535 }`'}


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting. Texts are Markdown."""

    name: str
    """With the names of its sections, such as `timing.broker_session_ms`."""
    section: str
    """The sections without the name; empty at the top level and for topics."""
    type: str
    default: str
    unit: str
    range: str
    effect: str
    """The moment from which a changed value counts."""
    meaning: str


class Section(msgspec.Struct, frozen=True):
    """A section of `node.toml` and its settings. The first section is the top level, whose name is empty."""

    name: str
    meaning: str
    settings: list[Setting]


def node_sections() -> list[Section]:
    """Return the sections of `node.toml` in the order of the code, with the settings of each."""
    return list(_sections(NodeConfig, "", "The top of the file, before the first section."))


def topic_settings() -> list[Setting]:
    """Return the settings of a topic, in the order of the code."""
    hints = get_type_hints(TopicConfig, include_extras=True)
    by_field = {field.name: field.default for field in fields(TopicConfig)}
    return [_setting("", name, hints[field], by_field[field]) for name, field in TOPIC_CONFIG_NAMES.items()]


def _sections(kind: type[msgspec.Struct], name: str, meaning: str) -> Iterator[Section]:
    hints = get_type_hints(kind, include_extras=True)
    settings, inner = [], []
    for field in msgspec.structs.fields(kind):
        hint, below = hints[field.name], f"{name}.{field.name}" if name else field.name
        struct = _struct_of(hint)
        if struct is None:
            settings.append(_setting(name, field.name, hint, field.default))
        else:
            path = f"{below}.<node id>" if get_origin(_inner(hint)) is dict else below
            inner.append((struct, path, metas_of(hint)[-1].description or ""))
    yield Section(name, meaning, settings)
    for struct, path, its_meaning in inner:
        yield from _sections(struct, path, its_meaning)


def _setting(section: str, name: str, hint: Any, default: Any) -> Setting:
    about = metas_of(hint)[-1]
    said = about.extra or {}
    kind = _inner(hint)
    return Setting(
        name=f"{section}.{name}" if section else name,
        section=section,
        type=_type_of(kind),
        default=said.get("default") or _default_of(default),
        unit=unit_of(hint) or _NO_UNIT,
        range=said.get("range") or _range_of(hint, kind),
        effect=said.get("effect", ""),
        meaning=about.description or "",
    )


def _type_of(kind: Any) -> str:
    if choices_of(kind):
        return "choice"
    return "list of texts" if get_origin(kind) is tuple else _TYPES[kind]


def _range_of(hint: Any, kind: Any) -> str:
    if choices := choices_of(kind):
        return ", ".join(f"`{choice}`" for choice in choices)
    if bounds := bounds_of(hint):
        return f"{_number(bounds[0])} to {_number(bounds[1])}"
    if any(meta.min_length for meta in metas_of(hint)):
        return "a text that is not empty"
    return "any number of texts" if get_origin(kind) is tuple else _RANGES[kind]


def _default_of(value: Any) -> str:
    if value is msgspec.NODEFAULT:
        return "required in its section"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else _number(value)


def _number(value: float) -> str:
    """Return a number with its thousands apart; a great one next to a power of two as that power."""
    for power, text in ((value, ""), (value + 1, " - 1")):
        if isinstance(power, int) and power > 2**30 and power.bit_count() == 1:
            return f"2^{power.bit_length() - 1}{text}"
    return f"{value:,}"


def _struct_of(hint: Any) -> type[msgspec.Struct] | None:
    """Return the struct of a section, if the type is one. An address is a value."""
    kind = _inner(hint)
    kind = get_args(kind)[1] if get_origin(kind) is dict else kind
    is_section = isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind is not Address
    return kind if is_section else None


def _inner(hint: Any) -> Any:
    """Return the type without its descriptions and without None."""
    kind = getattr(hint, "__origin__", hint) if hasattr(hint, "__metadata__") else hint
    others = [part for part in get_args(kind) if part is not NoneType]
    if NoneType in get_args(kind) and len(others) == 1:
        return _inner(others[0])
    return kind
