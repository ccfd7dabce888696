"""Planting: a bug replaces some of the product's code for the duration of a `with` block.

A bug is written against the code that it replaces. So each replaced function has a *pin*, a hash of its meaning (its
syntax tree without documentation). If the code has changed, planting raises `Outdated`, which names the bug, the
function and what to do. So no bug is planted against other code than it was written for, and none becomes harmless
unnoticed. The product has no branch for any of this.

Pins are in `pins.json`; `python -m jepsen_like.planted pin` rewrites them after a review.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

SHORT = "quorum simulation"
CLUSTER = "cluster simulation"
GROUPS = "group simulation"
CONSUMERS = "HTTP consumer simulation"
SECURITY = "security simulation"
TRANSACTIONS = "transaction simulation"
CLIENTS = "client simulation"
REAL = "real clusters"
"""Found nowhere else: no simulated world has the conditions."""

PINS = Path(__file__).with_name("pins.json")


class Outdated(AssertionError):
    """The code that a planted bug replaces is no longer the code that it was written against."""


@dataclass(frozen=True, slots=True)
class Patch:
    """`owner.name` is replaced by `by`. `owner` is a class or a module."""

    owner: Any
    name: str
    by: Any

    @property
    def target(self) -> str:
        module = getattr(self.owner, "__module__", "")
        return f"{module}.{self.owner.__name__}.{self.name}" if module else f"{self.owner.__name__}.{self.name}"


@dataclass(frozen=True, slots=True)
class Planted:
    """One bug."""

    name: str
    hole: str
    """The failure that it causes, in a sentence."""
    closed_by: str
    """The part of the product that prevents it."""
    patches: tuple[Patch, ...]
    found_by: str = SHORT
    """Where it must be found."""

    @property
    def world(self) -> str:
        """The kind of world in which it is planted."""
        if self.found_by == GROUPS:
            return "groups"
        if self.found_by == CONSUMERS:
            return "consumers"
        if self.found_by == SECURITY:
            return "security"
        if self.found_by == TRANSACTIONS:
            return "transactions"
        if self.found_by == CLIENTS:
            return "clients"
        return "cluster" if self.found_by == CLUSTER else "quorum"


def pin_of(patch: Patch) -> str:
    """Return a hash of the replaced function's meaning. Raises `Outdated` if the function does not exist."""
    try:
        found = inspect.getattr_static(patch.owner, patch.name)
        if isinstance(found, staticmethod | classmethod):
            found = found.__func__
        elif isinstance(found, property):
            found = found.fget
        tree = ast.parse(textwrap.dedent(inspect.getsource(found)))
    except (AttributeError, OSError, TypeError) as error:
        raise Outdated(f"{patch.target} no longer exists: {error}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:16]


def load_pins() -> dict[str, str]:
    """Return target → pin."""
    held: dict[str, str] = json.loads(PINS.read_text(encoding="utf-8"))
    return held


def save_pins(bugs: Mapping[str, Planted]) -> dict[str, str]:
    """Pin all replaced functions as they are now."""
    pins = {patch.target: pin_of(patch) for bug in bugs.values() for patch in bug.patches}
    PINS.write_text(json.dumps(dict(sorted(pins.items())), indent=2) + "\n", encoding="utf-8")
    return pins


def check_pins(bug: Planted, pins: Mapping[str, str]) -> None:
    """Raises `Outdated` unless the bug replaces the code that it was written against."""
    for patch in bug.patches:
        if pin_of(patch) != pins.get(patch.target):
            raise Outdated(
                f"{patch.target} has changed since the planted bug {bug.name!r} was written against it. Review the "
                f"bug (jepsen_like/planted): does it still cause its failure ({bug.hole})? Fix it if not, then run "
                f"`python -m jepsen_like.planted pin` and `python -m jepsen_like.planted search {bug.name}`"
            )


@contextmanager
def plant(bug: Planted, pins: Mapping[str, str] | None = None) -> Iterator[None]:
    """Replace the code while the block runs."""
    check_pins(bug, load_pins() if pins is None else pins)
    with ExitStack() as stack:
        for patch in bug.patches:
            stack.enter_context(mock.patch.object(patch.owner, patch.name, patch.by))
        yield


def original(owner: Any, name: str) -> Callable[..., Any]:
    """Return the product's own function, for a bug that calls it. Taken when the module is imported."""
    found: Callable[..., Any] = getattr(owner, name)
    return found
