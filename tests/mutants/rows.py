"""The results, one line of JSON per mutant, and their summary.

A row is valid as long as its file is unchanged (by git's hash of it). Of several rows of a mutant the last counts, so a
survivor is judged again after a test was written for it. A mutant that no test can distinguish from the product is
*equivalent*: `equivalent.jsonl` names it with the reason, and the score leaves it out.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .judging import INVALID, KILLED, SURVIVED, TIMEOUT

HERE = Path(__file__).parent
RESULTS = HERE / "mutants.jsonl"
EQUIVALENT = HERE / "equivalent.jsonl"


@dataclass(frozen=True)
class Score:
    """The summary of the valid rows."""

    killed: int
    survived: list[Mapping[str, Any]]
    equivalent: int
    outdated: int
    """Rows of files that have changed since then."""
    by_folder: Mapping[str, tuple[int, int]]
    """Folder → number of killed, and of killed or survived."""

    @property
    def ratio(self) -> float:
        """The share of killed mutants among those that can be killed."""
        judged = self.killed + len(self.survived)
        return self.killed / judged if judged else 0.0


def blob_of(content: bytes) -> str:
    """The hash of `git hash-object`."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def read(file: Path) -> list[dict[str, Any]]:
    """All rows; an incomplete last line is skipped."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def counting(rows: Iterable[Mapping[str, Any]], root: Path) -> tuple[dict[str, Mapping[str, Any]], int]:
    """Return mutant → its last row, if its file is unchanged; and the number of outdated rows."""
    blobs: dict[str, str] = {}
    last: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        last[row["mutant"]] = row
    found = {}
    for mutant, row in last.items():
        path = root / row["file"]
        if row["file"] not in blobs:
            blobs[row["file"]] = blob_of(path.read_bytes()) if path.exists() else ""
        if blobs[row["file"]] == row["blob"]:
            found[mutant] = row
    return found, len(last) - len(found)


def equivalents(file: Path = EQUIVALENT) -> dict[str, str]:
    """Mutant → the reason why it is equivalent to the product. Raises `ValueError` if a reason is missing."""
    found = {}
    for row in read(file):
        if not str(row["why"]).strip():
            raise ValueError(f"{file}: {row['mutant']} has no reason")
        found[str(row["mutant"])] = str(row["why"])
    return found


def score(rows: Iterable[Mapping[str, Any]], root: Path, equivalent: Mapping[str, str]) -> Score:
    """Summarize the rows for the tree at `root`."""
    counted, outdated = counting(rows, root)
    judged = [row for row in counted.values() if row["outcome"] != INVALID]
    killed = [row for row in judged if row["outcome"] in (KILLED, TIMEOUT)]
    survived = [row for row in judged if row["outcome"] == SURVIVED]
    open_ones = [row for row in survived if row["mutant"] not in equivalent]
    dead, all_of = (Counter(_folder(row["file"]) for row in rows) for rows in (killed, [*killed, *open_ones]))
    by_folder = {folder: (dead[folder], total) for folder, total in sorted(all_of.items())}
    return Score(len(killed), open_ones, len(survived) - len(open_ones), outdated, by_folder)


def _folder(file: str) -> str:
    return file.rpartition("/")[0]
