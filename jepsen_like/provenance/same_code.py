"""Validity of kept results: a result counts if its commit has the present code, or if it is recorded as still holding.

A change of the judged code invalidates a result, unless `still_holds.jsonl` names the commit of the change,
the kinds of results that outlive it, and why. A line may also name the last commit (`until`) of a series that moved
and merged files, and the results' commits that counted when the series began (`results`): git cannot
compare such commits, because their paths differ. These lines apply only to results without a violation: a seed with a
violation is run again on the present code.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

STILL_HOLDS = "jepsen_like/still_holds.jsonl"
COMMIT = re.compile("[0-9a-f]{7,40}")
GIT_SECONDS = 60.0
UNKNOWN = "unknown"


class SameCode:
    """Decides whether a commit's results count for the present code. Each commit is examined once."""

    def __init__(self, top: Path, kind: str, paths: Callable[[], Sequence[str]]) -> None:
        """`kind`: the kind of results in `still_holds.jsonl`. `paths`: git paths of the files that they judge."""
        self._top = top
        self._kind = kind
        self._paths = paths
        self._here: dict[str, bool] = {}
        self._held: dict[str, bool] = {}

    def __call__(self, commit: str, clean: bool) -> bool:
        """Return whether a commit's result counts; False also for an unknown commit, or one with local changes on top.

        `clean`: the result has no violation. Raises `ValueError` for a line of `still_holds.jsonl` without a reason.
        """
        if COMMIT.fullmatch(commit) is None:
            return False
        if commit not in self._here:
            self._here[commit] = is_here(self._top, commit, self._paths())
        if self._here[commit] or not clean:
            return self._here[commit]
        if commit not in self._held:
            self._held[commit] = self._still_holds(commit)
        return self._held[commit]

    def _still_holds(self, commit: str) -> bool:
        """Return whether every later change of these files, up to the tree's own commit, is recorded as harmless."""
        paths = self._paths()
        changes, series = self._told()
        since = next((until for until, results in reversed(series) if commit.startswith(results)), commit)
        ancestor, _ = _git(self._top, "merge-base", "--is-ancestor", since, "HEAD")
        status, found = _git(self._top, "log", "--format=%H", f"{since}..HEAD", "--", *paths)
        if ancestor != 0 or status != 0 or not is_here(self._top, "HEAD", paths):
            return False
        return all(change.startswith(changes) for change in found.split())

    def _told(self) -> tuple[tuple[str, ...], list[tuple[str, tuple[str, ...]]]]:
        """Return the commits after which results of this kind still hold, and the series of commits.

        A series is its last commit, with the commits whose results hold after it.
        """
        file = self._top / STILL_HOLDS
        changes: list[str] = []
        series: list[tuple[str, tuple[str, ...]]] = []
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
            one = json.loads(line)
            results = tuple(one.get("results", ()))
            last = one["until" if "results" in one else "commit"]
            if not all(map(COMMIT.fullmatch, (last, *results))) or not one["why"].strip():
                raise ValueError(f"{file}: a line needs a commit and the reason why results hold after it: {line}")
            if self._kind not in one["kinds"]:
                continue
            if "results" in one:
                series.append((last, results))
            else:
                changes.append(last)
        return tuple(changes), series


def commit_of(top: Path, paths: Sequence[str]) -> str:
    """Return the tree's commit, with a plus sign if these files differ from it; `unknown` outside a repository."""
    status, found = _git(top, "rev-parse", "--short=12", "HEAD")
    if status != 0 or not found:
        return UNKNOWN
    return found if is_here(top, found, paths) else f"{found}+"


def is_here(top: Path, commit: str, paths: Sequence[str]) -> bool:
    """Return whether these files are those of the commit."""
    status, _ = _git(top, "diff", "--quiet", commit, "--", *paths)
    return status == 0


def _git(top: Path, *arguments: str) -> tuple[int, str]:
    try:
        asked = subprocess.run(
            ["git", *arguments], cwd=top, capture_output=True, text=True, check=False, timeout=GIT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return 1, ""
    return asked.returncode, asked.stdout.strip()
