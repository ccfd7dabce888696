"""The validity of simulated results: those count that were made by the present code.

A commit has the code of a kind of world if none of the files that such a world runs differs from it. These are found by
following imports from the file that runs the world, leaving out files that are imported but never called. So changes of
documents, tests, or unrelated code do not void a night of seeds.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

from jepsen_like.provenance.same_code import SameCode, commit_of

CARRIER = ("raftlog/http2/",)
"""The worlds have their own network."""

TRANSACTIONS = (
    "metadata/commands/transactions.py",
    "metadata/image/transaction_commit.py",
    "metadata/image/transaction_ends.py",
    "metadata/controller/transaction_expiry.py",
)
"""These worlds never begin a transaction."""

ROOTS: Mapping[str, str] = {
    "quorum": "jepsen_like/simulator/quorum/run.py",
    "groups": "jepsen_like/simulator/groups/run.py",
    "consumers": "jepsen_like/simulator/consumers/run.py",
    "security": "jepsen_like/simulator/security/run.py",
    "cluster": "jepsen_like/simulator/cluster/run.py",
    "transactions": "jepsen_like/simulator/transactions/run.py",
    "clients": "jepsen_like/simulator/library/run.py",
}
"""Kind → the file that runs its worlds."""

NEVER_CALLED: Mapping[str, tuple[str, ...]] = {
    "quorum": CARRIER + TRANSACTIONS,
    "groups": CARRIER + TRANSACTIONS,
    "consumers": CARRIER + TRANSACTIONS,
    "security": CARRIER + TRANSACTIONS,
    "cluster": CARRIER,
    "transactions": CARRIER,
    "clients": (),
}
"""Prefixes of paths. A test runs worlds and checks that nothing in these files is called."""

TOP = Path(__file__).resolve().parents[3]


def commit_of_this_tree(kind: str) -> str:
    """Return the commit of the running code, with a plus sign if the world's files differ from it; `unknown` outside a
    repository.
    """
    return commit_of(TOP, _paths(kind))


def same_code(kind: str) -> SameCode:
    """Return the test whether a shard's result was made by the present code."""
    return SameCode(TOP, kind, lambda: _paths(kind))


def _paths(kind: str) -> list[str]:
    return [f":(top,literal){path}" for path in files(kind)]


@functools.cache
def files(kind: str) -> tuple[str, ...]:
    """Return the files that a world of this kind runs, as paths below the repository's top."""
    found: set[Path] = set()
    to_read = [TOP / ROOTS[kind]]
    while to_read:
        file = to_read.pop()
        if file in found:
            continue
        found.add(file)
        to_read.extend(imported for name in _imports(file) if (imported := _file(name)) is not None)
    names = sorted(str(file.relative_to(TOP)) for file in found)
    return tuple(name for name in names if not name.startswith(NEVER_CALLED[kind]))


def _imports(file: Path) -> Iterator[tuple[str, ...]]:
    """Yield the modules that a file imports, in functions as well. A package is not counted for an import of its
    module.
    """
    here = file.parent.relative_to(TOP).parts
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (tuple(name.name.split(".")) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = here[: len(here) - node.level + 1] if node.level else ()
            module = (*package, *(node.module or "").split(".")) if node.module else package
            yield module
            yield from ((*module, name.name) for name in node.names)


def _file(module: tuple[str, ...]) -> Path | None:
    """Return the file of a module, or None if it is not ours or not a module."""
    path = TOP.joinpath(*module)
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if module and file.is_file():
            return file
    return None
