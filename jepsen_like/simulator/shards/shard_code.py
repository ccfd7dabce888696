"""Which results of simulated worlds still count: those that were run by the code that is here now.

A commit's code is that of a kind of world if none of the files that such a world runs differs from it. Those are found
by following imports from the file that runs it; left out is what it names and never calls. So what only documents,
tests, or works elsewhere, does not void a night of seeds.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

from jepsen_like.provenance.same_code import SameCode, commit_of

CARRIER = ("raftlog/http2/",)
"""The worlds have a network of their own."""

TRANSACTIONS = (
    "metadata/commands/transactions.py",
    "metadata/image/transaction_commit.py",
    "metadata/image/transaction_ends.py",
    "metadata/controller/transaction_expiry.py",
)
"""Nobody begins one in these worlds."""

ROOTS: Mapping[str, str] = {
    "quorum": "jepsen_like/simulator/quorum/run.py",
    "groups": "jepsen_like/simulator/groups/run.py",
    "cluster": "jepsen_like/simulator/cluster/run.py",
    "transactions": "jepsen_like/simulator/transactions/run.py",
    "clients": "jepsen_like/simulator/library/run.py",
}
"""Kind → the file that runs its worlds."""

NEVER_CALLED: Mapping[str, tuple[str, ...]] = {
    "quorum": CARRIER + TRANSACTIONS,
    "groups": CARRIER + TRANSACTIONS,
    "cluster": CARRIER,
    "transactions": CARRIER,
    "clients": (),
}
"""Beginnings of paths. A test runs worlds and looks that nothing in these files is called."""

TOP = Path(__file__).resolve().parents[3]


def commit_of_this_tree(kind: str) -> str:
    """The code that runs; with a plus sign where the world's files differ from the commit. `unknown` outside a
    repository."""
    return commit_of(TOP, _paths(kind))


def same_code(kind: str) -> SameCode:
    """Whether a shard's result was made by the code that is here."""
    return SameCode(TOP, kind, lambda: _paths(kind))


def _paths(kind: str) -> list[str]:
    return [f":(top,literal){path}" for path in files(kind)]


@functools.cache
def files(kind: str) -> tuple[str, ...]:
    """What a world of this kind runs, as paths below the repository's top."""
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
    """Modules that a file names, in functions as well. A package on the way to a module is not named by it."""
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
    """None for what is not ours, and for what is no module."""
    path = TOP.joinpath(*module)
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if module and file.is_file():
            return file
    return None
