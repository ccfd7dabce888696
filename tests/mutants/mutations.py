"""The mutants of a source file: mutmut's operators, and three additional ones, on the tree that libcst parses.

A mutant has an identity that is independent of changes elsewhere in its file: file, function, operator, the code before
and after, and a number among those that are alike in all of this. Only code within functions is mutated. Not mutated is
everything on which no test should depend: annotations, decorators, assertions, log lines, literals with a blank (prose
for people), and the construction of errors. The same holds for changes without effect by the rules of the language,
such as nothing in place of false.

Source of the operators: mutmut (https://mutmut.readthedocs.io); of the three: R. A. DeMillo, R. J. Lipton, F. G.
Sayward, "Hints on test data selection" (1978), statement deletion and negated conditions.
"""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import libcst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

LOGGERS = ("logger", "log", "_log", "_logger", "logging")
NO_BEHAVIOUR = (libcst.Annotation, libcst.Decorator, libcst.Assert, libcst.Import, libcst.ImportFrom)


@dataclass(frozen=True)
class Mutant:
    """One small fault, not applied yet."""

    identity: str
    file: str
    """Relative to the repository."""
    scope: str
    """Qualified name of the function."""
    operator: str
    occurrence: int
    """The number among the mutants of this function that read alike, from 0."""
    line: int
    before: str
    after: str


class SourceFile:
    """One file of the product, and its mutants."""

    def __init__(self, file: str, text: str) -> None:
        """Raises `libcst.ParserSyntaxError` for invalid Python."""
        self.file = file
        self.text = text
        wrapper = MetadataWrapper(libcst.parse_module(text))
        positions = wrapper.resolve(PositionProvider)
        self._module = wrapper.module
        self._found: dict[str, tuple[Mutant, libcst.CSTNode, libcst.CSTNode]] = {}
        seen: Counter[tuple[str, ...]] = Counter()
        visitor = _Places()
        wrapper.module.visit(visitor)
        for scope, node, operator, changed in visitor.found:
            before, after = (self._module.code_for_node(one).strip() for one in (node, changed))
            if before == after:
                continue
            alike = (file, scope, operator, before, after)
            occurrence, seen[alike] = seen[alike], seen[alike] + 1
            identity = hashlib.sha256("\0".join([*alike, str(occurrence)]).encode()).hexdigest()[:12]
            where = positions[node]
            assert isinstance(where, CodeRange)
            mutant = Mutant(identity, file, scope, operator, occurrence, where.start.line, before, after)
            self._found[identity] = (mutant, node, changed)

    @property
    def mutants(self) -> list[Mutant]:
        """All mutants, in the order of the file."""
        return [mutant for mutant, _, _ in self._found.values()]

    def made(self, identity: str) -> str | None:
        """The file's text with this fault; None if it would be invalid Python (a `return` outside a function)."""
        _, node, changed = self._found[identity]
        made = self._module.deep_replace(node, changed)
        assert isinstance(made, libcst.Module)
        try:
            compile(made.code, self.file, "exec")
        except SyntaxError:
            return None
        return made.code

    def diff(self, identity: str) -> str:
        """The changed lines, without context."""
        made = self.made(identity) or self.text
        lines = difflib.unified_diff(self.text.splitlines(), made.splitlines(), lineterm="", n=0)
        return "\n".join(line for line in lines if not line.startswith(("---", "+++")))


