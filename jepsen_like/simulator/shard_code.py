"""Which results of simulated worlds still count: those that were run by the code that is here now.

A commit's code is that of a kind of world if none of the files that such a world runs differs from it. Those are found
by following imports from the file that runs it; left out is what it names and never calls. So what only documents,
tests, or works elsewhere, does not void a night of seeds.

A change of such a file voids them, unless `still_holds.jsonl` beside this file names its commit and says why a world
that held before it holds after it: a check, say, that takes more than it did. Such a line is only believed of worlds
that held: whatever was found is looked for again by the code that is here now.

What is *not* here: results (`shard.py`).
"""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

CARRIER = ("raftlog/http2/",)
"""The worlds have a network of their own."""

TRANSACTIONS = tuple(f"metadata/groups/transaction_{part}.py" for part in ("changes", "commit", "ends", "expiry"))
"""Nobody begins one in these worlds."""

ROOTS: Mapping[str, str] = {
    "quorum": "jepsen_like/simulator/quorum_run.py",
    "groups": "jepsen_like/simulator/group_run.py",
    "cluster": "jepsen_like/simulator/run.py",
    "transactions": "jepsen_like/simulator/transaction_run.py",
}
"""Kind → the file that runs its worlds."""

NEVER_CALLED: Mapping[str, tuple[str, ...]] = {
    "quorum": CARRIER + TRANSACTIONS,
    "groups": CARRIER + TRANSACTIONS,
    "cluster": CARRIER,
    "transactions": CARRIER,
}
"""Beginnings of paths. A test runs worlds and looks that nothing in these files is called."""

TOP = Path(__file__).resolve().parents[2]
STILL_HOLDS = "jepsen_like/simulator/still_holds.jsonl"
COMMIT = re.compile("[0-9a-f]{7,40}")
GIT_SECONDS = 60.0


def commit_of_this_tree(kind: str) -> str:
    """The code that runs; with a plus sign where the world's files differ from the commit. `unknown` outside a
    repository."""
    status, found = _git("rev-parse", "--short=12", "HEAD")
    if status != 0 or not found:
        return "unknown"
    return found if _is_here(found, kind) else f"{found}+"


class SameCode:
    """Whether a commit's results count as the present code's, for one kind of world. Each commit is looked at once."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._here: dict[str, bool] = {}
        self._held: dict[str, bool] = {}

    def __call__(self, commit: str, clean: bool) -> bool:
        """False as well for a commit that is not known here, or that was run with changes on top. `clean`: the result
        found nothing."""
        if COMMIT.fullmatch(commit) is None:
            return False
        if commit not in self._here:
            self._here[commit] = _is_here(commit, self._kind)
        if self._here[commit] or not clean:
            return self._here[commit]
        if commit not in self._held:
            self._held[commit] = _still_holds(commit, self._kind)
        return self._held[commit]


def _is_here(commit: str, kind: str) -> bool:
    status, _ = _git("diff", "--quiet", commit, "--", *(f":(top,literal){path}" for path in files(kind)))
    return status == 0


def _still_holds(commit: str, kind: str) -> bool:
    """Whether each change of this kind's files since then, up to the tree's own commit, is told to be harmless."""
    paths = [f":(top,literal){path}" for path in files(kind)]
    ancestor, _ = _git("merge-base", "--is-ancestor", commit, "HEAD")
    unchanged, _ = _git("diff", "--quiet", "HEAD", "--", *paths)
    status, changes = _git("log", "--format=%H", f"{commit}..HEAD", "--", *paths)
    if ancestor != 0 or unchanged != 0 or status != 0:
        return False
    told = _told(kind)
    return all(any(change.startswith(one) for one in told) for change in changes.split())


def _told(kind: str) -> list[str]:
    """Commits after which worlds of this kind hold as before. Raises `ValueError` for a line without a reason."""
    file = TOP / STILL_HOLDS
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        one = json.loads(line)
        if COMMIT.fullmatch(one["commit"]) is None or not one["why"].strip():
            raise ValueError(f"{file}: a line needs a commit and the reason why results hold after it: {line}")
        if kind in one["kinds"]:
            found.append(str(one["commit"]))
    return found


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


def _git(*arguments: str) -> tuple[int, str]:
    asked = subprocess.run(
        ["git", *arguments],
        cwd=TOP,
        capture_output=True,
        text=True,
        check=False,
        timeout=GIT_SECONDS,
    )
    return asked.returncode, asked.stdout.strip()
