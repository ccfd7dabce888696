"""The product's source files, parsed once, and their imports."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("raftlog", "metadata", "partitions", "http_api", "spark_source", "jepsen_like")


@dataclass(frozen=True)
class Source:
    """One module: `name` is dotted, `imports` are absolute dotted names with their lines."""

    path: Path
    name: str
    text: str
    tree: ast.Module
    imports: tuple[tuple[str, int], ...]

    @property
    def relative(self) -> str:
        return str(self.path.relative_to(ROOT))


@functools.cache
def sources() -> tuple[Source, ...]:
    """Every module of the product, sorted by path."""
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return tuple(_read(path) for path in paths)


def _read(path: Path) -> Source:
    text = path.read_text()
    tree = ast.parse(text)
    parts = path.relative_to(ROOT).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    name = ".".join(parts[:-1] if is_package else parts)
    package = name if is_package else name.rpartition(".")[0]
    return Source(path, name, text, tree, tuple(_imports(tree, package)))


def _imports(tree: ast.Module, package: str) -> list[tuple[str, int]]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            # `from package import module` names a module, `from module import name` names the module itself.
            found += [(f"{base}.{alias.name}", node.lineno) for alias in node.names]
    return found
