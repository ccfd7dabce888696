"""The inner objects that a class under test makes: each is seen by its own public face."""

from __future__ import annotations

from typing import Any

import pytest


def recorded(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """Record every object of the class of this name that the module makes from now on, in order."""
    made: list[Any] = []
    original: Any = getattr(module, name)

    class Recorded(original):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            made.append(self)

    monkeypatch.setattr(module, name, Recorded)
    return made
