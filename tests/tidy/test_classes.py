"""A class is whole: no base holds half of its only subclass, and no class leaves its fields for another to set."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .sources import Source, sources

DECLARING = ("Protocol", "Struct", "NamedTuple", "TypedDict", "Enum", "IntEnum", "StrEnum", "ABC", "Exception")
"""Bases under which a bare annotation is a field or a promise, and which are meant to have subclasses."""


@dataclass(frozen=True)
class Class:
    """One class statement of the product."""

    where: str
    name: str
    bases: tuple[str, ...]
    node: ast.ClassDef

    @property
    def is_declarative(self) -> bool:
        """Whether its annotations are fields by themselves."""
        decorators = {ast.unparse(one).partition("(")[0].rpartition(".")[2] for one in self.node.decorator_list}
        return "dataclass" in decorators or any(
            one in DECLARING for base in self.bases for one in (base, *ancestors(base))
        )


@functools.cache
def classes() -> Mapping[str, list[Class]]:
    """Name → the classes of that name."""
    found: dict[str, list[Class]] = {}
    for source in sources():
        for one in _classes(source):
            found.setdefault(one.name, []).append(one)
    return found


def _classes(source: Source) -> Iterator[Class]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef):
            bases = tuple(ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases)
            yield Class(f"{source.relative}:{node.lineno}", node.name, bases, node)


@functools.cache
def ancestors(name: str) -> frozenset[str]:
    """The names of all bases, as far as they are the product's own."""
    found: set[str] = set()
    left = [name]
    while left:
        for one in classes().get(left.pop(), ()):
            left.extend(base for base in one.bases if base not in found)
            found.update(one.bases)
    return frozenset(found)


class _Uses(ast.NodeVisitor):
    """Collects every name that an expression uses: bases of classes and annotations are left out."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for one in (*node.body, *node.decorator_list):
            self.visit(one)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        """Skip the annotation."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for one in (*node.body, *node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(one)

    def visit_Name(self, node: ast.Name) -> None:
        self.names.add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.names.add(node.attr)
        self.generic_visit(node)


@functools.cache
def used() -> frozenset[str]:
    """Every name that an expression of the product uses."""
    uses = _Uses()
    for source in sources():
        uses.visit(source.tree)
    return frozenset(uses.names)


def test_a_base_of_one_class_is_used_by_itself() -> None:
    """A base that nothing uses and that has one subclass is the other half of that class."""
    subclasses: dict[str, list[str]] = {}
    for alike in classes().values():
        for one in alike:
            for base in one.bases:
                subclasses.setdefault(base, []).append(one.where)
    halves = [
        f"{base.where} {name}, half of {subclasses[name][0]}"
        for name, alike in classes().items()
        for base in alike
        if len(subclasses.get(name, ())) == 1 and not base.is_declarative and name not in used()
    ]
    assert halves == []


def stored(node: ast.ClassDef) -> set[str]:
    """The attributes that the class's own methods set."""
    return {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)}


def test_a_class_sets_its_own_fields() -> None:
    """A bare annotation that neither the class nor its bases set is a field for another class to set."""
    bare = []
    for alike in classes().values():
        for one in alike:
            if one.is_declarative:
                continue
            above = [base for name in ancestors(one.name) for base in classes().get(name, ())]
            own = {name for which in (one, *above) for name in stored(which.node)}
            for statement in one.node.body:
                if isinstance(statement, ast.AnnAssign) and statement.value is None:
                    name = ast.unparse(statement.target)
                    if name not in own and "ClassVar" not in ast.unparse(statement.annotation):
                        bare.append(f"{one.where} {one.name}.{name}")
    assert bare == []


GIVEN_THEMSELVES: Mapping[tuple[str, str], str] = {
    ("ApiServer", "ApiProtocol"): "aiohttp's connection is made with its server",
    ("ConnectionCore", "FrameReader"): "a push parser calls back into a `FrameSink`, per frame and without allocations",
    ("Http2Connection", "Http2Stream"): "the handle that users of a connection hold",
    ("PartitionManager", "LongPolls"): "looks partitions up through the protocol `Replicas`",
    ("PartitionManager", "ReplicationServer"): "looks partitions up through the protocol `Drivers`",
    ("SimDisk", "SimFile"): "a file handle of the simulated disk",
    ("SimNetwork", "SimLink"): "one end of a connection of the simulated network",
    ("VirtualLoop", "VirtualHandle"): "asyncio's handles know their loop",
}
"""(Class, the class that it gives itself to) → the reason."""

LIFETIME = "LoopThread"
"""Its owner is an `object` to it: it ends when the owner is collected, and calls nothing of it."""


def given_themselves() -> Iterator[tuple[str, str, str]]:
    """Yield each class that gives itself to the constructor of another class of the product."""
    for alike in classes().values():
        for one in alike:
            for node in ast.walk(one.node):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    arguments = (*node.args, *(keyword.value for keyword in node.keywords))
                    made = node.func.id
                    if made in classes() and any(ast.unparse(each) == "self" for each in arguments):
                        yield one.name, made, f"{one.where} gives itself to {made}"


def test_a_helper_gets_values_and_callbacks_and_not_its_owner() -> None:
    """A helper that calls its owner by name is half of it: neither can be read, tested or used without the other."""
    found = [pair for pair in given_themselves() if pair[1] != LIFETIME]
    assert [where for owner, made, where in found if (owner, made) not in GIVEN_THEMSELVES] == []
    assert sorted(set(GIVEN_THEMSELVES) - {(owner, made) for owner, made, _ in found}) == [], "no such exceptions"
