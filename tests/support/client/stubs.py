"""Generator of the stubs for type checkers and of the tables of settings in the documents.

`python -P -m tests.support.client.stubs` writes them; `tests/tidy/test_client_stubs.py` checks that they are fresh.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import importlib.util
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import raftlog.sync
from raftlog.client import settings
from raftlog.client.blocking.twin import Twin
from raftlog.client.transactions.transaction import Transaction
from raftlog.config import KIB, MIB

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = {
    "docs/client.md": (settings.ProducerSettings, settings.ConsumerSettings, settings.AdminSettings),
    "docs/groups.md": (settings.GroupConsumerSettings,),
}


def imports_of(module: ModuleType) -> Mapping[str, str]:
    """Name → the module that defines it, for every name that `module` imports or defines."""
    package = module.__name__ if hasattr(module, "__path__") else module.__name__.rpartition(".")[0]
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            where = importlib.util.resolve_name(name, package)
            found.update((alias.asname or alias.name, where) for alias in node.names)
        elif isinstance(node, ast.ClassDef):
            found[node.name] = module.__name__
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.col_offset == 0:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update((one.id, module.__name__) for one in targets if isinstance(one, ast.Name))
    return found


class Stub:
    """A stub in the making: its text, and the imports that the annotations in it need."""

    def __init__(self, about: str, own: set[str] | None = None) -> None:
        self._about = about
        self._own = own or set()
        """Names that the stub itself defines."""
        self._imports: dict[str, set[str]] = {}
        self.lines: list[str] = []

    def use(self, annotation: str, *modules: ModuleType) -> str:
        """Return the annotation, with its names imported as the first of `modules` that knows them has them."""
        for name in re.findall(r"(?<![\w.\"'])[A-Za-z_]\w*", annotation):
            if name not in self._own and not hasattr(builtins, name):
                where = next((found[name] for found in map(imports_of, modules) if name in found), None)
                if where is not None:
                    self._imports.setdefault(where, set()).add(name)
        return annotation

    def text(self) -> str:
        """Return the whole, formatted as the project's sources are."""
        imports = [f"from {where} import {', '.join(sorted(names))}" for where, names in sorted(self._imports.items())]
        whole = "\n".join([f'"""{self._about}"""', "", *imports, "", *self.lines])
        for arguments in (["check", "--select", "I", "--fix", "-q"], ["format", "-q"]):
            command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", "raftlog/stub.pyi", "-"]
            whole = subprocess.run(command, input=whole, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return whole


def docstrings(cls: type) -> Iterator[tuple[str, str]]:
    """Each field of a dataclass with its docstring, the class's own fields first."""
    for base in (one for one in cls.__mro__ if dataclasses.is_dataclass(one)):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                assert isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant), ast.unparse(field)
                yield field.target.id, inspect.cleandoc(text.value.value)


def keywords() -> str:
    """The stub `raftlog/client/keywords.pyi`."""
    stub = Stub("The keywords of the clients' constructors: the fields of `settings.py`, from which this is generated.")
    stub.use("TypedDict", sys.modules["raftlog.client.keywords"])
    for cls in (
        settings.AdminSettings,
        settings.ProducerSettings,
        settings.ConsumerSettings,
        settings.GroupConsumerSettings,
    ):
        types = {one.name: settings.keyword_type(one) for one in dataclasses.fields(cls)}
        stub.lines += ["", f"class {cls.__name__.replace('Settings', 'Keywords')}(TypedDict, total=False):"]
        for name, text in docstrings(cls):
            stub.lines += [f"    {name}: {stub.use(types[name], settings)}"]
            stub.lines += textwrap.indent(f'"""{text}' + ("\n" if "\n" in text else "") + '"""', "    ").split("\n")
    return stub.text()


def literal(default: object) -> str:
    """A default as a stub shows it."""
    return repr(default) if default is None or type(default) in (bool, int, float, str, tuple) else "..."