class _Places(libcst.CSTVisitor):
    """Collects (function, node, operator, replacement) for all mutants."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, libcst.CSTNode, str, libcst.CSTNode]] = []
        self._scope: list[str] = []
        self._functions = 0
        self._errors: set[libcst.CSTNode] = set()
        """Calls that construct the raised error."""

    def on_visit(self, node: libcst.CSTNode) -> bool:
        if isinstance(node, NO_BEHAVIOUR) or _only_logs(node):
            return False
        if isinstance(node, libcst.FunctionDef | libcst.ClassDef):
            self._scope.append(node.name.value)
            self._functions += isinstance(node, libcst.FunctionDef)
        if isinstance(node, libcst.Raise) and isinstance(node.exc, libcst.Call):
            self._errors.add(node.exc)
        if self._functions and not isinstance(node, libcst.FunctionDef) and node not in self._errors:
            scope = ".".join(self._scope)
            self.found.extend((scope, place, operator, changed) for place, operator, changed in _changes(node))
        return True

    def on_leave(self, original_node: libcst.CSTNode) -> None:
        if isinstance(original_node, libcst.FunctionDef | libcst.ClassDef):
            self._scope.pop()
            self._functions -= isinstance(original_node, libcst.FunctionDef)


def _changes(node: libcst.CSTNode) -> Iterator[tuple[libcst.CSTNode, str, libcst.CSTNode]]:
    if not (isinstance(node, libcst.SimpleString) and _is_prose(node)):
        for kind, operator in mutation_operators:
            name = operator.__name__.removeprefix("operator_")
            if isinstance(node, kind) and not (name == "assignment" and _is_nothing(getattr(node, "value", None))):
                yield from ((node, name, changed) for changed in operator(node))
    if isinstance(node, libcst.Expr | libcst.AugAssign | libcst.Raise | libcst.Del) and not _is_text(node):
        yield node, "statement_removal", libcst.Pass()
    elif isinstance(node, libcst.If | libcst.While | libcst.IfExp):
        yield node.test, "negated_condition", _negated(node.test)
    elif isinstance(node, libcst.Return) and not _is_nothing(node.value):
        yield node, "return_nothing", libcst.Return()


def _negated(test: libcst.BaseExpression) -> libcst.BaseExpression:
    inner = test.with_changes(lpar=[libcst.LeftParen()], rpar=[libcst.RightParen()])
    space = libcst.SimpleWhitespace(" ")
    return libcst.UnaryOperation(libcst.Not(space), inner)


def _is_nothing(value: libcst.CSTNode | None) -> bool:
    """Whether it is None, false or zero, which are equivalent in conditions."""
    if isinstance(value, libcst.Name):
        return value.value in ("None", "False")
    return value is None or (isinstance(value, libcst.Integer | libcst.Float) and not value.evaluated_value)


def _is_text(node: libcst.CSTNode) -> bool:
    """A docstring, or an ellipsis."""
    return isinstance(node, libcst.Expr) and isinstance(node.value, libcst.BaseString | libcst.Ellipsis)


def _is_prose(node: libcst.SimpleString) -> bool:
    return " " in node.raw_value


def _only_logs(node: libcst.CSTNode) -> bool:
    """A call of a logger."""
    if not isinstance(node, libcst.Expr) or not isinstance(node.value, libcst.Call):
        return False
    function = node.value.func
    if not isinstance(function, libcst.Attribute):
        return False
    owner = function.value
    name = owner.attr if isinstance(owner, libcst.Attribute) else owner
    return isinstance(name, libcst.Name) and name.value in LOGGERS


def in_order(mutants: Iterable[Mutant], seed: int) -> list[Mutant]:
    """Return a random order that is independent of other files: the first mutants of it are a sample that stays the
    same when code changes, except for changed lines. There is one mutant per line, whose operator is drawn first;
    otherwise calls with many arguments would dominate."""

    def drawn(what: str) -> bytes:
        return hashlib.sha256(f"{seed}\0{what}".encode()).digest()

    lines: dict[tuple[str, int], dict[str, list[Mutant]]] = {}
    for mutant in mutants:
        lines.setdefault((mutant.file, mutant.line), {}).setdefault(mutant.operator, []).append(mutant)
    chosen = []
    for operators in lines.values():
        alike = min(operators.values(), key=lambda them: drawn(min(one.identity for one in them)))
        chosen.append(min(alike, key=lambda mutant: drawn(mutant.identity)))
    return sorted(chosen, key=lambda mutant: drawn(mutant.identity))
