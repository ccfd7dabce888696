"""The result of a check: a line for people, whether it is a problem, and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

Level: TypeAlias = Literal["ok", "warning", "problem"]


class Finding(msgspec.Struct, frozen=True):
    """The result of one check."""

    area: str
    """The thing that was checked: `disk`, `clock`, `limits`, ..."""
    level: Level
    text: str
    remedy: str = ""
    """Advice; never empty for a warning or a problem."""

    def __post_init__(self) -> None:
        assert self.level == "ok" or self.remedy, self


def ok(area: str, text: str) -> Finding:
    return Finding(area, "ok", text)


def warning(area: str, text: str, remedy: str) -> Finding:
    return Finding(area, "warning", text, remedy)


def problem(area: str, text: str, remedy: str) -> Finding:
    return Finding(area, "problem", text, remedy)


class Report(msgspec.Struct, frozen=True):
    """All findings. `healthy` if none is a problem."""

    healthy: bool
    findings: Sequence[Finding]

    @classmethod
    def of(cls, findings: Sequence[Finding]) -> Report:
        return cls(not any(one.level == "problem" for one in findings), findings)