class TwinStub(Stub):
    """The stub of the blocking client: its finished classes, as `Twin` has made them."""

    def function(self, name: str, function: Any, *modules: ModuleType, indent: str = "") -> None:
        """Add a function, whose annotations are found in `modules`."""
        own = sys.modules[function.__module__]
        signature = inspect.signature(function)
        shown, star = [], False
        for one in signature.parameters.values():
            if one.kind is one.KEYWORD_ONLY and not star:
                shown, star = [*shown, "*"], True
            star = star or one.kind is one.VAR_POSITIONAL
            text = "*" * (one.kind is one.VAR_POSITIONAL) + one.name
            if one.annotation is not one.empty:
                text += f": {self.use(one.annotation, own, *modules)}"
            if one.default is not one.empty:
                text += f" = {literal(one.default)}"
            shown.append(text)
        result = signature.return_annotation
        if inspect.isgeneratorfunction(function):
            result = result.replace("AsyncIterator", "Iterator")
        self.use(result, sys.modules[Twin.__module__], own, *modules)
        self.lines.append(f"{indent}def {name}({', '.join(shown)}) -> {result}:")
        self.text_of(function, indent + "    ")

    def text_of(self, documented: Any, indent: str) -> None:
        """Add a docstring as the body, or an ellipsis."""
        text = inspect.cleandoc(documented.__doc__ or "")
        lines = f'"""{text}' + ("\n" if "\n" in text else "") + '"""' if text else "..."
        self.lines += textwrap.indent(lines, indent).split("\n")

    def add(self, cls: Any) -> None:
        """Add a class with its public members, in alphabetical order after the constructor."""
        self.lines += ["", f"class {cls.__name__}:"]
        self.text_of(cls, "    ")
        asyncio_classes = getattr(cls, "_twin_of", cls).__mro__[:-1]
        modules = [sys.modules[one.__module__] for one in asyncio_classes] + [settings]
        names = sorted(name for name in dir(cls) if not name.startswith("_"))
        for name in ("__init__", "__enter__", "__exit__", "__iter__", "__next__", *names):
            if name.startswith("_") and (cls.__name__, name) in NOT_FOR_PROGRAMS:
                continue
            member = inspect.getattr_static(cls, name, None)
            if isinstance(member, property):
                self.lines.append("    @property")
                self.function(name, member.fget, *modules, indent="    ")
            elif inspect.isfunction(member):
                self.function(name, member, *modules, indent="    ")
            elif inspect.isclass(member):
                self.lines.append(f"    {name} = {member.__name__}")


NOT_FOR_PROGRAMS = (("SentRecord", "__init__"), ("Transaction", "__init__"))
"""Constructors that only the library calls."""


def blocking() -> str:
    """The stub `raftlog/sync.pyi`."""
    names = list(raftlog.sync.__all__)
    about = "The blocking client, as type checkers see it; generated from its finished classes."
    stub = TwinStub(about, set(names))
    members = {name: getattr(raftlog.sync, name) for name in names}
    aliased = {one.__name__ for cls in members.values() for name, one in vars(cls).items() if name == "subscribe"}
    for name in sorted(names, key=lambda name: name not in aliased):
        member = members[name]
        if inspect.isclass(member):
            stub.add(member)
        else:
            stub.lines.append("")
            stub.function(name, member, sys.modules[Transaction.__module__])
    stub.lines += ["", f"__all__ = {names}"]
    return stub.text()


def shown(value: object) -> str:
    """A default as the documents show it."""
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, bool) or value is None:
        return f"`{value}`"
    assert isinstance(value, int | float)
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if value and value % unit == 0:
            return f"{value // unit} {name}"
    return f"{value:,g}" if value < 10_000 else f"{value:,}"


def table(cls: type) -> str:
    """The table of a settings class for the documents."""
    defaults = {one.name: one.default for one in dataclasses.fields(cls)}
    lines = [f"| setting (`{cls.__name__}`) | default | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {shown(defaults[name])} | {' '.join(text.split())} |" for name, text in docstrings(cls)]
    return "\n".join(lines) + "\n"


def with_tables(document: str) -> str:
    """A document's text with its tables of settings as they should be."""
    text = (ROOT / document).read_text()
    for cls in DOCUMENTS[document]:
        head = re.escape(table(cls).partition("\n")[0])
        text, count = re.subn(rf"{head}\n(?:\|.*\n)+", lambda _, cls=cls: table(cls), text)
        assert count == 1, f"{document} has no table of {cls.__name__}"
    return text


def made() -> Mapping[str, str]:
    """Path → the file's text as it should be."""
    stubs = {"raftlog/client/keywords.pyi": keywords(), "raftlog/sync.pyi": blocking()}
    return {**stubs, **{name: with_tables(name) for name in DOCUMENTS}}


if __name__ == "__main__":
    for name, text in made().items():
        (ROOT / name).write_text(text)
